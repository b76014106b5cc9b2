"""Anchors: models that cost no training, counted on the windows that a seed trains on.

- token frequencies: the frequency of each token, whatever precedes it.
- trigram: the token after two others, with Witten and Bell's interpolation (1991, method C) down to bigrams,
  frequencies and the uniform distribution: p(c | ab) = (n(abc) + T(ab) p(c | b)) / (n(ab) + T(ab)), where T
  counts the different tokens after ab.
- trigram+copy: (1 - w) trigram + w [the token that followed the longest earlier match of the last tokens in
  the window, the latest of equally long matches]. w is the share of such tokens that were right in training
  windows, for each length of a match; it is 0 below three tokens.

Anchors are scored once for all runs that train on the same windows. The training text of a Hugging Face model
is unknown: its anchor is the frequencies of the scored tokens, each counted without itself.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pe_bench.config.schema import Config, TrainConfig
from pe_bench.data.batches import TrainingWindows
from pe_bench.data.packed import Data
from pe_bench.errors import RunError, first_line
from pe_bench.runs.find import (
    ANCHOR_NAMES,
    COPYING,
    FREQUENCIES,
    OWN_FREQUENCIES,
    TRIGRAM,
    anchors_folder,
)
from pe_bench.runs.folder import locked
from pe_bench.runs.job import Job
from pe_bench.runs.rows import APART, TASK, Row, read_rows, write_rows
from pe_bench.runs.scores import Scores, has_whole_scores, save_scores, score_file, with_level
from pe_bench.scoring.protocols import Plan, batches, inputs, scores_of, targets
from pe_bench.scoring.slices import write_slices_and_means
from pe_bench.system.files import remove_leftovers
from pe_bench.system.machine import utc_now
from pe_bench.system.terminal import say

ANCHORS_VERSION = 1  # the version of the models: raise it when their scores change
BATCH_TOKENS = 2**21
MIN_MATCH = 3  # tokens
MAX_MATCH = 32  # tokens; a longer match counts as a match of this length
MAX_COUNTED_TOKENS = 2**24  # training tokens; more would take longer than scoring does
MAX_COMPARED_PAIRS = 2**26  # pairs of tokens that are compared to learn the weights of copying
NO_TOKEN = -1  # replaces a token before the window

Key = tuple[object, ...]
# Takes the tokens of windows and the token after the last input, int64 [windows, tokens], and an index;
# returns the probabilities of the tokens from the index on by each anchor, float64 [windows, tokens - index].
Probabilities = Callable[[np.ndarray, int], dict[str, np.ndarray]]


@dataclass(frozen=True)
class NgramCounts:
    """The counts of n-grams, each written as one number."""

    keys: np.ndarray  # int64 [n], rising
    counts: np.ndarray  # [n]

    def of(self, keys: np.ndarray) -> np.ndarray:
        """Return the counts of keys of any shape, 0 for unseen keys."""
        places = np.searchsorted(self.keys, keys)
        index = np.minimum(places, len(self.keys) - 1)
        return np.where(self.keys[index] == keys, self.counts[index], 0.0)

    def contexts(self, vocab_size: int) -> tuple["NgramCounts", "NgramCounts"]:
        """Return how many tokens follow each n-gram without its last token, and how many different tokens."""
        before, first = np.unique(self.keys // vocab_size, return_index=True)
        following = np.add.reduceat(self.counts, first)
        different = np.diff(np.append(first, len(self.keys)))
        return NgramCounts(before, following), NgramCounts(before, different)


class Trigram:
    """The trigram and the frequencies below it, counted in windows int64 [windows, tokens]."""

    def __init__(self, windows: np.ndarray, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        pairs = windows[:, :-1] * vocab_size + windows[:, 1:]
        triples = pairs[:, :-1] * vocab_size + windows[:, 2:]
        self.counts = [
            NgramCounts(*np.unique(keys, return_counts=True)) for keys in (windows, pairs, triples)
        ]
        self.contexts = [counts.contexts(vocab_size) for counts in self.counts]

    def frequency(self, token: np.ndarray) -> np.ndarray:
        """Return p(token) in the counted windows, whatever precedes the token, float64."""
        uniform = np.full(token.shape, 1 / self.vocab_size)
        return self._interpolated_probability(0, np.zeros_like(token), token, uniform)

    def probability(self, before: np.ndarray, last: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Return p(token | before, last), float64; `before` and `last` may be `NO_TOKEN`."""
        bigram = self._interpolated_probability(1, last, token, self.frequency(token))
        is_cut = (before == NO_TOKEN) | (last == NO_TOKEN)
        pair = np.where(is_cut, NO_TOKEN, before * self.vocab_size + last)
        return self._interpolated_probability(2, pair, token, bigram)

    def _interpolated_probability(
        self, order: int, context: np.ndarray, token: np.ndarray, lower: np.ndarray
    ) -> np.ndarray:
        """Return p(token | context) from the probability `lower` by a context that is one token shorter.

        order: the number of tokens in a context. context: each context as one number, or `NO_TOKEN`.
        """
        seen, different = (counts.of(context) for counts in self.contexts[order])
        keys = np.where(context == NO_TOKEN, NO_TOKEN, context * self.vocab_size + token)
        counted = self.counts[order].of(keys)
        total = np.maximum(seen + different, 1.0)
        return np.where(seen > 0, (counted + different * lower) / total, lower)


