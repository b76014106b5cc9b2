"""The interval, the verdict and the break point."""

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from pe_bench import statistics
from pe_bench.statistics import Interval, break_point, paired_interval, student_interval, verdict


def interval(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, 3, 30)


def symmetric_documents(count: int) -> np.ndarray:
    """Values without skewness, so that the plain formulas hold exactly."""
    return np.linspace(-1.0, 1.0, count)


def test_one_seed_gives_the_t_interval_over_documents() -> None:
    differences = symmetric_documents(12)[None, :] + 0.3
    low, high = stats.t.interval(0.95, 11, 0.3, stats.sem(differences[0]))
    found = paired_interval(differences)
    assert (found.mean, found.low, found.high) == pytest.approx((0.3, low, high))
    assert (found.seeds, found.documents) == (1, 12)


def test_one_document_gives_the_t_interval_over_seeds() -> None:
    differences = np.array([[0.1], [0.4], [0.2]])
    low, high = stats.t.interval(0.95, 2, differences.mean(), stats.sem(differences[:, 0]))
    found = paired_interval(differences)
    assert (found.low, found.high) == pytest.approx((low, high))


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


def test_a_share_of_the_variance_is_held_to_its_own_degrees_of_freedom() -> None:
    seeds, documents = np.array([-0.2, 0.0, 0.2]), symmetric_documents(9)
    differences = seeds[:, None] + documents[None, :]  # no residual
    by_seed, by_document = 9 * np.var(seeds, ddof=1), 3 * np.var(documents, ddof=1)
    squares = by_seed * stats.t.ppf(0.975, 2) ** 2 + by_document * stats.t.ppf(0.975, 8) ** 2
    assert paired_interval(differences).high == pytest.approx(math.sqrt(squares / 27))


def test_a_negative_combination_of_variances_cannot_shorten_the_interval() -> None:
    # Rows and columns that all sum to zero: the residual is everything there is.
    differences = np.array([[1.0, -1.0, 0.0], [-1.0, 0.0, 1.0], [0.0, 1.0, -1.0]])
    differences[0] += 0.1
    found = paired_interval(differences)
    assert found.high - found.low > 0
    assert math.isfinite(found.high)


@pytest.mark.parametrize("shape", [(1, 8), (3, 1), (3, 8), (5, 30)])
def test_constant_differences_give_an_interval_without_width(shape: tuple[int, int]) -> None:
    found = paired_interval(np.full(shape, 0.1))
    assert (found.low, found.high) == pytest.approx((0.1, 0.1), abs=1e-12)


def test_one_document_and_one_seed_say_nothing() -> None:
    found = paired_interval(np.array([[0.5]]))
    assert (found.mean, found.low, found.high) == (0.5, -math.inf, math.inf)
    assert verdict(found) == "unclear"


def test_skewed_documents_widen_the_interval() -> None:
    skewed = np.array([0.0] * 9 + [1.0])
    plain = stats.t.ppf(0.975, 9) * stats.sem(skewed)
    assert paired_interval(skewed[None, :]).high - skewed.mean() > 1.3 * plain


@pytest.mark.parametrize("broken", [math.inf, math.nan])
def test_one_broken_score_is_a_failure_and_is_not_dropped(broken: float) -> None:
    differences = np.zeros((3, 30))
    differences[1, 7] = broken
    found = paired_interval(differences)
    assert found.mean == math.inf
    assert verdict(found) == "fails"


def test_a_broken_reference_is_no_improvement() -> None:
    differences = np.zeros((3, 30))
    differences[1, 7] = -math.inf
    assert verdict(paired_interval(differences)) == "unclear"


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (3,)])
def test_no_differences_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="seeds, documents"):
        paired_interval(np.zeros(shape))


@pytest.mark.parametrize(("seeds", "documents", "seed_scale"), [(3, 30, 0.3), (3, 30, 1.0), (5, 10, 0.3)])
def test_the_interval_covers_the_mean_as_often_as_it_says(
    seeds: int, documents: int, seed_scale: float
) -> None:
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        by_seed = generator.normal(scale=seed_scale, size=(seeds, 1))
        by_document = generator.normal(size=(1, documents))
        found = paired_interval(by_seed + by_document + generator.normal(scale=0.3, size=(seeds, documents)))
        hits += found.low <= 0 <= found.high
    assert 0.93 <= hits / 400 <= 0.99


@pytest.mark.parametrize(("seeds", "documents", "said"), [(1, 10, 88.8), (5, 10, 90.1), (5, 30, 94.2)])
def test_the_coverage_over_skewed_documents_is_what_the_docstring_admits(
    seeds: int, documents: int, said: float
) -> None:
    assert str(said) in (statistics.__doc__ or "")
    generator = np.random.default_rng(0)
    spread = math.sqrt((math.e - 1) * math.e)
    hits = 0
    for _ in range(1500):
        effects = generator.normal(scale=0.1, size=(seeds, 1)) + generator.normal(
            scale=0.1, size=(seeds, documents)
        )
        skewed = (generator.lognormal(size=documents) - math.sqrt(math.e)) / spread
        found = paired_interval(effects + skewed[None, :])
        hits += found.low <= 0 <= found.high
    assert abs(100 * hits / 1500 - said) < 3


def test_a_quantile_needs_no_import_of_all_statistics() -> None:
    program = "import sys, pe_bench.statistics; print('scipy.stats' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.2501, 0.4, "fails"),
        (0.25, 0.4, "degrades"),
        (0.0101, 0.4, "degrades"),
        (0.01, 0.4, "unclear"),
        (-0.0099, 0.0099, "holds"),
        (-0.01, 0.0099, "unclear"),
        (-0.0099, 0.01, "unclear"),
        (-0.4, -0.0101, "improves"),
        (-0.4, -0.01, "unclear"),
        (-0.4, 0.4, "unclear"),
        (math.inf, math.inf, "fails"),
        (math.nan, math.nan, "unclear"),
    ],
)
def test_the_verdict_changes_exactly_at_its_boundaries(low: float, high: float, expected: str) -> None:
    assert verdict(interval(low, high)) == expected


def test_a_wider_margin_turns_a_small_loss_into_holding() -> None:
    assert verdict(interval(0.02, 0.04)) == "degrades"
    assert verdict(interval(0.02, 0.04), margin=0.05) == "holds"


def test_the_break_point_is_the_first_failing_length_beyond_the_training_length() -> None:
    found = {512: "fails", 64: "degrades", 128: "degrades", 192: "unclear", 256: "degrades"}
    assert break_point(found, 128) == 256


def test_losing_context_below_the_training_length_is_no_break() -> None:
    assert break_point({32: "fails", 64: "degrades", 256: "holds", 512: "unclear"}, 128) is None


def test_the_interval_over_seeds_needs_two_of_them() -> None:
    low, high = student_interval(np.array([1.0, 2.0, 3.0]))
    assert (low, high) == pytest.approx(stats.t.interval(0.95, 2, 2.0, 1 / math.sqrt(3)))
    assert student_interval(np.array([1.0])) == (-math.inf, math.inf)
