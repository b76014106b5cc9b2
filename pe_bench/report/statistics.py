"""Statistics of paired differences: intervals, verdicts, use of context, break points, comparisons.

The verdict on a change against the training length, in bits per byte (positive is worse), follows from
its 95 % interval. MARGIN is 0.01 (`report.margin` and `--margin` change it), FAILURE is 0.25:

    fails     all of the interval is above FAILURE
    degrades  all of it is above the margin, not all above FAILURE
    improves  all of it is below minus the margin
    holds     all of it is below the margin: at most so much worse
    unclear   anything else; the upper bound still says how bad the change can be at most

A verdict speaks of one length of one line, and is wrong with a chance of at most 5 %. What a line says over
lengths is bounded as a family too, each claim by a fixed sequence (Maurer, Hothorn and Lehmacher, 1995),
which needs no correction: a length counts only if all before it in the sequence did.

    "holds up to L"   from the shortest length up, as long as lengths hold or improve
    "breaks at L"     from the longest length down, as long as lengths degrade or fail; and the length
                      after the last that holds, if it degrades or fails itself

No other line has a part in this: a run that joins a table changes no verdict. Claims between encodings are
another matter: the differences of all lines from a baseline at one length are corrected together (Holm), so
that the chance of any wrong one is at most 5 %; negative is better, and the verdicts are worse, better, same
(within the margin, both ways) and unclear. Use of context is a rule on two gains; see `judge_context_use`.

With several seeds there are two questions: what holds of other seeds too, and what of these models alone. The
interval of the second is over documents only, of each document's mean over seeds. It is the narrower one, and
narrower than that of one seed: more seeds turn no answer into none.

How an interval is computed: seeds and documents are crossed, because every seed's model scores the same
documents. With one difference for each pair, the model is `mean + seed + document + rest`, all three
effects random, and with

    A = D var(means of seeds),  B = S var(means of documents),  E = the rest's mean square

the variance of the grand mean is (A + B - E) / (S D). Two things are done against the textbook's
undercoverage:

- a share of the variance that comes from S seeds is held to Student's t of S - 1 degrees of
  freedom, one that comes from D documents to that of D - 1, and the squares of the two critical
  values are averaged by those shares (Cochran and Cox, 1950, average the values). Satterthwaite's
  single number of degrees of freedom, itself estimated from three seeds, misses the truth 1.5
  times as often as it says at 95 %, and 9 times at the 99.8 % that a table of 24 cells asks for.
- the mean of few skewed documents is mostly too far on the side of the short tail. On the long
  tail's side the documents' part of the squared width grows by 1 + (w z)^2, where z is the normal
  quantile and w = min(1, 3.5 |skewness| / sqrt(D)). As in Johnson's and Hall's corrections (1978,
  1992) the bound moves with z^2; but these trust the sample's skewness, which over ten lognormal
  documents is a fifth of the truth: there Johnson's is mostly infinite, and Hall's covers 90 %.

Simulated were document effects of standard deviation 1 and these shapes, a normal rest of 0.1, and
normal seed effects of the size in the first column (none for one seed, which speaks of its own model
alone): the percentage of 10,000 intervals that held the true mean, and their mean width over that of
the same interval without the second measure. tests/report/test_simulations.py has the simulations.

                         1 x 10     1 x 30     3 x 10     3 x 30     5 x 10     5 x 30
    0.1  normal       96.3 1.21  95.6 1.06  97.4 1.19  97.5 1.04  96.7 1.21  96.4 1.05
    0.1  exponential  95.5 1.47  97.7 1.46  97.0 1.42  98.5 1.35  96.1 1.46  97.9 1.43
    0.1  lognormal    92.6 1.53  97.1 1.56  95.7 1.46  98.3 1.40  94.0 1.51  97.8 1.50
    1.0  normal       96.3 1.21  95.6 1.06  97.8 1.03  96.2 1.00  97.5 1.07  96.0 1.01
    1.0  exponential  95.5 1.47  97.7 1.46  98.0 1.07  96.7 1.02  97.9 1.16  97.0 1.07
    1.0  lognormal    92.6 1.53  97.1 1.56  97.4 1.07  96.7 1.03  97.4 1.15  96.5 1.07

Without the second measure, lognormal documents give 84 % (1 x 10), 86 % (5 x 10) and 91 % (5 x 30). One seed
over ten lognormal documents stays a little short of 93 %: most such samples do not show their tail.

A slice may have one target of a document and two hundred of another, so its mean is over all its targets, and
documents count by their sizes. The spread of such a mean is the jackknife's: how it changes without each
document. Simulated were sizes that are lognormal with a deviation of 1 (1.04 is that of the slice `recall` on
`stdlib`, 70 documents); the percentage of 4,000 intervals that held the true mean:

                         1 x 30  1 x 70  3 x 30  3 x 70  5 x 30  5 x 70
    normal                 93.9    94.2    97.4    97.7    96.0    96.4
    exponential            92.5    94.2    97.0    97.3    94.4    96.0
    lognormal              91.1    92.5    96.9    97.9    94.3    96.1

Wrong claims, in percent: of 400 lines of 8 lengths with a wrong "holds up to" or "breaks at", and of 2,000
single verdicts, where documents are independent and every true change lies a hair beyond a boundary, so that
it is the likeliest to be judged wrongly (mirrored: lognormal, the long tail on the other side):

                                 3 x 10  3 x 30  5 x 10  5 x 30
    lines,    nearly   normal       1.2     0.5     1.2     1.0
              holding  lognormal    2.5     1.0     5.2     0.5
    lines,    nearly   normal       2.2     2.8     3.5     3.2
           degrading   mirrored     7.2     1.5    11.0     2.2
    verdicts, nearly   normal       1.1     1.1     0.9     1.6
              holding  lognormal    3.5     0.7     4.6     1.6
    verdicts, nearly   normal       1.4     1.2     1.2     1.8
           degrading   mirrored     3.4     0.9     5.3     1.2
    verdicts, nearly   normal       1.7     1.6     1.5     2.2
             failing   mirrored     3.8     1.3     5.9     1.7

Thirty documents, or parts of documents, keep the 5 % in every case, and so do ten normal ones. Ten skewed
ones do not in the worst case: the tail is hardly seen where the level is high. `judge_context_use` is wrong
in at most 2.4 % over thirty documents, and in 5.5 % over ten at the edge of its margin. Three seeds cost
power: the critical value of two degrees of freedom is 4.3, so that what differs between seeds stays unclear.
Seeds are taken to differ normally. Where their effects are lognormal and as large as those of documents or
larger, three to five seeds do not show the tail, and intervals hold the truth in 84 to 92 %.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Literal

import numpy as np
from scipy.special import ndtri, stdtrit

from pe_bench.config.schema import FAILURE, MARGIN

Verdict = Literal["improves", "holds", "degrades", "fails", "unclear"]
Comparison = Literal["better", "same", "worse", "unclear"]
Answer = Literal["yes", "no", "unclear"]
Bounds = tuple[float, float]

CONFIDENCE = 0.95
SKEW_WEIGHT = 3.5  # by simulation: covers 93 % over ten lognormal documents, and not much more


@dataclass(frozen=True)
class Spread:
    """The sources of the width of an interval."""

    variance: float  # the variance of the mean difference
    seed_share: float  # the part of the variance that comes from seeds, 0 to 1
    skewness: float  # the skewness of the documents' means


@dataclass(frozen=True)
class Interval:
    """A mean difference with its 95 % interval, and the numbers of its seeds and documents."""

    mean: float
    low: float
    high: float
    seeds: int
    documents: int
    spread: Spread | None = field(default=None, repr=False, compare=False)

    def at(self, confidence: float) -> Bounds:
        """Return the bounds at another level of confidence, 0 to 1; infinite bounds stay infinite.

        Raises `ValueError` for an interval without its spread.
        """
        if confidence == CONFIDENCE or math.isinf(self.low):
            return self.low, self.high
        if self.spread is None:
            raise ValueError(
                f"without its spread an interval is known at {CONFIDENCE} alone, not {confidence}"
            )
        return _bounds(self.mean, self.spread, self.seeds, self.documents, confidence)

    @property
    def mirrored(self) -> "Interval":
        """Return the interval of the negative difference."""
        spread = self.spread and replace(self.spread, skewness=-self.spread.skewness)
        # From 0.0, because the negative of zero would be shown as -0.000.
        return Interval(0.0 - self.mean, 0.0 - self.high, 0.0 - self.low, self.seeds, self.documents, spread)


def paired_interval(differences: np.ndarray, sizes: np.ndarray | None = None) -> Interval:
    """Return the interval of the mean of `differences`, float64 [seeds, documents].

    sizes: the weights of the documents, above 0, float64 [documents]; by default all weigh the same.

    With one seed the spread is only over documents, with one document only over seeds. With one of each there
    is no spread, and the interval is infinite. A difference of +inf or NaN is a score that broke down: it
    turns the whole mean infinite, and is never dropped. A difference of -inf is a reference that broke down:
    it shows nothing about the score, and the interval is infinite both ways.
    """
    if differences.ndim != 2 or differences.size == 0:
        raise ValueError(f"differences must be [seeds, documents] with one at least, not {differences.shape}")
    seeds, documents = differences.shape
    if np.any(np.isnan(differences) | (differences == math.inf)):
        return Interval(math.inf, math.inf, math.inf, seeds, documents)
    if np.any(differences == -math.inf):
        return Interval(-math.inf, -math.inf, math.inf, seeds, documents)
    if sizes is not None and documents > 1:
        differences = _jackknife_values(differences, sizes)
    mean = float(differences.mean())
    if differences.size == 1:
        return Interval(mean, -math.inf, math.inf, seeds, documents)
    spread = _spread(differences)
    return Interval(mean, *_bounds(mean, spread, seeds, documents, CONFIDENCE), seeds, documents, spread)


def difference_of_shares(differences: np.ndarray, count: int) -> Interval:
    """Return the interval of the mean of differences of shares, float64 [seeds, documents].

    If all differences are equal, they show no spread. The interval then allows that a share of `1 - 0.025 **
    (1 / count)` of the units differs: with a probability of 2.5 %, none of `count` units would show it
    (Clopper and Pearson). count: the number of independent units: documents, or parts of few documents; seeds
    are not independent, because they share the documents. The interval of a single difference is infinite.
    """
    interval = paired_interval(differences)
    if math.isinf(interval.low) or np.ptp(differences) > 0:
        return interval
    unseen = 1 - ((1 - CONFIDENCE) / 2) ** (1 / count)
    is_by_seed = interval.documents == 1
    critical = _critical_t(interval.seeds if is_by_seed else interval.documents, CONFIDENCE)
    spread = Spread((unseen / critical) ** 2, float(is_by_seed), 0.0)
    return replace(interval, low=interval.mean - unseen, high=interval.mean + unseen, spread=spread)


def judge_change(interval: Interval, margin: float = MARGIN) -> Verdict:
    """Return the verdict on a change in bits per byte, by the table at the top of this module.

    A positive change is worse. margin: the size of a change that counts as none.
    """
    if interval.low > FAILURE:
        return "fails"
    if interval.low > margin:
        return "degrades"
    if interval.high < -margin:
        return "improves"
    return "holds" if interval.high < margin else "unclear"


def corrected_comparisons(intervals: Sequence[Interval], margin: float = MARGIN) -> list[Comparison]:
    """Return the verdict on each difference from a baseline at one length; a negative difference is better.

    Holm's step-down, so that the chance of any wrong verdict is at most 5 %. A verdict is a claim, and its p
    the smallest alpha at which the interval of confidence 1 - alpha supports it. The first of m, in the order
    of p, is judged at 5 % / m, the next at 5 % / (m - 1), ...; the first one that is unclear ends it, and all
    after it are unclear too. As intervals of higher confidence enclose the others, this is to judge all of
    them at one level, and again for the places left, until nothing changes.

    No difference is judged more boldly than by itself. For claims with a direction, the bound on the chance
    of any wrong claim is proved for independent cells (Shaffer, 1980); for cells that share their documents
    there are only simulations.
    """
    unsettled = len(intervals)
    while True:
        confidence = 1 - (1 - CONFIDENCE) / max(unsettled, 1)
        verdicts: list[Comparison] = [_comparison(*interval.at(confidence), margin) for interval in intervals]
        left = verdicts.count("unclear")
        if left == unsettled or unsettled <= 1:
            return verdicts
        unsettled = left


def judge_context_use(gain: Interval, swap_gain: Interval, margin: float = MARGIN) -> Answer:
    """Return the verdict on the use of context beyond the training length; positive gains mean use.

    gain: the level at the training length minus the level at the longer length. swap_gain: the level with
    the far context taken from another document minus the level at the longer length.

    The verdict is `no` if a swap surely costs less than the margin, even if it surely costs something,
    because with enough documents every difference does. It is `no` too if the level is surely worse than at
    the training length, because the far context then harms. An infinite gain is a score that broke down, and
    shows nothing.
    """
    if swap_gain.high < margin or gain.high < 0:
        return "no"
    return "yes" if _above_zero(gain) and _above_zero(swap_gain) else "unclear"


def judge_gain_over_control(gain: Interval, margin: float = MARGIN) -> Answer:
    """Return the verdict on a gain over a control: the control's level minus the level without it.

    The rule is that of `judge_context_use`: a gain surely below the margin is `no`, else a gain surely above
    zero is `yes`.
    """
    if gain.high < margin:
        return "no"
    return "yes" if _above_zero(gain) else "unclear"


def gains_within_training(gain: Interval) -> bool:
    """Return whether a model surely gains from 1/4 to 1 times its training length; gains are positive."""
    return _above_zero(gain)


def reads_nothing(gain: Interval, margin: float = MARGIN) -> bool:
    """Return whether a model surely gains less than the margin from 1/4 to 1 times its training length."""
    return not gains_within_training(gain) and gain.high < margin


def holds_up_to(verdicts: Mapping[int, str]) -> int | None:
    """Return the last length up to which all lengths hold or improve; None if the shortest does not."""
    held = takewhile(lambda length: verdicts[length] in ("holds", "improves"), sorted(verdicts))
    return max(held, default=None)


def breaks_at(verdicts: Mapping[int, str]) -> int | None:
    """Return the shortest length that is known to break; None without such a length.

    This is the length from which on every length degrades or fails; or the first length after those that
    hold, if that length degrades or fails.
    """
    broken = {length for length, verdict in verdicts.items() if verdict in ("degrades", "fails")}
    longest = list(takewhile(lambda length: length in broken, sorted(verdicts, reverse=True)))
    held = holds_up_to(verdicts)
    following = min((length for length in verdicts if held is None or length > held), default=None)
    return min([*longest, *broken & {following}], default=None)


def student_interval(values: np.ndarray) -> Bounds:
    """Return the 95 % interval of the mean of `values` [n]; infinite for fewer than two finite values."""
    count = len(values)
    if count < 2 or not np.all(np.isfinite(values)):
        return -math.inf, math.inf
    mean = float(np.mean(values))
    deviation = float(np.std(values, ddof=1))
    half = _critical_t(count, CONFIDENCE) * deviation / math.sqrt(count)
    return mean - half, mean + half


def _comparison(low: float, high: float, margin: float) -> Comparison:
    """Return the verdict on a difference from a baseline, by the bounds of its interval."""
    if low > margin:
        return "worse"
    if high < -margin:
        return "better"
    return "same" if -margin < low and high < margin else "unclear"


def _above_zero(gain: Interval) -> bool:
    """Return whether all of a gain's interval is above zero, and the gain is finite."""
    # An infinite gain is a score that broke down.
    return 0 < gain.low < math.inf


