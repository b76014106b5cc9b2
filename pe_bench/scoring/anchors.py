"""Models that cost no training, counted on the windows that a seed trains on: what a trained one has to beat.

- token frequencies: how often each token is, whatever stands before it.
- trigram: the token after two others, with Witten and Bell's interpolation (1991, method C) down to bigrams,
  frequencies and the uniform distribution: p(c | ab) = (n(abc) + T(ab) p(c | b)) / (n(ab) + T(ab)), where T
  counts the different tokens after ab.
- trigram+copy: (1 - w) trigram + w [the token that followed the longest match of the last tokens that
  stands earlier in the window], the latest of equally long ones. w is how often that token was right in
  training windows, for each length of a match; it is 0 below three tokens.

They are scored once for all runs that train on the same windows. What a checkpoint was trained on is not
known: it has the frequencies of the scored tokens, each counted without itself.
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
from pe_bench.scoring.slices import keep_derived
from pe_bench.system.files import remove_leftovers
from pe_bench.system.machine import today
from pe_bench.system.terminal import say

VERSION = 1  # the version of the models: raise it when their scores change
BATCH_TOKENS = 2**21
MIN_MATCH = 3  # tokens
MAX_MATCH = 32  # longer matches count as this
MAX_COUNTED = 2**24  # training tokens; more would take longer than scoring does
MAX_WEIGHED = 2**26  # pairs of tokens that are compared to learn the weights of copying
NONE = -1  # replaces a token before the window

Key = tuple[object, ...]
# Called with the tokens of windows, int64 [windows, tokens], with the token after the last input, and an
# index: returns each model's probabilities of the tokens from there on, float64 [windows, tokens - index].
Probabilities = Callable[[np.ndarray, int], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Counts:
    """How often something was seen: keys int64 [n] in rising order, and counts [n]."""

    keys: np.ndarray
    counts: np.ndarray

    def of(self, keys: np.ndarray) -> np.ndarray:
        """Return the counts of keys of any shape, 0 for those that were not seen."""
        index = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[index] == keys, self.counts[index], 0.0)

    def contexts(self, vocab_size: int) -> tuple["Counts", "Counts"]:
        """Return, for keys without their last token, counts of all that followed and of different tokens."""
        before, first = np.unique(self.keys // vocab_size, return_index=True)
        different = np.diff(np.append(first, len(self.keys)))
        return Counts(before, np.add.reduceat(self.counts, first)), Counts(before, different)


class Trigram:
    """The trigram and the frequencies below it, counted in windows int64 [windows, tokens]."""

    def __init__(self, windows: np.ndarray, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        pairs = windows[:, :-1] * vocab_size + windows[:, 1:]
        triples = pairs[:, :-1] * vocab_size + windows[:, 2:]
        self.counts = [Counts(*np.unique(keys, return_counts=True)) for keys in (windows, pairs, triples)]
        self.contexts = [counts.contexts(vocab_size) for counts in self.counts]

    def frequency(self, token: np.ndarray) -> np.ndarray:
        return self._interpolated(0, np.zeros_like(token), token, np.full(token.shape, 1 / self.vocab_size))

    def probability(self, before: np.ndarray, last: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Return p(token | before, last), float64; both may be `NONE`."""
        bigram = self._interpolated(1, last, token, self.frequency(token))
        pair = np.where((before == NONE) | (last == NONE), NONE, before * self.vocab_size + last)
        return self._interpolated(2, pair, token, bigram)

    def _interpolated(
        self, order: int, context: np.ndarray, token: np.ndarray, lower: np.ndarray
    ) -> np.ndarray:
        seen, different = (counts.of(context) for counts in self.contexts[order])
        counted = self.counts[order].of(np.where(context == NONE, NONE, context * self.vocab_size + token))
        total = np.maximum(seen + different, 1.0)
        return np.where(seen > 0, (counted + different * lower) / total, lower)


