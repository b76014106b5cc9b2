"""A run directory from a stranger: none of its code is run, and nothing outside it is touched or waited for.

A problem in it is reported in one line that names the file.
"""

import hashlib
import json
import os
import pickle
import re
import shutil
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.commands import files_in
from support.results import edit_text

from pe_bench.encodings.load import OUTSIDE_MODULE
from pe_bench.errors import RunError, UserError
from pe_bench.runs.folder import FirstStage, read_config
from pe_bench.runs.gather import read_all
from pe_bench.runs.untrusted import MAX_BYTES, check_files, read_regular
from pe_bench.system.terminal import CONTROL

SCRIPT = "<script>alert(1)</script>"
ESCAPE = "\x1b[2J\x1b]0;owned\x07"
BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi"))  # noqa: B905
CODE = "import os, pathlib\npathlib.Path(os.environ['CANARY']).touch()\n"


class Evil:
    """An object that touches the canary when it is unpickled."""

    def __reduce__(self) -> tuple[Callable, tuple]:
        return os.system, ('touch "$CANARY"',)


def header(**tensors: dict) -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


TEN_GIGABYTES = {"dtype": "F32", "shape": [2_500_000_000], "data_offsets": [0, 10_000_000_000]}
NOT_SAFETENSORS = {
    "a pickle": pickle.dumps(Evil()),
    "a tensor of ten gigabytes": header(nll=TEN_GIGABYTES),
    "nested JSON": struct.pack("<Q", 90_000) + b"[" * 90_000,
}


def test_invalid_tensors_are_refused_by_name_or_made_again(stranger):
    weights, score = stranger.step / "weights.safetensors", stranger.score.read_bytes()
    before = weights.read_bytes()
    for content in NOT_SAFETENSORS.values():
        stranger.score.write_bytes(content)
        (stranger.run / "means.safetensors").unlink()
        assert f"{stranger.score.name} is damaged" in stranger.report("--markdown", "-").out
        assert stranger.eval().code == 0
        assert stranger.score.read_bytes() == score
        weights.write_bytes(content)
        stranger.sign()
        for outcome in (stranger.eval(), stranger.start_from(stranger.results / "new")):
            assert outcome.code == 2 and f"{weights} cannot be read as safetensors" in outcome.line
        weights.write_bytes(before)
        stranger.sign()
    (stranger.step / "optimizer.safetensors").write_bytes(NOT_SAFETENSORS["a pickle"])
    stranger.sign()
    stranger.unfinish()
    outcome = stranger.train()
    assert outcome.code == 2 and "optimizer.safetensors cannot be read as safetensors" in outcome.line


def test_moments_of_another_shape_are_refused_before_the_optimizer_gets_them(stranger):
    from safetensors.torch import load_file, save_file

    path = stranger.step / "optimizer.safetensors"
    tensors = load_file(path)
    name = next(key for key in tensors if key.endswith("exp_avg"))
    save_file(tensors | {name: tensors[name].flatten()[:1].clone()}, path)
    stranger.sign()
    stranger.unfinish()
    outcome = stranger.train()
    assert outcome.code == 2 and "the moments in" in outcome.line and name in outcome.line


NOT_YAML = {
    "an object of Python's": ("a: !!python/object/apply:os.system ['touch $CANARY']\n", "python/object"),
    "a bomb of aliases": (BOMB, "it has aliases"),
    "a bomb in UTF-16": (BOMB.encode("utf-16"), "can't decode"),
    "deep lists": ("a: " + "[" * 60_000, "nested too deeply"),
    "deep lists in lines": ("a:\n" + "- " * 20_000 + "1\n", "nested too deeply"),
    "a hundred megabytes": ("# " + "x" * 100_000, "it has over 65,536 bytes"),
    "escape codes": ('a: "\\e[2J"\n', "control characters"),
    "an interpolation": ("a: ${oc.env:HOME}\n", "interpolations"),
    "no mapping": ("- 1\n", "it holds no keys"),
    "nothing at all": ("\0", "is missing or damaged"),
}


def test_a_configuration_that_holds_more_than_plain_values_is_refused_by_name(stranger):
    path = stranger.run / "config.yaml"
    check_files(stranger.run)
    for text, reason in NOT_YAML.values():
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(UserError, match=f"config.yaml.*{reason}"):
            read_config(stranger.run)
    for outcome in (stranger.eval(), stranger.start_from(stranger.results / "new")):
        assert outcome.code in (1, 2) and "config.yaml is missing or damaged" in outcome.line


