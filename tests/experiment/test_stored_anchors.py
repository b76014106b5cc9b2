"""Anchors of real runs: scored on a run's own targets, once for all runs of a seed; they are no runs."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.commands import Command, only_run

from pe_bench.report.build import build_tables
from pe_bench.runs.gather import ANCHOR_NAMES, anchor_key
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import MEANS, load_scores, score_file
from pe_bench.scoring import anchors as anchor_scores


def folders(folder: Path) -> list[Path]:
    return sorted(path.parent for path in (folder / "results" / "anchors").glob("*/eval.csv"))


def made_once(folder: Path) -> list[Path]:
    """Return the tensors of anchors, but for the means, which have the times of other files."""
    found = (folder / "results" / "anchors").rglob("*.safetensors")
    return sorted(path for path in found if path.name != MEANS)


def scored_by(path: Path) -> list[Row]:
    return read_rows(path / "eval.csv")


def test_anchors_are_scored_on_exactly_the_targets_of_the_run(begin: Command, folder: Path) -> None:
    outcome = begin("encoding=rope", "eval.lengths=[16,32,80]")
    assert outcome.code == 0, outcome.err
    run = only_run(folder)
    rows = {anchor_key(row): row for row in scored_by(run)}
    found = folders(folder)
    assert {path.name.split("-")[0] for path in found} == set(ANCHOR_NAMES.values())
    for path in found:
        assert {anchor_key(row) for row in scored_by(path)} == rows.keys()
        for row in scored_by(path):
            own, anchors = (
                load_scores(score_file(place, one))
                for place, one in ((run, rows[anchor_key(row)]), (path, row))
            )
            assert np.array_equal(own.document, anchors.document)
            assert np.array_equal(own.bytes, anchors.bytes)
            assert own.nll.shape == anchors.nll.shape


def test_other_protocols_have_anchors_too_and_lost_ones_come_with_eval(
    begin: Command, command: Command, folder: Path
) -> None:
    begin("encoding=rope")
    results = ("--results-dir", str(folder / "results"))
    for protocol in ("nonoverlapping", "sliding"):
        assert command("eval", "--protocol", protocol, "--lengths", "16,32", *results).code == 0
        [table] = build_tables(folder / "results", protocol=protocol)
        assert [sorted(line.records) for line in table.anchors] == [[16, 32], [16, 32]]
    shutil.rmtree(folder / "results" / "anchors")
    assert command("eval", "--lengths", "16,32,48", *results).code == 0
    assert {row.length for row in scored_by(folders(folder)[0])} == {16, 32, 48}
    assert "(trigram)" in command("report", *results).out


def test_an_anchor_is_no_run_and_runs_of_a_seed_share_theirs(
    begin: Command, train: Command, command: Command, folder: Path
) -> None:
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
    assert command("report", "trigram", *results).code == 2
    assert command("eval", "trigram", *results).code == 2
    refused = command("report", "--where", "encoding=(trigram)", *results)
    assert refused.code == 2 and "rope" in refused.line
    assert command("report", "--baseline", "(trigram)", *results).code == 0


@pytest.mark.parametrize("moment", [1, 4])
def test_what_was_scored_before_an_interruption_is_kept_and_the_rest_follows(
    begin: Command, train: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    begin("encoding=rope")
    whole = {path.relative_to(folder): path.read_bytes() for path in made_once(folder)}
    shutil.rmtree(folder / "results" / "anchors")
    write, calls = anchor_scores.write_rows, []

    def stopping(*given: object) -> None:
        calls.append(given)
        if len(calls) == moment:
            raise KeyboardInterrupt
        write(*given)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(anchor_scores, "write_rows", stopping)
    assert train("encoding=rope").code == 130
    monkeypatch.setattr(anchor_scores, "write_rows", write)
    assert train("encoding=rope").code == 0
    assert {path.relative_to(folder): path.read_bytes() for path in made_once(folder)} == whole
    assert [len(scored_by(path)) for path in folders(folder)] == [2, 2, 2]


def test_a_lost_or_damaged_score_is_made_again_and_a_run_is_whole_without(
    begin: Command, train: Command, folder: Path
) -> None:
    begin("encoding=rope")
    lost, damaged, *_ = made_once(folder)
    contents = [path.read_bytes() for path in (lost, damaged)]
    lost.unlink()
    damaged.write_bytes(b"nothing")
    folders(folder)[-1].joinpath("eval.csv").write_text("nothing\n")
    assert train("encoding=rope").code == 0
    assert [path.read_bytes() for path in (lost, damaged)] == contents
    assert [len(scored_by(path)) for path in folders(folder)] == [2, 2, 2]
    anchors = folder / "results" / "anchors"
    shutil.rmtree(anchors)
    anchors.write_text("a file")
    outcome = train("encoding=rope")
    assert outcome.code == 0 and "warning: nothing counted to compare with" in outcome.err
