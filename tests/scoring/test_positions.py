"""Position curves: each range scores its tokens, and one pass gives the scores of separate ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.numbered_text import DATA as TELLING
from support.numbered_text import TEXT, contexts
from support.scoring import EVAL, SIZE, fed, scored, trained_model

from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.runs.job import Job
from pe_bench.runs.rows import Row
from pe_bench.runs.scores import load_scores, score_file
from pe_bench.scoring.plans import count_parts, make_plans, position_plans, range_ends

POSITIONED = replace(EVAL, per_position=True)


def ranges(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.protocol == "positions"]


def nll(trained: Job, row: Row) -> np.ndarray:
    return load_scores(score_file(trained.folder, row)).nll


@pytest.mark.parametrize(
    ("longest", "wanted"),
    [
        (1, [0, 1]),
        (2, [0, 1, 2]),
        (7, [0, 1, 2, 3, 4, 6, 7]),
        (24, [0, 1, 2, 3, 4, 6, 8, 12, 16, 24]),
        (100, [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 100]),
    ],
)
def test_ranges_are_two_an_octave_and_end_with_the_longest(longest: int, wanted: list[int]) -> None:
    assert range_ends(longest) == wanted


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


@pytest.mark.parametrize("encoding", [RoPE(SIZE.d_head), RoPE(SIZE.d_head, form="complex")])
def test_one_pass_equals_separate_passes_where_prefixes_are_consistent(
    tmp_path: Path, encoding: RoPE
) -> None:
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
        assert np.allclose(nll(together, row), nll(apart, other), atol=2e-5)
        assert row.bits_per_byte == pytest.approx(other.bits_per_byte, abs=1e-5)


def test_positions_report_progress_as_one_part(tmp_path: Path) -> None:
    for name, claims in (("together", frozenset({"prefix_consistent"})), ("apart", frozenset())):
        trained = trained_model(tmp_path / name)
        trained.model.encoding.claims = claims
        told: list[tuple[str, int, float]] = []
        scored(trained, POSITIONED, lambda *what, told=told: told.append(what))
        shares = [share for what, length, share in told if what == "positions" and length == 24]
        assert len(shares) == len([what for what, _, _ in told if what == "positions"])
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
    assert count_parts(make_plans(trained.config, POSITIONED, trained.data)) == 4
