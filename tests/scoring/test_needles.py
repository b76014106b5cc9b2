"""Needles: which windows are chosen, what is fed, and what is known to come of it."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.needles import Copying, probe_data, scored_probe

from pe_bench.data.packed import Split
from pe_bench.errors import UserError
from pe_bench.scoring.needles import (
    ANSWER_TOKENS,
    CHOICES,
    CUE,
    REPLACED,
    SPAN,
    Probe,
    fed_tokens,
    find_needle,
    needle_plans,
    text_order_key,
    windows_of_choices,
)

LENGTHS = (128, 400)
DEPTHS = (0.0, 0.5, 1.0)
DATA = probe_data(24, 500)


def occurrences(part: np.ndarray, text: np.ndarray) -> int:
    windows = np.lib.stride_tricks.sliding_window_view(text, len(part))
    return int((windows == part).all(1).sum())


@pytest.mark.parametrize(("length", "depth"), [(128, 0.0), (400, 0.5), (400, 1.0)])
def test_a_window_has_its_length_ends_with_the_cue_and_has_the_span_at_its_depth(
    length: int, depth: float
) -> None:
    plan, control = needle_plans(DATA, length, depth, 10, seed=0)
    assert (plan.control, control.control) == ("none", REPLACED) and plan.target_hash == control.target_hash
    found, replaced = (windows_of_choices(DATA.validation, each.windows).numpy() for each in (plan, control))
    assert found.shape == (10, CHOICES, length + 1)
    body = length + 1 - SPAN - ANSWER_TOKENS + CUE
    for tokens, others, window in zip(found, replaced, plan.windows, strict=True):
        assert window.needle is not None
        place = window.needle.start - window.start
        span = tokens[0, place : place + SPAN]
        assert place == pytest.approx(depth * (body - SPAN), abs=2)
        assert np.array_equal(tokens[0, body:], span), "the right answer comes first"
        assert (tokens[:, : body + CUE] == tokens[0, : body + CUE]).all(), "the answers alone differ"
        assert len({answer.tobytes() for answer in tokens[:, -ANSWER_TOKENS:]}) == CHOICES
        assert all(occurrences(answer, tokens[0, :body]) for answer in tokens[:, -ANSWER_TOKENS:])
        assert np.array_equal(others[:, body:], tokens[:, body:])
        assert occurrences(span[:CUE], others[0, :body]) == occurrences(span[CUE:], others[0, :body]) == 0
        text, other = (np.delete(one[0], range(place, place + SPAN)) for one in (tokens, others))
        assert np.array_equal(other, text)


def test_spans_overlap_below_the_length_that_the_page_on_probes_names() -> None:
    page = Path(__file__).parents[2] / "docs" / "probes.md"
    [length] = map(int, re.findall(r"below (\d+) tokens spans overlap", page.read_text(encoding="utf-8")))
    for tokens, overlap in ((length - 1, True), (length, False)):
        distances = []
        for depth in (0.0, 0.25, 0.5, 0.75, 1.0):
            needle = find_needle(np.arange(tokens + 1), 0, depth)
            assert needle is not None
            distances += np.diff(sorted([needle.start, *needle.others])).tolist()
        assert (min(distances) < SPAN) is overlap


def test_a_span_whose_beginning_or_end_occurs_twice_is_passed_over() -> None:
    generator = np.random.default_rng(1)
    text = generator.integers(0, 200, 600)
    needle = find_needle(text, 0, 0.5)
    assert needle is not None
    for half in (0, CUE):
        again = text.copy()
        again[40 : 40 + CUE] = text[needle.start + half : needle.start + half + CUE]
        found = find_needle(again, 0, 0.5)
        assert found is not None and 0 < abs(found.start - needle.start) <= CUE
    assert find_needle(np.tile(text[:20], 30), 0, 0.5) is None


def test_a_depth_without_a_unique_span_is_refused_with_the_number_of_windows() -> None:
    split = DATA.validation
    periodic = Split(np.resize(split.tokens[:20], len(split.tokens)), split.starts, split.byte_ends)
    data = replace(DATA, validation=periodic)
    message = r"none of 3 windows of 128 tokens has a unique span at depth 0\.5: .*--windows"
    with pytest.raises(UserError, match=message):
        needle_plans(data, 128, 0.5, 3, seed=0)


def test_windows_follow_from_data_seed_length_and_depth_and_fewer_are_part_of_more() -> None:
    five, again, twenty = (needle_plans(DATA, 128, 0.5, count, 0)[0].windows for count in (5, 5, 20))
    assert five == again != needle_plans(DATA, 128, 0.5, 5, 1)[0].windows
    assert all(window in twenty for window in five)
    changes = [{}, {"depth": 0.25}, {"length": 130}, {"count": 11}, {"seed": 1}]
    changes.append({"data": replace(DATA, hash="other")})
    usual = {"data": DATA, "length": 128, "depth": 0.5, "count": 10, "seed": 0}
    assert len({needle_plans(**{**usual, **change})[0].target_hash for change in changes}) == 6


def test_in_the_order_of_texts_a_window_differs_from_the_one_before_only_in_the_tokens_to_feed() -> None:
    windows = []
    for depth in (0.0, 0.25, 0.5, 0.75, 1.0):
        for plan in needle_plans(DATA, 400, depth, 3, seed=0):
            windows += plan.windows
    windows.sort(key=text_order_key)
    texts = windows_of_choices(DATA.validation, windows).numpy()[:, 0, :-ANSWER_TOKENS]
    fed = fed_tokens(windows)
    total = 0
    for before, text, window, count in zip(texts, texts[1:], windows[1:], fed[1:], strict=False):
        shared = window.size - (count - CHOICES * ANSWER_TOKENS)
        assert np.array_equal(text[:shared], before[:shared])
        total += shared
    assert total > 0.55 * sum(window.size for window in windows)


def test_a_model_that_copies_finds_every_needle_at_every_length_and_depth(tmp_path: Path) -> None:
    rows = scored_probe(tmp_path / "run", Probe(LENGTHS, 3, 20), Copying())
    found = [row for row in rows if row.control == "none"]
    assert [(row.length, row.depth) for row in found] == [(n, d) for n in LENGTHS for d in DEPTHS]
    assert {row.accuracy for row in found} == {1.0} and {row.chance for row in found} == {1 / 8}
    lost = [row for row in rows if row.control == REPLACED]
    assert all(row.accuracy < 0.4 for row in lost)
    assert all(a.bits_per_byte < b.bits_per_byte for a, b in zip(found, lost, strict=True))
