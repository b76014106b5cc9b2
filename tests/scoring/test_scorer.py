"""Shared passes feed fewer tokens, and every score equals that of a separate pass."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.numbered_text import DATA as TELLING
from support.numbered_text import TEXT, contexts
from support.scoring import EVAL, SIZE, Hungry, data_of, fed, scored, trained_model

from pe_bench.config.schema import EvalConfig
from pe_bench.encodings import LayerEncoding
from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.inputs.learned import Learned
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.encodings.scalings.rope_dynamic_ntk import RopeDynamicNTK
from pe_bench.runs.job import Job
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import load_scores, score_file
from pe_bench.scoring.plans import count_parts, make_plans, position_plans, range_ends

CUT = replace(EVAL, protocol="nonoverlapping", lengths=[4, 8, 12, 24])


def nll_of(trained: Job, row: Row) -> np.ndarray:
    path = score_file(trained.folder, row)
    return load_scores(path).nll


def apart(trained: Job, evaluation: EvalConfig = CUT) -> list[Row]:
    """Score with a separate pass for each length, without sharing prefixes."""
    trained.model.encoding.claims = frozenset()
    return scored(trained, evaluation)


def tokens_of(shapes: list[tuple[int, ...]]) -> int:
    return sum(batch * columns for batch, columns in shapes)


ENCODINGS = {"rope": RoPE(SIZE.d_head), "alibi": ALiBi(SIZE.n_heads)}


@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS.keys())
@pytest.mark.parametrize("max_length", [24, 10], ids=["one text", "two texts"])
def test_windows_that_share_a_start_are_scored_in_one_pass_with_the_same_scores(
    tmp_path: Path, encoding: LayerEncoding, max_length: int
) -> None:
    evaluation = replace(CUT, max_length=max_length)
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


def test_an_encoding_that_reads_the_length_has_a_pass_for_every_length(tmp_path: Path) -> None:
    encoding = RopeDynamicNTK(SIZE.d_head, train_length=8)
    trained = trained_model(tmp_path / "run", encoding)
    shapes = fed(trained)
    rows = scored(trained, CUT)
    assert tokens_of(shapes) == sum(row.targets for row in rows)
    wrong = trained_model(tmp_path / "wrong", encoding)
    wrong.model.encoding.claims = frozenset({"prefix_consistent"})
    shared = scored(wrong, CUT)
    assert abs((shared[2].nll or 0) - (rows[2].nll or 0)) > 1e-4, "sharing would have changed the score"


@pytest.mark.parametrize("protocol", ["paired", "sliding"])
def test_windows_with_different_starts_are_never_shared(tmp_path: Path, protocol: str) -> None:
    evaluation = replace(EVAL, protocol=protocol)  # type: ignore[arg-type]
    together, alone = (trained_model(tmp_path / name) for name in ("together", "alone"))
    shapes, other_shapes = fed(together), fed(alone)
    rows, each = scored(together, evaluation), apart(alone, evaluation)
    assert shapes == other_shapes
    assert [row.nll for row in rows] == [row.nll for row in each]


# Where the longest cannot be scored, or is there already


def test_shorter_lengths_are_scored_where_a_longer_one_is_undefined(tmp_path: Path) -> None:
    encoding = Learned(SIZE.d_model, max_position=12)
    rows = scored(trained_model(tmp_path / "together", encoding), CUT)
    each = apart(trained_model(tmp_path / "alone", encoding))
    assert [row.status for row in rows] == ["ok", "ok", "ok", "undefined"]
    assert [row.reason for row in rows[:3]] == [""] * 3
    assert [row.nll for row in rows[:3]] == pytest.approx([row.nll for row in each[:3]], abs=1e-6)


def test_shorter_lengths_are_scored_where_a_longer_one_runs_out_of_memory(tmp_path: Path) -> None:
    hungry = Hungry()
    trained = trained_model(tmp_path / "run", hungry)
    hungry.error = torch.OutOfMemoryError("no memory")
    rows = scored(trained, CUT)
    assert [row.status for row in rows] == ["ok", "ok", "out_of_memory", "out_of_memory"]
    hungry.error = None
    shapes = fed(trained)
    again = scored(trained, CUT)
    assert {columns for _, columns in shapes} >= {12, 24}
    assert 4 not in {columns for _, columns in shapes}
    assert again[:2] == rows[:2]
    assert [row.status for row in again] == ["ok"] * 4
    each = apart(trained_model(tmp_path / "alone", Hungry()))
    assert [row.nll for row in again] == pytest.approx([row.nll for row in each], abs=1e-6)


def test_an_interrupted_call_continues_after_the_longest_length(tmp_path: Path) -> None:
    def stop(protocol: str, length: int, share: float) -> None:
        if length == 8:
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


def test_memory_is_reported_only_for_lengths_that_passed_through_the_model(tmp_path: Path) -> None:
    """In 26 tokens, the windows of 13 are the start of those of 24, except for a shorter one."""
    trained = trained_model(tmp_path / "run", data=data_of(26))
    rows = scored(trained, replace(CUT, lengths=[8, 13, 24]))
    assert [row.length for row in rows if row.peak_memory_mb is None] == [13]
    assert all(row.status == "ok" for row in rows)


def test_positions_need_no_extra_pass_where_windows_of_that_length_are_scored(tmp_path: Path) -> None:
    windows = replace(CUT, lengths=[24], max_length=24)
    trained, other = trained_model(tmp_path / "run"), trained_model(tmp_path / "other")
    shapes, other_shapes = fed(trained), fed(other)
    rows = scored(trained, replace(windows, per_position=True))
    assert scored(other, windows) != []
    assert shapes == other_shapes
    [whole] = [row for row in rows if row.length == 24 and row.protocol == "nonoverlapping"]
    [first] = [row for row in rows if row.length == 1]
    assert nll_of(trained, first)[0] == nll_of(trained, whole)[0]


# Position curves: each range scores its tokens, and one pass gives the scores of separate ones


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