INTERPOLATIONS = (
    "${oc.env:PE_BENCH_SECRET}",
    *(rf'"{dollar}{{oc.env:PE_BENCH_SECRET}}"' for dollar in (r"\x24", r"\u0024", r"\U00000024")),
    *(r'"$\x7boc.env:PE_BENCH_SECRET}"', '"$\\\n  {oc.env:PE_BENCH_SECRET}"'),
    r'{"\x24{oc.env:PE_BENCH_SECRET}": 1}',
)


def test_no_interpolation_is_resolved_however_its_dollar_sign_is_written(stranger, monkeypatch):
    monkeypatch.setenv("PE_BENCH_SECRET", "hunter2")
    path = stranger.run / "config.yaml"
    text = path.read_text().partition("\n")[2]
    for sign in INTERPOLATIONS:
        path.write_text(re.sub(r"(?m)^  d_model: .*", lambda _: f"  d_model: {sign}", text))  # noqa: B023
        with pytest.raises(UserError, match="it has interpolations"):
            read_config(stranger.run)
    for outcome in (stranger.eval(), stranger.report("--html", str(stranger.page), "--by", "seed")):
        assert "hunter2" not in outcome.out + outcome.err
    for file in stranger.results.parent.rglob("*"):
        assert not file.is_file() or b"hunter2" not in file.read_bytes()


TARGETS = (
    lambda values: values["encoding"].update(_target_="os.system"),
    lambda values: values["encoding"].update(modifiers={"x": {"_target_": "os.system"}}),
    lambda values: values["encoding"].update(base={"_target_": "os.system"}),
)
CLASSES = {
    "../work/evil.py:Evil": "is code from outside pe-bench, ../work/evil.py:Evil with hash None",
    "os:system": "is code from outside pe-bench, os:system with hash None",
    "an_entry": "is code from outside pe-bench, an_entry with hash None",
    "pe_bench.encodings.load:Path": "",
    "pe_bench.encodings.nothing:Nothing": "",
}


def test_no_target_of_hydras_and_no_class_that_the_run_names_is_ever_imported(stranger):
    for folder in (Path(), stranger.run):
        (folder / "evil.py").write_text(CODE)
    changes = [(change, "") for change in TARGETS]
    for name, told in CLASSES.items():
        changes.append((lambda values, name=name: values["encoding"].update({"class": name}), told))
    config = (stranger.run / "config.yaml").read_text()
    for change, told in changes:
        (stranger.run / "config.yaml").write_text(config)
        stranger.change_config(change)
        outcome = stranger.eval()
        assert outcome.code == 2 and told in outcome.line
    assert stranger.report("--by", "train.lr").code == stranger.list().code == 0


def test_a_file_is_imported_only_if_it_has_the_hash_that_the_run_recorded(stranger):
    def outside_modules() -> set[str]:
        return {name for name in sys.modules if name.startswith(OUTSIDE_MODULE)}

    before = outside_modules()  # other tests may have named files of their own
    Path("named.py").write_text(CODE)
    recorded = hashlib.sha256(b"another file").hexdigest()[:16]
    stranger.change_config(
        lambda values: values["encoding"].update({"class": "named.py:Evil", "code_sha256": recorded})
    )
    outcome = stranger.eval("--code", "named.py")
    assert outcome.code == 2 and recorded in outcome.line
    assert hashlib.sha256(CODE.encode()).hexdigest()[:16] in outcome.line
    assert outside_modules() == before


NOT_JSON = {
    "deep": '{"a": ' + "[" * 900 + "]" * 900 + "}",
    "huge": '{"a": "' + "x" * 2_000_000 + '"}',
    "escape codes": '{"steps": "\\u001b[2J", "loss": 1.0}',
    "other kinds": '{"format": [], "steps": {}, "loss": "x"}',
}


def test_invalid_json_is_named_or_skipped(stranger):
    paths = [stranger.run / file for file in ("commands.json", "environment.json", "result.json")]
    for path in (stranger.step / "meta.json", *paths):
        before = path.read_bytes()
        for text in NOT_JSON.values():
            path.write_text(text)
            outcomes = [stranger.eval()]
            if path.name == "result.json":
                outcomes += [stranger.list(), stranger.report("--html", str(stranger.page))]
            for outcome in outcomes:
                assert outcome.code in (0, 1, 2) and not CONTROL.search(outcome.out + outcome.err), path
                assert outcome.code == 0 or outcome.line
        path.write_bytes(before)


