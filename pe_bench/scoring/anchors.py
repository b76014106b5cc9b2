"""Models that cost no training, counted on the windows that a seed trains on: what a trained one has to beat.

- token frequencies: how often each token is, whatever stands before it.
- trigram: the token after two others, with Witten and Bell's interpolation (1991, method C) down to bigrams,
  frequencies and the uniform distribution: p(c | ab) = (n(abc) + T(ab) p(c | b)) / (n(ab) + T(ab)), where T
  counts the different tokens after ab.
- trigram+copy: (1 - w) trigram + w [the token that followed the longest match of the last tokens that
  stands earlier in the window], the latest of equally long ones. w is how often that token was right in
  training windows, for each length of a match; it is 0 below three tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pe_bench.config.schema import TrainConfig
from pe_bench.data.batches import TrainingWindows
from pe_bench.data.packed import Data
from pe_bench.runs.anchors import COPYING, FREQUENCIES, TRIGRAM

MIN_MATCH = 3  # tokens
MAX_MATCH = 32  # longer matches count as this
MAX_COUNTED = 2**24  # training tokens; more would take longer than scoring does
MAX_WEIGHED = 2**26  # pairs of tokens that are compared to learn the weights of copying
CHUNK = 2**22  # tokens that are counted at once
NONE = -1  # in place of a token before the window


@dataclass(frozen=True)
class Counts:
    """How often something was seen: keys int64 [n] in rising order, and counts float64 [n]."""

    keys: np.ndarray
    counts: np.ndarray

    def of(self, wanted: np.ndarray) -> np.ndarray:
        """Return the counts of keys of any shape, 0 for those that were not seen."""
        if not len(self.keys):
            return np.zeros(wanted.shape)
        place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where(self.keys[place] == wanted, self.counts[place], 0.0)

    def contexts(self, vocab_size: int) -> tuple["Counts", "Counts"]:
        """Return, for the keys without their last token, all that was seen and how much of it differs."""
        before, first = np.unique(self.keys // vocab_size, return_index=True)
        different = np.diff(np.append(first, len(self.keys))).astype(np.float64)
        return Counts(before, np.add.reduceat(self.counts, first)), Counts(before, different)


class Trigram:
    """The trigram and the frequencies below it, from windows int64 [windows, tokens] in parts."""

    def __init__(self, windows: Iterator[np.ndarray], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.counts = _count(windows, vocab_size)
        self.contexts = [counts.contexts(vocab_size) for counts in self.counts]

    def frequency(self, token: np.ndarray) -> np.ndarray:
        return self._interpolated(0, np.zeros_like(token), token, np.full(token.shape, 1 / self.vocab_size))

    def probability(self, before: np.ndarray, last: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Return p(token | before, last), float64; both may be `NONE`."""
        found = self._interpolated(1, last, token, self.frequency(token))
        pair = np.where((before == NONE) | (last == NONE), NONE, before * self.vocab_size + last)
        return self._interpolated(2, pair, token, found)

    def _interpolated(
        self, order: int, context: np.ndarray, token: np.ndarray, lower: np.ndarray
    ) -> np.ndarray:
        seen, different = (counts.of(context) for counts in self.contexts[order])
        counted = self.counts[order].of(np.where(context == NONE, NONE, context * self.vocab_size + token))
        known = np.maximum(seen + different, 1.0)
        return np.where(seen > 0, (counted + different * lower) / known, lower)


