"""`pe-bench eval` chooses runs as `report` does: by name, by encoding, by conditions, or all of them."""

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.commands import Command
from support.run_contents import contents

from pe_bench.runs.folder import read_all
from pe_bench.runs.rows import read_rows, write_rows

RUNS = ("rope-s0", "rope-s1", "alibi-s0")


@pytest.fixture
def evaluate(begin: Command, command: Command, folder: Path) -> Command:
    """Run `pe-bench eval` where there are two rope runs and one alibi run, the last that finished."""
    for name in RUNS:
        encoding, _, seed = name.partition("-s")
        begin(f"encoding={encoding}", f"seed={seed}")
    results = str(folder / "results")
    return lambda *arguments: command("eval", "--results-dir", results, "--threads", "1", *arguments)


def runs_with(folder: Path, length: int) -> list[str]:
    """Return the runs that were scored at a length, without their hashes."""
    lengths = {
        run: {row.length for row in read_rows(run / "eval.csv")} for run in folder.glob("results/runs/*")
    }
    return [run.name.rpartition("-")[0] for run in sorted(lengths) if length in lengths[run]]


@pytest.mark.parametrize(
    ("chosen", "scored"),
    [
        ([], ["alibi-s0"]),
        (["rope", "rope-s1", "rope"], ["rope-s0", "rope-s1"]),
        (["*-s0-*"], ["alibi-s0", "rope-s0"]),
        (["rope", "--where", "seed<1"], ["rope-s0"]),
        (["--all", "--where", "encoding!=rope"], ["alibi-s0"]),
    ],
)
def test_runs_are_chosen_by_names_and_conditions(evaluate, folder, chosen, scored) -> None:
    outcome = evaluate(*chosen, "--lengths", "8,16,48")
    assert outcome.code == 0, outcome.err
    assert runs_with(folder, 48) == scored
    [head] = [line for line in outcome.out.splitlines() if line.startswith("encoding ")]
    assert {"8", "48"} <= {*head.split()}, "one table of all that were scored, with the lengths named"
    assert all(name.partition("-")[0] in outcome.out for name in scored)
    if len(scored) > 1:
        assert f"run {len(scored)} of {len(scored)}: " in outcome.err


def test_a_run_that_cannot_be_scored_holds_up_no_other_and_one_elsewhere_has_its_own_table(
    evaluate: Command, folder: Path
) -> None:
    broken = next((folder / "results" / "runs").glob("rope-s0-*"))
    for path in broken.glob("checkpoints/*/weights.safetensors"):
        path.unlink()
    outcome = evaluate("--all", "--lengths", "48")
    assert outcome.code == 1 and outcome.line.startswith(f"pe-bench: {broken.name}: ")
    assert "has no whole checkpoint" in outcome.line
    assert runs_with(folder, 48) == ["alibi-s0", "rope-s1"]
    elsewhere = next((folder / "results" / "runs").glob("rope-s1-*")).rename(folder / "copied")
    outcome = evaluate(str(elsewhere), "alibi", "--lengths", "40")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("encoding ") == 2, "it is in no folder of results to be compared in"


def test_a_renamed_run_is_scored_only_where_it_has_no_score_and_its_seed_counts_once(
    evaluate: Command, command: Command, folder: Path
) -> None:
    [run] = folder.glob("results/runs/rope-s0-*")
    run.rename(run.with_name("my-best"))
    file = run.with_name("my-best") / "eval.csv"
    scored = read_rows(file)
    for lengths, new in (("16,32", False), ("16,48", True)):
        outcome = evaluate("my-best", "--lengths", lengths)
        assert outcome.code == 0 and ("my-best: scoring" in outcome.err) is new, outcome.err
        assert "\nrope " in outcome.out and "rope (my-best)" not in outcome.out, "it is one run"
    added = [row.length for row in read_rows(file) if row not in scored]
    assert added == [48] and len(read_rows(file)) == len(scored) + 1
    assert_one_level_for_each_length(command, folder)
    # An earlier version scored it again under its new name.
    write_rows(file, [*read_rows(file), *(replace(row, run="my-best") for row in scored)])
    assert_one_level_for_each_length(command, folder)


def assert_one_level_for_each_length(command: Command, folder: Path) -> None:
    printed = command("report", "my-best", "--json", "--results-dir", str(folder / "results")).out
    records = json.loads(printed)["tables"][0]["lines"][0]["records"]
    assert {len(record["levels"]) for record in records} == {1}


def test_a_copy_that_is_scored_at_another_length_stays_a_copy(evaluate: Command, folder: Path) -> None:
    [run] = folder.glob("results/runs/rope-s0-*")
    shutil.copytree(run, run.with_name("copied"))
    assert evaluate("copied", "--lengths", "16,48").code == 0
    assert read_all(folder / "results").problems == {"copied": f"copied is a copy of {run.name}"}


def test_an_option_that_does_not_suit_one_of_several_runs_names_it_and_scores_none(evaluate, folder) -> None:
    outcome = evaluate("--all", "--with", "yarn", "--lengths", "48")
    assert outcome.code == 2 and "alibi-s0-" in outcome.line
    assert runs_with(folder, 48) == []
    assert evaluate("--where", "encoding!=alibi", "--with", "yarn", "--lengths", "48").code == 0


def test_a_run_that_nobody_named_is_said_and_one_that_is_not_finished_says_how_it_gets_so(
    evaluate: Command, folder: Path
) -> None:
    [run] = folder.glob("results/runs/alibi-s0-*")
    outcome = evaluate("--lengths", "48")
    assert outcome.code == 0 and f"the newest finished run: {run}" in outcome.err
    (run / "result.json").unlink()
    outcome = evaluate(str(run), "--lengths", "64")
    assert outcome.code == 2
    assert f"{run} is not finished: repeat the command that trained it, and it continues" in outcome.line
    assert runs_with(folder, 64) == []


@pytest.mark.parametrize(
    ("baseline", "message"),
    [
        ("ropee", "unknown --baseline 'ropee': did you mean 'rope'?"),
        ("nope", "unknown --baseline 'nope': did you mean 'rope'?"),
        ("hf:model", "--baseline hf:model: none of the runs to score is of this model"),
    ],
)
def test_a_baseline_that_no_line_can_have_is_refused_before_anything_is_scored(
    evaluate: Command, folder: Path, baseline: str, message: str
) -> None:
    outcome = evaluate("rope", "--lengths", "48", "--baseline", baseline)
    assert outcome.code == 2 and message in outcome.line
    assert runs_with(folder, 48) == []
    for known in ("rope", "rope -> yarn factor=auto", "(trigram)"):
        outcome = evaluate("rope", "--lengths", "48", "--with", "yarn", "--baseline", known)
        assert outcome.code == 0, outcome.err


def test_runs_that_cannot_be_written_are_shown_where_every_length_is_scored(
    evaluate: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("rope", "--lengths", "16,32", "--with", "rope_pi factor=2")
    usual = evaluate(*asked)
    before = contents(folder / "results")
    open_file = os.open

    def open_to_read(path: str, flags: int, *mode: int, **options: int) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY) and Path(path).is_relative_to(folder / "results"):
            raise OSError(errno.EROFS, "Read-only file system", path)
        return open_file(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", open_to_read)
    outcome = evaluate(*asked)
    assert (outcome.code, outcome.out) == (0, usual.out) and "alibi" in evaluate().out
    for missing in (("--lengths", "16,48"), ("--with", "rope_pi factor=2")):
        outcome = evaluate("alibi", *missing, "--force")
        assert outcome.code == 1 and outcome.line.endswith("copy it to a folder that can be written")
    assert contents(folder / "results") == before
