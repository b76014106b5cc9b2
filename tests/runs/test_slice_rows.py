"""Slices of a run's scores are derived from what is stored, and gone where they cannot be trusted."""

import csv
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.results import add_run, edit_rows

from pe_bench.runs.folder import RunFolder
from pe_bench.runs.gather import gather, results_file
from pe_bench.runs.means import (
    KEY,
    NOVEL,
    RECALL,
    SLICES,
    KeptMeans,
    KeptSlices,
    hash_of_mask,
    keep_means,
    keep_slices,
    means_of_slice,
)
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import (
    MEANS,
    Scores,
    load_scores,
    perplexity_of,
    score_file,
)

SET, TARGETS = "7a56e7", 96  # of `support.results`: 24 documents of 4 targets
LEVELS = {32: 3.4, 128: 3.0, 256: 3.1, 512: None}


def mask_of(*targets: int) -> np.ndarray:
    mask = np.zeros(TARGETS, bool)
    mask[list(targets)] = True
    return mask


MASKS = {RECALL: mask_of(0, 1, 2, 3, 4, 9, 50), NOVEL: mask_of(*range(60, 90))}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    found = add_run(tmp_path / "results", "rope", LEVELS, spread=0.3)
    keep_slices(found, {SET: MASKS})
    return found


def of_slice(run: Path, name: str) -> list[Row]:
    return RunFolder(run).rows_of_slice(read_rows(run / "eval.csv"), name)


def gathered(run: Path) -> list[dict[str, str]]:
    gather(run.parent.parent)
    with results_file(run.parent.parent).open() as file:
        return list(csv.DictReader(file))


def test_a_slice_has_the_numbers_of_its_targets_alone(run: Path) -> None:
    [row] = [row for row in of_slice(run, RECALL) if row.length == 256]
    scores = load_scores(score_file(run, row))
    nll = scores.nll[MASKS[RECALL]].astype(np.float64)
    assert row.nll == pytest.approx(nll.mean())
    assert row.bits_per_byte == pytest.approx(nll.mean() / np.log(2)), "each target is one byte"
    assert row.perplexity == pytest.approx(perplexity_of(float(nll.mean())))
    assert (row.targets, row.documents, row.slice, row.judge) == (7, 4, RECALL, "")


def test_targets_of_a_slice_count_by_their_bytes_wherever_they_are() -> None:
    scores = Scores(
        np.array([1, 2, 3, 4, 5], np.float32), np.array([7, 7, 7, 8, 9]), np.array([2, 1, 0, 4, 3])
    )
    means = means_of_slice(scores, np.array([True, False, True, True, False]))
    assert means.names.tolist() == [7, 8] and means.sizes is not None
    assert means.sizes.tolist() == [2, 4]
    assert means.level == pytest.approx((1 + 3 + 4) / np.log(2) / (2 + 4))
    assert means.bits == pytest.approx(np.array([(1 + 3) / 2, 4 / 4]) / np.log(2))


def test_few_documents_are_cut_into_segments_that_count_by_the_bytes_of_the_slice_in_them() -> None:
    nll = np.random.default_rng(0).normal(3, 1, 600).astype(np.float32)
    scores = Scores(nll, np.repeat([4, 5, 9], 200), np.full(600, 2))
    mask = np.zeros(600, bool)
    mask[[0, 1, 70, 400, 599]] = True
    means = means_of_slice(scores, mask)
    assert (means.segments, means.documents) == (3, 2), "segments of 64 targets or more"
    assert means.names.tolist() == [12, 13, 27, 29], "document * 3 + segment; those without a target left out"
    assert means.sizes is not None and means.sizes.tolist() == [4, 2, 2, 2]
    parts = [nll[[0, 1]], nll[[70]], nll[[400]], nll[[599]]]
    wanted = [part.astype(float).mean() / np.log(2) / 2 for part in parts]
    assert means.bits == pytest.approx(wanted)
    assert means.level == pytest.approx(nll[mask].astype(float).mean() / np.log(2) / 2)
    assert means.level == pytest.approx(np.average(means.bits, weights=means.sizes))


def test_a_length_without_a_number_has_a_row_of_the_slice_without_one(run: Path) -> None:
    [row] = [row for row in of_slice(run, RECALL) if row.length == 512]
    assert (row.status, row.bits_per_byte, row.targets, row.documents) == ("undefined", None, 7, 4)


