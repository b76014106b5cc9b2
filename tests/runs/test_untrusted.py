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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import Command, Outcome, files_in, only_run, tiny_overrides
from support.results import edit_text

from pe_bench.errors import RunError, UserError
from pe_bench.runs.folder import FirstStage, read_all, read_config
from pe_bench.runs.untrusted import MAX_BYTES, check_files, read_regular
from pe_bench.scoring import stages
from pe_bench.system.terminal import CONTROL_SIGNS

ESCAPE = "\x1b[2J\x1b]0;owned\x07"
BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi"))  # noqa: B905
CODE = "import os, pathlib\npathlib.Path(os.environ['CANARY']).touch()\n"


@dataclass(frozen=True)
class Stranger:
    """A finished run that a test may damage, and the commands that read it."""

    folder: Path
    run: Path
    command: Command

    def eval(self, *arguments: str) -> Outcome:
        return self._in_results("eval", str(self.run), "--lengths", "16,32", "--threads", "1", *arguments)

    def report(self, *arguments: str) -> Outcome:
        return self._in_results("report", *arguments)

    def list(self) -> Outcome:
        return self._in_results("list", "runs")

    def export(self) -> Outcome:
        return self._in_results("export", str(self.run), "--hf", str(self.folder / "exported"))

    def extend(self, *arguments: str) -> Outcome:
        return self._in_results("extend", str(self.run), *arguments, "threads=1")

    def train(self, *arguments: str) -> Outcome:
        return self.command("train", *tiny_overrides(self.folder), "encoding=rope", *arguments)

    def start_from(self) -> Outcome:
        return self.train(f"train.from={self.run}", f"results_dir={self.folder / 'new'}")

    def _in_results(self, *arguments: str) -> Outcome:
        return self.command(*arguments, "--results-dir", str(self.folder / "results"))

    @property
    def step(self) -> Path:
        return self.run / "checkpoints" / "step-00000008"

    def set_values(self, section: str, **values: Any) -> None:
        config = yaml.safe_load((self.run / "config.yaml").read_text())
        (config[section] if section else config).update(values)
        (self.run / "config.yaml").write_text(yaml.safe_dump(config))

    def sign(self) -> None:
        """Write matching checksums, as a stranger can."""
        meta = json.loads((self.step / "meta.json").read_text())
        names = ("weights.safetensors", "optimizer.safetensors")
        sums = {name: hashlib.sha256((self.step / name).read_bytes()).hexdigest() for name in names}
        (self.step / "meta.json").write_text(json.dumps({**meta, "checksums": sums}))

    def unfinish(self) -> None:
        """Make the run look as if training had stopped at this checkpoint."""
        (self.run / "result.json").unlink()
        edit_text(self.step / "meta.json", '"step": 8', '"step": 7')
        self.step.rename(self.step.with_name("step-00000007"))


@pytest.fixture
def stranger(begin: Command, command: Command, folder: Path, monkeypatch) -> Iterator[Stranger]:
    begin("encoding=rope")
    monkeypatch.setenv("CANARY", str(folder / "canary"))
    yield Stranger(folder, only_run(folder), command)
    assert not (folder / "canary").exists(), "code of the run was executed"


class Evil:
    """An object that touches the canary when it is unpickled."""

    def __reduce__(self) -> tuple[Callable, tuple]:
        return os.system, ('touch "$CANARY"',)


def header(**tensors: dict) -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


NOT_SAFETENSORS = (
    pickle.dumps(Evil()),
    header(nll={"dtype": "F32", "shape": [2_500_000_000], "data_offsets": [0, 10_000_000_000]}),
    struct.pack("<Q", 90_000) + b"[" * 90_000,
)


def test_invalid_tensors_are_refused_by_name_or_made_again(stranger):
    weights, scores = stranger.step / "weights.safetensors", min((stranger.run / "scores").iterdir())
    before = weights.read_bytes(), scores.read_bytes()
    for content in NOT_SAFETENSORS:
        scores.write_bytes(content)
        (stranger.run / "means.safetensors").unlink()
        assert f"{scores.name} is damaged" in stranger.report("--markdown", "-").out
        assert stranger.eval().code == 0
        assert scores.read_bytes() == before[1]
        weights.write_bytes(content)
        stranger.sign()
        for outcome in (stranger.eval(), stranger.start_from()):
            assert outcome.code == 2 and f"{weights} cannot be read as safetensors" in outcome.line
        weights.write_bytes(before[0])
        stranger.sign()


