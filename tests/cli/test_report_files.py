"""What `report` and `list runs` print and write."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.commands import Command
from support.results import add_run, edit_rows

from pe_bench.cli.tables import print_scored, scored_alone
from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.runs.folder import write_config
from pe_bench.runs.rows import read_rows
from pe_bench.scored import Run

LEVELS = {64: 3.1, 128: 3.0, 256: 3.1}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a finished run in the folder of results of the working folder."""
    monkeypatch.chdir(tmp_path)
    return as_finished(add_run(tmp_path / "results", "rope", LEVELS))


def as_finished(run: Path) -> Path:
    write_config(run, parse_config(compose(["encoding=rope", "train.steps=250"])))
    (run / "result.json").write_text('{"steps": 250, "loss": 1.25}')
    return run


def rows_of(command: Command, *arguments: str) -> list[dict[str, str]]:
    outcome = command("report", *arguments, "--csv", "-")
    assert outcome.code == 0 and "wrote" not in outcome.err, outcome.err
    return list(csv.DictReader(io.StringIO(outcome.out)))


def listed(command: Command) -> dict[str, dict[str, Any]]:
    """Return the listed states of the runs by name."""
    outcome = command("list", "runs", "--json")
    assert outcome.code == 0, outcome.err
    return {row["run"]: row for row in json.loads(outcome.out)["rows"]}


def test_a_dash_prints_the_lengths_that_are_named_with_verdicts_by_the_margin(
    command: Command, run: Path
) -> None:
    assert [row["length"] for row in rows_of(command)] == ["64", "128", "256"]
    assert [row["length"] for row in rows_of(command, "--lengths", "64")] == ["64", "128"]
    assert rows_of(command)[-1]["verdict"] == "degrades"
    assert rows_of(command, "--margin", "0.2")[-1]["verdict"] == "holds"


def test_a_picture_shows_changes_where_an_option_asks_for_them(command: Command, run: Path) -> None:
    picture, files = Path("a.svg"), ["--plot", "a.svg", "--html", "page.html"]
    assert command("report", *files, "--plot-of", "change").code == 0
    assert "change against 128" in picture.read_text()
    outcome = command("report", *files)
    assert outcome.code == 0 and "rope" in outcome.out and "--details" in outcome.out
    assert "change against 128" not in picture.read_text()
    assert "--details" not in command("report", "--details").out


@pytest.mark.parametrize("result", ["{", "{}", "[]", '{"steps": 8, "loss": null}', "\udcff"])
def test_a_damaged_run_is_listed_as_that_and_hides_no_other(command: Command, run: Path, result: str) -> None:
    bad = as_finished(add_run(run.parents[1], "alibi", LEVELS))
    (bad / "result.json").write_text(result, errors="surrogateescape")
    states = listed(command)
    assert (states[bad.name]["encoding"], states[bad.name]["state"]) == ("alibi", "unreadable")
    assert states[bad.name]["problem"] in command("list", "runs").err
    row = {"encoding": "rope", "state": "finished", "steps": 250, "total": 250, "loss": 1.25}
    assert states[run.name] == row | {"run": run.name, "lengths": [64, 128, 256], "problem": ""}
    shown = command("list", "runs").out.splitlines()[-1].split()
    assert shown == [run.name, "rope", "finished", "250", "250", "1.250", "64,", "128,", "256"]


def test_a_run_that_is_not_finished_is_listed_with_what_it_has_so_far(command: Command, run: Path) -> None:
    (run / "result.json").unlink()
    for step, loss in ((4, 2.5), (6, 1.5)):
        newest = run / "checkpoints" / f"step-{step:08d}"
        newest.mkdir(parents=True)
        (newest / "meta.json").write_text(json.dumps({"step": step, "loss": loss}))
    state = listed(command)[run.name]
    facts = [state[name] for name in ("state", "steps", "total", "loss", "lengths")]
    assert facts == ["not finished", 6, 250, 1.5, [64, 128, 256]]


def test_runs_are_listed_with_what_tables_call_their_encoding_and_the_lengths_that_have_a_number(
    command: Command, run: Path
) -> None:
    label = "learned max_position=128"
    levels = {64: 3.1, 128: 3.0, 256: None}
    learned = as_finished(add_run(run.parents[1], "learned", levels, scored_with="learned", code="1"))
    edit_rows(learned, lambda row: replace(row, encoding=label, scored_with=label))
    state = listed(command)[learned.name]
    assert (state["encoding"], state["lengths"]) == (label, [64, 128])


def test_a_run_is_reported_by_its_path_and_by_what_tables_call_its_encoding(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = add_run(tmp_path / "results", "root", LEVELS)
    (run / "config.yaml").write_text("seed: 0\n")
    (run / "result.json").write_text('{"encoding": "root@0cba s=0.25"}')
    edit_rows(run, lambda row: replace(row, encoding="root@0cba s=0.25", scored_with="root@0cba s=0.25"))
    for argument in (str(run), f"{run}/", "root@0cba", "root@0cba s=0.25"):
        assert {row["encoding"] for row in rows_of(command, argument)} == {"root@0cba s=0.25"}


def test_a_run_is_printed_with_where_it_and_all_rows_are(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_scored("train", [scored_alone(Run(run, read_rows(run / "eval.csv"), 0.01))], [], as_json=False)
    results, printed = run.parents[1], capsys.readouterr()
    assert f"the run: {run}\n" in printed.err and f"all rows: {results / 'results.csv'}" in printed.err
    assert f"pe-bench report --results-dir {results}\n" in printed.err
    run = run.rename(tmp_path / "elsewhere")
    print_scored("train", [scored_alone(Run(run, read_rows(run / "eval.csv"), 0.01))], [], as_json=False)
    assert capsys.readouterr().err == f"the run: {run}\n"
