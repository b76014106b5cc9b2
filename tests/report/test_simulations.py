"""The statistics on simulated differences whose truth is known, as in the tables of statistics.py."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from pe_bench.report import statistics
from pe_bench.report.statistics import (
    FAILURE,
    MARGIN,
    Interval,
    breaks_at,
    corrected_comparisons,
    holds_up_to,
    judge_change,
    paired_interval,
)

Generator = np.random.Generator

# Effects of documents, of mean 0 and standard deviation 1.
DOCUMENTS: dict[str, Callable[[Generator, int], np.ndarray]] = {
    "normal": lambda generator, count: generator.normal(size=count),
    "exponential": lambda generator, count: generator.exponential(size=count) - 1,
    "lognormal": lambda generator, count: (
        (generator.lognormal(size=count) - math.sqrt(math.e)) / math.sqrt((math.e - 1) * math.e)
    ),
}
DOCUMENTS["mirrored"] = lambda generator, count: -DOCUMENTS["lognormal"](generator, count)
SHAPES = [(seeds, documents) for seeds in (1, 3, 5) for documents in (10, 30)]
SMALL, LARGE = 0.1, 1.0  # the spread of seeds where that of documents is 1


@dataclass(frozen=True)
class Study:
    """A simulation with normal effects of seeds and a residual a tenth as large as the documents' effects.

    A single seed describes its own model alone, so its effect is zero.
    """

    seeds: int
    documents: int
    shape: str
    seed_spread: float = SMALL

    def interval(self, generator: Generator, truth: float = 0.0, spread: float = 1.0) -> Interval:
        by_document = DOCUMENTS[self.shape](generator, self.documents)
        return self.interval_on(by_document, generator, truth, spread)

    def interval_on(
        self, by_document: np.ndarray, generator: Generator, truth: float, spread: float
    ) -> Interval:
        """Return the interval for these effects of documents, with new effects of seeds and residuals."""
        seed_spread = self.seed_spread if self.seeds > 1 else 0.0
        by_seed = seed_spread * generator.normal(size=(self.seeds, 1))
        rest = SMALL * generator.normal(size=(self.seeds, self.documents))
        return paired_interval(truth + spread * (by_seed + by_document + rest))


def slack(share: float, count: int) -> float:
    """Return 3.5 standard errors of a share of `count` simulations: chance exceeds them 1 time in 4,000."""
    return 3.5 * math.sqrt(share * (1 - share) / count)


def coverage(study: Study, count: int) -> tuple[float, float]:
    """Return the share of intervals that contain the truth, and their mean width over that of t intervals.

    Skewness moves one bound only, so the other one gives the width of the t interval.
    """
    generator = np.random.default_rng(0)
    found = [study.interval(generator) for _ in range(count)]
    held = np.mean([interval.low <= 0 <= interval.high for interval in found])
    plain = sum(2 * min(interval.mean - interval.low, interval.high - interval.mean) for interval in found)
    return float(held), sum(interval.high - interval.low for interval in found) / plain


def is_wrong(said: str, truth: float) -> bool:
    """Return whether a verdict is false. `degrades` is true of a failure too, because it is a loss."""
    claims = {"holds": truth <= MARGIN, "degrades": truth >= MARGIN, "fails": truth >= FAILURE}
    return not {**claims, "improves": truth <= -MARGIN, "unclear": True}[said]


# Changes along a line, from the shortest length to the longest, and how far apart documents lie. Those that
# are nearly something lie a hair beyond a boundary, each the likeliest to be judged wrongly.
LINES: dict[str, list[tuple[float, float]]] = {
    "rising": [(0.005, 0.005), (0.0101, 0.005), (0.05, 0.02), (0.5, 0.1)],
    "nearly holding": [(0.0101, 0.004)] * 8,
    "nearly degrading": [(0.0099, 0.004)] * 8,
}
NEAR = {"holds": (0.0101, 0.004), "degrades": (0.0099, 0.004), "fails": (0.2499, 0.08)}


def share_of_wrong_lines(study: Study, name: str, count: int) -> float:
    """Return the share of lines that hold too far, or break too early."""
    generator = np.random.default_rng(1)
    cells = LINES[name]
    wrong = 0
    for _ in range(count):
        intervals = (study.interval(generator, truth, spread) for truth, spread in cells)
        said = dict(enumerate(map(judge_change, intervals)))
        held, broken = holds_up_to(said), breaks_at(said)
        too_far = held is not None and any(truth > MARGIN for truth, _ in cells[: held + 1])
        too_early = broken is not None and any(truth < MARGIN for truth, _ in cells[broken : broken + 1])
        wrong += too_far or too_early
    return wrong / count


def share_of_wrong_verdicts(study: Study, name: str, count: int) -> float:
    """Return the share of single verdicts that are wrong just beyond the boundary of one."""
    generator = np.random.default_rng(4)
    truth, spread = NEAR[name]
    said = [judge_change(study.interval(generator, truth, spread)) for _ in range(count)]
    return sum(is_wrong(one, truth) for one in said) / count


def share_of_wrong_comparisons(study: Study, truth: float, lines: int, count: int) -> float:
    """Return the share of comparisons of so many lines with a baseline, at one length, with any wrong one."""
    generator = np.random.default_rng(3)
    true = {"worse": truth > MARGIN, "better": truth < -MARGIN, "same": abs(truth) <= MARGIN, "unclear": True}
    wrong = 0
    for _ in range(count):
        by_document = DOCUMENTS[study.shape](generator, study.documents)
        intervals = [study.interval_on(by_document, generator, truth, 0.004) for _ in range(lines)]
        wrong += any(not true[said] for said in corrected_comparisons(intervals))
    return wrong / count


def check_coverage(study: Study, count: int) -> None:
    held, _ = coverage(study, count)
    # Intervals that never miss are too wide: at 99 % that has a chance of 1 in 400.
    assert 0.93 - slack(0.93, count) <= held < 1


@pytest.mark.parametrize("seed_spread", [SMALL, LARGE])
@pytest.mark.parametrize(("seeds", "documents"), [(3, 30), (5, 10)])
@pytest.mark.parametrize("shape", ["normal", "exponential", "lognormal"])
def test_an_interval_of_95_percent_covers_between_93_and_99(
    shape: str, seeds: int, documents: int, seed_spread: float
) -> None:
    check_coverage(Study(seeds, documents, shape, seed_spread), 600)


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("shape", ["lognormal", "mirrored"])
def test_a_line_with_a_wrong_claim_is_rare(name: str, shape: str) -> None:
    assert share_of_wrong_lines(Study(5, 30, shape), name, 100) <= 0.05 + slack(0.05, 100)


@pytest.mark.parametrize("name", NEAR)
@pytest.mark.parametrize("shape", ["normal", "lognormal", "mirrored"])
def test_a_wrong_verdict_on_one_length_is_rare(name: str, shape: str) -> None:
    assert share_of_wrong_verdicts(Study(5, 30, shape), name, 300) <= 0.05 + slack(0.05, 300)


@pytest.mark.parametrize("truth", [MARGIN - 0.0001, MARGIN + 0.0001])
def test_a_wrong_comparison_is_rare_among_many_lines(truth: float) -> None:
    wrong = share_of_wrong_comparisons(Study(5, 30, "normal"), truth, lines=12, count=100)
    assert wrong <= 0.05 + slack(0.05, 100)


@pytest.mark.full
@pytest.mark.parametrize("seed_spread", [SMALL, LARGE])
@pytest.mark.parametrize("shape", ["normal", "exponential", "lognormal"])
def test_coverage_in_ten_thousand_simulations_is_right_and_what_the_docstring_shows(
    shape: str, seed_spread: float
) -> None:
    found = [coverage(Study(*numbers, shape, seed_spread), 10_000) for numbers in SHAPES]
    for (seeds, _), (held, _) in zip(SHAPES, found, strict=True):
        assert (0.93 if seeds > 1 else 0.92) <= held <= 0.99
    row = re.search(rf"^ *{seed_spread}  {shape} +(.+)$", statistics.__doc__ or "", re.MULTILINE)
    assert row is not None
    said = np.array(row[1].split(), dtype=float).reshape(-1, 2)
    measured = np.array([(100 * held, width) for held, width in found])
    assert np.all(np.abs(said - measured) < [100 * slack(0.93, 10_000), 0.03])
