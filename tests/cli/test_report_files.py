"""What `report` and `list runs` print and write."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.commands import Command
from support.results import add_run

from pe_bench.config.compose import compose_config
from pe_bench.errors import UserError
from pe_bench.runs.folder import write_config
from pe_bench.values import check_folder, require_writable

LEVELS = {64: 3.1, 128: 3.0, 256: 3.1}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a finished run in the folder of results of the working folder."""
    monkeypatch.chdir(tmp_path)
    return as_finished(add_run(tmp_path / "results", "rope", LEVELS))


def as_finished(run: Path) -> Path:
    write_config(run, compose_config(["encoding=rope", "train.steps=250"]))
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


def test_a_report_prints_and_draws_what_its_options_name(command: Command, run: Path) -> None:
    assert [row["length"] for row in rows_of(command)] == ["64", "128", "256"]
    assert [row["length"] for row in rows_of(command, "--lengths", "64")] == ["64", "128"]
    assert rows_of(command)[-1]["verdict"] == "degrades"
    assert rows_of(command, "--margin", "0.2")[-1]["verdict"] == "holds"
    picture, files = Path("a.svg"), ["--plot", "a.svg", "--html", "page.html"]
    for options, is_change in (["--plot-of", "change"], True), ([], False):
        outcome = command("report", *files, *options)
        assert outcome.code == 0 and "rope" in outcome.out and "--details" in outcome.out
        assert ("change against 128" in picture.read_text()) == is_change
    assert "--details" not in command("report", "--details").out


def test_a_report_without_scores_says_where_unfinished_runs_are_listed(command: Command, run: Path) -> None:
    for name in ("result.json", "eval.csv"):
        (run / name).unlink()
    line = command("report").line
    assert "no scored run in results/runs: `pe-bench list runs` shows what is not finished" in line
    assert line.endswith("and the same command continues it")


def test_a_file_of_the_results_or_of_another_option_is_not_overwritten(command: Command, run: Path) -> None:
    results, before = run.parents[1], (run / "config.yaml").read_bytes()
    (results / "tries.json").write_text("[]")
    for path in ("results.csv", "tries.json", f"runs/{run.name}/config.yaml", "runs/new.csv", "speed.csv"):
        for name in ("report", "explain"):
            outcome = command(name, "--csv", str(results / path))
            assert outcome.code == 2 and outcome.line.endswith(
                "among the files of the results: name one elsewhere"
            )
    assert (run / "config.yaml").read_bytes() == before and (results / "tries.json").read_text() == "[]"
    outcome = command("report", "--csv", "a.txt", "--markdown", "./a.txt")
    assert outcome.code == 2 and "--csv and --markdown both name a.txt" in outcome.line
    assert not Path("a.txt").exists()
    assert command("report", "--csv", str(results / "a.csv")).code == 0
    outcome = command("report", "--csv", "none", "--results-dir", "none")
    assert outcome.code == 2 and "--csv none is the folder of results" in outcome.line


def test_no_option_writes_among_the_files_of_any_folder_of_results(command: Command, run: Path) -> None:
    results, elsewhere = run.parents[1], run.parents[2] / "elsewhere"
    add_run(elsewhere, "rope", LEVELS)
    (results / "tries.json").write_text("[]")
    (results / "linked").symlink_to(results / "runs")
    plan, drawn = ("train", "-m", "seed=0,1", "--plan"), ("extend", "rope", "--plot")
    report = ("report", "--results-dir", str(elsewhere), "--csv")
    for words, path in (
        (plan, "tries.json"),
        (plan, f"runs/{run.name}/config.yaml"),
        (report, "results.csv"),
        (report, "linked/new.csv"),
        (drawn, "runs/new.png"),
        (("show", "rope", "--plot"), "runs/new.png"),
    ):
        outcome = command(*words, str(results / path))
        assert outcome.code == 2 and outcome.line.endswith(
            f"{words[-1]} {results / path} lies among the files of the results: name one elsewhere"
        )
    assert (results / "tries.json").read_text() == "[]"
    assert command(*report, str(results / "a.csv")).code == 0


