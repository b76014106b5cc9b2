"""Verdicts on changes and on answers, one line at a time, and whether it uses context.

Verdicts on answers are of a task. A share is that of a task's examples all of whose answers are right
(exact), or of right answers. Every seed's model answers the same examples, so that both are varied together,
as in `statistics`. Examples that are all right or all wrong show no spread; the interval is therefore never
narrower than Wilson's (1927) for so many.

    solves    all of the interval of `exact` is above SOLVED, 0.9
    chance    all of the interval of the accuracy is below what guessing gets plus NEAR_CHANCE, 0.05
    partial   all of `exact` is below SOLVED, and the accuracy is not surely that of guessing
    unclear   anything else
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri

from pe_bench.config.schema import MIN_PAIRED_LENGTH
from pe_bench.report.pairs import ScoredRuns, has_number, largest_set, paired, pairs_of
from pe_bench.report.records import Answers, BreakPoint, ContextUse, Paired, Record, quarter_of
from pe_bench.report.statistics import (
    CONFIDENCE,
    Interval,
    breaks_at,
    holds_up_to,
    is_sensitive,
    judge_context_use,
    judge_gain_over_control,
    paired_interval,
)
from pe_bench.runs.rows import Row

TaskVerdict = Literal["solves", "partial", "chance", "unclear"]

SOLVED = 0.9
NEAR_CHANCE = 0.05
HELD, BROKEN = ("improves", "holds"), ("degrades", "fails")
AS_CHANGES = {"solves": "holds", "partial": "degrades", "chance": "fails"}  # for the break point


def judge_intervals(
    judge: Callable[[Any], str], interval: Any, of_models: Any, of_seeds: Sequence[Any]
) -> dict[str, Any]:
    """Return a record's verdicts on its intervals, or its answers; none without an interval."""
    if interval is None:
        return {}
    return {
        "verdict": judge(interval),
        "verdict_of_models": "" if of_models is None else judge(of_models),
        "verdicts_of_seeds": tuple(map(judge, of_seeds)),
    }


def find_break_point(records: Mapping[int, Record], train_length: int) -> BreakPoint:
    """Return the break point of a line whose records have their verdicts."""
    # The training length has a verdict only where it is scored with an encoding that was not trained.
    judged = {
        length: record
        for length, record in sorted(records.items())
        if length > train_length or (length == train_length and record.verdict)
    }
    verdicts = {length: _as_change(record.verdict) for length, record in judged.items()}
    held = holds_up_to(verdicts)
    worked = max(takewhile(lambda length: _is_reached(judged[length]), judged), default=None)
    first = next(iter(judged.values()), None)
    is_judged = first is not None and (first.verdict not in ("", "undefined") or first.status == "undefined")
    least = 0 if train_length in judged else train_length
    ends = ((held or least), (worked or least)) if is_judged else (None, None)
    claimed = (*HELD, *BROKEN, "unclear")
    broken = breaks_at({length: verdict for length, verdict in verdicts.items() if verdict in claimed})
    if broken is not None:
        before = max((length for length in verdicts if length < broken), default=None)
        return BreakPoint("at" if before in (None, held) else "by", broken, *ends)
    following = next((length for length in verdicts if held is None or length > held), None)
    if following is not None and verdicts[following] == "unclear":
        return BreakPoint("unclear", following, *ends)
    return BreakPoint("none" if held is not None else "unknown", held, *ends)


def _as_change(verdict: str) -> str:
    return AS_CHANGES.get(verdict, verdict)


def _is_reached(record: Record) -> bool:
    """Return whether a length holds, or is unclear without surely breaking these models or each of them."""
    each_breaks = bool(record.verdicts_of_seeds) and all(
        _as_change(verdict) in BROKEN for verdict in record.verdicts_of_seeds
    )
    is_broken = _as_change(record.verdict_of_models) in BROKEN or each_breaks
    return _as_change(record.verdict) in HELD or (record.verdict == "unclear" and not is_broken)


# Answers


def answers_of(rows: Sequence[Row], runs: ScoredRuns) -> tuple[Answers, Answers | None, list[Answers]]:
    """Return a task's answers at a length: over all seeds, for these models alone, and for each seed.

    For one seed, only the first is there. Raises `RunError`.
    """
    right, chance = np.stack([runs.answers(row) for row in rows]), rows[0].chance or 0.0
    exact = (right == 1).astype(float)
    of_all = share_answers(right, exact, chance)
    if len(rows) == 1:
        return of_all, None, []
    of_models = share_answers(right.mean(axis=0, keepdims=True), exact.mean(axis=0, keepdims=True), chance)
    of_seeds = zip(right[:, None], exact[:, None], strict=True)
    return of_all, of_models, [share_answers(*of_seed, chance) for of_seed in of_seeds]


