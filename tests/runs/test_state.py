"""What lists, reports and eval say of runs that are damaged or incomplete."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.results import add_run

from pe_bench.config.compose import compose_config
from pe_bench.runs.folder import folders_of_runs, state_of, write_config

RESULT = '{"steps": 250, "loss": 1.25, "encoding": "rope"}'


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a results folder with two whole runs."""
    for encoding in ("rope", "alibi"):
        run = add_run(tmp_path / "results", encoding, {32: 3.2, 128: 3.0, 256: 3.1})
        write_config(run, compose_config([f"encoding={encoding}", "train.steps=250"]))
        (run / "result.json").write_text(RESULT)
    return tmp_path / "results"


def run_of(results: Path, encoding: str) -> Path:
    [run] = (results / "runs").glob(f"{encoding}-*")
    return run


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["config.yaml", "eval.csv", "result.json"])
def test_a_damaged_file_of_a_run_is_named_and_hides_no_other_run(command, results, name, damage):
    bad, where = run_of(results, "rope"), ["--results-dir", str(results)]
    DAMAGE[damage](bad / name)
    listed, reported = (command(*words, *where) for words in (("list", "runs"), ("report", "--csv", "-")))
    evaluated = command("eval", bad.name, *where)
    assert listed.code == reported.code == 0 and "alibi" in reported.out
    assert all("Traceback" not in outcome.err for outcome in (listed, reported, evaluated))
    assert evaluated.code in (1, 2) and (name == "eval.csv" or name in evaluated.line or damage == "missing")
    state = next(line for line in listed.out.splitlines() if line.startswith("rope"))
    if name == "config.yaml":  # which tables and lists do without
        assert "finished" in state and "rope" in reported.out
    elif (name, damage) == ("result.json", "missing"):
        assert "not finished" in state and "rope" not in reported.out
    else:
        assert "unreadable" in state and f"{bad.name}: " in listed.err and name in listed.err
        assert name in reported.err


def test_runs_that_are_begun_or_not_to_be_read_are_listed_as_that(command, results):
    begun = run_of(results, "alibi")
    (begun / "result.json").unlink()
    (begun / "error.txt").write_text("no space left")
    (results / "runs" / "notes.txt").write_text("not a run")
    (run_of(results, "rope") / "result.json").write_text(RESULT.replace("250", "1e999"))
    assert [state_of(run).state for run in folders_of_runs(results)] == ["failed", "unreadable"]
    assert command("list", "runs", "--results-dir", str(results)).code == 0
    for run in (results / "runs").glob("*-s0-*"):
        (run / "result.json").write_text(RESULT.replace("}", ', "format": 1}'))
    outcome = command("report", "--results-dir", str(results))
    assert outcome.code == 1 and outcome.err.count("another version of pe-bench") == 1
    assert "-s0-" in outcome.line and " and 1 more: made by another version" in outcome.line
    assert "(an unknown one; this is " in outcome.line


def test_a_run_of_another_version_is_named_with_that_version(command, results):
    run = run_of(results, "alibi")
    (run / "result.json").write_text(RESULT.replace("}", ', "format": 1}'))
    (run / "environment.json").write_text('{"pe_bench": "0.1.0"}')
    for arguments in (["report", "--all"], ["list", "runs"], ["eval", str(run)]):
        outcome = command(*arguments, "--results-dir", str(results))
        text = " ".join((outcome.out + outcome.err).split())
        assert f"{run.name}: made by another version of pe-bench (0.1.0; this is " in text, arguments
