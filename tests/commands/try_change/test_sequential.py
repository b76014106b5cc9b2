"""How often a try is wrong, and what it finds: simulated with the noise of the studies, and with other noise.

`python tests/commands/try_change/test_sequential.py` prints all numbers.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

from pe_bench.commands.try_change.sequential import (
    LOOKS,
    PRIOR_AT_LONGEST,
    PRIOR_AT_TRAINING,
    difference,
    error_share_of_look,
    last_look,
    look,
    next_look,
    seeds_to_settle,
    share_of_try,
)

MARGIN = 0.01
MOST = 21  # seeds in a simulated try
SPREADS = (1, 2, 4, 8)  # between seeds, over those of the priors
# Of the levels of two encodings with the same seed, that is the same weights and batches: 0.75 for rope and
# alibi, 0.96 for rope and rope base=100000 (256,000 tokens, five seeds).
CORRELATION = 0.75
# The studies whose spreads over seeds gave the priors. A study that is not named here may grow without them.
# The runs of extend are the rope of alibi, trained further, those of base that rope with other bases, and
# those of budget after one million tokens are alibi's and kerple's: their levels would count twice.
STUDIES = ("alibi", "kerple", "longer_training", "nope_same_targets", "scalings", "windowed")

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def noise(length: int) -> pd.DataFrame:
    """Return the levels of the committed studies at a length, with their spread over seeds."""
    folder = Path(__file__).parents[3] / "configs" / "study"
    levels = pd.concat(pd.read_csv(folder / f"{study}.csv") for study in STUDIES)
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
            random.choice(spreads, (searches, count, 1)) * random.standard_normal((searches, count, MOST))
            for count in (1, tries)
        )
        drawn.append(change - baseline)
    return drawn[0], drawn[1]


def normal(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.standard_normal(shape)


def exponential(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return noise that makes a loss much higher now and then, with a mean of 0 and a variance of 1."""
    return random.exponential(size=shape) - 1


