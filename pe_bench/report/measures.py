"""What levels are, and the verdicts on answers: those of a task, and those that a probe asks for.

A share is that of a task's examples all of whose answers are right (exact), or of right answers. Every seed's
model answers the same examples, so that both are varied together, as in `statistics`. Examples that are all
right or all wrong show no spread; the interval is therefore never narrower than Wilson's (1927) for so many.

    solves    all of the interval of `exact` is above SOLVED, 0.9
    chance    all of the interval of the accuracy is below what guessing gets plus NEAR_CHANCE, 0.05
    partial   all of `exact` is below SOLVED, and the accuracy is not surely that of guessing
    unclear   anything else
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import ndtri

from pe_bench.report.statistics import (
    CONFIDENCE,
    MARGIN,
    Interval,
    difference_of_shares,
    paired_interval,
)
from pe_bench.runs.rows import TASK

TaskVerdict = Literal["solves", "partial", "chance", "unclear"]
Finding = Literal["finds", "partly", "chance", "unclear"]

SOLVED = 0.9
NEAR_CHANCE = 0.05
FINDS = 0.9  # of the answers of a probe are right
NO_LIFT = 0.05  # of the answers: a smaller part that is right by the span alone is of no use


@dataclass(frozen=True)
class Measure:
    """The quantity of a table's levels. name: in a row of details; unit: on an axis; meaning: in a title."""

    name: str
    unit: str
    meaning: str
    higher_is_better: bool = False


BITS = Measure("bits/byte", "bits per byte", "bits per byte (lower is better)")
EXACT = Measure(
    "exact",
    "exact match",
    "exact match: the share of examples all of whose answers are right (higher is better)",
    higher_is_better=True,
)


def measure_of(protocol: str) -> Measure:
    return EXACT if protocol == TASK else BITS


@dataclass(frozen=True)
class AnswerIntervals:
    """The intervals of the share of examples that are right, and of the share of right answers."""

    exact: Interval
    accuracy: Interval


def answer_intervals(right: np.ndarray, exact: np.ndarray) -> AnswerIntervals:
    """Return the intervals of shares from 0 to 1, both float64 [seeds, examples].

    right: of the answers of each example. exact: 1 where all are, or over several seeds how often.
    """
    return AnswerIntervals(_interval_of_examples(exact), _interval_of_examples(right))


def judge_answers(intervals: AnswerIntervals, chance: float) -> TaskVerdict:
    if intervals.exact.low > SOLVED:
        return "solves"
    if intervals.accuracy.high < chance + NEAR_CHANCE:
        return "chance"
    return "partial" if intervals.exact.high < SOLVED else "unclear"


def share_interval(shares: np.ndarray, count: int) -> Interval:
    """Return the interval of the mean of shares of a probe's answers, 0 to 1, float64 [seeds, documents].

    count: as in `difference_of_shares`.
    """
    interval = difference_of_shares(shares, count)
    return replace(interval, low=max(0.0, interval.low), high=min(1.0, interval.high))


def judge_finding(gain: Interval, accuracy: Interval, lift: Interval, chance: float) -> Finding:
    """Return whether a model finds spans; positive gains mean that it reads them.

    gain: bits per byte that the answer costs less with the span than without. lift: the accuracy with the
    span minus that without, which knowing the language gives. chance: the accuracy of guessing.

        finds     surely 90 % of the answers are right, and the span surely makes the answer likelier
        chance    the accuracy is surely less than 5 points above that without the span, or above guessing; or
                  the span surely saves less than MARGIN, 0.01 bits per byte
        partly    the accuracy is surely above both
        unclear   anything else

    Without the span, the right answer is the only one of the eight that is not in the window. A model that
    prefers whatever the window holds is therefore right more often with the span, and still only guesses.
    Where the span changes no score, as past an attention window, all lifts are zero: their interval is wide.
    """
    if accuracy.low >= FINDS and gain.low > 0:
        return "finds"
    if lift.high < NO_LIFT or accuracy.high < chance + NO_LIFT or gain.high < MARGIN:
        return "chance"
    return "partly" if lift.low > 0 and accuracy.low > chance else "unclear"


def _interval_of_examples(shares: np.ndarray) -> Interval:
    interval = paired_interval(shares)
    # Examples that are not alike show by themselves how far their mean may be off.
    low, high = _wilson(interval.mean, interval.documents) if np.isin(shares, (0, 1)).all() else (1.0, 0.0)
    return replace(interval, low=max(0.0, min(interval.low, low)), high=min(1.0, max(interval.high, high)))


def _wilson(share: float, count: int) -> tuple[float, float]:
    z = float(ndtri((1 + CONFIDENCE) / 2))
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return middle - half, middle + half
