"""The interval, the verdict, and the answers on context and on a baseline."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from support.tables import interval

from pe_bench.report.statistics import (
    CONFIDENCE,
    Interval,
    Spread,
    corrected_comparisons,
    judge_change,
    judge_context_use,
    judge_gain_over_control,
    paired_interval,
)


def test_a_two_by_two_table_matches_the_sums_by_hand() -> None:
    # Means of seeds 1 and 4, of documents 2 and 3, residuals +-0.5.
    differences = np.array([[0.0, 2.0], [4.0, 4.0]])
    by_seed = 2 * ((1 - 2.5) ** 2 + (4 - 2.5) ** 2)  # 9
    by_document = 2 * ((2 - 2.5) ** 2 + (3 - 2.5) ** 2)  # 1
    rest = 4 * 0.5**2  # 1
    critical = stats.t.ppf(0.975, 1)
    half = critical * math.sqrt((by_seed + by_document - rest) / 4)
    found = paired_interval(differences)
    assert (found.mean, found.high - found.mean) == pytest.approx((2.5, half))


def test_each_variance_component_has_its_own_degrees_of_freedom() -> None:
    # Without skewness, so that the plain formulas hold exactly.
    seeds, documents = np.array([-0.2, 0.0, 0.2]), np.linspace(-1.0, 1.0, 9)
    differences = seeds[:, None] + documents[None, :]  # no residual
    by_seed, by_document = 9 * np.var(seeds, ddof=1), 3 * np.var(documents, ddof=1)
    squares = by_seed * stats.t.ppf(0.975, 2) ** 2 + by_document * stats.t.ppf(0.975, 8) ** 2
    assert paired_interval(differences).high == pytest.approx(math.sqrt(squares / 27))


@pytest.mark.parametrize("sign", [1, -1])
def test_skewed_documents_move_the_bound_on_their_long_side_alone(sign: int) -> None:
    skewed = sign * np.array([0.0] * 9 + [1.0])
    plain = stats.t.ppf(0.975, 9) * stats.sem(skewed)
    found = paired_interval(skewed[None, :])
    assert found.mean == pytest.approx(0.1 * sign) and (found.seeds, found.documents) == (1, 10)
    near, far = (found.mean - found.low, found.high - found.mean)[::sign]
    assert near == pytest.approx(plain)
    assert 2 * plain < far < 2.5 * plain


def test_the_mirrored_interval_is_that_of_the_negative_differences() -> None:
    differences = np.random.default_rng(0).lognormal(size=(3, 30))
    mirrored, negative = paired_interval(differences).mirrored, paired_interval(-differences)
    for confidence in (0.95, 0.99):
        assert mirrored.at(confidence) == pytest.approx(negative.at(confidence))


@pytest.mark.parametrize("shape", [(1, 12), (3, 1), (3, 12)])
def test_the_bounds_at_another_level_enclose_those_below_it(shape: tuple[int, int]) -> None:
    found = paired_interval(np.random.default_rng(0).lognormal(size=shape))
    bounds = [found.at(confidence) for confidence in (0.5, 0.9, CONFIDENCE, 0.99, 0.9999)]
    assert bounds[2] == (found.low, found.high)
    lows, highs = zip(*bounds, strict=True)
    assert sorted(lows, reverse=True) == list(lows) and sorted(highs) == list(highs)
    assert len(set(lows)) == len(set(highs)) == 5


@pytest.mark.parametrize(
    ("broken", "verdict"), [(math.inf, "fails"), (math.nan, "fails"), (-math.inf, "unclear")]
)
def test_one_broken_score_is_a_failure_a_broken_reference_no_gain_and_neither_is_dropped(
    broken: float, verdict: str
) -> None:
    differences = np.zeros((3, 30))
    differences[1, 7] = broken
    assert judge_change(paired_interval(differences)) == verdict
    assert judge_change(paired_interval(np.array([[0.5]]))) == "unclear", "one document and one seed"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.2501, 0.4, "fails"),
        (0.25, 0.4, "degrades"),
        (0.0101, 0.4, "degrades"),
        (0.01, 0.4, "unclear"),
        (-0.0099, 0.0099, "holds"),
        (-0.4, 0.0099, "holds"),
        (-0.0099, 0.01, "unclear"),
        (-0.4, -0.0101, "improves"),
        (-0.4, -0.01, "holds"),
        (-0.4, 0.4, "unclear"),
        (math.inf, math.inf, "fails"),
        (math.nan, math.nan, "unclear"),
    ],
)
def test_the_verdict_changes_exactly_at_its_boundaries(low: float, high: float, expected: str) -> None:
    assert judge_change(interval(low, high)) == expected


def estimate(mean: float, standard_error: float) -> Interval:
    """Over so many documents that the t distribution is the normal one."""
    spread = Spread(standard_error**2, seed_share=0.0, skewness=0.0)
    bare = Interval(mean, math.nan, math.nan, 1, 10**6, spread)
    low, high = bare.at(CONFIDENCE - 1e-12)
    return replace(bare, low=low, high=high)


def standard_errors(confidence: float) -> float:
    return float(stats.norm.ppf((1 + confidence) / 2))


def test_a_comparison_says_better_same_worse_or_unclear_in_the_order_given() -> None:
    differences = [estimate(-0.5, 0.01), estimate(0.0, 0.001), estimate(0.5, 0.01), estimate(0.0, 1.0)]
    assert corrected_comparisons(differences) == ["better", "same", "worse", "unclear"]


def test_the_first_of_two_comparisons_is_judged_at_half_the_error_rate() -> None:
    limit = 0.01 + 0.1 * standard_errors(1 - 0.05 / 2)
    unclear = estimate(0.0, 1.0)
    assert corrected_comparisons([unclear, estimate(limit + 0.001, 0.1)]) == ["unclear", "worse"]
    assert corrected_comparisons([unclear, estimate(limit - 0.001, 0.1)]) == ["unclear", "unclear"]
    assert corrected_comparisons([estimate(limit - 0.001, 0.1)]) == ["worse"], "one needs no correction"


def test_a_settled_comparison_relaxes_the_correction_of_the_others() -> None:
    weak = estimate(0.01 + 0.1 * standard_errors(0.96), 0.1)
    settled, unclear = estimate(0.0, 0.0001), estimate(0.0, 1.0)
    assert corrected_comparisons([weak, settled]) == ["worse", "same"]
    assert corrected_comparisons([weak, unclear]) == ["unclear", "unclear"]


@pytest.mark.parametrize(
    ("gain", "swap_gain", "expected"),
    [
        ((0.02, 0.1), (0.02, 0.1), "yes"),
        ((0.001, 0.1), (0.001, 0.1), "yes"),
        ((-0.1, 0.1), (0.02, 0.1), "unclear"),
        ((0.02, 0.1), (-0.01, 0.1), "unclear"),
        ((0.02, 0.1), (-0.1, 0.0099), "no"),
        ((0.02, 0.1), (0.002, 0.0099), "no"),  # surely some, surely of no use
        ((-0.2, -0.1), (0.02, 0.1), "no"),  # surely harmed
        ((math.inf, math.inf), (0.02, 0.1), "unclear"),
        ((0.02, 0.1), (math.inf, math.inf), "unclear"),
        ((-math.inf, math.inf), (-math.inf, math.inf), "unclear"),
    ],
)
def test_context_is_used_where_both_gains_are_positive(
    gain: tuple[float, float], swap_gain: tuple[float, float], expected: str
) -> None:
    assert judge_context_use(interval(*gain), interval(*swap_gain)) == expected


def test_a_control_is_beaten_by_a_positive_gain_that_may_be_of_use() -> None:
    gains = ((0.001, 0.1), (0.0, 0.1), (-0.1, 0.0099), (0.002, 0.0099), (math.inf, math.inf))
    answers = [judge_gain_over_control(interval(*gain)) for gain in gains]
    assert answers == ["yes", "unclear", "no", "no", "unclear"]
