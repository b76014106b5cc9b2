"""A sequential test of changes against a baseline: after more and more seeds, and for many changes.

Looking often and trying much make chance look like progress. Here at most 5 % of all searches say "better" of
any change that changes nothing, however many changes they try:

- The k-th change tried against a baseline has a share of the 5 % in proportion to k^-1.6 (alpha spending over
  tests: Foster and Stine, 2008; Tian and Ramdas, 2021, "Online control of the familywise error rate").
- The change is better if it is better at the training length or at the longest length, each judged at half of
  that share.
- The looks after 3, 5, 8, 13, 21 and more seeds spend that half between them (alpha spending over looks: Lan
  and DeMets, 1983). The look after five spends the most, and from the fourth look on each spends half as much
  as the look before. From look to look the number of seeds grows by 1.6, and the critical value hardly: more
  seeds settle any difference. The errors of looks at most add up, whatever their dependence, so stopping
  early is allowed.

At each look the change has to pass two tests, so the error is at most that of either:

- Student's t, from only these seeds. Its error is as stated for normal noise of any spread.
- A t with the variance shrunk to that of earlier studies (Smyth, 2004, the moderated t). This test would err
  if seeds spread more than in the studies. Together with Student's t, it rejects few seeds that agree by
  chance, as they do if noise is skewed. The priors are the fit of his section 6.2 to the spread between seeds
  in configs/study/*.csv, which a test repeats: worth 7 degrees of freedom at the training length, where the
  spread differs little between encodings, and one at the longest length.

No test of a few seeds is exact for skewed noise of any spread: docs/try.md has simulated shares.

The test answers whether other seeds would agree on the scored documents. `try --confirm` asks whether other
documents would.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.special import stdtrit, zeta

LookAnswer = Literal["better", "not better", "mixed", "unclear"]
Floats = Any  # a float, or an array with one for each of many tries
UNKNOWN_BOUNDS = (-math.inf, math.inf)

ALPHA = 0.05  # the chance of a wrong "better" in all tries against a baseline
DECAY = 1.6  # the decay of the shares of tries
# The numbers of seeds after which a try is looked at.
LOOKS = (3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987)
FIRST_LOOK = LOOKS[0]
# The parts of a try's share that the first looks spend; a later look spends half as much as the look before.
FIRST_SHARES = (0.02, 0.78, 0.1)
# The seeds that would settle a try are estimated from simulated futures.
N_FUTURES = 500
SETTLED_SHARE = 2 / 3  # of the futures must be settled
USUAL_DIFFERENCE = (
    0.01  # the spread of the true differences of changes, in bits per byte, when futures are simulated
)


@dataclass(frozen=True)
class Prior:
    """The spread between seeds that is expected before any seed."""

    deviation: float  # the standard deviation of one seed's difference, in bits per byte
    freedom: float  # the degrees of freedom of the deviation


PRIOR_AT_TRAINING = Prior(0.0108, 6.6)
PRIOR_AT_LONGEST = Prior(0.0184, 0.93)


@dataclass(frozen=True)
class Difference:
    """The mean difference of a change from its baseline, over seeds, in bits per byte; negative is better."""

    mean: Floats
    error: Floats  # the standard error of the mean with the prior
    freedom: float  # the degrees of freedom of `error`
    own_error: Floats  # the standard error of the mean from only the seeds
    own_freedom: int  # the degrees of freedom of `own_error`

    def bound(self, alpha: Floats) -> tuple[Floats, Floats]:
        """Return the bounds below and above the true difference, each wrong with a chance of `alpha`.

        Of the bounds of the two tests (with the prior, and from the seeds alone), these are the wider ones.
        """
        confidence = 1 - np.asarray(alpha)
        with_prior = stdtrit(self.freedom, confidence) * self.error
        own = math.inf
        if self.own_freedom:
            own = stdtrit(self.own_freedom, confidence) * self.own_error
        half = np.maximum(with_prior, own)
        return self.mean - half, self.mean + half


def difference(values: Sequence[float] | np.ndarray, prior: Prior) -> Difference:
    """Return the mean of differences [..., seeds]; infinite, without error, if one of them is not finite."""
    values = np.asarray(values, float)
    count = values.shape[-1]
    is_finite = np.asarray(np.isfinite(values).all(-1))
    values = np.where(is_finite[..., None], values, 0.0)
    variance = np.zeros(values.shape[:-1])
    if count > 1:
        variance = values.var(-1, ddof=1)
    mean = np.where(is_finite, values.mean(-1), math.inf)
    found = _estimate(mean, variance, count, prior)
    return replace(found, error=np.where(is_finite, found.error, 0.0))


def _estimate(mean: Floats, variance: Floats, seeds: int, prior: Prior) -> Difference:
    """Return the difference over `seeds` seeds with this mean, and this variance between seeds."""
    own_freedom = seeds - 1
    freedom = prior.freedom + seeds - 1
    squares = prior.freedom * prior.deviation**2 + own_freedom * variance
    error = np.sqrt(squares / freedom / seeds)
    return Difference(mean, error, freedom, np.sqrt(variance / seeds), own_freedom)


def share_of_try(number: Floats) -> Floats:
    """Return the chance of a wrong "better" that the try of this number, from 1, may spend."""
    return ALPHA * number**-DECAY / zeta(DECAY)


def error_share_of_look(seeds: int) -> float:
    """Return the part of its error that a try spends on the look after `seeds` seeds; 0 without a look."""
    if seeds not in LOOKS:
        return 0.0
    place = LOOKS.index(seeds)
    if place < len(FIRST_SHARES):
        return FIRST_SHARES[place]
    left = 1 - sum(FIRST_SHARES)
    later = place - len(FIRST_SHARES)
    return left * 0.5 ** (later + 1)


def last_look(seeds: int) -> int:
    """Return the number of seeds at the last look with at most these seeds; 0 before the first look."""
    return max((look for look in LOOKS if look <= seeds), default=0)


def next_look(seeds: int) -> int | None:
    """Return the number of seeds of the first look with more seeds than these; None after the last."""
    return min((look for look in LOOKS if look > seeds), default=None)


@dataclass(frozen=True)
class Look:
    """An interim look at a try: its differences after some seeds, and the answer that they give."""

    seeds: int
    number: Floats  # the number of the try against its baseline, from 1
    at_training: Difference  # the difference at the training length
    at_longest: Difference  # the difference at the longest length
    margin: float  # the change that counts as none, in bits per byte

    @property
    def alpha(self) -> Floats:
        """The chance of a wrong "better" at one of the two lengths, in this look."""
        return share_of_try(self.number) * error_share_of_look(self.seeds) / 2

    @property
    def is_scheduled(self) -> bool:
        """Whether a look is planned after this number of seeds; after other numbers nothing is judged."""
        return self.seeds in LOOKS

    @property
    def is_sure(self) -> Any:
        """Whether the answer is final. Mixed is final once the change is surely worse at one length."""
        if not self.is_scheduled:
            return False
        low, low_at_longest = self._lower_bounds
        is_surely_mixed = self.is_mixed & ((low > 0) | (low_at_longest > 0))
        return self.is_better | self.is_not_better | is_surely_mixed

    @property
    def better_at(self) -> tuple[Any, Any]:
        """Whether the change is surely better, by any amount: at the training length; at the longest.

        Each is a bool, or an array with a bool for each of many tries; so are the properties `is_sure`,
        `is_better`, `is_mixed` and `is_not_better`.
        """
        (_, high), (_, high_at_longest) = self.bounds
        return high < 0, high_at_longest < 0

    @property
    def bounds(self) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
        """The bounds below and above the true difference, at the training length, and at the longest.

        They are infinite where no look is scheduled.
        """
        if not self.is_scheduled:
            return UNKNOWN_BOUNDS, UNKNOWN_BOUNDS
        return self.at_training.bound(self.alpha), self.at_longest.bound(self.alpha)

    @property
    def is_better(self) -> Any:
        """Whether the change is surely better at one length, and at the other worse by the margin at most."""
        is_better, is_better_at_longest = self.better_at
        return (is_better | is_better_at_longest) & np.logical_not(self.is_mixed)

    @property
    def is_mixed(self) -> Any:
        """Whether the change is surely better at one length and worse at the other.

        It is worse if its mean difference is above the margin.
        """
        is_better, is_better_at_longest = self.better_at
        is_worse = self.at_training.mean > self.margin
        is_worse_at_longest = self.at_longest.mean > self.margin
        return (is_better & is_worse_at_longest) | (is_better_at_longest & is_worse)

    @property
    def is_not_better(self) -> Any:
        """Whether the change is surely better at no length, and surely worse or surely no gain.

        It is surely worse if it is worse by more than the margin at one of the lengths, and surely no gain if
        it is better by less than the margin at both.
        """
        is_better, is_better_at_longest = self.better_at
        low, low_at_longest = self._lower_bounds
        is_worse = (low > self.margin) | (low_at_longest > self.margin)
        is_no_gain = (low > -self.margin) & (low_at_longest > -self.margin)
        is_no_better = np.logical_not(is_better | is_better_at_longest)
        return is_no_better & (is_worse | is_no_gain)

    @property
    def answer(self) -> LookAnswer:
        """Return the answer after this look; unclear where no look is scheduled."""
        if not self.is_scheduled:
            return "unclear"
        if self.is_better:
            return "better"
        if self.is_mixed:
            return "mixed"
        return "not better" if self.is_not_better else "unclear"

    @property
    def _lower_bounds(self) -> tuple[Floats, Floats]:
        """The lower bounds of the differences at the training length and at the longest length.

        They decide whether the change is worse or no gain. Unlike those of `bounds`, their chance of error
        does not fall with the number of earlier tries.
        """
        alpha = ALPHA * error_share_of_look(self.seeds)
        low, _ = self.at_training.bound(alpha)
        low_at_longest, _ = self.at_longest.bound(alpha)
        return low, low_at_longest


def look(
    at_training: Sequence[float] | np.ndarray,
    at_longest: Sequence[float] | np.ndarray,
    number: Floats,
    margin: float,
) -> Look:
    """Return the look at the differences [..., seeds] at the training length and at the longest length.

    number: the number of the try against its baseline, from 1. margin: the change that counts as none.
    """
    *_, seeds = np.shape(at_training)
    trained = difference(at_training, PRIOR_AT_TRAINING)
    longest = difference(at_longest, PRIOR_AT_LONGEST)
    return Look(seeds, number, trained, longest, margin)


def seeds_to_settle(last: Look) -> int | None:
    """Return the seeds of the look by which the answer will probably be clear; None if no look is enough.

    Simulates further seeds of the try, from true differences and spreads that its seeds allow. By the
    returned look, two of three such tries are settled.
    """
    random = np.random.default_rng(0)
    at_training = _Futures.after(last.at_training, PRIOR_AT_TRAINING, random)
    at_longest = _Futures.after(last.at_longest, PRIOR_AT_LONGEST, random)
    is_settled = np.zeros(N_FUTURES, bool)
    for seeds in LOOKS:
        if seeds <= last.seeds:
            continue
        seen = Look(seeds, last.number, at_training.at(seeds), at_longest.at(seeds), last.margin)
        is_settled |= seen.is_sure
        if is_settled.mean() >= SETTLED_SHARE:
            return seeds
    return None


@dataclass
class _Futures:
    """Simulated differences of further seeds: each future has a true mean and a variance between seeds."""

    true_mean: np.ndarray
    true_variance: np.ndarray
    seeds: int
    total: np.ndarray  # the sum of the differences of all seeds so far
    own_variance: np.ndarray
    prior: Prior
    random: np.random.Generator

    @classmethod
    def after(cls, now: Difference, prior: Prior, random: np.random.Generator) -> "_Futures":
        """Draw the true means and variances of futures that the seeds so far allow."""
        seeds = now.own_freedom + 1
        own = np.full(N_FUTURES, now.own_error**2 * seeds)
        # If the seeds spread more than the prior says, their own spread counts.
        spread = max(now.error, now.own_error) ** 2 * seeds
        variance = spread * now.freedom / random.chisquare(now.freedom, N_FUTURES)
        # Small differences are more likely than large ones.
        weight = USUAL_DIFFERENCE**2 / (USUAL_DIFFERENCE**2 + variance / seeds)
        noise = np.sqrt(weight * variance / seeds) * random.standard_normal(N_FUTURES)
        mean = weight * now.mean + noise
        total = np.full(N_FUTURES, now.mean * seeds)
        return cls(mean, variance, seeds, total, own, prior, random)

    def at(self, seeds: int) -> Difference:
        """Draw seeds until their number is `seeds`, and return the difference of all seeds."""
        more = seeds - self.seeds
        noise = np.sqrt(more * self.true_variance) * self.random.standard_normal(N_FUTURES)
        self.total = self.total + more * self.true_mean + noise
        squares = self.own_variance * (self.seeds - 1) + self.true_variance * more
        self.own_variance = squares / (seeds - 1)
        self.seeds = seeds
        return _estimate(self.total / seeds, self.own_variance, seeds, self.prior)
