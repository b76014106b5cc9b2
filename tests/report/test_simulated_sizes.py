"""Intervals of means that count documents by size, as slices do, on differences whose truth is known."""

import math

import numpy as np
import pytest
from test_simulations import DOCUMENTS, SMALL, Generator, slack

from pe_bench.report.statistics import Interval, paired_interval

SHARED = 0.3  # of a target's variance that is its document's
SPREAD = 1.0  # of the logarithm of sizes: the recall slice of `stdlib` at the default lengths has 1.04


def draw(generator: Generator, seeds: int, documents: int, shape: str, of_size: float = 0.0) -> Interval:
    """Return the interval of a true mean of 0: documents have 1 to hundreds of targets.

    of_size: how much a document's difference rises with the logarithm of its size.
    """
    sizes = np.ceil(generator.lognormal(2.5, SPREAD, documents))
    by_document = math.sqrt(SHARED) * DOCUMENTS[shape](generator, documents)
    by_document += np.sqrt((1 - SHARED) / sizes) * DOCUMENTS[shape](generator, documents)
    by_document += of_size * (np.log(sizes) - MEAN_LOG_SIZE)
    by_seed = (SMALL if seeds > 1 else 0.0) * generator.normal(size=(seeds, 1))
    rest = SMALL * generator.normal(size=(seeds, documents))
    return paired_interval(by_seed + by_document + rest, sizes)


def _mean_log_size() -> float:
    """Return the mean logarithm of a size over targets, which are more where sizes are large."""
    sizes = np.ceil(np.random.default_rng(7).lognormal(2.5, SPREAD, 1_000_000))
    return float(np.average(np.log(sizes), weights=sizes))


MEAN_LOG_SIZE = _mean_log_size()


def coverage(count: int, *numbers: object, **more: float) -> float:
    generator = np.random.default_rng(0)
    found = [draw(generator, *numbers, **more) for _ in range(count)]  # type: ignore[arg-type]
    return float(np.mean([interval.low <= 0 <= interval.high for interval in found]))


@pytest.mark.parametrize("of_size", [0.0, 0.3])
@pytest.mark.parametrize("shape", ["normal", "exponential"])
@pytest.mark.parametrize(("seeds", "documents"), [(1, 70), (3, 30)])
def test_an_interval_by_sizes_covers_between_93_and_99(
    seeds: int, documents: int, shape: str, of_size: float
) -> None:
    held = coverage(400, seeds, documents, shape, of_size=of_size)
    assert 0.93 - slack(0.93, 400) <= held < 1


def test_the_spread_of_a_mean_by_sizes_is_the_exact_jackknife() -> None:
    generator = np.random.default_rng(1)
    differences, sizes = generator.normal(size=12), generator.integers(1, 30, 12).astype(float)
    without = [
        np.average(np.delete(differences, place), weights=np.delete(sizes, place)) for place in range(12)
    ]
    spread = paired_interval(differences[None, :], sizes).spread
    assert spread is not None
    assert spread.variance == pytest.approx(11 / 12 * np.sum((without - np.mean(without)) ** 2))


def test_a_score_that_broke_down_is_not_weighed_away() -> None:
    differences, sizes = np.array([[1.0, np.inf, 6.0]]), np.array([1.0, 0.001, 4.0])
    assert paired_interval(differences, sizes).mean == math.inf
