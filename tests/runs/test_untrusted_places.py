"""Links, pipes and folders in place of a run's files: none is followed, waited for or written to."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.commands import files_in

from pe_bench.runs.untrusted import MAX_BYTES, read_regular


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_in(folder)}


LINKS = (*("scores", "checkpoints/step-00000008", "eval.csv", "lock", "result.json", "deep/inside"),)


@pytest.mark.parametrize("name", LINKS)
def test_a_link_is_refused_by_name_and_what_it_points_to_stays_as_it_is(stranger, name, tmp_path):
    path, outside = stranger.run / name, tmp_path / "outside"
    outside.mkdir()
    (outside / "diary.txt").write_text("dear diary")
    if path.exists():
        path.rename(outside / path.name)
    path.parent.mkdir(exist_ok=True)
    target = outside / path.name if (outside / path.name).exists() else outside
    path.symlink_to(target if "lock" not in name else outside / "diary.txt")
    before = contents(outside)
    for told, outcome in stranger.each():
        if told in ("eval", "train"):
            assert outcome.code in (1, 2) and f"{path} is a symbolic link" in outcome.line, told
    assert contents(outside) == before


def test_a_run_that_is_itself_a_link_is_not_written_to(stranger, tmp_path):
    elsewhere = Path(shutil.move(stranger.run, tmp_path / "elsewhere"))
    (elsewhere / "result.json").unlink()
    stranger.run.symlink_to(elsewhere)
    before = contents(elsewhere)
    assert f"{stranger.run} is a symbolic link" in stranger.train().line
    assert contents(elsewhere) == before


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """Raise an error in a test that waits for a pipe."""

    def fail(*_: object) -> None:
        raise AssertionError("it waits for a file that is none")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


NOT_FILES: dict[str, Callable[[Path, Path], None]] = {
    "a pipe": lambda path, outside: os.mkfifo(path),
    "a link to a pipe": lambda path, outside: (os.mkfifo(outside), path.symlink_to(outside))[-1],
    "a link to a device": lambda path, outside: path.symlink_to("/dev/zero"),
    "a link to nothing": lambda path, outside: path.symlink_to(outside),
    "a folder": lambda path, outside: path.mkdir(),
}


READ = ("eval.csv", "config.yaml", "meta.json", "result.json", "environment.json", "commands.json")
# Every file as a pipe, which would be waited for, and one of them as everything else.
PLACES = [
    *((name, "a pipe") for name in READ),
    *(("eval.csv", kind) for kind in NOT_FILES if kind != "a pipe"),
]


@pytest.mark.parametrize(("name", "kind"), PLACES)
@pytest.mark.usefixtures("no_waiting")
def test_what_is_no_plain_file_is_never_waited_for(stranger, name, kind, tmp_path):
    if name == "meta.json":
        stranger.unfinish()
    (path,) = [path for path in stranger.run.rglob(name) if path.parent.name != "step-00000006"]
    path.unlink()
    NOT_FILES[kind](path, tmp_path / "outside")
    for told, outcome in stranger.each():
        assert outcome.code in (0, 1, 2), told
        assert not outcome.code or outcome.line, told
    assert stranger.start_from(stranger.results / "new").code in (0, 1, 2)


def test_one_reader_takes_regular_files_of_a_bounded_size_alone(tmp_path, no_waiting):
    for number, (kind, make) in enumerate(NOT_FILES.items()):
        place = tmp_path / f"{number}.json"
        make(place, tmp_path / f"outside-{number}")
        with pytest.raises(OSError, match="symbolic link" if "link" in kind else "no plain file"):
            read_regular(place)
    (tmp_path / "large.yaml").write_bytes(b"x" * (MAX_BYTES[".yaml"] + 1))
    with pytest.raises(OSError, match="it has over 65,536 bytes"):
        read_regular(tmp_path / "large.yaml")
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "nothing.json")


@pytest.mark.parametrize("key", ["results_dir", "cache_dir"])
def test_no_folder_that_the_run_names_is_written_to(stranger, key, tmp_path):
    stranger.change_config(lambda values: values.update({key: str(tmp_path / "theirs")}))
    assert stranger.eval("--max-length", "48").code == 0
    assert not (tmp_path / "theirs").exists()
