"""Statistics of a probe: intervals of shares of answers, and the verdict on whether spans are found."""

from dataclasses import replace
from typing import Literal

import numpy as np

from pe_bench.report.statistics import MARGIN, Interval, difference_of_shares

Finding = Literal["finds", "partly", "chance", "unclear"]

FINDS = 0.9  # of the answers are right
NO_LIFT = 0.05  # of the answers: a smaller part that is right by the span alone is of no use


def share_interval(shares: np.ndarray, count: int) -> Interval:
    """Return the interval of the mean of shares of answers, 0 to 1, float64 [seeds, documents].

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
