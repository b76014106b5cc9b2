"""How often a try is wrong, and what it finds: simulated with the noise of the committed studies.

`python tests/tries/test_sequential.py` prints all numbers.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

from pe_bench.tries.sequential import (
    PRIOR_AT_LONGEST,
    PRIOR_AT_TRAINING,
    difference,
    look,
    seeds_to_settle,
    share_of_look,
    share_of_try,
)

MARGIN = 0.01
SEEDS = (3, 4, 5)
# Of the levels of two encodings with the same seed, that is the same weights and batches: 0.75 for rope and
# alibi, 0.96 for rope and rope base=100000 (256,000 tokens, five seeds).
CORRELATION = 0.75


def noise(length: int) -> pd.DataFrame:
    """Return the levels of the committed studies at a length, with their spread over seeds."""
    folder = Path(__file__).parents[2] / "configs" / "study"
    # The runs of extend are the rope of alibi.csv, trained further; those of base are that rope with other
    # bases. Their levels vary with its own from seed to seed.
    files = [file for file in sorted(folder.glob("*.csv")) if file.stem not in ("extend", "base")]
    levels = pd.concat(map(pd.read_csv, files))
    levels = levels[(levels.protocol == "paired") & (levels.control == "none") & (levels.variant == "full")]
    is_trained = ~levels.encoding.str.contains("->")
    return levels.loc[is_trained & (levels.seeds >= 3) & (levels.length == length)]


@pytest.mark.parametrize(("length", "prior"), [(128, PRIOR_AT_TRAINING), (2048, PRIOR_AT_LONGEST)])
def test_a_prior_is_the_fit_to_the_committed_spreads(length: int, prior) -> None:
    levels = noise(length)
    half = (levels.seeds.to_numpy() - 1) / 2
    logs = np.log(levels.seed_sd.to_numpy() ** 2) - digamma(half) + np.log(half)
    excess = logs.var(ddof=1) - polygamma(1, half).mean()
    freedom = 2 * float(brentq(lambda value: float(polygamma(1, value)) - excess, 1e-3, 1e3))  # pyright: ignore[reportArgumentType]
    variance = np.exp(logs.mean() + digamma(freedom / 2) - np.log(freedom / 2))
    assert prior.freedom == pytest.approx(freedom, rel=0.01)
    assert prior.deviation == pytest.approx(np.sqrt(variance), rel=0.01)


def differences(searches: int, tries: int, correlation: float = CORRELATION) -> tuple[np.ndarray, np.ndarray]:
    """Return differences of changes that change nothing, at both lengths, [searches, tries, seeds].

    All tries of a search have one baseline. What a level has in common with another of its seed is left out.
    """
    random, drawn = np.random.default_rng(0), []
    for length in (128, 2048):
        spreads = noise(length).seed_sd.to_numpy() * np.sqrt(1 - correlation)
        baseline, change = (
            random.choice(spreads, (searches, count, 1))
            * random.standard_normal((searches, count, max(SEEDS)))
            for count in (1, tries)
        )
        drawn.append(change - baseline)
    return drawn[0], drawn[1]


def are_better(at_training: np.ndarray, at_longest: np.ndarray, numbers: np.ndarray | int) -> np.ndarray:
    """Return which tries end as better, looking after each seed, [searches, tries]."""
    shape = at_training.shape[:-1]
    is_better, is_over = np.zeros(shape, bool), np.zeros(shape, bool)
    for seeds in SEEDS:
        seen = look(at_training[..., :seeds], at_longest[..., :seeds], numbers, MARGIN)
        is_better |= seen.is_better & ~is_over
        is_over |= seen.is_better | seen.is_not_better
    return is_better


def wrong_searches(correlation: float) -> float:
    """Return the share of 1,000 searches of 200 changes that change nothing which call one of them better."""
    return float(are_better(*differences(1_000, 200, correlation), numbers=np.arange(1, 201)).any(1).mean())


def power(gain: float, number: int) -> float:
    """Return how often a change that is better at the training length alone is found by a try."""
    at_training, at_longest = differences(4_000, 1)
    return float(are_better(at_training - gain, at_longest, number).mean())


@pytest.mark.parametrize("correlation", [0.0, CORRELATION])
def test_five_of_a_hundred_searches_at_most_call_one_of_200_equal_changes_better(correlation: float) -> None:
    assert wrong_searches(correlation) <= 0.05


def test_a_gain_of_two_hundredths_is_found_by_the_first_try_with_five_seeds() -> None:
    assert power(0.02, 1) >= 0.8
    assert power(0.02, 1) > power(0.02, 10) > power(0.02, 100)


def test_looks_spend_no_more_than_a_try_has_and_tries_no_more_than_there_is() -> None:
    assert sum(map(share_of_look, range(1, 60))) == pytest.approx(1)
    assert 0.045 < sum(map(share_of_try, range(1, 100_000))) < 0.05


def test_answers() -> None:
    worse, better = [0.20, 0.22, 0.19, 0.21, 0.20], [-0.30, -0.31, -0.29, -0.30, -0.30]
    for at_training, at_longest, answer in (
        ([-1.0, -1.0], [-1.0, -1.0], "unclear"),  # it needs three seeds
        ([-1.0, -1.1, -0.9], [0.0, 0.01, 0.0], "better"),
        ([0.025] * 3, [0.0] * 3, "unclear"),  # it would be worse if one look could spend all
        ([-1.0, -1.1, np.nan], [-1.0, -1.1, -0.9], "not better"),
        (better, worse, "not better"),
        (worse, better, "not better"),
        ([0.0, 0.001, -0.001, 0.0, 0.0] * 4, [0.0] * 20, "not better"),  # within the margin
    ):
        assert look(at_training, at_longest, 1, MARGIN).answer == answer


def test_the_spread_of_few_seeds_is_shrunk_to_the_prior() -> None:
    equal = difference([0.1, 0.1, 0.1], PRIOR_AT_TRAINING)
    assert 0 < equal.error < PRIOR_AT_TRAINING.deviation / np.sqrt(3)
    assert equal.freedom == PRIOR_AT_TRAINING.freedom + 2


def test_seeds_that_would_settle_it_are_fewer_the_larger_the_gain() -> None:
    near = seeds_to_settle(look([-0.015, -0.03, 0.0], [0.0, 0.01, -0.01], 1, MARGIN))
    far = seeds_to_settle(look([-0.006, -0.021, 0.009], [0.0, 0.01, -0.01], 1, MARGIN))
    assert near is not None and far is not None and 3 < near < far


if __name__ == "__main__":
    for correlation in (0.0, 0.5, CORRELATION):
        print(f"correlation {correlation}: {wrong_searches(correlation):.1%} of searches are wrong once")
    for gain in (0.02, 0.05):
        for number in (1, 10, 100):
            print(f"a gain of {gain} is found by try {number} in {power(gain, number):.0%}")