@pytest.mark.parametrize("name", ["../elsewhere", "..", "", 7])
def test_a_first_stage_that_is_no_name_is_not_looked_for(name):
    facts = {"run": name, "length": 8, "steps": 1, "setting": "x", "longest": 16}
    assert FirstStage.read({}) is None
    with pytest.raises(UserError):
        FirstStage.read({"first_stage": facts | ({"length": "x"} if name == 7 else {})})


ROWS = {
    "a formula": (",rope,", ",=HYPERLINK(1),", "begins as a formula"),
    "a huge cell": (",rope,", f",{'x' * 200_000},", "field larger than field limit"),
    "escape codes": (",rope,", f",{ESCAPE},", "control characters"),
    "a path in a hash": ("paired,", "paired/../../../outside,", "cannot stand in a file's name"),
    "a length below zero": (",32,", ",-32,", "which cannot be"),
    "a length beyond all": (",32,", f",{10**30},", "which cannot be"),
    "a number of many digits": (",32,", f",{'9' * 10_000},", "which cannot be"),
}


def test_rows_that_could_do_harm_are_refused_by_name(stranger):
    path = stranger.run / "eval.csv"
    content = path.read_bytes()
    for old, new, reason in ROWS.values():
        path.write_bytes(content)
        edit_text(path, old, new)
        [problem] = read_all(stranger.results).problems.values()
        assert "eval.csv is damaged" in problem and reason in problem
        assert not CONTROL.search(problem)
    outcome = stranger.eval()
    assert outcome.code == 1 and "eval.csv is damaged" in outcome.line


def test_control_characters_in_a_folders_name_are_shown_as_text(stranger):
    for name in (f"x{ESCAPE}", "=1+1", "[red]x[-blue]", SCRIPT.replace("/", "")):
        shutil.copytree(stranger.run, stranger.run.with_name(name))
    for outcome in (stranger.list(), stranger.report(), stranger.report("--csv", "-")):
        assert outcome.code == 0 and not CONTROL.search(outcome.out + outcome.err)
    assert "[red]x[-blue]" in stranger.list().out
    assert stranger.eval().code == 0
    assert all(line[0] != "=" for line in (stranger.results / "results.csv").read_text().splitlines())


# Links, pipes and folders in place of a run's files: none is followed, waited for or written to


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_in(folder)}


@pytest.mark.parametrize("name", ["scores", "eval.csv", "lock", ""])
def test_a_link_is_refused_by_name_and_what_it_points_to_stays_as_it_is(stranger, name, tmp_path):
    path, outside = stranger.run / name, tmp_path / "outside"
    if not name:
        (stranger.run / "result.json").unlink()  # so that the training begins
    shutil.move(path, outside)
    path.symlink_to(outside)
    before = outside.read_bytes() if outside.is_file() else contents(outside)
    for outcome in (stranger.eval(), stranger.train()) if name else (stranger.train(),):
        assert outcome.code in (1, 2) and f"{path} is a symbolic link" in outcome.line
    assert (outside.read_bytes() if outside.is_file() else contents(outside)) == before


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """Raise an error in a test that waits for a pipe."""

    def fail(*_: object) -> None:
        raise AssertionError("it waits for a pipe")

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


@pytest.mark.usefixtures("no_waiting")
def test_a_pipe_is_never_waited_for(stranger):
    stranger.unfinish()
    folder = stranger.step.with_name("step-00000007")
    for path in (
        *(stranger.run / name for name in ("commands.json", "eval.csv", "config.yaml")),
        folder / "meta.json",
    ):
        path.unlink()
        os.mkfifo(path)
        for told, outcome in stranger.each():
            assert outcome.code in (0, 1, 2), told
            assert not outcome.code or outcome.line, told
    assert stranger.start_from(stranger.results / "new").code in (0, 1, 2)


def test_one_reader_takes_regular_files_of_a_bounded_size_alone(tmp_path, no_waiting):
    for number, (kind, make) in enumerate(NOT_FILES.items()):
        path = tmp_path / f"{number}.json"
        make(path, tmp_path / f"outside-{number}")
        with pytest.raises(OSError, match="symbolic link" if "link" in kind else "no plain file"):
            read_regular(path)
    with pytest.raises(RunError, match="is not a regular file|is a symbolic link"):
        check_files(tmp_path)
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
