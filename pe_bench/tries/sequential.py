"""Whether a change is better than its baseline, asked after each seed, and of one change after the other.

Looking often and trying much make chance look like progress. Here at most 5 % of all searches say "better" of
any change that changes nothing, however many they try:

- The k-th change tried against a baseline has a share of the 5 % in proportion to k^-1.6 (alpha spending over
  tests: Foster and Stine, 2008; Tian and Ramdas, 2021, "Online control of the familywise error rate").
- It is better where it is so at the training length or at the longest, each judged at half of that share.
- The looks after 3, 4, 5 and more seeds spend that half between them (Lan and DeMets, 1983), the fifth the
  most. The errors of looks at most add up, whatever their dependence, so stopping early is allowed for.

Three seeds hardly know their own spread: Student's critical value at 0.1 % is then 22. So the variance of
the differences is shrunk to what studies have shown of it (Smyth, 2004, the moderated t). The priors are the
fit of his section 6.2 to the spread between seeds in configs/study/*.csv, which a test repeats: worth 7
degrees of freedom at the training length, where encodings differ little in it, and one at the longest.

What is judged is whether other seeds would agree, on the documents that were scored. Whether other documents
would is what `try --confirm` asks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import stdtrit, zeta

Answer = Literal["better", "not better", "unclear"]
Number = Any  # a number, or an array of them

ALPHA = 0.05
DECAY = 1.6  # of the shares of tries
# Of a try's share, what each look may spend, by the number of seeds; each later one half as much as before.
LOOKS = {3: 0.1, 4: 0.2, 5: 0.4}
LATER = 1 - sum(LOOKS.values())
FIRST_LOOK = min(LOOKS)


@dataclass(frozen=True)
class Prior:
    """What is known of the spread between seeds before there are any.

    deviation: of one seed's difference, in bits per byte. freedom: the degrees of freedom that is worth.
    """

    deviation: float
    freedom: float


PRIOR_AT_TRAINING = Prior(0.0108, 6.6)
PRIOR_AT_LONGEST = Prior(0.0184, 0.93)


@dataclass(frozen=True)
class Difference:
    """The mean difference of a change from its baseline, over seeds, in bits per byte; negative is better.

    error: the standard error of the mean. freedom: the degrees of freedom of that error. All may be arrays,
    of many tries at once.
    """

    mean: Number
    error: Number
    freedom: float

    def bound(self, alpha: Number) -> tuple[Number, Number]:
        """Return the bounds below and above the true difference, each wrong with a chance of `alpha`."""
        half = stdtrit(self.freedom, 1 - np.asarray(alpha)) * self.error
        return self.mean - half, self.mean + half


def difference(values: Sequence[float] | np.ndarray, prior: Prior) -> Difference:
    """Return the mean of differences [..., seeds]; one that is no finite number is worse than any other."""
    values = np.asarray(values, float)
    count = values.shape[-1]
    is_finite = np.asarray(np.isfinite(values).all(-1))
    values = np.where(is_finite[..., None], values, 0.0)
    sampled = values.var(-1, ddof=1) if count > 1 else np.zeros(values.shape[:-1])
    freedom = prior.freedom + count - 1
    variance = (prior.freedom * prior.deviation**2 + (count - 1) * sampled) / freedom
    mean = np.where(is_finite, values.mean(-1), math.inf)
    return Difference(mean, np.where(is_finite, np.sqrt(variance / count), 0.0), freedom)


def share_of_try(number: Number) -> Number:
    """Return the chance of a wrong "better" that the try of this number, from 1, may spend."""
    return ALPHA * number**-DECAY / zeta(DECAY)


def share_of_look(seeds: int) -> float:
    """Return which part of its error a try spends on the look after so many seeds; 0 before the first."""
    if seeds < FIRST_LOOK:
        return 0.0
    return LOOKS[seeds] if seeds in LOOKS else LATER * 0.5 ** (seeds - max(LOOKS))


@dataclass(frozen=True)
class Look:
    """What is known after some seeds of a try. number: of the try against its baseline, from 1."""

    seeds: int
    number: Number
    at_training: Difference
    at_longest: Difference
    margin: float

    @property
    def alpha(self) -> Number:
        """The chance of a wrong "better" at one of the two lengths, in this look."""
        return share_of_try(self.number) * share_of_look(self.seeds) / 2

    @property
    def is_worse(self) -> Any:
        """Whether the change is surely worse at one of the lengths, by more than the margin."""
        low, low_at_longest = self._lows
        return (low > self.margin) | (low_at_longest > self.margin)

    @property
    def is_better(self) -> Any:
        """Whether the change is surely better at one length, by any amount, and not worse at the other."""
        is_below = [one.bound(self.alpha)[1] < 0 for one in (self.at_training, self.at_longest)]
        return ~self.is_worse & (is_below[0] | is_below[1])

    @property
    def is_not_better(self) -> Any:
        """Whether the change is surely worse, or surely no better than by the margin at both lengths."""
        low, low_at_longest = self._lows
        return ~self.is_better & (self.is_worse | ((low > -self.margin) & (low_at_longest > -self.margin)))

    @property
    def answer(self) -> Answer:
        if self.seeds < FIRST_LOOK:
            return "unclear"
        return "better" if self.is_better else "not better" if self.is_not_better else "unclear"

    @property
    def _lows(self) -> tuple[Number, Number]:
        alpha = ALPHA * share_of_look(self.seeds)
        return self.at_training.bound(alpha)[0], self.at_longest.bound(alpha)[0]


def look(
    at_training: Sequence[float] | np.ndarray,
    at_longest: Sequence[float] | np.ndarray,
    number: Number,
    margin: float,
) -> Look:
    """Return what is known from the differences at two lengths, both [..., seeds]."""
    return Look(
        np.shape(at_training)[-1],
        number,
        difference(at_training, PRIOR_AT_TRAINING),
        difference(at_longest, PRIOR_AT_LONGEST),
        margin,
    )


def seeds_to_settle(last: Look, most: int = 1_000) -> int | None:
    """Return after how many seeds the answer is clear if differences stay what they are; None for never.

    The spread of the differences so far is taken for the true one, and as many looks as five seeds have.
    """
    for seeds in range(max(last.seeds, FIRST_LOOK - 1) + 1, most + 1):
        shrink, more = math.sqrt(last.seeds / seeds), seeds - last.seeds
        at_training, at_longest = (
            Difference(one.mean, one.error * shrink, one.freedom + more)
            for one in (last.at_training, last.at_longest)
        )
        if Look(max(LOOKS), last.number, at_training, at_longest, last.margin).answer != "unclear":
            return seeds
    return None