def test_tries_without_runs_are_kept_and_files_of_other_programs_are_not_guarded(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "tries.json").write_text("[]")
    outcome = command("train", "-m", "seed=0,1", "--plan", str(tmp_path / "tries.json"))
    assert outcome.code == 2 and "lies among the files of the results" in outcome.line
    other = tmp_path / "runs" / "other"
    other.mkdir(parents=True)
    (other / "config.yaml").write_text("{}")
    require_writable("--plot", other / "a.png")
    assert check_folder(other.parent, "results_dir") == other.parent


@pytest.mark.parametrize(
    "options",
    [
        *(["--details"], ["--sort", "128"], ["--baseline", "rope"], ["--margin", "0.1"]),
        ["--slice", "recall"],
    ],
)
def test_an_option_of_levels_is_refused_beside_probe(command: Command, run: Path, options: list[str]) -> None:
    outcome = command("report", "--probe", *options)
    assert outcome.code == 2
    assert f"{options[0]} changes tables of levels, which --probe does not print" in outcome.line


def test_a_protocol_is_refused_beside_probe(command: Command, run: Path) -> None:
    for words in ((), ("--json",)):
        outcome = command("report", "--probe", "--protocol", "paired", *words)
        assert outcome.code == 2 and "--protocol would leave the probes out" in outcome.out + outcome.err


@pytest.mark.parametrize("typed", [("report",), ("eval", "--lengths", "9"), ("list", "runs"), ("rm", "rope")])
def test_the_folder_of_runs_is_refused_in_place_of_the_results(
    command: Command, run: Path, typed: tuple[str, ...]
) -> None:
    outcome = command(*typed, "--results-dir", str(run.parent))
    assert outcome.code == 2
    assert outcome.line.endswith(f"is no folder of results: say --results-dir={run.parents[1]}")


def test_the_present_folder_is_refused_if_it_is_one_of_runs(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    message = re.escape("--results-dir=. has runs and is no folder of results: say --results-dir=")
    with pytest.raises(UserError, match=message + re.escape(str(run.parents[1]))):
        check_folder(".", "--results-dir")


@pytest.mark.parametrize("result", ["{", "[]", "\udcff"])
def test_a_damaged_run_is_listed_as_that_and_hides_no_other(command: Command, run: Path, result: str) -> None:
    bad = as_finished(add_run(run.parents[1], "alibi", LEVELS))
    (bad / "result.json").write_text(result, errors="surrogateescape")
    states = listed(command)
    assert (states[bad.name]["encoding"], states[bad.name]["state"]) == ("alibi", "unreadable")
    assert states[bad.name]["problem"] in command("list", "runs").err
    row = {"encoding": "rope", "state": "finished", "steps": 250, "total": 250, "loss": 1.25}
    assert states[run.name] == row | {
        "run": run.name,
        "lengths": [64, 128, 256],
        "problem": "",
        "tags": [],
    }
    shown = command("list", "runs").out.splitlines()[-1].split()
    assert shown == [run.name, "rope", "finished", "250", "1.250", "64,", "128,", "256"]


def test_runs_are_listed_with_what_they_have_and_what_tables_call_their_encoding(
    command: Command, run: Path
) -> None:
    label, levels = "learned max_position=128", {32: 3.2, 64: 3.1, 96: 3.1, 128: 3.0, 256: None}
    learned = as_finished(add_run(run.parents[1], "learned", levels, label=label, code="1"))
    (run / "result.json").unlink()
    for step, loss in ((4, 2.5), (6, 1.5)):
        newest = run / "checkpoints" / f"step-{step:08d}"
        newest.mkdir(parents=True)
        (newest / "meta.json").write_text(json.dumps({"step": step, "loss": loss}))
    states = listed(command)
    assert (states[learned.name]["encoding"], states[learned.name]["lengths"]) == (label, [32, 64, 96, 128])
    assert "32 to 128 (4)" in command("list", "runs").out and "6 of 250" in command("list", "runs").out
    facts = [states[run.name][name] for name in ("state", "steps", "total", "loss")]
    assert facts == ["not finished", 6, 250, 1.5]
