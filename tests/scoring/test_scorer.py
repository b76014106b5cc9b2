"""Shared passes feed fewer tokens, and every score equals that of a separate pass."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, PropertyMock

import numpy as np
import pytest
import torch
from support.numbered_text import DATA as TELLING
from support.numbered_text import TEXT, contexts
from support.scoring import EVAL, SIZE, fed, scored, trained_model
from torch import Tensor

from pe_bench.config.compose import compose_config
from pe_bench.config.schema import EvalConfig
from pe_bench.encodings.base import LayerEncoding, Layers
from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import load_scores, score_file
from pe_bench.scoring.plans import make_plans, position_plans
from pe_bench.scoring.protocols import Plan
from pe_bench.scoring.rows import operations, operations_of_pass

CUT = replace(EVAL, protocol="nonoverlapping", lengths=[4, 8, 12, 24])


def both_ways(folder: Path, encoding: LayerEncoding, evaluation: EvalConfig) -> tuple[int, int, list[Row]]:
    """Return the tokens fed when prefixes are shared and when not, and the rows, which are equal."""
    together, apart = (trained_model(folder / name, encoding) for name in ("together", "apart"))
    apart.model.encoding.claims = frozenset()
    counts, rows = [], []
    for trained in (together, apart):
        trained.model.double()
        shapes = fed(trained)
        rows.append(scored(trained, evaluation))
        counts.append(sum(batch * columns for batch, columns in shapes))
    for row, other in zip(*rows, strict=True):
        assert (row.length, row.targets, row.target_hash) == (other.length, other.targets, other.target_hash)
        one, two = (load_scores(score_file(each.folder, row)).nll for each in (together, apart))
        assert np.abs(one - two).max() < 1e-6
        assert row.bits_per_byte == pytest.approx(other.bits_per_byte, abs=1e-6)
    return counts[0], counts[1], rows[0]


@pytest.mark.parametrize("max_length", [24, 10], ids=["one text", "two texts"])
def test_windows_that_share_a_start_are_scored_in_one_pass_with_the_same_scores(
    tmp_path: Path, max_length: int
) -> None:
    evaluation = replace(CUT, max_length=max_length)
    shared, separate, rows = both_ways(tmp_path, ALiBi(SIZE.n_heads), evaluation)
    longest: dict[tuple[int, int], int] = {}
    job = trained_model(tmp_path / "together")
    for plan in make_plans(job.config, evaluation, job.data):
        for window in plan.windows:
            place = (window.document, window.start)
            longest[place] = max(window.size, longest.get(place, 0))
    fewest = sum(longest.values())
    # Where one text ends within a window of the other, that window passes twice.
    assert shared == fewest if max_length == 24 else fewest < shared < 1.05 * fewest
    assert separate == sum(row.targets for row in rows) > 1.3 * shared


def test_ranges_of_positions_share_one_pass(tmp_path: Path) -> None:
    shared, separate, rows = both_ways(tmp_path, RoPE(SIZE.d_head), replace(EVAL, per_position=True))
    ranges = [row.length for row in rows if row.protocol == "positions"]
    assert ranges == [1, 2, 3, 4, 6, 8, 12, 16, 24] and shared < 0.85 * separate


class Drawn(Layers):
    """Rotations of positions that are drawn for each text."""

    def ids(self, tokens: Tensor, *, train: bool, generator: torch.Generator | None) -> Tensor:
        return torch.randperm(100, generator=generator)[: tokens.shape[-1]].sort().values


def test_drawn_positions_do_not_depend_on_how_many_windows_are_scored_at_once(tmp_path: Path) -> None:
    levels = []
    for batch_tokens in (24, 60, 1_000):
        job = trained_model(tmp_path / f"{batch_tokens}", Drawn([RoPE(SIZE.d_head)]))
        rows = scored(job, replace(EVAL, batch_tokens=batch_tokens))
        levels.append([row.bits_per_byte for row in rows])
    assert levels[0] == pytest.approx(levels[1], abs=1e-5) and levels[0] == pytest.approx(levels[2], abs=1e-5)


def test_an_interrupted_call_continues_after_the_longest_length(tmp_path: Path) -> None:
    def stop(plan: Plan, share: float) -> None:
        if plan.length == 8:
            raise KeyboardInterrupt

    trained = trained_model(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        scored(trained, CUT, stop)
    kept = read_rows(trained.folder / "eval.csv")
    assert [row.length for row in kept] == [12, 24]
    shapes = fed(trained)
    rows = scored(trained, CUT)
    assert max(columns for _, columns in shapes) == 8
    assert rows[2:] == kept
    at_once = scored(trained_model(tmp_path / "at once"), CUT)
    assert [row.nll for row in rows] == pytest.approx([row.nll for row in at_once], abs=1e-6)


def test_every_position_of_the_whole_windows_is_scored_once() -> None:
    plans = list(position_plans(TELLING, TEXT, 20))
    assert [plan.length for plan in plans] == [1, 2, 3, 4, 6, 8, 12, 16, 20]
    found = [pair for plan in plans for pair in contexts(plan)]
    longest = plans[-1]
    windows = [replace(window, first=0, targets=window.size) for window in longest.windows]
    # Documents of 83, 50 and 57 tokens hold four, two and two windows of 20 with a target after each.
    assert sorted(found) == sorted(contexts(replace(longest, windows=windows)))
    assert len(set(found)) == len(found) == 20 * (4 + 2 + 2)
    for plan, first in zip(plans, [0, 1, 2, 3, 4, 6, 8, 12, 16], strict=True):
        assert {seen for _, seen in contexts(plan)} == set(range(first + 1, plan.length + 1))
        assert plan.context_mean == (first + 1 + plan.length) / 2


def test_the_operations_of_plans_are_those_of_their_windows_and_parameters_are_counted_once() -> None:
    model = Mock()
    counted = PropertyMock(return_value=1000)
    type(model).parameter_count = counted
    job = Mock(model=model, config=compose_config([]))
    plans = [Mock(windows=[Mock(size=16), Mock(size=32)]), Mock(windows=[Mock(size=16)])]
    expected = 2 * operations_of_pass(job, 16) + operations_of_pass(job, 32)
    counted.reset_mock()
    assert operations(job, plans) == expected > 0
    assert counted.call_count == 1
