"""Differences between rows as numbers, and verdicts on changes, answers, use of context and learning.

The answers of a task are judged by the share of examples without a wrong answer (exact), and by the share of
right answers (accuracy). Every seed's model answers the same examples, so seeds and examples are
varied together, as in `statistics`. Examples that are all right or all wrong show no spread; the interval is
therefore never narrower than Wilson's interval (1927) for this number of examples.

    solves    all of the interval of `exact` is above SOLVED, 0.9
    chance    all of the interval of the accuracy is below the accuracy of guessing plus NEAR_CHANCE, 0.05
    partial   all of the interval of `exact` is below SOLVED, and the verdict is not `chance`
    unclear   anything else
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from types import MappingProxyType
from typing import Literal, cast

import numpy as np
from scipy.special import ndtri

from pe_bench.config.schema import MIN_PAIRED_LENGTH, quarter_of
from pe_bench.errors import RunError
from pe_bench.report.records import Answers, BreakPoint, ContextUse, Number, Record, Unlearned
from pe_bench.report.statistics import (
    CONFIDENCE,
    Interval,
    breaks_at,
    difference_of_shares,
    gains_within_training,
    holds_up_to,
    judge_context_use,
    judge_gain_over_control,
    paired_interval,
)
from pe_bench.runs.find import FREQUENCIES, TRIGRAM, ScoredRuns, anchor_key, is_hf_name
from pe_bench.runs.rows import BY_RUN, TASK, Row, grouped, has_number, is_as_trained, level_of

Pair = tuple[Row, Row]
# The numbers by which sets of targets are compared; the larger rank is preferred. The hash breaks ties.
Rank = tuple[int, int, int, int, str]
TaskVerdict = Literal["solves", "partial", "chance", "unclear"]

# With fewer targets, token frequencies do not show whether a Hugging Face model has learned anything.
LEAST_DOCUMENTS = 20
LEAST_TARGETS = 4_096
SOLVED = 0.9
NEAR_CHANCE = 0.05
HELD, BROKEN = ("improves", "holds"), ("degrades", "fails")
# The verdicts on a change that stand for those of a task, for the break point.
AS_CHANGES = {"solves": "holds", "partial": "degrades", "chance": "fails"}


# Differences between rows


def pairs_of(rows: Sequence[Row], others: Sequence[Row], key: Callable[[Row], object] = BY_RUN) -> list[Pair]:
    """Return the pairs of a row and another row on the same targets with the same key, by default the run."""

    def pairing_key(row: Row) -> tuple[object, str, str]:
        return key(row), row.target_hash, row.slice_hash

    other_of = {pairing_key(row): row for row in others if has_number(row)}
    pairs = []
    for row in filter(has_number, rows):
        other = other_of.get(pairing_key(row))
        if other is not None:
            pairs.append((row, other))
    return pairs


def largest_set(rows: Sequence[Row]) -> str:
    """Return the hash of the set of targets that most rows share; of several such sets, the largest."""
    sets = Counter((row.targets, row.target_hash) for row in rows)
    _, target_hash = max(sets, key=lambda each: (sets[each], each), default=(0, ""))
    return target_hash


def rank_sets(rows: Iterable[Row]) -> dict[str, Rank]:
    """Return the rank of each set of targets by its hash.

    The set with most lengths has the highest rank; of several, the one with the shorter longest length, then
    with more rows, then with more targets. Lengths beyond `eval.max_length` have targets of their own, on
    which the training length is scored too.
    """
    ranks = {}
    for name, set_rows in grouped(rows, lambda row: row.target_hash).items():
        lengths = {row.length for row in set_rows}
        targets = max(row.targets for row in set_rows)
        ranks[name] = (len(lengths), -max(lengths), len(set_rows), targets, name)
    return ranks


def mean_difference(
    pairs: Sequence[Pair], runs: ScoredRuns, missing: str = "", *, from_baseline: bool = False
) -> Number:
    """Return the mean, with its interval, of the first row's level minus the second's over all pairs.

    There is a pair for each seed. Of several sets of targets, the set of most pairs is used. missing: the
    reason to give if there is no pair. from_baseline: the second rows are of other models. If their level is
    not finite, this shows nothing about the first rows: the difference is -inf.
    """
    chosen = largest_set([row for row, _ in pairs])
    pairs = [pair for pair in pairs if pair[0].target_hash == chosen]
    if not pairs:
        return Number(missing=missing)
    first = pairs[0][0]
    targets = min(row.targets for row, _ in pairs)
    try:
        differences = np.stack([_difference_by_cluster(*pair, runs) for pair in pairs])
        if from_baseline:
            shows_nothing = [~np.isfinite(runs.means(other).bits) for _, other in pairs]
            is_finite = [np.isfinite(runs.means(row).bits) for row, _ in pairs]
            differences[np.stack(is_finite) & np.stack(shows_nothing)] = -math.inf
        means = runs.means(first)
    except RunError as error:
        means_of_pairs = [level_of(row) - level_of(other) for row, other in pairs]
        mean = float(np.mean(means_of_pairs))
        return Number(mean, missing=str(error), target_hash=chosen, targets=targets)

    def interval_of(values: np.ndarray) -> Interval:
        if first.protocol == TASK:
            return difference_of_shares(values, values.shape[1])
        return paired_interval(values, means.sizes)

    interval = interval_of(differences)
    change = Number(interval.mean, interval, segments=means.segments, target_hash=chosen, targets=targets)
    if len(pairs) == 1:
        return change
    of_models = interval_of(differences.mean(axis=0, keepdims=True))
    of_seeds = tuple(interval_of(seed_differences[None, :]) for seed_differences in differences)
    return replace(change, of_models=of_models, of_seeds=of_seeds)


def difference_of_changes(changes: Sequence[Pair], others: Sequence[Pair], runs: ScoredRuns) -> Number:
    """Return the mean, with its interval, of `changes` minus `others`, seed by seed.

    A change is a pair of a row and its reference: the first row's level minus the second's.
    """
    try:
        differences = np.stack([_difference_by_cluster(*pair, runs) for pair in changes])
        differences -= np.stack([_difference_by_cluster(*pair, runs) for pair in others])
        interval = paired_interval(differences, runs.means(changes[0][0]).sizes)
    except RunError as error:
        return Number(missing=str(error))
    return Number(interval.mean, interval)


def _difference_by_cluster(row: Row, other: Row, runs: ScoredRuns) -> np.ndarray:
    """Return the level of `row` minus the level of `other` in each cluster, float64 [clusters].

    A cluster is a document or a part of one, or an example of a task. The unit is the level's: bits per byte,
    nats per token where the tokenizer loses text, or 1 for an example without a wrong answer.

    Raises `RunError` if the documents differ, or if no target stands for a byte of the text.
    """
    first = runs.means(row)
    second = runs.means(other)
    sizes = cast(np.ndarray, first.sizes)
    has_same_names = np.array_equal(first.names, second.names)
    if not has_same_names or not np.array_equal(sizes, cast(np.ndarray, second.sizes)):
        places = f"{row.run} at {row.length} and {other.run} at {other.length}"
        raise RunError(f"{places} have scores of other documents")
    if not first.names.size:
        raise RunError(f"no target of {row.run} at {row.length} stands for a byte of the text")
    with np.errstate(invalid="ignore"):  # infinity less infinity: a failure, and counted as one
        return first.bits - second.bits


# Verdicts


def find_break_point(
    records: Mapping[int, Record], train_length: int, *, is_task: bool = False
) -> BreakPoint:
    """Return the break point of a line, from the verdicts of its records beyond the training length.

    records: by length. is_task: a task is judged at the training length too, and without a score there
    nothing says that the line works there. The line breaks at the shortest length from which on all lengths
    degrade or fail, or at the length after the last that holds, if it degrades or fails. The kind is `at`, or
    `by` if unclear lengths lie before it. Without such a length the kind is `unclear`, from an unclear length
    right after the last that holds; else `none`, up to the last that holds; else `unknown`. For `works_to`,
    unclear lengths count as working by the rule of `_works_at`.
    """
    judged_records: dict[int, Record] = {}
    for length, record in sorted(records.items()):
        # The training length has a verdict only if it is scored with an encoding that was not trained.
        if length > train_length or (length == train_length and record.verdict):
            judged_records[length] = record
    verdicts = {length: _as_change(record.verdict) for length, record in judged_records.items()}
    held = holds_up_to(verdicts)
    trained = None if is_task else train_length
    if train_length in judged_records:
        trained = 0
    point = _working_lengths(judged_records, held, trained)
    claimed = (*HELD, *BROKEN, "unclear")
    broken = breaks_at({length: verdict for length, verdict in verdicts.items() if verdict in claimed})
    if broken is not None:
        before = max((length for length in verdicts if length < broken), default=None)
        kind = "at" if before in (None, held) else "by"
        return replace(point, kind=kind, length=broken)
    following = next((length for length in verdicts if length > (held or 0)), None)
    if following is not None and verdicts[following] == "unclear":
        return replace(point, kind="unclear", length=following)
    if held is not None:
        return replace(point, kind="none", length=held)
    return point


def _working_lengths(judged: Mapping[int, Record], held: int | None, least: int | None) -> BreakPoint:
    """Return a break point with `holds_to`, `works_to` and `stops_by` from the records with verdicts.

    The lengths are unknown if the shortest length has no verdict. judged: the records by length, the shortest
    first. held: the last length up to which the line surely holds. least: the length to which the line works
    if it breaks at the shortest length of `judged`; None if this length is not known.
    """
    first = next(iter(judged.values()), None)
    if first is None or not _has_verdict(first):
        return BreakPoint()
    worked = max(takewhile(lambda length: _works_at(judged[length]), judged), default=0)
    works_to = worked or least
    stops_by = min((length for length in judged if length > worked), default=None)
    if works_to is None or (stops_by is not None and not _has_verdict(judged[stops_by])):
        stops_by = None
    return BreakPoint(holds_to=held or least, works_to=works_to, stops_by=stops_by)


def _has_verdict(record: Record) -> bool:
    """Return whether a record shows that a line works at its length, or that it does not."""
    return record.verdict not in ("", "undefined") or record.status == "undefined"


def _as_change(verdict: str) -> str:
    """Map a task's solves to holds, partial to degrades and chance to fails; other verdicts stay."""
    return AS_CHANGES.get(verdict, verdict)


