"""Rows and kept means follow exactly from the NLLs of single targets; damaged files give neither."""

import csv
import math
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from support.results import ROW, add_run, edit_rows

from pe_bench.errors import RunError
from pe_bench.report.build import build_tables
from pe_bench.runs.folder import RunFolder, delete_scores, gather
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import (
    KEY,
    MEANS_FILE,
    NOVEL,
    RECALL,
    Scores,
    compute_level,
    compute_means,
    keep_slices,
    load_scores,
    read_means,
    read_tensors,
    save_scores,
    score_file,
    write_tensors,
)

LOG2 = math.log(2)
PROTOCOLS = ("paired", "nonoverlapping")
SET, TARGETS = "7a56e7", 96  # of `support.results`: 24 documents of 4 targets
LEVELS = {32: 3.4, 128: 3.0, 256: 3.1, 512: None}


def unequal() -> Scores:
    """Document 7: targets of 1, 2 and 3 bits, 2 bytes each. Document 3: one of 8 bits and 1 byte."""
    nll = np.array([1, 2, 8, 3], np.float32) * np.float32(LOG2)
    return Scores(nll, np.array([7, 7, 3, 7]), np.array([2, 2, 1, 2]))


def mask_of(*targets: int, size: int = TARGETS) -> np.ndarray:
    return np.isin(np.arange(size), targets)


MASKS = {RECALL: mask_of(0, 1, 2, 3, 4, 9, 50), NOVEL: mask_of(*range(60, 90))}


