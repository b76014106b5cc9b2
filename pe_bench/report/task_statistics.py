"""Statistics of a task's answers: intervals of shares, and verdicts.

A share is that of examples all of whose answers are right (exact), or of right answers. Every seed's model
answers the same examples, so that both are varied together, as in `statistics`. Examples that are all right
or all wrong show no spread; the interval is therefore never narrower than Wilson's (1927) for so many.

    solves    all of the interval of `exact` is above SOLVED, 0.9
    chance    all of the interval of the accuracy is below what guessing gets plus NEAR_CHANCE, 0.05
    partial   all of `exact` is below SOLVED, and the accuracy is not surely that of guessing
    unclear   anything else
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtri

from pe_bench.report.statistics import CONFIDENCE, Interval, paired_interval

TaskVerdict = Literal["solves", "partial", "chance", "unclear"]
SOLVED = 0.9
NEAR_CHANCE = 0.05


@dataclass(frozen=True)
class AnswerIntervals:
    """The intervals of the share of examples that are right, and of the share of right answers."""

    exact: Interval
    accuracy: Interval


def answer_intervals(right: np.ndarray, exact: np.ndarray) -> AnswerIntervals:
    """Return the intervals of shares from 0 to 1, both float64 [seeds, examples].

    right: of the answers of each example. exact: 1 where all are, or over several seeds how often.
    """
    return AnswerIntervals(_share_interval(exact), _share_interval(right))


def _share_interval(shares: np.ndarray) -> Interval:
    found = paired_interval(shares)
    # Examples that are not alike show by themselves how far their mean may be off.
    low, high = _wilson(found.mean, found.documents) if np.isin(shares, (0, 1)).all() else (1.0, 0.0)
    bounds = max(0.0, min(found.low, low)), min(1.0, max(found.high, high))
    return Interval(found.mean, *bounds, found.seeds, found.documents, found.spread)


def judge_answers(found: AnswerIntervals, chance: float) -> TaskVerdict:
    if found.exact.low > SOLVED:
        return "solves"
    if found.accuracy.high < chance + NEAR_CHANCE:
        return "chance"
    return "partial" if found.exact.high < SOLVED else "unclear"


def _wilson(share: float, count: int) -> tuple[float, float]:
    z = float(ndtri((1 + CONFIDENCE) / 2))
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return middle - half, middle + half
