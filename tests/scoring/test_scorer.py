"""Shared passes feed fewer tokens, and every score equals that of a separate pass."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.numbered_text import DATA as TELLING
from support.numbered_text import TEXT, contexts
from support.scoring import EVAL, SIZE, fed, scored, trained_model

from pe_bench.config.schema import EvalConfig
from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.runs.job import Job
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import load_scores, score_file
from pe_bench.scoring.plans import make_plans, position_plans
from pe_bench.scoring.protocols import Plan

CUT = replace(EVAL, protocol="nonoverlapping", lengths=[4, 8, 12, 24])


def nll_of(trained: Job, row: Row) -> np.ndarray:
    return load_scores(score_file(trained.folder, row)).nll


def apart(trained: Job, evaluation: EvalConfig = CUT) -> list[Row]:
    """Score with a separate pass for each length, without sharing prefixes."""
    trained.model.encoding.claims = frozenset()
    return scored(trained, evaluation)


def tokens_of(shapes: list[tuple[int, ...]]) -> int:
    return sum(batch * columns for batch, columns in shapes)


@pytest.mark.parametrize("max_length", [24, 10], ids=["one text", "two texts"])
def test_windows_that_share_a_start_are_scored_in_one_pass_with_the_same_scores(
    tmp_path: Path, max_length: int
) -> None:
    evaluation, encoding = replace(CUT, max_length=max_length), ALiBi(SIZE.n_heads)
    together, alone = (trained_model(tmp_path / name, encoding) for name in ("together", "alone"))
    together.model.double()
    alone.model.double()
    shapes = fed(together)
    rows = scored(together, evaluation)
    longest: dict[tuple[int, int], int] = {}
    for plan in make_plans(together.config, evaluation, together.data):
        for window in plan.windows:
            place = (window.document, window.start)
            longest[place] = max(window.size, longest.get(place, 0))
    shared, fewest = tokens_of(shapes), sum(longest.values())
    # Where one text ends within a window of the other, that window passes twice.
    assert shared == fewest if max_length == 24 else fewest < shared < 1.05 * fewest
    shapes = fed(alone)
    each = apart(alone, evaluation)
    assert tokens_of(shapes) == sum(row.targets for row in each) > 1.3 * shared
    for row, other in zip(rows, each, strict=True):
        assert (row.length, row.targets, row.target_hash) == (other.length, other.targets, other.target_hash)
        assert np.abs(nll_of(together, row) - nll_of(alone, other)).max() < 1e-6
        assert row.nll == pytest.approx(other.nll, abs=1e-6)


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
    each = apart(trained_model(tmp_path / "alone"))
    assert [row.nll for row in rows] == pytest.approx([row.nll for row in each], abs=1e-6)


POSITIONED = replace(EVAL, per_position=True)


def ranges(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.protocol == "positions"]


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


def test_one_pass_equals_separate_passes_where_prefixes_are_consistent(tmp_path: Path) -> None:
    encoding = RoPE(SIZE.d_head)
    together = trained_model(tmp_path / "together", encoding)
    apart = trained_model(tmp_path / "apart", encoding)
    shapes = fed(together)
    one = ranges(scored(together, POSITIONED))
    assert {columns for _, columns in shapes} == {8, 12, 24}, "no pass for each range"
    apart.model.encoding.claims = frozenset()
    shapes = fed(apart)
    each = ranges(scored(apart, POSITIONED))
    assert {columns for _, columns in shapes} >= {1, 2, 3, 4, 6, 16}
    assert [row.length for row in one] == [row.length for row in each] == [1, 2, 3, 4, 6, 8, 12, 16, 24]
    for row, other in zip(one, each, strict=True):
        assert np.allclose(nll_of(together, row), nll_of(apart, other), atol=2e-5)
        assert row.bits_per_byte == pytest.approx(other.bits_per_byte, abs=1e-5)
