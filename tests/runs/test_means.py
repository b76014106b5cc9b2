"""Means by document and slices that a run keeps: exact, derived, and never trusted when in doubt."""

import csv
import math
import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from support.results import add_run, edit_rows

from pe_bench.report.build import build_tables
from pe_bench.report.records import Table
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.gather import gather, results_file
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import (
    KEY,
    MEANS,
    NOVEL,
    RECALL,
    SLICES,
    Scores,
    Slice,
    compute_means,
    delete_scores,
    keep_slices,
    load_scores,
    perplexity_of,
    read_means,
    read_tensors,
    score_file,
    write_tensors,
)

SET, TARGETS = "7a56e7", 96  # of `support.results`: 24 documents of 4 targets
LEVELS = {32: 3.4, 128: 3.0, 256: 3.1, 512: None}


def slice_of(*targets: int, size: int = TARGETS) -> Slice:
    mask = np.zeros(size, bool)
    mask[list(targets)] = True
    return Slice(mask)


MASKS = {RECALL: slice_of(0, 1, 2, 3, 4, 9, 50).mask, NOVEL: slice_of(*range(60, 90)).mask}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return one of three runs, with slices."""
    add_run(tmp_path / "results", "rope", {**LEVELS, 512: 3.6}, seed=1)
    add_run(tmp_path / "results", "alibi", {**LEVELS, 512: 3.6})
    add_run(tmp_path / "results", "alibi", {256: 3.2, 512: 3.3}, protocol="nonoverlapping")
    run = add_run(tmp_path / "results", "rope", LEVELS, spread=0.3)
    keep_slices(run, {SET: MASKS})
    return run


def rows_of(run: Path) -> list[Row]:
    return read_rows(run / "eval.csv")


def of_slice(run: Path, name: str) -> list[Row]:
    return list(RunFolder(run).means.rows_of_slice(rows_of(run), name))


def levels(run: Path, name: str) -> dict[int, float | None]:
    return {row.length: row.bits_per_byte for row in of_slice(run, name)}


def keep_all(run: Path) -> None:
    for folder in run.parent.iterdir():
        keep_slices(folder, {})


def tables(run: Path) -> list[Table]:
    return build_tables(run.parent.parent)


def missing_differences(run: Path) -> str:
    records = [record for table in tables(run) for line in table.lines for record in line.records.values()]
    return " ".join(record.compared.missing for record in records)


def test_a_report_from_kept_means_is_the_same_to_the_last_bit_and_reads_no_scores(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / MEANS).unlink()
    from_scores = [table.lines for table in tables(run)]
    keep_all(run)
    before = (run / MEANS).stat().st_mtime_ns
    monkeypatch.setattr("pe_bench.runs.folder.load_scores", Mock(side_effect=AssertionError))
    assert [table.lines for table in tables(run)] == from_scores
    keep_all(run)
    assert (run / MEANS).stat().st_mtime_ns == before, "nothing was missing"
    edit_rows(run, lambda row: replace(row, bits_per_byte=9.0) if row.length == 256 else row)
    with pytest.raises(AssertionError):
        tables(run)
    delete_scores(run)
    assert not (run / MEANS).exists()


def test_a_slice_has_the_numbers_of_its_targets_alone_and_the_length_without_a_number_none(run: Path) -> None:
    row = next(row for row in of_slice(run, RECALL) if row.length == 256)
    nll = load_scores(score_file(run, row)).nll[MASKS[RECALL]].astype(np.float64)
    assert row.nll == pytest.approx(nll.mean())
    assert row.bits_per_byte == pytest.approx(nll.mean() / np.log(2)), "each target is one byte"
    assert row.perplexity == pytest.approx(perplexity_of(float(nll.mean())))
    assert (row.targets, row.documents, row.slice, row.judge) == (7, 4, RECALL, "")
    row = next(row for row in of_slice(run, RECALL) if row.length == 512)
    assert (row.status, row.bits_per_byte, row.targets, row.documents) == ("undefined", None, 7, 4)
    keep_slices(run, {SET: {KEY: slice_of().mask}})
    assert of_slice(run, KEY) == [], "a slice without a target"


def test_targets_of_a_slice_count_by_their_bytes_wherever_they_are() -> None:
    scores = Scores(
        np.array([1, 2, 3, 4, 5], np.float32), np.array([7, 7, 7, 8, 9]), np.array([2, 1, 0, 4, 3])
    )
    means = compute_means(scores, "paired", slice_of(0, 2, 3, size=5))
    assert means.names.tolist() == [7, 8] and means.sizes is not None
    assert means.sizes.tolist() == [2, 4]
    assert means.level == pytest.approx((1 + 3 + 4) / np.log(2) / (2 + 4))
    assert means.bits == pytest.approx(np.array([(1 + 3) / 2, 4 / 4]) / np.log(2))


def test_few_documents_are_cut_into_segments_that_count_by_the_bytes_of_the_slice_in_them() -> None:
    nll = np.random.default_rng(0).normal(3, 1, 600).astype(np.float32)
    scores = Scores(nll, np.repeat([4, 5, 9], 200), np.full(600, 2))
    part = slice_of(0, 1, 70, 400, 599, size=600)
    means = compute_means(scores, "paired", part)
    assert (means.segments, means.documents) == (3, 2), "segments of 64 targets or more"
    assert means.names.tolist() == [12, 13, 27, 29], "document * 3 + segment; those without a target left out"
    assert means.sizes is not None and means.sizes.tolist() == [4, 2, 2, 2]
    parts = [nll[[0, 1]], nll[[70]], nll[[400]], nll[[599]]]
    assert means.bits == pytest.approx([bits.astype(float).mean() / np.log(2) / 2 for bits in parts])
    assert means.level == pytest.approx(nll[part.mask].astype(float).mean() / np.log(2) / 2)
    assert means.level == pytest.approx(np.average(means.bits, weights=means.sizes))


def test_results_csv_has_the_rows_of_all_slices_and_the_runs_own_file_those_of_all_targets(run: Path) -> None:
    def gathered() -> list[tuple[int, str, int]]:
        gather(run.parent.parent)
        with results_file(run.parent.parent).open() as file:
            rows = [row for row in csv.DictReader(file) if row["run"] == run.name]
        return sorted((int(row["length"]), row["slice"], int(row["targets"])) for row in rows)

    sizes = [("all", TARGETS), (RECALL, 7), (NOVEL, 30)]
    assert gathered() == sorted((length, *size) for length in LEVELS for size in sizes)
    assert {row.slice for row in rows_of(run)} == {"all"}
    os.truncate(run / MEANS, 50)  # as if there were none
    assert {row[1] for row in gathered()} == {"all"}


def test_means_that_hold_what_cannot_be_are_as_if_there_were_none(run: Path) -> None:
    tensors, facts = read_tensors(run / MEANS)
    facts["slices"] = {words: [math.inf, *about[1:]] for words, about in facts["slices"].items()}
    write_tensors(run / MEANS, tensors, facts)
    assert not read_means(run).means


@pytest.mark.parametrize("fate", ["replaced", "lost", "damaged"])
def test_means_of_a_slice_are_never_those_of_a_slice_that_was_there_before(run: Path, fate: str) -> None:
    keep_slices(run, {SET: {KEY: slice_of(0, 1).mask}}, judge="judge-a")
    old = levels(run, KEY)
    if fate == "lost":
        (run / SLICES).unlink()
    elif fate == "damaged":
        os.truncate(run / SLICES, 50)
    keep_slices(run, {SET: {KEY: slice_of(60, 85).mask}}, judge="judge-b")
    scores = {row.length: load_scores(score_file(run, row)) for row in rows_of(run) if row.nll is not None}
    expected = {length: compute_means(one, "paired", slice_of(60, 85)) for length, one in scores.items()}
    assert (
        levels(run, KEY) == {512: None, **{length: means.level for length, means in expected.items()}} != old
    )
    assert {row.judge for row in of_slice(run, KEY)} == {"judge-b"}
    kept = {""} if fate == "replaced" else set()
    assert {row.judge for row in of_slice(run, NOVEL)} == kept, "slices beside it stay"


def test_slices_of_another_set_make_no_row(run: Path) -> None:
    edit_rows(run, lambda row: replace(row, target_hash="07e4"))
    assert of_slice(run, RECALL) == []
    keep_slices(run, {"07e4": {RECALL: np.ones(5, bool)}})
    assert of_slice(run, RECALL) == [], "a mask of other targets than the scores have"