def longest_matches(tokens: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the token after the longest match before each token from index `first` on, and its length.

    tokens: of windows, with the token after the last input, [windows, tokens]. Both results are
    int64 [windows, tokens - first]. A match is an earlier occurrence, in the window, of the tokens before the
    target, and counts at most `MAX_MATCH` tokens. Without a match the token is `NO_TOKEN` and the length 0.
    """
    windows, size = tokens.shape
    compared = tokens[:, :-1]
    matches = np.zeros((windows, size - 1), np.uint8)  # the number of equal tokens that end at each place
    copied = np.full((windows, size - first), NO_TOKEN, np.int64)
    lengths = np.zeros((windows, size - first), np.int64)
    rows = np.arange(windows)
    for target in range(max(2, first - MAX_MATCH), size):
        # A match may end at any index before the last input, target - 1.
        end = target - 1
        longer = np.minimum(matches[:, : end - 1], MAX_MATCH - 1) + 1
        matches[:, 1:end] = longer
        matches[:, 0] = 1
        is_equal = compared[:, :end] == compared[:, end, None]
        matches[:, :end] *= is_equal
        if target < first:
            continue
        latest = end - 1 - np.argmax(matches[:, end - 1 :: -1], axis=1)
        length = matches[rows, latest].astype(np.int64)
        following = tokens[rows, latest + 1]
        lengths[:, target - first] = length
        copied[:, target - first] = np.where(length > 0, following, NO_TOKEN)
    return copied, lengths


@dataclass(frozen=True)
class Anchors:
    """The three models of this module: token frequencies, trigram and trigram+copy."""

    trigram: Trigram
    weights: np.ndarray  # the weight of copying for each length of a match, float64 [MAX_MATCH + 1]

    def __call__(self, tokens: np.ndarray, first: int) -> dict[str, np.ndarray]:
        """Return each anchor's probabilities of the tokens from index `first` on, [windows, tokens - first].

        tokens: int64 [windows, tokens].
        """
        padded = np.pad(tokens, ((0, 0), (2, 0)), constant_values=NO_TOKEN)
        targets = tokens[:, first:]
        before = padded[:, first:-2]
        last = padded[:, first + 1 : -1]
        trigram = self.trigram.probability(before, last, targets)
        copied, lengths = longest_matches(tokens, first)
        weight = self.weights[lengths]
        is_right = copied == targets
        copying = (1 - weight) * trigram + weight * is_right
        return {FREQUENCIES: self.trigram.frequency(targets), TRIGRAM: trigram, COPYING: copying}


def fit_anchors(data: Data, train: TrainConfig, seed: int) -> Anchors:
    """Return the anchors, counted in the training windows of a run with this seed.

    At most about `MAX_COUNTED_TOKENS` tokens are counted, in whole steps.
    """
    drawn = TrainingWindows(data.train, train.length, data.end_of_text)
    steps = min(train.total_steps, -(-MAX_COUNTED_TOKENS // train.batch_tokens))
    parts = []
    for step in range(steps):
        parts.append(drawn.batch(train.batch, seed, step).tokens.numpy())
    windows = np.concatenate(parts)
    weighed = max(1, MAX_COMPARED_PAIRS // train.length**2)
    return Anchors(Trigram(windows, data.vocab_size), copying_weights(windows[:weighed]))


def copying_weights(windows: np.ndarray) -> np.ndarray:
    """Return the weight of a copied token, 0 to 1, by the length of the match before it [MAX_MATCH + 1].

    The token that followed the longest earlier match is copied. The weight of a length is the share of tokens
    with matches of this length for which the copy is right, smoothed towards one half for a rare length; it
    is 0 below `MIN_MATCH`. windows: [windows, tokens].
    """
    copied, matched = longest_matches(windows, 0)
    lengths = matched.ravel()
    is_right = (copied == windows).ravel()
    right = np.bincount(lengths, is_right, MAX_MATCH + 1)
    seen = np.bincount(lengths, minlength=MAX_MATCH + 1)
    weights = (right + 1) / (seen + 2)
    weights[:MIN_MATCH] = 0.0
    return weights


def own_frequencies(data: Data, plan: Plan) -> Probabilities:
    """Return the function from windows to the frequencies of their tokens among the plan's scored tokens.

    Without the training text, nothing else can be counted. Each token is counted without itself, because with
    few targets it would predict itself, whatever the text. Witten and Bell's interpolation gives a token that
    occurs only once its share of the uniform distribution.
    """
    parts = []
    for batch in batches(plan.windows, BATCH_TOKENS):
        parts.append(targets(data.validation, batch).numpy().ravel())
    counts = np.bincount(np.concatenate(parts), minlength=data.vocab_size)
    others = np.maximum(counts - 1, 0)
    different = np.maximum(np.count_nonzero(counts) - (counts == 1), 1)
    total = counts.sum() - 1 + different
    share = (others + different / data.vocab_size) / total
    return lambda tokens, first: {FREQUENCIES: share[tokens[:, first:]]}


def score_missing_anchors(job: Job, plans: Sequence[Plan], rows: Sequence[Row]) -> None:
    """Score the anchors on the targets of a run's rows, as far as they are not scored yet.

    An error is only a warning, because a run is complete without anchors. Controls, ranges of positions and
    answers have no anchors. A later stage has none either, because its model also saw tokens of other
    windows.
    """
    folder = anchors_folder(job.folder)
    rows_of_run = {_score_key(row): row for row in rows}
    plans = [plan for plan in plans if plan.protocol not in (*APART, TASK)]
    plans = [plan for plan in plans if plan.control == "none" and _score_key(plan) in rows_of_run]
    if folder is None or not plans or job.first is not None:
        return
    try:
        folder.mkdir(exist_ok=True)
        with locked(folder, waits=lambda reason: None):
            remove_leftovers(folder)
            _score_missing_plans(folder, job.config, job.data, plans, rows_of_run)
    except (RunError, OSError) as error:
        say(f"warning: nothing counted to compare with: {first_line(error)}")


def _score_missing_plans(
    folder: Path, config: Config, data: Data, plans: Sequence[Plan], rows_of_run: Mapping[Key, Row]
) -> None:
    """Score the plans that the folder of anchors lacks, and write their scores."""
    train = config.train
    is_of_hf_model = config.hf_model is not None
    counted_on = (ANCHORS_VERSION, data.hash, train.length, train.batch, train.total_steps, config.seed)
    digest = hashlib.sha256(repr(counted_on).encode()).hexdigest()
    names = {FREQUENCIES: OWN_FREQUENCIES} if is_of_hf_model else ANCHOR_NAMES
    anchor_paths: dict[str, Path] = {}
    kept_rows: dict[str, dict[Key, Row]] = {}
    for label, name in names.items():
        path = folder / f"{name}-s{config.seed}-{digest[:8]}"
        path.mkdir(exist_ok=True)
        rows = [row for row in read_rows(path / "eval.csv") if has_whole_scores(path, row)]
        anchor_paths[label] = path
        kept_rows[label] = {_score_key(row): row for row in rows}
    missing = [plan for plan in plans if any(_score_key(plan) not in rows for rows in kept_rows.values())]
    anchors = None
    if missing and not is_of_hf_model:
        anchors = fit_anchors(data, train, config.seed)
    for plan in missing:
        probabilities = anchors or own_frequencies(data, plan)
        for label, scores in _score_plan(probabilities, data, plan).items():
            row = _anchor_row(rows_of_run[_score_key(plan)], anchor_paths[label].name, label)
            save_scores(score_file(anchor_paths[label], row), scores)
            kept_rows[label][_score_key(plan)] = with_level(row, scores)
    for label, path in anchor_paths.items():
        rows = sorted(kept_rows[label].values(), key=lambda row: row.order)
        write_rows(path / "eval.csv", rows)
        write_slices_and_means(path, data, plans, train.length)


def _score_key(scored: Row | Plan) -> Key:
    """Return the values that tell anchor scores apart: protocol, stride rule, control, length, target set."""
    return scored.protocol, scored.stride_rule, scored.control, scored.length, scored.target_hash


def _score_plan(probabilities: Probabilities, data: Data, plan: Plan) -> dict[str, Scores]:
    """Return the scores of each model on the targets of a plan, by the tokens of the plan's windows."""
    nll_of_models: dict[str, list[np.ndarray]] = {}
    for batch in batches(plan.windows, BATCH_TOKENS):
        first = batch[0].first + 1
        read = inputs(data.validation, batch).numpy()[:, :first]
        scored = targets(data.validation, batch).numpy()
        tokens = np.concatenate([read, scored], axis=1)
        for label, probability in probabilities(tokens, first).items():
            parts = nll_of_models.setdefault(label, [])
            parts.append(-np.log(probability).ravel())
    scores = {}
    for label, parts in nll_of_models.items():
        joined = np.concatenate(parts).astype(np.float32)
        scores[label] = scores_of(plan, data.validation, joined)
    return scores


def _anchor_row(row: Row, name: str, label: str) -> Row:
    """Return the row of an anchor on the targets of a run's row, without any value of the run's model."""
    row = replace(row, run=name, encoding=label, scored_with=label, forced=False, knows_length=False)
    row = replace(row, model="", setting="", status="ok", reason="", parameters=0, encoding_lr=1.0)
    row = replace(row, tokens_per_second=0.0, peak_memory_mb=None, train_dtype="", score_dtype="float32")
    return replace(row, device="cpu", threads=1, date=utc_now())