def _works_at(record: Record) -> bool:
    """Return whether a line works at the record's length.

    It works if it holds there, or is unclear and neither these models together nor each of them surely break.
    """
    if record.verdict != "unclear":
        return _as_change(record.verdict) in HELD
    if _as_change(record.verdict_of_models) in BROKEN:
        return False
    verdicts = set(map(_as_change, record.verdicts_of_seeds))
    return not verdicts or not verdicts.issubset(BROKEN)


# Answers


def answers_of(rows: Sequence[Row], runs: ScoredRuns) -> tuple[Answers, Answers | None, list[Answers]]:
    """Return a task's answers at a length: over all seeds, for only these models, and for each seed.

    rows: one for each seed. The second is None and the last are empty for one seed. Raises `RunError`.
    """
    right = np.stack([runs.answers(row) for row in rows])
    exact = (right == 1).astype(float)
    chance = rows[0].chance or 0.0
    overall = answers_from_shares(right, exact, chance)
    if len(rows) == 1:
        return overall, None, []
    mean_right = right.mean(axis=0, keepdims=True)
    mean_exact = exact.mean(axis=0, keepdims=True)
    of_models = answers_from_shares(mean_right, mean_exact, chance)
    of_seeds = []
    for seed in range(len(rows)):
        of_seeds.append(answers_from_shares(right[seed : seed + 1], exact[seed : seed + 1], chance))
    return overall, of_models, of_seeds