def lognormal(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return noise with a mean of 0 and a variance of 1 that is more skewed than `exponential`."""
    drawn = np.exp(random.standard_normal(shape))
    return (drawn - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)


def levels_apart(draw: Draw) -> Draw:
    """Return noise of differences between two levels of which each has this noise."""
    return lambda random, shape: (draw(random, shape) - draw(random, shape)) / np.sqrt(2)


def differences_at(
    spread: float, draw: Draw, searches: int, tries: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return differences whose spread is so many times that of the priors, [searches, tries, MOST]."""
    random = np.random.default_rng(seed)
    shape = searches, tries, MOST
    at_training = spread * PRIOR_AT_TRAINING.deviation * draw(random, shape)
    return at_training, spread * PRIOR_AT_LONGEST.deviation * draw(random, shape)


def are_better(
    at_training: np.ndarray, at_longest: np.ndarray, numbers: np.ndarray | int, most: int = MOST
) -> np.ndarray:
    """Return which tries end as better within so many seeds, looking at each look, [searches, tries]."""
    shape = at_training.shape[:-1]
    is_better, is_over = np.zeros(shape, bool), np.zeros(shape, bool)
    for seeds in LOOKS:
        if seeds > most:
            break
        seen = look(at_training[..., :seeds], at_longest[..., :seeds], numbers, MARGIN)
        is_better |= seen.is_better & ~is_over
        is_over |= seen.is_sure
    return is_better


def wrong_searches(correlation: float) -> float:
    """Return the share of 1,000 searches of 200 changes that change nothing which call one of them better."""
    return float(are_better(*differences(1_000, 200, correlation), numbers=np.arange(1, 201)).any(1).mean())


def wrong_of_20(spread: float, draw: Draw) -> float:
    """Return the share of 1,000 searches of 20 changes that change nothing which call one of them better."""
    return float(are_better(*differences_at(spread, draw, 1_000, 20), numbers=np.arange(1, 21)).any(1).mean())


def power(gain: float, number: int, most: int) -> float:
    """Return how often a change that is better at the training length alone is found by a try."""
    at_training, at_longest = differences(4_000, 1)
    return float(are_better(at_training - gain, at_longest, number, most).mean())


def power_at_prior(gain: float, most: int) -> float:
    """Return the same of the first try, where seeds spread as in the priors."""
    at_training, at_longest = differences_at(1, normal, 4_000, 1)
    return float(are_better(at_training - gain, at_longest, 1, most).mean())


def mixed_called_better(worse: float, better: float) -> float:
    """Return how often a change is called better that is worse at the training length."""
    at_training, at_longest = differences_at(1, normal, 2_000, 1)
    return float(are_better(at_training + worse, at_longest - better, 1).mean())


def promises(gain: float, first: int, spread: float, tries: int = 60) -> tuple[int, int]:
    """Return how many tries are told a number of seeds at a look, and how many twice as many settle."""
    random = np.random.default_rng(1)
    told, kept = 0, 0
    for _ in range(tries):
        noise_of = spread * random.standard_normal((2, max(LOOKS)))
        at_training = PRIOR_AT_TRAINING.deviation * noise_of[0] - gain
        at_longest = PRIOR_AT_LONGEST.deviation * noise_of[1]
        now = look(at_training[:first], at_longest[:first], 1, MARGIN)
        if now.is_sure or (needed := seeds_to_settle(now)) is None:
            continue
        told += 1
        following = [seeds for seeds in LOOKS if first < seeds <= 2 * needed]
        kept += any(look(at_training[:n], at_longest[:n], 1, MARGIN).is_sure for n in following)
    return told, kept


@pytest.mark.parametrize("correlation", [0.0, CORRELATION])
def test_five_of_a_hundred_searches_at_most_call_one_of_200_equal_changes_better(correlation: float) -> None:
    assert wrong_searches(correlation) <= 0.05


@pytest.mark.parametrize("spread", [0.3, *SPREADS, 20])
def test_the_same_holds_however_much_seeds_spread(spread: float) -> None:
    assert wrong_of_20(spread, normal) <= 0.05


@pytest.mark.parametrize("draw", [exponential, lognormal])
@pytest.mark.parametrize("spread", SPREADS)
def test_the_same_holds_for_skewed_levels_of_both_sides(spread: float, draw: Draw) -> None:
    assert wrong_of_20(spread, levels_apart(draw)) <= 0.05


@pytest.mark.parametrize(("draw", "told"), [(exponential, 0.069), (lognormal, 0.089)])
def test_skewed_differences_are_wrong_as_often_as_the_page_on_tries_says(draw: Draw, told: float) -> None:
    assert wrong_of_20(1, draw) == pytest.approx(told, abs=0.02)
    page = (Path(__file__).parents[3] / "docs" / "try.md").read_text()
    assert f"differences, rarely much worse | {100 * told:.1f} %" in page


def test_a_gain_of_two_hundredths_is_found_by_the_first_try_with_few_seeds() -> None:
    assert power(0.02, 1, most=5) >= 0.6
    assert power(0.02, 1, most=13) >= 0.8
    assert power_at_prior(0.02, most=5) >= 0.53
    assert power_at_prior(0.02, most=8) >= 0.7
    assert power(0.02, 1, 8) > power(0.02, 10, 8) > power(0.02, 100, 8)


def test_more_seeds_find_any_gain() -> None:
    assert power_at_prior(0.01, 21) > 0.55 > power_at_prior(0.01, 8)


@pytest.mark.parametrize(("worse", "better"), [(0.02, 0.05), (0.03, 0.2)])
def test_better_at_one_length_and_worse_at_the_other_is_seldom_called_better(
    worse: float, better: float
) -> None:
    assert mixed_called_better(worse, better) <= 0.05


@pytest.mark.parametrize(("gain", "first"), [(0.01, 3), (0.01, 5), (0.0, 5), (0.02, 8)])
def test_a_number_of_seeds_that_would_settle_it_usually_does_by_twice_as_many(
    gain: float, first: int
) -> None:
    told, kept = promises(gain, first, spread=1)
    assert told > 10 and kept > 0.75 * told


def test_a_number_of_seeds_is_no_empty_promise_where_seeds_spread_widely() -> None:
    told, kept = promises(0.005, first=5, spread=3)
    assert kept > 0.5 * told


def test_looks_spend_no_more_than_a_try_has_and_tries_no_more_than_there_is() -> None:
    assert 0.999 < sum(map(error_share_of_look, range(1, 1_000))) <= 1
    assert 0.045 < sum(map(share_of_try, range(1, 100_000))) < 0.05


def test_looks_are_made_after_these_seeds() -> None:
    assert [last_look(seeds) for seeds in (1, 3, 4, 7, 8, 5_000)] == [0, 3, 3, 5, 8, 987]
    assert [next_look(seeds) for seeds in (0, 3, 4, 8, 986, 987)] == [3, 5, 5, 13, 987, None]


def test_answers() -> None:
    worse, better = [0.20, 0.22, 0.19, 0.21, 0.20], [-0.30, -0.31, -0.29, -0.30, -0.30]
    for at_training, at_longest, answer in (
        ([-1.0, -1.0], [-1.0, -1.0], "unclear"),  # it needs three seeds
        ([-1.0, -1.001, -0.999], [0.0, 0.01, 0.0], "better"),
        ([-1.0, -1.1, -0.9], [0.0, 0.01, 0.0], "unclear"),  # three seeds hardly know their spread
        ([-1.0, -1.1, -0.9, -1.0, -1.0], [0.0, 0.01, 0.0, 0.0, 0.0], "better"),
        ([0.025] * 3, [0.0] * 3, "unclear"),  # it would be worse if one look could spend all
        ([-1.0, -1.1, np.nan], [-1.0, -1.1, -0.9], "not better"),
        (better, worse, "mixed"),
        (worse, better, "mixed"),
        ([0.0, 0.04, 0.01, -0.01, 0.02], better, "mixed"),  # its mean is worse by more than the margin
        ([0.0, 0.03, 0.01, -0.01, 0.01], better, "better"),
        ([*better, 0.0], [*better, 0.0], "unclear"),  # after six seeds is no look
        ([0.0, 0.001, -0.001, 0.0, 0.0, 0.0, 0.0] * 3, [0.0] * 21, "not better"),  # within the margin
    ):
        assert look(at_training, at_longest, 1, MARGIN).answer == answer, (at_training, at_longest)


def test_mixed_is_sure_once_it_is_surely_worse_at_one_length() -> None:
    better = [-0.30, -0.31, -0.29, -0.30, -0.30]
    assert look([0.20, 0.22, 0.19, 0.21, 0.20], better, 1, MARGIN).is_sure
    assert not look([0.0, 0.04, 0.01, -0.01, 0.02], better, 1, MARGIN).is_sure


def test_the_spread_of_few_seeds_is_shrunk_to_the_prior() -> None:
    equal = difference([0.1, 0.1, 0.1], PRIOR_AT_TRAINING)
    assert 0 < equal.error < PRIOR_AT_TRAINING.deviation / np.sqrt(3)
    assert equal.freedom == PRIOR_AT_TRAINING.freedom + 2


def test_seeds_that_would_settle_it_are_fewer_the_larger_the_gain() -> None:
    near = seeds_to_settle(look([-0.035, -0.05, -0.02], [0.0, 0.01, -0.01], 1, MARGIN))
    far = seeds_to_settle(look([-0.006, -0.021, 0.009], [0.0, 0.01, -0.01], 1, MARGIN))
    assert near is not None and far is not None and 3 < near < far


def test_a_change_without_a_number_is_settled_by_the_first_look() -> None:
    assert seeds_to_settle(look([np.inf], [-0.3], 1, MARGIN)) == 3


if __name__ == "__main__":
    for correlation in (0.0, 0.5, CORRELATION):
        print(f"correlation {correlation}: {wrong_searches(correlation):.1%} of searches are wrong once")
    draws = {
        "normal": normal,
        "exponential levels of both": levels_apart(exponential),
        "lognormal levels of both": levels_apart(lognormal),
        "exponential differences": exponential,
        "lognormal differences": lognormal,
    }
    for name, draw in draws.items():
        shares = [f"{wrong_of_20(spread, draw):.1%}" for spread in SPREADS]
        print(f"{name}, {SPREADS} times the priors' spread: {shares} of searches of 20 are wrong once")
    for gain in (0.02, 0.05):
        for number in (1, 10, 100):
            found = {most: f"{power(gain, number, most):.0%}" for most in (5, 8, 13, 21)}
            print(f"a gain of {gain} is found by try {number} within so many seeds: {found}")
    for gain in (0.01, 0.02):
        found = {most: f"{power_at_prior(gain, most):.0%}" for most in (5, 8, 13, 21)}
        print(f"at the priors' spread, a gain of {gain} within so many seeds: {found}")
    wrong = mixed_called_better(0.02, 0.05)
    print(f"worse by 0.02 when trained, better by 0.05 at the longest: {wrong:.1%} better")
    for spread in (1, 3):
        for gain in (0.0, 0.005, 0.01, 0.02):
            for first in (3, 5, 8):
                told, kept = promises(gain, first, spread, 200)
                print(
                    f"spread {spread}, gain {gain}, after {first}: {told} of 200 told, {kept} settled by 2N"
                )