def test_moments_that_are_a_pickle_or_of_another_shape_are_refused_before_the_optimizer_gets_them(stranger):
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
    "python/object": "a: !!python/object/apply:os.system ['touch $CANARY']\n",
    "it has aliases": BOMB,
    "can't decode": BOMB.encode("utf-16"),
    "nested too deeply": "a: " + "[" * 60_000,
    ".*nested too deeply": "a:\n" + "- " * 20_000 + "1\n",
    "it has over 65,536 bytes": "# " + "x" * 100_000,
    "control characters": 'a: "\\e[2J"\n',
    "it holds no keys": "- 1\n",
    "is missing or damaged": "\0",
}


def test_a_configuration_that_holds_more_than_plain_values_is_refused_by_name(stranger):
    path = stranger.run / "config.yaml"
    check_files(stranger.run)
    for reason, text in NOT_YAML.items():
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(UserError, match=f"config.yaml.*{reason}"):
            read_config(stranger.run)
    for outcome in (stranger.eval(), stranger.start_from()):
        assert outcome.code in (1, 2) and "config.yaml is missing or damaged" in outcome.line


INTERPOLATIONS = (
    "${oc.env:PE_BENCH_SECRET}",
    *(rf'"{dollar}{{oc.env:PE_BENCH_SECRET}}"' for dollar in (r"\x24", r"\u0024", r"\U00000024")),
    *(r'"$\x7boc.env:PE_BENCH_SECRET}"', '"$\\\n  {oc.env:PE_BENCH_SECRET}"'),
    r'{"\x24{oc.env:PE_BENCH_SECRET}": 1}',
)


def test_no_interpolation_is_resolved_however_its_dollar_sign_is_written(stranger, monkeypatch):
    monkeypatch.setenv("PE_BENCH_SECRET", "hunter2")
    path, page = stranger.run / "config.yaml", stranger.folder / "page.html"
    text = path.read_text().partition("\n")[2]
    for sign in INTERPOLATIONS:
        path.write_text(re.sub(r"(?m)^  d_model: .*", lambda _: f"  d_model: {sign}", text))  # noqa: B023
        with pytest.raises(UserError, match="it has interpolations"):
            read_config(stranger.run)
    for outcome in (stranger.eval(), stranger.report("--html", str(page), "--by", "seed")):
        assert "hunter2" not in outcome.out + outcome.err
    assert "hunter2" not in page.read_text()


OUTSIDE = "is code from outside pe-bench, {} with hash None"
ENCODINGS = [({"_target_": "os.system"}, ""), ({"base": {"_target_": "os.system"}}, "")]
ELSEWHERE = ("evil.py:Evil", "evil:Evil", "os:system", "an_entry")
ENCODINGS += [({"class": name}, OUTSIDE.format(name)) for name in ELSEWHERE]
INSIDE = ("load:Path", "nothing:Nothing", "evil:Evil", "evil.py:Evil", "/evil.py:Evil")
ENCODINGS += [({"class": f"pe_bench.encodings.{name}"}, "") for name in INSIDE]


def test_no_target_of_hydras_and_no_class_that_the_run_names_is_ever_imported(stranger):
    for folder in (Path(), stranger.run):
        (folder / "pe_bench.encodings.").mkdir()
        for name in ("evil.py", "pe_bench.encodings.evil.py", "pe_bench.encodings./evil.py"):
            (folder / name).write_text(CODE)
    config = (stranger.run / "config.yaml").read_text()
    for values, told in ENCODINGS:
        (stranger.run / "config.yaml").write_text(config)
        stranger.set_values("encoding", **values)
        outcome = stranger.eval()
        assert outcome.code == 2 and told in outcome.line
    assert stranger.report("--by", "train.lr").code == stranger.list().code == 0


NOT_JSON = (
    '{"a": ' + "[" * 900 + "]" * 900 + "}",
    '{"a": "' + "x" * 2_000_000 + '"}',
    '{"steps": "\\u001b[2J", "loss": 1.0}',
    '{"format": [], "steps": {}, "loss": "x"}',
)


def test_invalid_json_is_named_or_skipped(stranger):
    paths = [stranger.run / file for file in ("commands.json", "environment.json", "result.json")]
    for path in (stranger.step / "meta.json", *paths):
        before = path.read_bytes()
        for text in NOT_JSON:
            path.write_text(text)
            outcomes = [stranger.eval()]
            if path.name == "result.json":
                outcomes += [stranger.list(), stranger.report()]
            for outcome in outcomes:
                assert outcome.code in (0, 1, 2) and not CONTROL_SIGNS.search(outcome.out + outcome.err), path
                assert outcome.code == 0 or outcome.line
        path.write_bytes(before)