def answers_from_shares(right: np.ndarray, exact: np.ndarray, chance: float) -> Answers:
    """Return a task's answers from the shares of each example, with their intervals.

    right: the share of right answers in each example, float64 [seeds, examples], from 0 to 1. exact: 1 where
    all of them are right, else 0, of the same shape; a mean over seeds lies between. chance: the accuracy of
    guessing.
    """
    return Answers(_interval_of_examples(exact), _interval_of_examples(right), chance)


def judge_answers(answers: Answers) -> TaskVerdict:
    """Return the verdict on a task's answers, by the rule at the top of this module."""
    if answers.exact.low > SOLVED:
        return "solves"
    if answers.accuracy.high < answers.chance + NEAR_CHANCE:
        return "chance"
    return "partial" if answers.exact.high < SOLVED else "unclear"


def _interval_of_examples(shares: np.ndarray) -> Interval:
    """Return the interval, within 0 to 1, of the mean of shares of examples [seeds, examples].

    If all shares are 0 or 1, the interval is never narrower than Wilson's.
    """
    interval = paired_interval(shares)
    low = interval.low
    high = interval.high
    # If some examples are right in part, the spread between examples shows how far their mean may be off.
    if np.isin(shares, (0, 1)).all():
        wilson_low, wilson_high = _wilson_bounds(interval.mean, interval.documents)
        low = min(low, wilson_low)
        high = max(high, wilson_high)
    return replace(interval, low=max(0.0, low), high=min(1.0, high))


def _wilson_bounds(share: float, count: int) -> tuple[float, float]:
    """Return the bounds of Wilson's interval of a share of `count` examples."""
    z = float(ndtri((1 + CONFIDENCE) / 2))
    shrunk = 1 + z**2 / count
    middle = (share + z**2 / (2 * count)) / shrunk
    variance = share * (1 - share) / count + z**2 / (4 * count**2)
    half = z / shrunk * math.sqrt(variance)
    return middle - half, middle + half


# Does a model use the context beyond its training length?


