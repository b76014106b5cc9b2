"""Exactly the requested lengths are scored, and those that cannot be have a reason."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.scoring import (
    EVAL,
    SIZE,
    Hungry,
    data_of,
    every_protocol,
    fed,
    scored,
    trained_model,
)
from torch import Tensor

from pe_bench.config.schema import Config, EvalConfig, TrainConfig
from pe_bench.encodings.base import Side
from pe_bench.encodings.inputs.learned import Learned
from pe_bench.encodings.nope import NoPE
from pe_bench.errors import UserError, first_line
from pe_bench.runs.job import Job
from pe_bench.runs.rows import read_rows
from pe_bench.runs.scores import score_file
from pe_bench.scoring.plans import make_plans, shortages

torch.set_num_threads(1)


def lengths_by_targets(trained: Job, evaluation: EvalConfig) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for plan in make_plans(trained.config, evaluation, trained.data):
        found.setdefault(plan.target_hash, []).append(plan.length)
    return found


@every_protocol
def test_the_training_length_is_scored_on_every_set_of_targets(trained: Job, evaluation: EvalConfig) -> None:
    """Otherwise the other lengths could not be compared with anything."""
    for lengths, changes, expected in (
        ([24, 12], {}, [[8, 12, 24]]),
        ([12, 30, 40], {"max_length": 20}, [[8, 12], [8, 30, 40]]),
        ([8], {"max_length": 6, "target_tokens": 2}, [[8]]),
        ([4, 6], {"max_length": 6, "target_tokens": 2}, [[4, 6, 8]]),
    ):
        sets = lengths_by_targets(trained, replace(evaluation, lengths=lengths, **changes))
        assert list(sets.values()) == expected


def test_default_lengths_go_from_a_quarter_to_sixteen_times_the_training_length() -> None:
    config = Config({"name": "mine"}, train=TrainConfig(length=32, batch_tokens=32))
    plans = make_plans(config, EvalConfig(targets=2), data_of(600, 700))
    uncontrolled = [plan.length for plan in plans if plan.control == "none"]
    assert uncontrolled == [8, 16, 32, 33, 36, 40, 48, 64, 128, 256, 512]
    assert {plan.target_tokens for plan in plans} == {32}


def test_a_length_that_no_document_reaches_is_refused_before_anything_is_scored(
    trained: Job,
) -> None:
    shapes = fed(trained)
    with pytest.raises(UserError, match="61 .*the longest has 60"):
        scored(trained, replace(EVAL, lengths=[8, 61]))
    assert shapes == []
    assert not (trained.folder / "eval.csv").exists()


def test_an_undefined_length_has_a_reason_and_no_number_and_others_are_scored(tmp_path: Path) -> None:
    trained = trained_model(tmp_path / "run", Learned(SIZE.d_model, max_position=12))
    rows = {
        row.length: row for row in scored(trained, replace(EVAL, lengths=[6, 12, 13, 24], target_tokens=2))
    }
    for length in (6, 8, 12):
        assert rows[length].status == "ok"
        assert rows[length].reason == ""
        assert rows[length].nll is not None
    for length in (13, 24):
        row = rows[length]
        assert row.status == "undefined"
        assert "max_position=12 rows" in row.reason
        assert row.nll is row.perplexity is row.bits_per_byte is row.peak_memory_mb is None
        assert not score_file(trained.folder, row).exists()
    assert read_rows(trained.folder / "eval.csv") == list(rows.values())
    shapes = fed(trained)
    scored(trained, replace(EVAL, lengths=[6, 12, 13, 24], target_tokens=2))
    assert shapes == [], "it is not tried again"


def processor_is_full() -> Exception:
    """Return the error that PyTorch raises on allocating 128 terabytes."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**45)
    return caught.value


NO_MEMORY = {
    "gpu": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.\nMore lines"),
    "processor": processor_is_full,
    "python": MemoryError,
}


@pytest.mark.parametrize("error", NO_MEMORY.values(), ids=NO_MEMORY.keys())
def test_a_length_that_runs_out_of_memory_says_so_and_is_tried_again(
    tmp_path: Path, error: Callable[[], Exception]
) -> None:
    hungry = Hungry()
    trained = trained_model(tmp_path / "run", hungry)
    hungry.error = error()
    rows = scored(trained)
    assert [row.status for row in rows] == ["ok", "out_of_memory", "out_of_memory"]
    for row in rows[1:]:
        assert row.nll is row.perplexity is row.bits_per_byte is row.peak_memory_mb is None
        assert row.reason
        assert "\n" not in row.reason
    assert read_rows(trained.folder / "eval.csv") == rows
    hungry.error = None
    shapes = fed(trained)
    again = scored(trained)
    assert [(row.status, row.reason) for row in again] == [("ok", "")] * 3
    assert again[0] == rows[0]
    assert {columns for _, columns in shapes} == {12, 24}, "what was scored is not scored again"
    assert read_rows(trained.folder / "eval.csv") == again


def test_an_unexpected_error_is_not_recorded_as_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a fault of pe-bench's own code, where one of a user's would be a row."""
    error = RuntimeError("shapes do not fit")

    def fail_from_12_on(self: NoPE, q: Side, k: Side) -> tuple[Tensor, Tensor]:
        if k.x.shape[-2] >= 12:
            raise error
        return q.x, k.x

    monkeypatch.setattr(NoPE, "transform", fail_from_12_on)
    trained = trained_model(tmp_path / "run", NoPE())
    with pytest.raises(type(error)):
        scored(trained)
    assert [row.length for row in read_rows(trained.folder / "eval.csv")] == [8], "what was scored is kept"


def test_a_length_at_which_an_encoding_from_outside_fails_says_so_and_is_tried_again(
    tmp_path: Path,
) -> None:
    hungry, error = Hungry(), KeyError("q")  # of this test suite: nothing of pe-bench's own
    trained = trained_model(tmp_path / "run", hungry)
    hungry.error = error
    rows = scored(trained)
    assert [row.status for row in rows] == ["ok", "failed", "failed"]
    assert all(row.reason.endswith(f"{type(error).__name__}: {first_line(error)}") for row in rows[1:])
    assert rows[1].reason.startswith(f"{Path(str(sys.modules[Hungry.__module__].__file__))}:")
    hungry.error = None
    again = scored(trained)
    assert [(row.status, row.reason) for row in again] == [("ok", "")] * 3
    assert again[0] == rows[0]


def test_too_few_documents_for_all_targets_are_reported_with_their_number(trained: Job) -> None:
    """Three of the documents of 60, 20, 45 and 31 tokens reach 31, with room for 8 + 4 + 1 blocks of four.

    At 29 tokens a window scores two of the four, and so the first one begins two tokens before the block's
    last 29.
    """
    evaluation = replace(EVAL, max_length=29, targets=20)
    [line] = shortages(evaluation, make_plans(trained.config, evaluation, trained.data))
    assert line == (
        "too few documents: 3 reach the 31 tokens of a target block and its context, with room for 13 of "
        "eval.targets=20 target blocks; those are scored"
    )
    longer = replace(evaluation, max_length=30)
    [line] = shortages(longer, make_plans(trained.config, longer, trained.data))
    assert "2 reach the 32 tokens" in line
