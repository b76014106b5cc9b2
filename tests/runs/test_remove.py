"""`rm` deletes the runs that it names, and none that another one needs; tags name experiments."""

import json
import shutil
from pathlib import Path

import pytest
from support.commands import Command
from support.results import add_run

from pe_bench.report.build import read_report
from pe_bench.runs.rows import read_rows
from pe_bench.runs.typed import record_tag, tags_of


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results"
    for name in ("rope", "alibi", "nope"):
        add_run(folder, name, {128: 3.0, 256: 3.1})
    return folder


def names_in(results: Path) -> list[str]:
    return sorted(path.name.partition("-")[0] for path in (results / "runs").iterdir())


def test_runs_are_deleted_with_their_rows_and_only_when_that_is_confirmed(
    results: Path, command: Command
) -> None:
    (results / "runs" / "fox-s0-0123abcd").mkdir()
    refused = command("rm", "rope")
    assert (refused.code, names_in(results)) == (2, ["alibi", "fox", "nope", "rope"])
    assert "say --yes to delete 1 run without" in refused.err
    assert "say --yes to delete 2 runs without" in command("rm", "rope", "fox").err
    done = command("rm", "rope", "fox", "--yes")
    assert (done.code, names_in(results)) == (0, ["alibi", "nope"]) and "2 deleted" in done.err
    assert {row.encoding for row in read_rows(results / "results.csv")} == {"alibi", "nope"}
    assert command("rm", "rope", "--yes").code == 2


def test_what_a_killed_rm_left_is_in_no_later_one_s_way(results: Path, command: Command) -> None:
    [rope] = (results / "runs").glob("rope-*")
    left = rope.with_name(f".{rope.name}.removed")
    left.mkdir()
    (left / "eval.csv").write_text("of an earlier run")
    assert command("rm", "rope", "--yes").code == 0
    assert not rope.exists() and not left.exists()


@pytest.mark.parametrize("is_renamed", [False, True])
@pytest.mark.parametrize("kind", ["first_stage", "train.from", "train.beside"])
def test_a_run_that_another_one_starts_from_is_kept_unless_both_go(
    results: Path, command: Command, kind: str, is_renamed: bool
) -> None:
    [rope] = (results / "runs").glob("rope-*")
    [alibi] = (results / "runs").glob("alibi-*")
    if kind == "first_stage":
        first = {"run": rope.name, "length": 128, "steps": 250, "setting": "5e77136a", "longest": 512}
        (alibi / "result.json").write_text(json.dumps({"first_stage": first}))
    else:
        key = kind.partition(".")[2]
        (alibi / "config.yaml").write_text(f"train:\n  {key}: elsewhere/runs/{rope.name}\n")
    if is_renamed:
        rope = rope.rename(rope.with_name("rope-renamed"))
    shutil.copytree(rope, rope.with_name("copied"))
    assert command("rm", "copied", "--yes").code == (1 if is_renamed else 0)
    shutil.rmtree(rope.with_name("copied"), ignore_errors=True)
    kept = command("rm", "rope", "nope", "--yes")
    assert kept.code == 0 and f"kept: {rope.name}, which {alibi.name} starts from" in kept.err
    assert names_in(results) == ["alibi", "rope"]
    assert command("rm", "rope", "--yes").code == 1
    assert command("rm", "rope", "alibi", "--yes").code == 0 and names_in(results) == []


def test_a_second_tag_is_added_and_reports_and_lists_show_the_runs_of_one(
    results: Path, command: Command
) -> None:
    runs = {path.name.partition("-")[0]: path for path in (results / "runs").iterdir()}
    for name, tag in (("rope", "first"), ("alibi", "first"), ("rope", "second"), ("rope", "second")):
        record_tag(runs[name], tag)
    assert tags_of(runs["rope"]) == ["first", "second"] and tags_of(runs["nope"]) == []
    shown = {
        tag: {line.encoding for table in read_report(results, tag=tag).tables for line in table.lines}
        for tag in ("first", "second")
    }
    assert shown == {"first": {"rope", "alibi"}, "second": {"rope"}}
    listed = command("list", "runs", "--tag", "second").out
    assert "rope" in listed and "alibi" not in listed
    unknown = command("report", "--tag", "secnd")
    assert unknown.code == 2 and "did you mean 'second'?" in unknown.err
    (runs["rope"] / "result.json").write_text("{}\n")  # which makes it the newest
    newest = command("report")
    assert "\nrope " in newest.out and "\nalibi " not in newest.out and "tag: second" in newest.err
    assert "\nalibi " in command("report", "--all").out
    (runs["rope"] / "tags.json").write_text('["../x", 7, "first"]')
    assert tags_of(runs["rope"]) == ["7", "first"], "a stranger's file holds names alone"


def test_a_tag_is_no_part_of_a_runs_name(train, folder: Path) -> None:
    for tag in ("one", "two"):
        assert train("encoding=nope", f"tag={tag}").code == 0
    [run] = (folder / "results" / "runs").iterdir()
    assert tags_of(run) == ["one", "two"]
    outcome = train("encoding=nope", "tag=a/b")
    assert outcome.code == 2 and "letters, digits" in outcome.err
