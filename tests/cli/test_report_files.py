"""What `report` and `list` print and write, and what they refuse before they print anything."""

import csv
import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.results import add_run, edit_rows

from pe_bench.cli.tables import print_run
from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.runs.folder import write_config
from pe_bench.runs.rows import read_rows
from pe_bench.scored import Run

LEVELS = {64: 3.1, 128: 3.0, 256: 3.1}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    add_run(tmp_path / "results", "rope", LEVELS)
    return tmp_path / "results"


def list_runs(command, results: Path) -> dict[str, str]:
    """The states of the runs by name, behind their encodings."""
    outcome = command("list", "runs", "--results-dir", str(results))
    assert outcome.code == 0, outcome.err
    return {line.split()[0]: line.split(maxsplit=1)[1].strip() for line in outcome.out.splitlines()[1:]}


def test_a_dash_prints_csv_and_no_table(command, results):
    outcome = command("report", "--csv", "-", "--results-dir", str(results))
    assert outcome.code == 0, outcome.err
    rows = list(csv.DictReader(io.StringIO(outcome.out)))
    assert [row["length"] for row in rows] == ["64", "128", "256"]
    assert "wrote" not in outcome.err


def test_named_lengths_stand_beside_the_training_length_alone(command, results):
    outcome = command("report", "--lengths", "64", "--csv", "-", "--results-dir", str(results))
    assert outcome.code == 0, outcome.err
    assert [row["length"] for row in csv.DictReader(io.StringIO(outcome.out))] == ["64", "128"]