@pytest.mark.parametrize("name", ["../elsewhere", "..", "", 7])
def test_a_first_stage_that_is_no_name_is_not_looked_for(name):
    facts = {"run": name, "length": 8, "steps": 1, "setting": "x", "longest": 16}
    assert FirstStage.read({}) is None
    with pytest.raises(UserError):
        FirstStage.read({"first_stage": facts | ({"length": "x"} if name == 7 else {})})


ROWS = {
    "begins as a formula": (",rope,", ",=HYPERLINK(1),"),
    "field larger than field limit": (",rope,", f",{'x' * 200_000},"),
    "control characters": (",rope,", f",{ESCAPE},"),
    "cannot stand in a file's name": ("paired,", "paired/../../../outside,"),
    "length is '-32', which cannot be": (",32,", ",-32,"),
    "00', which cannot be": (",32,", f",{10**30},"),
    "999, which cannot be": (",32,", f",{'9' * 10_000},"),
}


def test_rows_that_could_do_harm_are_refused_by_name(stranger):
    path = stranger.run / "eval.csv"
    content = path.read_bytes()
    for reason, (old, new) in ROWS.items():
        path.write_bytes(content)
        edit_text(path, old, new)
        [problem] = read_all(stranger.folder / "results").problems.values()
        assert "eval.csv is damaged" in problem and reason in problem
        assert not CONTROL_SIGNS.search(problem)
    outcome = stranger.eval()
    assert outcome.code == 1 and "eval.csv is damaged" in outcome.line


def test_control_characters_in_a_folders_name_are_shown_as_text(stranger):
    for name in (f"x{ESCAPE}", "[red]x[-blue]"):
        shutil.copytree(stranger.run, stranger.run.with_name(name))
    for outcome in (stranger.list(), stranger.report("--csv", "-")):
        assert outcome.code == 0 and not CONTROL_SIGNS.search(outcome.out + outcome.err)
        assert "[red]x[-blue]" in outcome.err and "control characters in its name" in outcome.err


# Links, pipes and folders in place of a run's files: none is followed, waited for or written to


def contents(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in files_in(path) or [""]}


@pytest.mark.parametrize("name", ["scores", "eval.csv", "lock", ""])
def test_a_link_is_refused_by_name_and_what_it_points_to_stays_as_it_is(stranger, name):
    path, outside = stranger.run / name, stranger.folder / "outside"
    if not name:
        (stranger.run / "result.json").unlink()  # so that the training begins
    shutil.move(path, outside)
    path.symlink_to(outside)
    before = contents(outside)
    for outcome in (stranger.eval(), stranger.train()) if name else (stranger.train(),):
        assert outcome.code in (1, 2) and f"{path} is a symbolic link" in outcome.line
    assert contents(outside) == before


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """End the process of a test that waits for a pipe."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.mark.usefixtures("no_waiting")
def test_a_pipe_is_never_waited_for(stranger):
    stranger.unfinish()
    paths = [stranger.run / name for name in ("commands.json", "eval.csv", "config.yaml")]
    for path in (*paths, stranger.step.with_name("step-00000007") / "meta.json"):
        path.unlink()
        os.mkfifo(path)
        commands = (stranger.eval, stranger.report, stranger.list, stranger.train, stranger.start_from)
        for outcome in (run() for run in commands):
            assert outcome.code in (0, 1, 2) and (not outcome.code or outcome.line), path


NOT_FILES: dict[str, Callable[[Path, Path], None]] = {
    "a pipe": lambda path, outside: os.mkfifo(path),
    "a link to a pipe": lambda path, outside: (os.mkfifo(outside), path.symlink_to(outside))[-1],
    "a link to a device": lambda path, outside: path.symlink_to("/dev/zero"),
    "a link to nothing": lambda path, outside: path.symlink_to(outside),
    "a folder": lambda path, outside: path.mkdir(),
}


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


def test_no_folder_that_the_run_names_is_written_to(stranger, monkeypatch):
    monkeypatch.setattr(stages, "SEARCH_ROUNDS", 0)
    theirs = {name: str(stranger.folder / name) for name in ("results_dir", "cache_dir")}
    stranger.set_values("", **theirs)
    for command in (
        lambda: stranger.eval("--max-length", "48"),
        stranger.export,
        lambda: stranger.extend("--to", "2x", "--with", "longrope", "--lengths", "24"),
    ):
        outcome = command()
        assert outcome.code == 0, outcome.err
        assert not any(Path(folder).exists() for folder in theirs.values())
