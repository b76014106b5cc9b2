"""Models that cost no training: distributions, counted on what a seed trains on; copies are of the window."""

from dataclasses import replace

import numpy as np
import pytest
from support.scoring import DATA, EVAL, TRAIN_LENGTH, VOCABULARY, data_of

from pe_bench.config.schema import Config, TrainConfig
from pe_bench.data.batches import TrainingWindows
from pe_bench.runs.find import COPYING, FREQUENCIES, TRIGRAM
from pe_bench.scoring.anchors import (
    MAX_MATCH,
    MIN_MATCH,
    NO_TOKEN,
    Trigram,
    copying_weights,
    fit_anchors,
    longest_matches,
    own_frequencies,
)
from pe_bench.scoring.plans import make_plans
from pe_bench.scoring.protocols import batches, targets

TRAIN = TrainConfig(length=TRAIN_LENGTH, steps=3, batch_tokens=16)


def trigram_of(text: str, letters: str) -> Trigram:
    ids = np.array([[letters.index(letter) for letter in text]])
    return Trigram(ids, len(letters))


def matches_by_search(tokens: list[int], target: int) -> tuple[int, int]:
    """Return the token after the longest, latest match before a target, and the match's length."""
    best, copied = 0, NO_TOKEN
    for place in range(1, target):
        length = 0
        most = min(place, MAX_MATCH)
        while length < most and tokens[place - 1 - length] == tokens[target - 1 - length]:
            length += 1
        if length and length >= best:
            best, copied = length, tokens[place]
    return copied, best


def test_a_trigram_is_what_a_calculation_by_hand_gives() -> None:
    model = trigram_of("abab", "abc")
    a, b, c = (np.array([number]) for number in range(3))
    # Frequencies: 2 a, 2 b of 4 tokens, 2 different ones, and 1/3 for each below.
    frequency = {"a": (2 + 2 / 3) / 6, "c": (2 / 3) / 6}
    assert model.frequency(a)[0] == pytest.approx(frequency["a"])
    assert model.frequency(c)[0] == pytest.approx(frequency["c"])
    # After b there was a, once: 1 kind. After ab there was a, once.
    bigram = (1 + frequency["a"]) / 2
    assert model.probability(a, b, a)[0] == pytest.approx((1 + bigram) / 2)
    # After cb there was nothing: the bigram. After c, and before any token, the frequencies.
    assert model.probability(c, b, a)[0] == pytest.approx(bigram)
    assert model.probability(a, c, a)[0] == pytest.approx(frequency["a"])
    none = np.array([NO_TOKEN])
    assert model.probability(none, none, a)[0] == pytest.approx(frequency["a"])
    assert model.probability(none, b, a)[0] == pytest.approx(bigram)


@pytest.mark.parametrize("first", [1, 2, 7])
def test_each_model_is_a_distribution_over_the_vocabulary(first: int) -> None:
    anchors = fit_anchors(DATA, TRAIN, seed=5)
    anchors.weights[MIN_MATCH:] = 0.7
    window = np.tile(np.array([3, 1, 4, 1, 3, 1, 4, 0])[: first + 1], (VOCABULARY, 1))
    window[:, -1] = np.arange(VOCABULARY)
    probabilities = anchors(window, first)
    assert probabilities.keys() == {FREQUENCIES, TRIGRAM, COPYING}
    for probability in probabilities.values():
        assert probability.min() > 0 and probability.sum() == pytest.approx(1)


def test_what_is_counted_are_the_very_windows_that_the_seed_trains_on(monkeypatch) -> None:
    drawn = TrainingWindows(DATA.train, TRAIN.length, DATA.end_of_text)
    windows = np.concatenate([drawn.batch(TRAIN.batch, 5, step).tokens.numpy() for step in range(3)])
    first, other = (fit_anchors(DATA, TRAIN, seed).trigram.counts[0] for seed in (5, 6))
    assert np.array_equal(first.of(np.arange(VOCABULARY)), np.bincount(windows.ravel(), minlength=VOCABULARY))
    assert not np.array_equal(first.counts, other.counts)
    monkeypatch.setattr(
        "pe_bench.scoring.anchors.MAX_COUNTED_TOKENS", 1
    )  # of many, those of the first steps alone
    assert fit_anchors(DATA, TRAIN, 5).trigram.counts[0].counts.sum() == windows[: TRAIN.batch].size


@pytest.mark.parametrize("first", [0, 5])
def test_the_longest_match_is_found_as_by_a_search_of_every_place(first: int) -> None:
    tokens = np.random.default_rng(1).integers(0, 3, (4, 90))
    tokens[3] = np.tile([0, 1, 2], 30)  # matches that are longer than are counted
    copied, lengths = longest_matches(tokens, first)
    assert copied.shape == lengths.shape == (4, 90 - first)
    for row, window in enumerate(tokens.tolist()):
        by_search = [matches_by_search(window, target) for target in range(first, 90)]
        assert list(zip(copied[row], lengths[row], strict=True)) == by_search
    assert lengths[3].max() == MAX_MATCH


def test_a_copy_weighs_as_much_as_it_was_right_in_training_windows() -> None:
    windows = np.tile([1, 2, 3, 4], (50, 5))
    weights = copying_weights(windows)
    assert weights[:3].tolist() == [0] * 3
    assert weights[3] == pytest.approx(51 / 52)
    random = copying_weights(np.random.default_rng(0).integers(0, 9, (300, 60)))
    assert random[MIN_MATCH] == pytest.approx(1 / 9, abs=0.05)


def test_nothing_is_counted_in_validation_text() -> None:
    other = replace(DATA, validation=data_of(70, 50).validation)
    one, same = (fit_anchors(data, TRAIN, seed=5) for data in (DATA, other))
    assert np.array_equal(one.weights, same.weights)
    for counts, same_counts in zip(one.trigram.counts, same.trigram.counts, strict=True):
        assert np.array_equal(counts.keys, same_counts.keys)
        assert np.array_equal(counts.counts, same_counts.counts)


def test_a_scored_token_is_not_counted_in_its_own_frequency() -> None:
    [plan, *_] = make_plans(Config({}, train=TRAIN, eval=EVAL), EVAL, DATA)
    drawn = [targets(DATA.validation, batch).numpy().ravel() for batch in batches(plan.windows, 10**6)]
    counts = np.bincount(np.concatenate(drawn), minlength=VOCABULARY)
    tokens = np.arange(VOCABULARY)[None, :]
    frequency = own_frequencies(DATA, plan)(tokens, 0)[FREQUENCIES][0]
    for token, count in enumerate(counts):
        others = counts.copy()
        others[token] = max(count - 1, 0)
        kinds = np.count_nonzero(others)
        expected = (others[token] + kinds / VOCABULARY) / (counts.sum() - 1 + kinds)
        assert frequency[token] == pytest.approx(expected)
