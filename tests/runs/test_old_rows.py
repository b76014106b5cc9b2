"""Rows in files of older versions: facts in their sentences are read as columns."""

import csv
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from support.results import ROW

from pe_bench.errors import RunError
from pe_bench.runs.rows import Row, read_rows, write_rows
from pe_bench.runs.scores import score_file

OLD_COLUMNS = (
    *("run", "encoding", "scored_with", "seed", "model", "setting", "train_length", "length", "protocol"),
    *("control", "stride", "status", "reason", "nll", "perplexity", "bits_per_byte", "context_mean"),
    *("targets", "documents", "target_hash", "data", "data_hash", "tokenizer", "parameters", "steps"),
    *("train_tokens", "tokens_per_second", "peak_memory_mb", "device", "train_dtype", "score_dtype"),
    *("threads", "torch", "pe_bench", "git", "date"),
)
TOLD = "the encoding is told the length of the text"
WINDOW = "each of 4 layers sees 128 tokens, so information travels up to 509"


def read_old(folder: Path, *rows: Row, **words: str) -> list[Row]:
    """Write rows as an older version did, with this text in the last one, and read them."""
    records = [{name: getattr(row, name) for name in OLD_COLUMNS} for row in rows]
    records[-1] |= words
    with (folder / "eval.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(OLD_COLUMNS)
        writer.writerows(["" if value is None else value for value in record.values()] for record in records)
    return read_rows(folder / "eval.csv")


def test_an_older_row_is_read_as_the_same_row_in_current_form(tmp_path: Path) -> None:
    row = replace(ROW, length=128, context_mean=119.5, target_tokens=16)
    assert read_old(tmp_path, row) == [row]
    write_rows(tmp_path / "eval.csv", [row])
    assert read_rows(tmp_path / "eval.csv") == [row]


@pytest.mark.parametrize("tokens", [1, 16, 63, 128])
def test_the_size_of_a_target_block_follows_from_the_mean_context(tmp_path: Path, tokens: int) -> None:
    mean = sum(512 - tokens + k for k in range(tokens)) / tokens
    [row] = read_old(tmp_path, replace(ROW, length=512, context_mean=mean))
    assert row.target_tokens == tokens


@pytest.mark.parametrize("change", [{"protocol": "nonoverlapping"}, {"context_mean": None}])
def test_rows_without_target_blocks_have_no_size_of_them(tmp_path: Path, change: dict[str, object]) -> None:
    [row] = read_old(tmp_path, replace(ROW, **change))  # pyright: ignore[reportArgumentType]
    assert row.target_tokens is None


@pytest.mark.parametrize(
    ("reason", "knows_length", "left"),
    [(TOLD, True, ""), (f"{WINDOW}; {TOLD}", True, WINDOW), (WINDOW, False, WINDOW), ("", False, "")],
)
def test_a_remark_on_the_length_becomes_a_column(
    tmp_path: Path, reason: str, knows_length: bool, left: str
) -> None:
    [row] = read_old(tmp_path, replace(ROW, reason=reason))
    assert (row.knows_length, row.reason) == (knows_length, left)


def test_the_mark_of_force_becomes_a_column_and_the_scores_are_still_found(tmp_path: Path) -> None:
    [row] = read_old(tmp_path, ROW, scored_with="alibi (forced)")
    assert (row.scored_with, row.forced) == ("alibi", True)
    name = f"paired-128-none-7a56e7-{hashlib.sha256(b'alibi (forced)').hexdigest()[:8]}.safetensors"
    assert score_file(tmp_path, row) == tmp_path / "scores" / name


def strided(*strides: tuple[int, int], scored_with: str = "rope") -> list[Row]:
    """Rows of one run, each a (length, stride)."""
    row = replace(ROW, scored_with=scored_with, protocol="sliding")
    return [replace(row, length=length, stride=stride) for length, stride in strides]


def rules_of(folder: Path, *rows: Row) -> dict[str, list[int]]:
    """The lengths under each rule, of what was scored with the run's own encoding."""
    found: dict[str, list[int]] = {}
    for row in read_old(folder, *rows):
        if row.scored_with == row.encoding:
            found.setdefault(row.stride_rule, []).append(row.length)
    return {rule: sorted(lengths) for rule, lengths in found.items()}


@pytest.mark.parametrize(
    ("strides", "rules"),
    [
        ([(64, 32), (128, 64), (256, 128)], {"half": [64, 128, 256]}),
        ([(1, 1), (2, 1), (3, 1)], {"half": [1, 2, 3]}),
        ([(64, 32), (128, 32), (256, 32)], {"32": [64, 128, 256]}),
        ([(64, 64), (128, 100), (256, 100)], {"100": [64, 128, 256]}),
        ([(64, 64), (192, 96)], {"96": [64, 192]}),
        ([(64, 64), (128, 128)], {"128": [64, 128]}),
        ([(2, 1), (4, 2), (4, 1), (8, 4), (8, 1)], {"1": [2, 4, 8], "half": [2, 4, 8]}),
        ([(64, 32), (64, 64), (128, 64), (256, 64)], {"64": [64, 128, 256], "half": [64, 128]}),
        ([(128, 32), (128, 48), (256, 32), (256, 48)], {"32": [128, 256], "48": [128, 256]}),
    ],
)
def test_the_stride_rule_follows_from_the_strides(
    tmp_path: Path, strides: list[tuple[int, int]], rules: dict[str, list[int]]
) -> None:
    assert rules_of(tmp_path, *strided(*strides)) == rules


def test_a_stride_beyond_the_lengths_is_named_by_the_encoding_that_shows_it(tmp_path: Path) -> None:
    short = strided((64, 64), (128, 128))
    long = strided((64, 64), (256, 256), (2048, 1000), scored_with="yarn")
    assert set(rules_of(tmp_path, *short, *long)) == {"1000"}
    assert set(rules_of(tmp_path, *short, *strided((64, 64), (256, 256), scored_with="yarn"))) == {"256"}


def test_a_stride_rule_of_another_encoding_does_not_apply_to_this_one(tmp_path: Path) -> None:
    other = strided((128, 64), (256, 64), scored_with="yarn")
    found = read_old(tmp_path, *strided((128, 64), (256, 128)), *other)
    assert {(row.stride_rule, row.scored_with) for row in found} == {("half", "rope"), ("64", "yarn")}


@pytest.mark.parametrize("column", ["length", "stride", "context_mean"])
def test_a_damaged_number_is_named_as_in_current_files(tmp_path: Path, column: str) -> None:
    with pytest.raises(RunError, match=r"eval\.csv is damaged"):
        read_old(tmp_path, ROW, **{column: "many"})
