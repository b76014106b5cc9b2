"""Intervals of shares of right answers, and the verdict on how often spans are found."""

import numpy as np
import pytest

from pe_bench.report.probes import judge_finding, share_interval
from pe_bench.report.statistics import Interval


def interval(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, 1, 30)


@pytest.mark.parametrize(
    ("gain", "accuracy", "lift", "verdict"),
    [
        ((0.5, 0.6), (0.91, 0.99), (0.3, 0.5), "finds"),
        ((0.5, 0.6), (0.91, 0.99), (0.00, 0.04), "finds"),  # the language knows nearly all: no room for more
        ((-0.1, 0.6), (0.91, 0.99), (0.00, 0.04), "chance"),  # the language alone answers
        ((0.5, 0.6), (0.89, 0.99), (0.3, 0.5), "partly"),
        ((0.5, 0.6), (0.15, 0.20), (0.01, 0.04), "chance"),  # surely some, but too few to be of use
        ((-0.1, 0.1), (0.10, 0.15), (-0.02, 0.02), "chance"),
        ((-0.1, 0.1), (0.10, 0.40), (-0.02, 0.08), "unclear"),
        ((0.5, 0.6), (0.10, 0.15), (0.08, 0.12), "chance"),  # more than without the span, and a guess
        ((0.5, 0.6), (0.10, 0.30), (0.08, 0.12), "unclear"),
        ((-0.001, 0.009), (0.10, 0.30), (-0.06, 0.06), "chance"),  # the span changes no score
    ],
)
def test_the_verdict_follows_from_three_intervals(
    gain: tuple[float, float], accuracy: tuple[float, float], lift: tuple[float, float], verdict: str
) -> None:
    assert judge_finding(interval(*gain), interval(*accuracy), interval(*lift), 1 / 8) == verdict


@pytest.mark.parametrize(("share", "low", "high"), [(1.0, 0.963, 1.0), (0.0, 0.0, 0.037)])
def test_answers_that_are_all_alike_leave_room_for_what_was_not_seen(
    share: float, low: float, high: float
) -> None:
    found = share_interval(np.full((3, 100), share), 100)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-3), pytest.approx(high, abs=1e-3))
    assert found.mean == share