def longest_matches(tokens: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what followed the longest match before each token from place `first` on, and its length.

    tokens [windows, tokens] are those of windows with the token after their last input; both results are
    int64 [windows, tokens - first]. A match ends earlier than the token before the target does, lies in the
    window, and counts `MAX_MATCH` tokens at most. Without any the token is `NONE` and the length 0.
    """
    windows, size = tokens.shape
    compared = tokens[:, :-1]
    matches = np.zeros((windows, size - 1), np.uint8)  # of the tokens that end with each place
    copied = np.full((windows, size - first), NONE, np.int64)
    lengths = np.zeros((windows, size - first), np.int64)
    rows = np.arange(windows)
    for target in range(max(2, first - MAX_MATCH), size):
        # A match may end at any place before that of the last input, target - 1.
        end = target - 1
        matches[:, 1:end] = np.minimum(matches[:, : end - 1], MAX_MATCH - 1) + 1
        matches[:, 0] = 1
        matches[:, :end] *= compared[:, :end] == compared[:, end, None]
        if target < first:
            continue
        latest = end - 1 - np.argmax(matches[:, end - 1 :: -1], axis=1)
        found = matches[rows, latest].astype(np.int64)
        lengths[:, target - first] = found
        copied[:, target - first] = np.where(found > 0, tokens[rows, latest + 1], NONE)
    return copied, lengths


@dataclass(frozen=True)
class Anchors:
    """The three models. weights: of copying, for each length of a match, float64 [MAX_MATCH + 1]."""

    trigram: Trigram
    weights: np.ndarray

    def probabilities(self, tokens: np.ndarray, first: int) -> dict[str, np.ndarray]:
        """Return what each model gives the tokens from place `first` on, float64 [windows, tokens - first].

        tokens int64 [windows, tokens] are those of windows with the token after their last input.
        """
        padded = np.pad(tokens, ((0, 0), (2, 0)), constant_values=NONE)
        targets = tokens[:, first:]
        before, last = padded[:, first:-2], padded[:, first + 1 : -1]
        trigram = self.trigram.probability(before, last, targets)
        copied, lengths = longest_matches(tokens, first)
        return {
            FREQUENCIES: self.trigram.frequency(targets),
            TRIGRAM: trigram,
            COPYING: self.with_copying(trigram, copied == targets, lengths),
        }

    def with_copying(self, trigram: np.ndarray, is_copied: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        weight = self.weights[lengths]
        return (1 - weight) * trigram + weight * is_copied


def count_anchors(data: Data, train: TrainConfig, seed: int) -> Anchors:
    """Return the models of the windows that a run of this seed trains on; of very many, of the first ones."""
    windows = TrainingWindows(data.train, train.length, data.end_of_text)
    steps = min(train.total_steps, -(-MAX_COUNTED // train.batch_tokens))
    drawn = (windows.batch(train.batch, seed, step).numpy() for step in range(steps))
    needed = max(1, MAX_WEIGHED // train.length**2)
    kept: list[np.ndarray] = []

    def parts() -> Iterator[np.ndarray]:
        for batch in drawn:
            if sum(map(len, kept)) < needed:
                kept.append(batch)
            yield batch

    trigram = Trigram(parts(), data.vocab_size)
    return Anchors(trigram, copying_weights(np.concatenate(kept)[:needed]))


def copying_weights(windows: np.ndarray) -> np.ndarray:
    """Return how often a copied token was right, for each length of the match, in windows [windows, tokens].

    A length of which little was seen leans towards one half.
    """
    copied, lengths = longest_matches(windows, 0)
    right = np.bincount(lengths.ravel(), (copied == windows).ravel(), MAX_MATCH + 1)
    weights = (right + 1) / (np.bincount(lengths.ravel(), minlength=MAX_MATCH + 1) + 2)
    weights[:MIN_MATCH] = 0.0
    return weights


def _count(windows: Iterator[np.ndarray], vocab_size: int) -> list[Counts]:
    """Count single tokens, pairs and triples, each inside one window."""
    found = [Counts(np.empty(0, np.int64), np.empty(0)) for _ in range(3)]
    for part in _chunks(windows):
        for order in range(3):
            size = part.shape[1] - order
            keys = part[:, :size].astype(np.int64)
            for place in range(1, order + 1):
                keys = keys * vocab_size + part[:, place : place + size]
            found[order] = _merged(found[order], *np.unique(keys, return_counts=True))
    return found


def _chunks(windows: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    waiting: list[np.ndarray] = []
    for batch in windows:
        waiting.append(batch)
        if sum(part.size for part in waiting) >= CHUNK:
            yield np.concatenate(waiting)
            waiting = []
    if waiting:
        yield np.concatenate(waiting)


def _merged(known: Counts, keys: np.ndarray, counts: np.ndarray) -> Counts:
    together, place = np.unique(np.concatenate([known.keys, keys]), return_inverse=True)
    return Counts(together, np.bincount(place, np.concatenate([known.counts, counts])))