def test_results_csv_has_the_rows_of_all_slices_and_the_runs_own_file_those_of_all_targets(run: Path) -> None:
    found = [(int(row["length"]), row["slice"], int(row["targets"])) for row in gathered(run)]
    assert sorted(found) == sorted(
        (length, name, count)
        for length in LEVELS
        for name, count in (("all", TARGETS), (RECALL, 7), (NOVEL, 30))
    )
    assert {row.slice for row in read_rows(run / "eval.csv")} == {"all"}


def test_a_run_without_slices_has_rows_of_all_targets_alone(run: Path) -> None:
    (run / SLICES).unlink()
    assert {row["slice"] for row in gathered(run)} == {"all"}


def test_kept_means_of_a_slice_are_those_of_the_scores_to_the_last_bit(run: Path) -> None:
    from_scores = {name: of_slice(run, name) for name in MASKS}
    keep_means(run, read_rows(run / "eval.csv"))
    kept = KeptMeans(run)
    rows = [row for row in read_rows(run / "eval.csv") if row.bits_per_byte is not None]
    for row in rows:
        for mask in MASKS.values():
            path = score_file(run, row)
            found, wanted = kept.find(path, hash_of_mask(mask)), means_of_slice(load_scores(path), mask)
            assert found is not None and found.sizes is not None and wanted.sizes is not None
            assert found.bits.tobytes() == wanted.bits.tobytes()
            assert found.sizes.tobytes() == wanted.sizes.tobytes()
            assert found.level == wanted.level
    assert {name: of_slice(run, name) for name in MASKS} == from_scores


def test_means_are_kept_beside_a_slice_without_a_target(run: Path) -> None:
    keep_slices(run, {SET: {"key": mask_of()}})
    keep_means(run, read_rows(run / "eval.csv"))
    before = (run / MEANS).stat().st_mtime_ns
    keep_means(run, read_rows(run / "eval.csv"))
    assert (run / MEANS).stat().st_mtime_ns == before, "nothing was missing"
    assert of_slice(run, "key") == []


def levels_from_scores(run: Path, mask: np.ndarray) -> dict[int, float]:
    """Return the bits per byte of targets by length, from the files of scores."""
    rows = [row for row in read_rows(run / "eval.csv") if row.bits_per_byte is not None]
    return {row.length: means_of_slice(load_scores(score_file(run, row)), mask).level for row in rows}


@pytest.mark.parametrize("means_are_kept", [False, True])
@pytest.mark.parametrize("fate", ["replaced", "lost", "damaged"])
def test_means_of_a_slice_are_never_those_of_a_slice_that_was_there_before(
    run: Path, fate: str, means_are_kept: bool
) -> None:
    keep_slices(run, {SET: {KEY: mask_of(0, 1)}}, judge="judge-a")
    keep_means(run, read_rows(run / "eval.csv"))
    if fate == "lost":
        (run / SLICES).unlink()
    elif fate == "damaged":
        os.truncate(run / SLICES, 50)
    if fate != "replaced":
        keep_means(run, read_rows(run / "eval.csv"))
    keep_slices(run, {SET: {KEY: mask_of(60, 85)}}, judge="judge-b")
    if means_are_kept:
        keep_means(run, read_rows(run / "eval.csv"))
    found = {row.length: row.bits_per_byte for row in of_slice(run, KEY) if row.bits_per_byte is not None}
    assert found == levels_from_scores(run, mask_of(60, 85))
    assert found != levels_from_scores(run, mask_of(0, 1))
    assert {row.judge for row in of_slice(run, KEY)} == {"judge-b"}


def test_a_slice_names_its_judge(run: Path) -> None:
    keep_slices(run, {SET: {"key": mask_of(5, 6)}}, judge="alibi-s0-abcd")
    assert {row.judge for row in of_slice(run, "key")} == {"alibi-s0-abcd"}
    assert {row.judge for row in of_slice(run, NOVEL)} == {""}


def test_slices_that_are_damaged_anywhere_are_as_if_there_were_none(run: Path) -> None:
    whole = (run / SLICES).read_bytes()
    assert KeptSlices(run).names == [NOVEL, RECALL]
    for place in range(len(whole)):
        (run / SLICES).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found = KeptSlices(run)
        assert not found.names or all(
            np.array_equal(found.of(SET)[name], mask) for name, mask in MASKS.items()
        )
    os.truncate(run / SLICES, 50)
    assert KeptSlices(run).names == []


def test_slices_of_another_set_make_no_row(run: Path) -> None:
    edit_rows(run, lambda row: replace(row, target_hash="07e4"))
    assert of_slice(run, RECALL) == []
    keep_slices(run, {"07e4": {RECALL: np.ones(5, bool)}})
    assert of_slice(run, RECALL) == [], "a mask of other targets than the scores have"