def longest_matches(tokens: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the token after the longest match before each token from place `first` on, and its length.

    tokens [windows, tokens] are those of windows with the token after their last input; both results are
    int64 [windows, tokens - first]. A match ends earlier than the token before the target does, lies in the
    window, and counts `MAX_MATCH` tokens at most. Without any the token is `NONE` and the length 0.
    """
    windows, size = tokens.shape
    compared = tokens[:, :-1]
    matches = np.zeros((windows, size - 1), np.uint8)  # the number of equal tokens that end at each place
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
        length = matches[rows, latest].astype(np.int64)
        lengths[:, target - first] = length
        copied[:, target - first] = np.where(length > 0, tokens[rows, latest + 1], NONE)
    return copied, lengths


@dataclass(frozen=True)
class Anchors:
    """The three models.

    weights: the weight of copying for each length of a match, float64 [MAX_MATCH + 1].
    """

    trigram: Trigram
    weights: np.ndarray

    def __call__(self, tokens: np.ndarray, first: int) -> dict[str, np.ndarray]:
        padded = np.pad(tokens, ((0, 0), (2, 0)), constant_values=NONE)
        targets = tokens[:, first:]
        trigram = self.trigram.probability(padded[:, first:-2], padded[:, first + 1 : -1], targets)
        copied, lengths = longest_matches(tokens, first)
        weight = self.weights[lengths]
        copying = (1 - weight) * trigram + weight * (copied == targets)
        return {FREQUENCIES: self.trigram.frequency(targets), TRIGRAM: trigram, COPYING: copying}


def count_anchors(data: Data, train: TrainConfig, seed: int) -> Anchors:
    """Return the models of the windows that a run of this seed trains on; of very many, of the first ones."""
    drawn = TrainingWindows(data.train, train.length, data.end_of_text)
    steps = min(train.total_steps, -(-MAX_COUNTED // train.batch_tokens))
    windows = np.concatenate([drawn.batch(train.batch, seed, step).tokens.numpy() for step in range(steps)])
    weighed = max(1, MAX_WEIGHED // train.length**2)
    return Anchors(Trigram(windows, data.vocab_size), copying_weights(windows[:weighed]))


def copying_weights(windows: np.ndarray) -> np.ndarray:
    """Return the share of right copied tokens for each length of the match, in windows [windows, tokens].

    A length of which little was seen leans towards one half.
    """
    copied, lengths = longest_matches(windows, 0)
    right = np.bincount(lengths.ravel(), (copied == windows).ravel(), MAX_MATCH + 1)
    weights = (right + 1) / (np.bincount(lengths.ravel(), minlength=MAX_MATCH + 1) + 2)
    weights[:MIN_MATCH] = 0.0
    return weights


def own_frequencies(data: Data, plan: Plan) -> Probabilities:
    """Return the frequency of each scored token among the other scored tokens.

    It is all that can be counted without the training text. A token that counted itself would be predicted
    well by few targets, whatever the text. Witten and Bell's interpolation gives a token that occurs nowhere
    else its share of the uniform distribution.
    """
    parts = [targets(data.validation, batch).numpy() for batch in batches(plan.windows, BATCH_TOKENS)]
    counts = np.bincount(np.concatenate([part.ravel() for part in parts]), minlength=data.vocab_size)
    others = np.maximum(counts - 1, 0)
    different = np.maximum(np.count_nonzero(counts) - (counts == 1), 1)
    share = (others + different / data.vocab_size) / (counts.sum() - 1 + different)
    return lambda tokens, first: {FREQUENCIES: share[tokens[:, first:]]}


def score_missing_anchors(job: Job, plans: Sequence[Plan], rows: Sequence[Row]) -> None:
    """Score the models that cost no training on the targets of these rows; a run is whole without them.

    Controls, ranges of positions and answers have no anchors, nor has a later stage, whose tokens are not all
    that its model saw.
    """
    folder = anchors_folder(job.folder)
    rows_of_run = {_key(row): row for row in rows}
    plans = [plan for plan in plans if plan.control == "none" and plan.protocol not in (*APART, TASK)]
    plans = [plan for plan in plans if _key(plan) in rows_of_run]
    if folder is None or not plans or job.first is not None:
        return
    try:
        folder.mkdir(exist_ok=True)
        with locked(folder, waits=lambda reason: None):
            remove_leftovers(folder)
            _score(folder, job.config, job.data, plans, rows_of_run)
    except (RunError, OSError) as error:
        say(f"warning: nothing counted to compare with: {first_line(error)}")


def _score(
    folder: Path, config: Config, data: Data, plans: Sequence[Plan], rows_of_run: Mapping[Key, Row]
) -> None:
    """Score what is missing in the folder of anchors, and write it."""
    train = config.train
    is_checkpoint = config.checkpoint is not None
    counted_on = repr((VERSION, data.hash, train.length, train.batch, train.total_steps, config.seed))
    suffix = f"s{config.seed}-{hashlib.sha256(counted_on.encode()).hexdigest()[:8]}"
    names = {FREQUENCIES: OWN_FREQUENCIES} if is_checkpoint else ANCHOR_NAMES
    paths = {label: folder / f"{name}-{suffix}" for label, name in names.items()}
    kept: dict[str, dict[Key, Row]] = {}
    for label, path in paths.items():
        path.mkdir(exist_ok=True)
        rows = read_rows(path / "eval.csv")
        kept[label] = {_key(row): row for row in rows if has_whole_scores(path, row)}
    missing = [plan for plan in plans if any(_key(plan) not in rows for rows in kept.values())]
    anchors = count_anchors(data, train, config.seed) if missing and not is_checkpoint else None
    for plan in missing:
        probabilities = anchors or own_frequencies(data, plan)
        for label, scores in _scores_of(probabilities, data, plan).items():
            row = _row_of_no_model(rows_of_run[_key(plan)], paths[label].name, label)
            save_scores(score_file(paths[label], row), scores)
            kept[label][_key(plan)] = with_level(row, scores)
    for label, path in paths.items():
        write_rows(path / "eval.csv", sorted(kept[label].values(), key=lambda row: row.order))
        keep_derived(path, data, plans, train.length)


def _key(scored: Row | Plan) -> Key:
    """Return the key of a score among the scores of one anchor."""
    return scored.protocol, scored.stride_rule, scored.control, scored.length, scored.target_hash


def _scores_of(probabilities: Probabilities, data: Data, plan: Plan) -> dict[str, Scores]:
    """Return the scores of each model on the targets of a plan, each reading the plan's windows alone."""
    nll: dict[str, list[np.ndarray]] = {}
    for batch in batches(plan.windows, BATCH_TOKENS):
        first = batch[0].first + 1
        read = inputs(data.validation, batch).numpy()[:, :first]
        tokens = np.concatenate([read, targets(data.validation, batch).numpy()], axis=1)
        for label, probability in probabilities(tokens, first).items():
            nll.setdefault(label, []).append(-np.log(probability).ravel())
    scores = {}
    for label, parts in nll.items():
        joined = np.concatenate(parts).astype(np.float32)
        scores[label] = scores_of(plan, data.validation, joined)
    return scores


def _row_of_no_model(row: Row, name: str, label: str) -> Row:
    """Return the row of an anchor on the targets of a run's row: nothing of the run's model is in it."""
    row = replace(row, run=name, encoding=label, scored_with=label, forced=False, knows_length=False)
    row = replace(row, model="", setting="", status="ok", reason="", parameters=0, encoding_lr=1.0)
    row = replace(row, tokens_per_second=0.0, peak_memory_mb=None, train_dtype="", score_dtype="float32")
    return replace(row, device="cpu", threads=1, date=today())