def test_documents_count_the_same_in_a_paired_level_and_tokens_in_that_of_papers() -> None:
    paired, tokens = (compute_level(unequal(), protocol) for protocol in PROTOCOLS)
    assert paired == pytest.approx({"nll": 5 * LOG2, "perplexity": 2**5, "bits_per_byte": (6 / 6 + 8) / 2})
    names, bits = unequal().by_cluster()
    assert names.tolist() == [3, 7] and bits == pytest.approx([8.0, 1.0])
    assert tokens["nll"] == pytest.approx(14 / 4 * LOG2) and tokens["bits_per_byte"] == pytest.approx(2)
    # A document without bytes counts in the NLL alone.
    scores = replace(unequal(), bytes=np.array([2, 2, 0, 2]))
    level = compute_level(scores, "paired")
    assert level["bits_per_byte"] == pytest.approx(1) and level["nll"] == paired["nll"]
    for protocol in PROTOCOLS:
        level = compute_level(replace(scores, bytes=np.zeros(4, np.int64)), protocol)
        assert math.isnan(level["bits_per_byte"]) and math.isfinite(level["nll"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sums_keep_what_float32_would_lose_and_what_is_not_finite_shows(protocol: str) -> None:
    def level(*nll: float, times: int = 1) -> dict[str, float]:
        values = np.tile(np.array(nll, np.float32), times)
        return compute_level(Scores(values, np.arange(len(values)) % 2, np.ones(len(values), int)), protocol)

    assert level(1 / 3, times=1_000_000)["nll"] == pytest.approx(float(np.float32(1 / 3)), rel=1e-12)
    assert set(level(1, math.inf).values()) == {math.inf}
    assert all(map(math.isnan, level(1, math.nan).values()))
    assert level(800, 800)["perplexity"] == math.inf


def test_each_row_has_a_separate_score_file(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [{}, {"length": 64}, {"control": "swap"}, {"target_hash": "abd"}]
    changes += [{"score_dtype": "bfloat16"}, {"scored_with": "yarn", "forced": True}]
    changes += [{"protocol": "sliding", "stride": stride} for stride in (None, 32, 64)]
    changes += [{"scored_with": name} for name in ("yarn", "yarn factor=4", "my/own.py:Yarn")]
    paths = {score_file(tmp_path, replace(ROW, **change)) for change in changes}
    assert len(paths) == 12 and {path.parent for path in paths} == {tmp_path / "scores"}


def test_scores_come_back_exactly_and_every_flipped_bit_is_damage_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "scores" / "one.safetensors"
    save_scores(path, unequal())
    assert load_scores(path).correct is None
    scores = replace(unequal(), correct=np.array([0, 1, 1, 0], np.float32))
    save_scores(path, scores)
    (tmp_path / "usual").touch()
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode, "safetensors hides its own"
    content = path.read_bytes()
    for index in range(-1, len(content), 3):
        bit = [content[index] ^ 1 << index % 8] if index >= 0 else [content[0]]
        path.write_bytes(content[: max(index, 0)] + bytes(bit) + content[max(index, 0) + 1 :])
        with suppress(RunError):
            read = vars(load_scores(path))
            assert all(read[name].dtype == value.dtype for name, value in vars(scores).items())
            assert all(np.array_equal(read[name], value) for name, value in vars(scores).items()), index


def test_a_file_that_is_missing_cut_or_no_scores_is_named(tmp_path: Path) -> None:
    path = tmp_path / "scores" / "one.safetensors"
    save_scores(path, unequal())
    for content in (b"", b"\x00" * 100, path.read_bytes()[:-4]):
        path.write_bytes(content)
        with pytest.raises(RunError, match=r"one\.safetensors is damaged"):
            load_scores(path)
    empty = Scores(*[np.zeros(0, kind) for kind in (np.float32, np.int64, np.int64)])
    changes = ({"document": np.zeros(2, np.int64)}, {"nll": np.zeros(4)})
    for scores in (empty, *(replace(unequal(), **change) for change in changes)):
        save_scores(path, scores)
        with pytest.raises(RunError, match="are no scores"):
            load_scores(path)
    path.unlink()
    with pytest.raises(RunError, match=r"one\.safetensors is missing"):
        load_scores(path)


# Means by document, and slices


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


def test_a_report_from_kept_means_is_the_same_to_the_last_bit_and_reads_no_scores(run, monkeypatch) -> None:
    def lines() -> list[object]:
        return [table.lines for table in build_tables(run.parent.parent)]

    (run / MEANS_FILE).unlink()
    from_scores = lines()
    for folder in run.parent.iterdir():
        keep_slices(folder, {})
    monkeypatch.setattr("pe_bench.runs.find.load_scores", Mock(side_effect=AssertionError))
    assert lines() == from_scores
    edit_rows(run, lambda row: replace(row, bits_per_byte=9.0) if row.length == 256 else row)
    with pytest.raises(AssertionError):
        lines()
    delete_scores(run)
    assert not (run / MEANS_FILE).exists()


def test_a_slice_has_the_numbers_of_its_targets_alone_and_the_length_without_a_number_none(run: Path) -> None:
    row = next(row for row in of_slice(run, RECALL) if row.length == 256)
    nll = load_scores(score_file(run, row)).nll[MASKS[RECALL]].astype(np.float64)
    assert row.nll == pytest.approx(nll.mean()) and row.perplexity == pytest.approx(np.exp(nll.mean()))
    assert row.bits_per_byte == pytest.approx(nll.mean() / LOG2), "each target is one byte"
    assert (row.targets, row.documents, row.slice, row.judge) == (7, 4, RECALL, "")
    row = next(row for row in of_slice(run, RECALL) if row.length == 512)
    assert (row.status, row.bits_per_byte, row.targets, row.documents) == ("undefined", None, 7, 4)
    keep_slices(run, {SET: {KEY: mask_of()}})
    assert of_slice(run, KEY) == [], "a slice without a target"


def test_few_documents_are_cut_into_segments_that_count_by_the_bytes_of_the_slice_in_them() -> None:
    nll = np.random.default_rng(0).normal(3, 1, 600).astype(np.float32)
    scores = Scores(nll, np.repeat([4, 5, 9], 200), np.full(600, 2))
    mask = mask_of(0, 1, 70, 400, 599, size=600)
    means = compute_means(scores, "paired", mask)
    assert means.segments == 3, "segments of 64 targets or more"
    assert means.names.tolist() == [12, 13, 27, 29], "document * 3 + segment; those without a target left out"
    assert means.sizes is not None and means.sizes.tolist() == [4, 2, 2, 2]
    parts = [nll[[0, 1]], nll[[70]], nll[[400]], nll[[599]]]
    assert means.bits == pytest.approx([bits.astype(float).mean() / LOG2 / 2 for bits in parts])
    assert means.level == pytest.approx(nll[mask].astype(float).mean() / LOG2 / 2)
    assert means.level == pytest.approx(np.average(means.bits, weights=means.sizes))


def test_results_csv_has_the_rows_of_all_slices_and_the_runs_own_file_those_of_all_targets(run: Path) -> None:
    def gathered() -> list[tuple[int, str, int]]:
        gather(run.parent.parent)
        with (run.parent.parent / "results.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["run"] == run.name]
        return sorted((int(row["length"]), row["slice"], int(row["targets"])) for row in rows)

    sizes = [("all", TARGETS), (RECALL, 7), (NOVEL, 30)]
    assert gathered() == sorted((length, *size) for length in LEVELS for size in sizes)
    assert {row.slice for row in rows_of(run)} == {"all"}
    tensors, facts = read_tensors(run / MEANS_FILE)
    infinite = {entry: [*about[:2], math.inf, *about[3:]] for entry, about in facts["means"].items()}
    write_tensors(run / MEANS_FILE, tensors, {**facts, "means": infinite})
    assert not read_means(run).means, "impossible or truncated means are ignored"
    os.truncate(run / MEANS_FILE, 50)
    assert {row[1] for row in gathered()} == {"all"}


def test_means_of_a_slice_are_never_those_of_a_slice_that_was_there_before(run: Path) -> None:
    keep_slices(run, {SET: {KEY: mask_of(0, 1)}}, judge="judge-a")
    before = {row.length: row.bits_per_byte for row in of_slice(run, KEY)}
    keep_slices(run, {SET: {KEY: mask_of(60, 85)}}, judge="judge-b")
    expected: dict[int, float | None] = {512: None}
    for row in rows_of(run):
        if row.nll is not None:
            scores = load_scores(score_file(run, row))
            expected[row.length] = compute_means(scores, "paired", mask_of(60, 85)).level
    assert {row.length: row.bits_per_byte for row in of_slice(run, KEY)} == expected != before
    assert {row.judge for row in of_slice(run, KEY)} == {"judge-b"}
    assert {row.judge for row in of_slice(run, NOVEL)} == {""}, "slices beside it stay"


def test_slices_of_another_set_make_no_row(run: Path) -> None:
    edit_rows(run, lambda row: replace(row, target_hash="07e4"))
    assert of_slice(run, RECALL) == []
    keep_slices(run, {"07e4": {RECALL: np.ones(5, bool)}})
    assert of_slice(run, RECALL) == [], "a mask of other targets than the scores have"