def judge_context(
    rows: Sequence[Row],
    controls: Sequence[Row],
    trained: Sequence[Row],
    why_open: str,
    margin: float,
    runs: ScoredRuns,
) -> ContextUse | None:
    """Return the use of context that the controls of rows at one length show; None if no row has a number.

    trained: rows at the training length. why_open: the reason why the use of context stays open, as
    `why_context_use_stays_open` returns it.
    """
    if not any(map(has_number, rows)):
        return None
    controlled = {row.target_hash for row in controls}
    chosen = largest_set([row for row in rows if row.target_hash in controlled])
    rows = [row for row in rows if row.target_hash == chosen]
    if not rows:
        return ContextUse(missing=f"the controls at {controls[0].length:,} were scored on other targets")
    if not any(map(has_number, rows)):
        return None

    def gain_over(worse: Sequence[Row]) -> Number:
        return mean_difference(pairs_of(worse, rows), runs, "no score on the same targets")

    controls = [row for row in controls if row.target_hash == chosen]
    swaps = [row for row in controls if row.control == "swap"]
    windows = [row for row in controls if row.control == "window"]
    gain = gain_over(trained)
    swap = gain_over(swaps)
    window = gain_over(windows)
    unscored = [row.reason for row in swaps if not has_number(row)]
    missing = why_open or gain.missing or next(iter(unscored), swap.missing)
    answer = ""
    if not missing and gain.interval is not None and swap.interval is not None:
        answer = judge_context_use(gain.interval, swap.interval, margin)
    beats_window = ""
    if window.interval is not None:
        beats_window = judge_gain_over_control(window.interval, margin)
    elif any(row.status == "undefined" for row in windows):
        beats_window = "n/a"
    return ContextUse(answer, beats_window, swap.interval, window.interval, missing)


def why_context_use_stays_open(train_length: int, within: Number, margin: float) -> str:
    """Return the reason why a model's use of context stays open; empty if it surely gains within training.

    within: the gain from a quarter of the training length to all of it.
    """
    quarter = quarter_of(train_length)
    if within.missing:
        return within.missing
    if within.interval is None:
        able = quarter >= MIN_PAIRED_LENGTH
        way_out = f": add it with --lengths {quarter}" if able else ", which is too short to score"
        return f"no score at {quarter}, a quarter of the training length{way_out}"
    if gains_within_training(within.interval):
        return ""
    improves = "does not improve" if within.interval.high < margin else "does not surely improve"
    lengths = f"from {quarter:,} to {train_length:,} tokens"
    return f"the model {improves} {lengths}, so the absence of a gain beyond {train_length:,} proves nothing"


# Has a model learned anything?


def unlearned(
    rows: Sequence[Row], runs: ScoredRuns, counted_on: Mapping[str, Row] = MappingProxyType({})
) -> Unlearned:
    """Return the anchor or the task that weights have not learned to beat; empty if they have, or if unknown.

    rows: the rows of a line's runs. Only rows with the trained encoding count, because weights learn, not
    encodings. counted_on: for a run of a later stage, a row of its first stage, on whose training tokens the
    run's anchors were counted.
    """
    trained = [row for row in rows if is_as_trained(row) and row.length == row.train_length]
    if any(row.protocol == TASK for row in trained):
        return _unlearned_task([row for row in trained if has_number(row)], runs)
    scored = [row for row in trained if has_number(row)]
    if any(map(has_few_targets, scored)):
        return ""

    def loss_over(label: str) -> Interval | None:
        """Return the interval of the levels minus those of the anchor `label`; None if it was not scored."""
        pairs = []
        for row in scored:
            key = anchor_key(row, counted_on.get(row.run, row))
            anchor = runs.anchors.rows.get((label, *key))
            if anchor is not None:
                pairs.append((row, anchor))
        return mean_difference(pairs, runs).interval

    over_frequencies = loss_over(FREQUENCIES)
    if over_frequencies is not None and not over_frequencies.high < 0:
        return "frequencies"
    over_trigram = loss_over(TRIGRAM)
    if over_trigram is not None and over_trigram.low > 0:
        return "trigram"
    return ""


def has_few_targets(row: Row) -> bool:
    """Return whether a row is of a Hugging Face model, with too few targets to say whether it has learned."""
    is_little = row.documents < LEAST_DOCUMENTS or row.targets < LEAST_TARGETS
    return is_hf_name(row.model) and is_little


def _unlearned_task(rows: Sequence[Row], runs: ScoredRuns) -> Unlearned:
    """Return `task` if the rows do not surely solve their task; empty if they do, or without scores.

    Of several sets of examples, the rows of `largest_set` count.
    """
    chosen = largest_set(rows)
    rows = [row for row in rows if row.target_hash == chosen]
    if not rows:
        return ""
    try:
        answers, *_ = answers_of(rows, runs)
    except RunError:  # a note of the record says so
        return ""
    return "" if judge_answers(answers) == "solves" else "task"