@pytest.mark.parametrize(("margin", "verdict"), [((), "degrades"), (("--margin", "0.2"), "holds")])
def test_the_named_margin_decides_the_verdict(command, results, margin, verdict):
    outcome = command("report", *margin, "--csv", "-", "--results-dir", str(results))
    assert list(csv.DictReader(io.StringIO(outcome.out)))[-1]["verdict"] == verdict


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--csv - --markdown -", "choose one"),
        ("--html -", "name a file"),
        ("--plot -", "name a file"),
        ("--csv nowhere/a.csv", "--csv nowhere/a.csv: there is no folder"),
        ("--plot nowhere/a.png", "there is no folder"),
        ("--markdown folder.png", "--markdown folder.png is not a regular file"),
        ("--plot pipe.png", "--plot pipe.png is not a regular file"),
        ("--plot a.jpg", ".png, .svg or .pdf"),
        ("--plot-of change", "--plot-of change draws nothing: name a file with --plot or --html"),
        ("--plot-of changes --plot a.png", "--plot-of must be one of levels, change, not 'changes'"),
        ("seed=0", "'seed=0' is no run: say --where seed=0"),
        ("seed<3", "'seed<3' is no run: say --where 'seed<3'"),
        ("train.lr>=0.001", "say --where 'train.lr>=0.001'"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_printed(command, results, monkeypatch, arguments, message):
    monkeypatch.chdir(results.parent)
    Path("folder.png").mkdir()
    os.mkfifo("pipe.png")
    outcome = command("report", *arguments.split(), "--results-dir", str(results))
    assert outcome.code == 2 and message in outcome.line and outcome.out == ""


def test_a_page_and_a_picture_show_changes_where_an_option_asks_for_them(command, results, tmp_path):
    page, picture = tmp_path / "page.html", tmp_path / "a.svg"
    files = ["--plot", str(picture), "--html", str(page), "--results-dir", str(results)]
    assert command("report", *files, "--plot-of", "change").code == 0
    assert "change against 128" in picture.read_text()
    assert 'value="change" checked' in page.read_text()
    outcome = command("report", *files)
    assert outcome.code == 0 and "rope" in outcome.out
    assert "change against 128" not in picture.read_text()
    assert "picture: --plot" not in outcome.out and "--details" in outcome.out
    plain = command("report", "--results-dir", str(results)).out
    assert "picture: --plot" in plain, "a hint does not propose what was asked for"
    assert "--details" not in command("report", "--details", "--results-dir", str(results)).out


@pytest.mark.parametrize("arguments", [["report"], ["list", "runs"]])
def test_a_folder_without_runs_is_an_error_with_the_way_to_make_one(command, tmp_path, arguments):
    for folder in (tmp_path, tmp_path / "nowhere"):
        outcome = command(*arguments, "--results-dir", str(folder))
        assert outcome.code == 2 and outcome.out == ""
        assert f"run in {folder / 'runs'}: make one with `pe-bench train encoding=rope`" in outcome.line
    (tmp_path / "file").write_text("")
    outcome = command(*arguments, "--results-dir", str(tmp_path / "file"))
    assert outcome.code == 2 and "is not a folder" in outcome.line


@pytest.mark.parametrize("result", ["{", "{}", "[]", '{"steps": 8, "loss": null}', "\udcff"])
def test_a_damaged_run_is_listed_as_that_and_hides_no_other(command, results, result):
    bad = add_run(results, "alibi", LEVELS)
    for run in (results / "runs").iterdir():
        write_config(run, parse_config(compose(["encoding=rope", "train.steps=250"])))
        (run / "result.json").write_text('{"steps": 250, "loss": 1.25}')
    (bad / "result.json").write_text(result, errors="surrogateescape")
    states = list_runs(command, results)
    assert states.pop(bad.name).split() == ["alibi", "unreadable"]
    [good] = states.values()
    assert good.split() == ["rope", "finished", "250", "250", "1.250", "64,", "128,", "256"]


def test_a_run_that_is_not_finished_is_listed_with_what_it_has_so_far(command, results):
    [run] = (results / "runs").iterdir()
    write_config(run, parse_config(compose(["encoding=rope", "train.steps=8"])))
    (run / "result.json").unlink()
    for step, loss in ((4, 2.5), (6, 1.5)):
        newest = run / "checkpoints" / f"step-{step:08d}"
        newest.mkdir(parents=True)
        (newest / "meta.json").write_text(json.dumps({"step": step, "loss": loss}))
    told = ["rope", "not", "finished", "6", "8", "1.500", "64,", "128,", "256"]
    assert list_runs(command, results)[run.name].split() == told


def test_runs_are_listed_with_what_tables_call_their_encoding_and_the_lengths_that_have_a_number(
    command, results
):
    label = "learned max_position=128"
    learned = add_run(results, "learned", {64: 3.1, 128: 3.0, 256: None}, scored_with="learned", code="1")
    edit_rows(learned, lambda row: replace(row, encoding=label, scored_with=label))
    for run in (results / "runs").iterdir():
        write_config(run, parse_config(compose(["encoding=rope", "train.steps=250"])))
        (run / "result.json").write_text('{"steps": 250, "loss": 1.25}')
    listed = list_runs(command, results)
    assert listed.pop(learned.name).split() == [
        *("learned", "max_position=128", "finished", "250", "250", "1.250", "64,", "128"),
    ]
    [rope] = listed.values()
    assert rope.split()[0] == "rope" and rope.endswith("64, 128, 256")


def test_a_run_is_reported_by_its_path_and_by_what_tables_call_its_encoding(command, results):
    run = add_run(results, "root", LEVELS)
    (run / "config.yaml").write_text("seed: 0\n")
    (run / "result.json").write_text('{"encoding": "root@0cba s=0.25"}')
    edit_rows(run, lambda row: replace(row, encoding="root@0cba s=0.25", scored_with="root@0cba s=0.25"))
    for argument in (str(run), f"{run}/", "root@0cba", "root@0cba s=0.25"):
        outcome = command("report", argument, "--csv", "-", "--results-dir", str(results))
        assert outcome.code == 0, outcome.err
        assert {row["encoding"] for row in csv.DictReader(io.StringIO(outcome.out))} == {"root@0cba s=0.25"}


def test_a_run_is_printed_with_where_it_and_all_rows_are(results, tmp_path, capsys):
    [run] = (results / "runs").iterdir()
    print_run(Run(run, read_rows(run / "eval.csv"), 0.01))
    printed = capsys.readouterr()
    assert f"the run: {run}\n" in printed.err and f"all rows: {results / 'results.csv'}" in printed.err
    assert f"pe-bench report --results-dir {results}\n" in printed.err
    assert "without an interval" not in printed.out
    run = run.rename(tmp_path / "elsewhere")
    print_run(Run(run, read_rows(run / "eval.csv"), 0.01))
    printed = capsys.readouterr()
    assert printed.err == f"the run: {run}\n"
    assert "without an interval" not in printed.out
