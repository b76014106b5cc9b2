"""Verdicts on changes and on answers, one line at a time, and the break points that follow from them.

Those on answers are of a task, or of a probe. A share is that of a task's examples all of whose answers are
right (exact), or of right answers. Every seed's model answers the same examples, so that both are varied
together, as in `statistics`. Examples that are all right or all wrong show no spread; the interval is
therefore never narrower than Wilson's (1927) for so many.

    solves    all of the interval of `exact` is above SOLVED, 0.9
    chance    all of the interval of the accuracy is below what guessing gets plus NEAR_CHANCE, 0.05
    partial   all of `exact` is below SOLVED, and the accuracy is not surely that of guessing
    unclear   anything else
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri

from pe_bench.report.records import AnswerIntervals, BreakPoint, Line, Record
from pe_bench.report.statistics import (
    CONFIDENCE,
    MARGIN,
    Interval,
    breaks_at,
    difference_of_shares,
    holds_up_to,
    judge_change,
    paired_interval,
)

TaskVerdict = Literal["solves", "partial", "chance", "unclear"]
Finding = Literal["finds", "partly", "chance", "unclear"]

SOLVED = 0.9
NEAR_CHANCE = 0.05
FINDS = 0.9  # of the answers of a probe are right
NO_LIFT = 0.05  # of the answers: a smaller part that is right by the span alone is of no use
HELD, BROKEN = ("improves", "holds"), ("degrades", "fails")
AS_CHANGES = {"solves": "holds", "partial": "degrades", "chance": "fails"}  # for the break point


def judge(line: Line, train_length: int, margin: float) -> Line:
    """Return the line with verdicts and its break point; no other line has a part in them.

    The training length has a change where it is scored with an encoding that was not trained. Below it less
    context costs by nature, and nothing is judged. Nor is an anchor, or a model that is no better than token
    frequencies: it would hold by knowing nothing. What models show of a task past their training length that
    have not learned it there is how little they have learned.
    """
    if line.is_anchor or line.unlearned == "frequencies":
        return replace(
            line, records={length: replace(record, use=None) for length, record in line.records.items()}
        )
    longest = train_length if line.unlearned == "task" else max(line.records, default=0)
    records = {
        length: _judge_record(record, margin) if train_length <= length <= longest else record
        for length, record in line.records.items()
    }
    break_point = BreakPoint() if line.unlearned == "task" else find_break_point(records, train_length)
    return replace(line, records=records, break_point=break_point)


def _judge_record(record: Record, margin: float) -> Record:
    """Return the record with verdicts on its answers, or else on its change."""
    answers, change = record.answers, record.compared
    rule: Callable[[Any], str]
    if answers is not None:
        rule = lambda intervals: judge_answers(intervals, answers.chance)  # noqa: E731
        of_all, of_models, of_seeds = answers.intervals, answers.of_models, answers.of_seeds
    else:
        rule = lambda interval: judge_change(interval, margin)  # noqa: E731
        of_all, of_models, of_seeds = change.interval, change.of_models, change.of_seeds
    if of_all is None:
        return record
    return replace(
        record,
        verdict=rule(of_all),
        verdict_of_models="" if of_models is None else rule(of_models),
        verdicts_of_seeds=tuple(map(rule, of_seeds)),
    )


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


def answer_intervals(right: np.ndarray, exact: np.ndarray) -> AnswerIntervals:
    """Return the intervals of shares from 0 to 1, both float64 [seeds, examples].

    right: of the answers of each example. exact: 1 where all are, or over several seeds how often.
    """
    return AnswerIntervals(_interval_of_examples(exact), _interval_of_examples(right))


def judge_answers(intervals: AnswerIntervals, chance: float) -> TaskVerdict:
    if intervals.exact.low > SOLVED:
        return "solves"
    if intervals.accuracy.high < chance + NEAR_CHANCE:
        return "chance"
    return "partial" if intervals.exact.high < SOLVED else "unclear"


def share_interval(shares: np.ndarray, count: int) -> Interval:
    """Return the interval of the mean of shares of a probe's answers, 0 to 1, float64 [seeds, documents].

    count: as in `difference_of_shares`.
    """
    interval = difference_of_shares(shares, count)
    return replace(interval, low=max(0.0, interval.low), high=min(1.0, interval.high))


def judge_finding(gain: Interval, accuracy: Interval, lift: Interval, chance: float) -> Finding:
    """Return whether a model finds spans; positive gains mean that it reads them.

    gain: bits per byte that the answer costs less with the span than without. lift: the accuracy with the
    span minus that without, which knowing the language gives. chance: the accuracy of guessing.

        finds     surely 90 % of the answers are right, and the span surely makes the answer likelier
        chance    the accuracy is surely less than 5 points above that without the span, or above guessing; or
                  the span surely saves less than MARGIN, 0.01 bits per byte
        partly    the accuracy is surely above both
        unclear   anything else

    Without the span, the right answer is the only one of the eight that is not in the window. A model that
    prefers whatever the window holds is therefore right more often with the span, and still only guesses.
    Where the span changes no score, as past an attention window, all lifts are zero: their interval is wide.
    """
    if accuracy.low >= FINDS and gain.low > 0:
        return "finds"
    if lift.high < NO_LIFT or accuracy.high < chance + NO_LIFT or gain.high < MARGIN:
        return "chance"
    return "partly" if lift.low > 0 and accuracy.low > chance else "unclear"


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
