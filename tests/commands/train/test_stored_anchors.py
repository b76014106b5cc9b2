"""Anchors of real runs: scored on a run's own targets, once for all runs of a seed; they are no runs."""

import shutil
from pathlib import Path

import numpy as np
from support.commands import Command, only_run

from pe_bench.report.build import build_tables
from pe_bench.runs.find import ANCHOR_NAMES, anchor_key
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import MEANS_FILE, load_scores, score_file


def folders(folder: Path) -> list[Path]:
    return sorted(path.parent for path in (folder / "results" / "anchors").glob("*/eval.csv"))


def made_once(folder: Path) -> list[Path]:
    """Return the tensors of anchors, but for the means, which follow from them."""
    tensors = (folder / "results" / "anchors").rglob("*.safetensors")
    return sorted(path for path in tensors if path.name != MEANS_FILE)


def scored_by(path: Path) -> list[Row]:
    return read_rows(path / "eval.csv")


def test_anchors_are_scored_on_exactly_the_targets_of_the_run(begin: Command, folder: Path) -> None:
    outcome = begin("encoding=rope", "eval.lengths=[16,32,80]")
    assert outcome.code == 0, outcome.err
    run = only_run(folder)
    rows = {anchor_key(row): row for row in scored_by(run)}
    assert {path.name.split("-")[0] for path in folders(folder)} == set(ANCHOR_NAMES.values())
    for path in folders(folder):
        assert {anchor_key(row) for row in scored_by(path)} == rows.keys()
        for row in scored_by(path):
            scores = load_scores(score_file(run, rows[anchor_key(row)]))
            counted = load_scores(score_file(path, row))
            assert np.array_equal(scores.document, counted.document)
            assert np.array_equal(scores.bytes, counted.bytes) and scores.nll.shape == counted.nll.shape


def test_other_protocols_have_anchors_too_and_lost_or_damaged_ones_are_made_again(
    begin, train, command, folder
):
    begin("encoding=rope")
    lost, damaged, *_ = made_once(folder)
    contents = [path.read_bytes() for path in (lost, damaged)]
    lost.unlink()
    damaged.write_bytes(b"nothing")
    folders(folder)[-1].joinpath("eval.csv").write_text("nothing\n")
    assert train("encoding=rope").code == 0
    assert [path.read_bytes() for path in (lost, damaged)] == contents
    assert [len(scored_by(path)) for path in folders(folder)] == [2, 2, 2]
    results = ("--results-dir", str(folder / "results"))
    assert command("eval", "--protocol", "sliding", "--lengths", "16,32", *results).code == 0
    [table] = build_tables(folder / "results", protocol="sliding")
    assert [sorted(line.records) for line in table.anchors] == [[16, 32], [16, 32]]
    anchors = folder / "results" / "anchors"
    shutil.rmtree(anchors)
    assert command("eval", "--lengths", "16,32,48", *results).code == 0
    assert {row.length for row in scored_by(folders(folder)[0])} == {16, 32, 48}
    shutil.rmtree(anchors)
    anchors.write_text("a file")
    outcome = train("encoding=rope")
    assert outcome.code == 0 and "warning: nothing counted to compare with" in outcome.err


def test_an_anchor_is_no_run_and_runs_of_a_seed_share_theirs(begin, train, command, folder):
    begin("encoding=rope")
    first = {path: path.stat().st_mtime_ns for path in made_once(folder)}
    assert train("encoding=t5", "train.lr=0.01").code == 0
    assert {path: path.stat().st_mtime_ns for path in first} == first
    assert {row.encoding_lr for path in folders(folder) for row in scored_by(path)} == {1.0}
    assert train("encoding=alibi", "seed=1").code == 0
    assert len(folders(folder)) == 6
    results = ("--results-dir", str(folder / "results"))
    assert "trigram" not in command("list", "runs", *results).out
    assert "trigram" not in (folder / "results" / "results.csv").read_text()
    assert command("report", "trigram", *results).code == command("eval", "trigram", *results).code == 2
    refused = command("report", "--where", "encoding=(trigram)", *results)
    assert refused.code == 2 and "no score is left" in refused.line
    assert command("report", "--baseline", "(trigram)", *results).code == 0


def test_anchors_of_another_seed_are_counted_in_its_own_windows(begin, train, folder):
    begin("encoding=rope")
    assert train("encoding=rope", "seed=1").code == 0
    levels = [scored_by(path)[0].nll for path in folders(folder) if path.name.startswith("trigram-")]
    assert len(levels) == len(set(levels)) == 2
