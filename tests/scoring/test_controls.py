"""The controls hide part of the context from a model and change nothing else."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.numbered_text import SPLIT, blocks_of
from support.scoring import EVAL, SIZE, TRAIN_LENGTH, scored, trained_model
from torch import Tensor

from pe_bench.config.schema import EvalConfig
from pe_bench.encodings.base import LayerEncoding, Layers, PositionalEncoding, Side
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.distance.lm_infinite import LMInfinite
from pe_bench.encodings.distance.streaming import Streaming
from pe_bench.encodings.inputs.learned import Learned
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.runs.job import Job
from pe_bench.runs.rows import Row
from pe_bench.runs.scores import load_scores, score_file
from pe_bench.scoring.plans import control_plans, controlled_lengths
from pe_bench.scoring.protocols import inputs, with_donors
from pe_bench.scoring.scorer import is_windowed

CONTROLLED = replace(EVAL, controls="all")
LENGTH = 24  # three times the training length


def by_control(rows: list[Row], length: int = LENGTH) -> dict[str, Row]:
    return {row.control: row for row in rows if row.length == length}


def nll(trained: Job, row: Row) -> np.ndarray:
    return load_scores(score_file(trained.folder, row)).nll


@pytest.mark.parametrize("length", [17, 20, 32])
def test_swap_replaces_tokens_further_than_the_training_length_from_the_first_target(length: int) -> None:
    blocks, train_length = blocks_of(), 12
    plans = control_plans(EvalConfig(controls="all"), blocks, [length], train_length)
    [plan] = [plan for plan in plans if plan.control == "swap"]
    size = plan.windows[0].targets
    own = inputs(SPLIT, plan.windows)
    fed = with_donors(SPLIT, plan.windows, own)
    first_target = length - size  # its place in the window
    distance = first_target - torch.arange(length)
    parts = [
        (int(document), int(donor), int(end) - after)
        for document, donor, end in zip(blocks.document, blocks.donor_document, blocks.donor_end, strict=True)
        for after in range(4 - size, -1, -size)
    ]
    for row, (document, donor, donor_end) in enumerate(parts):
        assert torch.equal(fed[row] == own[row], distance <= train_length)
        assert document == plan.windows[row].document != donor
        # The donor's tokens are as far from its block as the text's own would be.
        wanted = 1_000 * donor + torch.arange(donor_end - length, donor_end)
        assert torch.equal(fed[row][distance > train_length], wanted[distance > train_length])


def test_swap_changes_scores_if_the_model_sees_far_context_and_scores_the_same_targets(
    tmp_path: Path,
) -> None:
    # Two layers of a window of 4 see 7 tokens in all: never beyond the training length of 8.
    near = trained_model(tmp_path / "near", SlidingWindow(4))
    rows = by_control(scored(near, CONTROLLED))
    assert np.array_equal(nll(near, rows["swap"]), nll(near, rows["none"]))
    assert (rows["window"].status, rows["window"].nll) == ("undefined", None)
    assert "windowed itself" in rows["window"].reason
    trained = trained_model(tmp_path / "run")
    rows = by_control(scored(trained, CONTROLLED))
    assert rows.keys() == {"none", "window", "swap"}
    assert not np.allclose(nll(trained, rows["swap"]), nll(trained, rows["none"]), atol=1e-3)
    assert len({(row.target_hash, row.targets, row.context_mean) for row in rows.values()}) == 1


def test_window_scores_as_if_every_layer_saw_the_training_length(tmp_path: Path) -> None:
    trained = trained_model(tmp_path / "run")
    limited = trained_model(tmp_path / "limited", Layers([RoPE(SIZE.d_head)]))
    modifiers: dict[str, PositionalEncoding] = {"window": Layers([SlidingWindow(TRAIN_LENGTH)])}
    limited.model.encoding = Composition(Layers([RoPE(SIZE.d_head)]), modifiers, SIZE.n_layers)
    control = by_control(scored(trained, CONTROLLED))["window"]
    wanted = by_control(scored(limited))["none"]
    assert np.allclose(nll(trained, control), nll(limited, wanted), atol=1e-5)
    assert not np.allclose(control.nll or 0, by_control(scored(trained))["none"].nll or 0, atol=1e-3)


def test_an_encoding_is_windowed_where_every_layer_hides_some_token() -> None:
    for encoding, windowed in (
        (SlidingWindow(64), False),  # sees all of it
        (SlidingWindow(63), True),
        (Streaming(8, cache=16, sinks=2), True),
        (LMInfinite(8, window=16, global_tokens=2), True),
    ):
        assert is_windowed(Composition(Layers([encoding]), {}, 2), 2, 64) is windowed
    assert not is_windowed(Composition(Layers([SlidingWindow(4), NoPE()]), {}, 2), 2, 64)


def test_controlled_lengths_are_twice_and_sixteen_times_the_training_length() -> None:
    for controls, lengths, expected in (
        ("auto", [4, 8, 12, 16, 32, 64, 128], [16, 128]),
        ("auto", [8, 16, 32], [16]),
        ("auto", [8, 24, 40], [40]),  # neither twice nor 16 times: the longest
        ("auto", [8, 9], []),  # no token is further than 8 before the target
        ("all", [4, 8, 9, 10, 12, 16, 64], [10, 12, 16, 64]),
        ("none", [8, 16, 128], []),
    ):
        evaluation = EvalConfig(controls=controls)  # pyright: ignore[reportArgumentType]
        assert controlled_lengths(evaluation, lengths, train_length=8, target_tokens=4) == expected


@pytest.mark.parametrize(
    ("controls", "lengths", "expected"),
    [
        ("auto", [4, 8, 16, 40], [16, 40]),
        ("offset", [4, 8, 12, 128, 160], [128, 160]),
        ("auto", [8, 16], [16]),
        ("auto", [8, 9], []),
        ("none", [8, 16, 40], []),
    ],
)
def test_the_longest_length_of_an_hf_model_gets_controls_too(
    controls: str, lengths: list[int], expected: list[int]
) -> None:
    evaluation = EvalConfig(controls=controls)  # pyright: ignore[reportArgumentType]
    found = controlled_lengths(evaluation, lengths, train_length=8, target_tokens=4, longest_too=True)
    assert found == expected


def test_offset_shows_an_encoding_that_reads_absolute_positions_and_no_other(tmp_path: Path) -> None:
    offset = replace(EVAL, controls="offset")

    class Drifting(LayerEncoding):
        claims = frozenset({"prefix_consistent"})

        def logit_scale(self, queries: Side) -> Tensor:
            return (1 + queries.position.float()).unsqueeze(-1)

    for name, encoding in (("relative", RoPE(SIZE.d_head)), ("absolute", Drifting())):
        rows = scored(trained_model(tmp_path / name, encoding), offset)
        [level] = [row.nll for row in rows if row.length == TRAIN_LENGTH]
        moved = abs(by_control(rows)["offset"].nll - level)
        assert moved < 1e-6 if name == "relative" else moved > 1e-4
    rows = scored(trained_model(tmp_path / "table", Learned(SIZE.d_model, TRAIN_LENGTH)), offset)
    assert by_control(rows)["offset"].status == "undefined"


def test_offset_windows_end_at_the_position_where_those_of_the_longer_length_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = trained_model(tmp_path / "run")
    hidden, ends = trained.model.hidden, set[tuple[int, int]]()

    def watched(tokens, ids, *more):
        ends.add((tokens.shape[1], int(ids.max())))
        return hidden(tokens, ids, *more)

    monkeypatch.setattr(trained.model, "hidden", watched)
    scored(trained, replace(EVAL, controls="offset"))
    plain = {(length, length - 1) for length in (TRAIN_LENGTH, 12, LENGTH)}
    assert ends == {*plain, (TRAIN_LENGTH, LENGTH - 1)}