def _spread(differences: np.ndarray) -> Spread:
    """Return the spread of a mean of differences [seeds, documents]."""
    seeds, documents = differences.shape
    seed_means = differences.mean(axis=1)
    document_means = differences.mean(axis=0)
    skewness = _skewness(document_means)
    if seeds == 1:
        return Spread(_variance(document_means) / documents, 0.0, skewness)
    if documents == 1:
        return Spread(_variance(seed_means) / seeds, 1.0, skewness)
    by_seed = _variance(seed_means) / seeds
    by_document = _variance(document_means) / documents
    rest = _mean_square_of_residuals(differences, seed_means, document_means) / differences.size
    # The difference can come out below its own parts, even below zero: no less than either part.
    variance = max(by_seed + by_document - rest, by_seed, by_document)
    seed_share = by_seed / (by_seed + by_document) if variance > 0 else 0.0
    return Spread(variance, seed_share, skewness)


def _jackknife_values(differences: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return values whose plain mean and spread are those of the mean weighted by sizes [documents].

    Both are [seeds, documents]. A document's value is the seed's weighted mean plus, by the jackknife, the
    influence of the document on that mean.
    """
    share = sizes / sizes.sum()
    means = (differences @ share)[:, None]
    others = len(sizes) - 1
    deviations = (differences - means) * share * others / (1 - share)
    return means + deviations - deviations.mean(axis=1, keepdims=True)


def _bounds(mean: float, spread: Spread, seeds: int, documents: int, confidence: float) -> Bounds:
    """Return the bounds of a mean at a level of confidence, 0 to 1, as the top of this module explains."""
    by_seed = spread.seed_share * _critical_t(seeds, confidence) ** 2
    by_document = (1 - spread.seed_share) * _critical_t(documents, confidence) ** 2
    lean = min(1.0, SKEW_WEIGHT * abs(spread.skewness) / math.sqrt(documents))
    quantile = float(ndtri((1 + confidence) / 2))
    widening = 1 + (lean * quantile) ** 2
    plain = math.sqrt(spread.variance * (by_seed + by_document))
    wide = math.sqrt(spread.variance * (by_seed + by_document * widening))
    if spread.skewness > 0:
        return mean - plain, mean + wide
    return mean - wide, mean + plain


def _mean_square_of_residuals(
    differences: np.ndarray, seed_means: np.ndarray, document_means: np.ndarray
) -> float:
    """Return the mean square of the residuals, which neither the seed nor the document explains."""
    residual = differences - seed_means[:, None] - document_means[None, :]
    residual += differences.mean()
    freedom = (len(seed_means) - 1) * (len(document_means) - 1)
    return float(np.sum(residual**2)) / freedom


def _critical_t(count: int, confidence: float) -> float:
    """Return Student's t for the mean of `count` values; 0 for a single one, which has no spread."""
    if count <= 1:
        return 0.0
    # The quantile itself: importing scipy.stats takes longer than a whole report.
    return float(stdtrit(count - 1, (1 + confidence) / 2))


def _variance(values: np.ndarray) -> float:
    """Return the unbiased variance of values [n]."""
    return float(np.var(values, ddof=1))


def _skewness(values: np.ndarray) -> float:
    """Return the skewness of values [n]; 0 for values that are equal but for rounding."""
    deviations = values - values.mean()
    spread = float(np.sqrt(np.mean(deviations**2)))
    # Equal values differ by rounding only, and the skewness of rounding is noise.
    if spread <= 1e-12 * float(np.max(np.abs(values))):
        return 0.0
    return float(np.mean((deviations / spread) ** 3))
