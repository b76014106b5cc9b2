"""What lists, reports and eval say of runs that are damaged, incomplete or not to be read."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.results import add_run

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.runs.folder import write_config
from pe_bench.runs.gather import states_of_runs

RESULT = '{"steps": 250, "loss": 1.25, "encoding": "rope", "format": 2}'


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a results folder with two whole runs."""
    for encoding in ("rope", "alibi"):
        run = add_run(tmp_path / "results", encoding, {32: 3.2, 128: 3.0, 256: 3.1})
        write_config(run, parse_config(compose([f"encoding={encoding}", "train.steps=250"])))
        (run / "result.json").write_text(RESULT)
    return tmp_path / "results"


def run_of(results: Path, encoding: str) -> Path:
    [run] = (results / "runs").glob(f"{encoding}-*")
    return run


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "missing": lambda path: path.unlink(),
}
FILES = ("config.yaml", "eval.csv", "result.json")
HARMLESS = {("result.json", "flipped")}  # it has no checksum, and may still be JSON


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_of_a_run_is_named_by_every_command_and_hides_no_other_run(
    command, results, name, damage
):
    bad, where = run_of(results, "rope"), ["--results-dir", str(results)]
    DAMAGE[damage](bad / name)
    listed = command("list", "runs", *where)
    assert listed.code == 0
    state = next(line for line in listed.out.splitlines() if line.startswith("rope"))
    said = {option: command("report", *option.split(), *where) for option in ("", "--csv -")}
    evaluated = command("eval", bad.name, *where)
    assert all("Traceback" not in outcome.err for outcome in (listed, evaluated, *said.values()))
    if (name, damage) in HARMLESS:
        return
    if (name, damage) == ("result.json", "missing"):
        assert "not finished" in state
        assert evaluated.code == 2 and f"{bad.name} is not finished" in evaluated.line
        return
    assert ("no scores" if (name, damage) == ("eval.csv", "missing") else "unreadable") in state
    assert f"{bad.name}: " in listed.err and name in listed.err
    for option, outcome in said.items():
        text = outcome.err if option == "--csv -" else outcome.out
        assert outcome.code == 0 and bad.name in "".join(text.split()), option
        assert "alibi" in outcome.out
    # Without its weights nothing can be scored, whatever its rows are.
    assert evaluated.code in (1, 2) and (name == "eval.csv" or name in evaluated.line)


def test_steps_that_are_no_number_are_damage(command, results):
    (run_of(results, "rope") / "result.json").write_text(RESULT.replace("250", "1e999"))
    listed = command("list", "runs", "--results-dir", str(results))
    assert listed.code == 0 and "lacks steps or loss" in listed.err


def test_runs_that_are_begun_unreadable_or_of_another_version_are_listed_and_reported_as_that(
    command, results, monkeypatch
):
    (results / "runs" / "begun").mkdir()
    (results / "runs" / "notes.txt").write_text("not a run")
    [begun] = [state for state in states_of_runs(results) if state.state != "finished"]
    assert begun.run == "begun" and begun.state == "not finished" and "config.yaml" in begun.problem
    bad, scandir, where = run_of(results, "rope"), os.scandir, ["--results-dir", str(results)]

    def refuse(path: str | Path) -> object:  # root could read it all the same
        if Path(path) == bad:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        report = command("report", *where)
        assert report.code == 0 and "left out" in report.out and "alibi" in report.out
        for told in (command("list", "runs", *where).err, command("eval", bad.name, *where).line):
            assert "no permission" in told
    for encoding in ("rope", "alibi"):
        run = run_of(results, encoding)
        (run / "result.json").write_text(RESULT.replace("2}", "1}"))
        (run / "environment.json").write_text('{"pe_bench": "0.1.0", "git": "7715aa81c2c0"}')
    for outcome in (command("report", *where), command("list", "runs", *where)):
        assert outcome.err.count("pe-bench 0.1.0 (git 7715aa81c2c0) reads") == 1, outcome
        assert "damaged" not in outcome.out + outcome.err