def share_answers(right: np.ndarray, exact: np.ndarray, chance: float) -> Answers:
    """Return the shares of answers, from 0 to 1, both float64 [seeds, examples].

    right: the share of right answers of each example. exact: the share of seeds that have them all right.
    """
    return Answers(_interval_of_examples(exact), _interval_of_examples(right), chance)


def judge_answers(answers: Answers) -> TaskVerdict:
    if answers.exact.low > SOLVED:
        return "solves"
    if answers.accuracy.high < answers.chance + NEAR_CHANCE:
        return "chance"
    return "partial" if answers.exact.high < SOLVED else "unclear"


def _interval_of_examples(shares: np.ndarray) -> Interval:
    interval = paired_interval(shares)
    # Examples that are not alike show by themselves how far their mean may be off.
    low, high = _wilson(interval.mean, interval.documents) if np.isin(shares, (0, 1)).all() else (1.0, 0.0)
    return replace(interval, low=max(0.0, min(interval.low, low)), high=min(1.0, max(interval.high, high)))


def _wilson(share: float, count: int) -> tuple[float, float]:
    z = float(ndtri((1 + CONFIDENCE) / 2))
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return middle - half, middle + half


# Does a model use the context beyond its training length?


def gain_within_training(rows: Sequence[Row], runs: ScoredRuns, train_length: int) -> Paired:
    """Return what models gain from a quarter to all of their training length.

    rows: with the trained encoding, because the gain is the weights' own: another encoding may do worse at
    the quarter alone.
    """
    quarter = [row for row in rows if row.length == quarter_of(train_length)]
    return paired(pairs_of(quarter, [row for row in rows if row.length == train_length]), runs)


def judge_context(
    rows: Sequence[Row],
    controls: Sequence[Row],
    trained: Sequence[Row],
    why_open: str,
    margin: float,
    runs: ScoredRuns,
) -> ContextUse | None:
    """Return what the controls of rows at one length say; None where there is no number to control.

    trained: rows at the training length. why_open: why levels within that leave the answer open, if they do.
    """
    if not any(map(has_number, rows)):
        return None
    controlled = {row.target_hash for row in controls}
    chosen = largest_set([row for row in rows if row.target_hash in controlled])
    rows = [row for row in rows if row.target_hash == chosen]
    if not rows:
        return ContextUse(missing=f"the controls at {controls[0].length} were scored on other targets")
    if not any(map(has_number, rows)):
        return None
    swaps, windows = (
        [row for row in controls if (row.control, row.target_hash) == (control, chosen)]
        for control in ("swap", "window")
    )
    gain, swap, window = (
        paired(pairs_of(worse, rows), runs, "no score on the same targets")
        for worse in (trained, swaps, windows)
    )
    unscored = [row.reason for row in swaps if not has_number(row)]
    missing = why_open or gain.missing or next(iter(unscored), swap.missing)
    answer, beats_window = "", "n/a" if any(row.status == "undefined" for row in windows) else ""
    if not missing and gain.interval is not None and swap.interval is not None:
        answer = judge_context_use(gain.interval, swap.interval, margin)
    if window.interval is not None:
        beats_window = judge_gain_over_control(window.interval, margin)
    return ContextUse(answer, beats_window, swap.interval, window.interval, missing)


def why_open_within(train_length: int, within: Paired, margin: float) -> str:
    """Return why gains within training leave a model's use of context open; empty where they do not."""
    quarter = quarter_of(train_length)
    if within.missing:
        return within.missing
    if within.interval is None:
        able = quarter >= MIN_PAIRED_LENGTH
        way_out = f": add it with --lengths {quarter}" if able else ", which is too short to score"
        return f"no score at {quarter}, a quarter of the training length{way_out}"
    if is_sensitive(within.interval):
        return ""
    improves = "does not improve" if within.interval.high < margin else "does not surely improve"
    return (
        f"the model {improves} from {quarter} to {train_length} tokens, so no gain beyond "
        f"{train_length} proves nothing"
    )
