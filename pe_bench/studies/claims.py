"""A paper's claims against our measurements: each holds, is contradicted, or stays unclear.

All follow from 95 % intervals of paired differences by the rules of statistics.py. A claim is judged alone:
with twenty of them, one is judged wrongly by chance.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pe_bench.report.statistics import Interval, breaks_at, holds_up_to, judge_gain_over_control
from pe_bench.report.tables.differences import Paired
from pe_bench.report.tables.lines import Unlearned
from pe_bench.runs.rows import TASK
from pe_bench.studies.definition import Claim, Kind
from pe_bench.studies.measurements import NOTHING, Measurements, Series

Outcome = Literal["contradicted", "holds", "unclear"]
OPPOSITE: dict[Outcome, Outcome] = {"holds": "contradicted", "contradicted": "holds", "unclear": "unclear"}

UNLEARNED: dict[Unlearned, str] = {
    "frequencies": "not learned: at the training length no better than token frequencies",
    "trigram": "not learned yet: at the training length worse than a trigram",
    "task": "not learned: the task is not solved at the training length",
}
UNDECIDED = "no length where one surely breaks and the other surely holds"
UNSOLVED = "no encoding solves it at the training length: the training may be too short"
BROKEN = ("degrades", "fails")


class Finding(NamedTuple):
    """What our runs say of a claim, and the difference that decides it, at the length that decides it."""

    outcome: Outcome
    measured: Paired
    length: int


@dataclass(frozen=True)
class Judged:
    """A claim with what our runs say of it.

    length: the length in the claim. decided_at: the length of `interval`. missing: why there is no interval,
    or why it decides nothing.
    """

    claim: Claim
    length: int
    outcome: Outcome
    interval: Interval | None
    decided_at: int
    missing: str = ""


Judge = Callable[[Claim, Measurements, int], Finding]


def judge_claim(claim: Claim, found: Measurements) -> Judged:
    """Return what our runs say of a claim; unclear where they do not have its scores."""
    length = round(claim.at * found.length)
    if claim.protocol != TASK or length > found.length:  # a claim may be about whether a task is learned
        for series in dict.fromkeys((_first(claim), _second(claim))):
            if reason := found.unlearned(series):
                missing = f"{name_of(*series)} has {UNLEARNED[reason]}"
                return Judged(claim, length, "unclear", None, length, missing)
    finding = _JUDGES[claim.kind](claim, found, length)
    measured = finding.measured
    return Judged(claim, length, finding.outcome, measured.interval, finding.length, measured.missing)


def name_of(label: str, sweep: str) -> str:
    return f"{label} ({sweep})" if sweep else label


def _first(claim: Claim) -> Series:
    return Series(claim.of, claim.sweep)


def _second(claim: Claim) -> Series:
    return Series(claim.than or claim.of, claim.than_sweep or claim.sweep)


def _order(claim: Claim, found: Measurements, length: int) -> Finding:
    measured = found.difference(_first(claim), _second(claim), length, claim.protocol, claim.measure)
    below = _below(measured.interval, 0.0)
    outcome = OPPOSITE[below] if claim.protocol == TASK else below  # of answers, more is better
    return Finding(outcome, measured, length)


def _falls(claim: Claim, found: Measurements, length: int) -> Finding:
    measured = found.change(_first(claim), length, claim.protocol)
    return Finding(_below(measured.interval, 0.0), measured, length)


def _breaks(claim: Claim, found: Measurements, length: int) -> Finding:
    measured = found.change(_first(claim), length, claim.protocol)
    return Finding(OPPOSITE[_below(measured.interval, found.margin)], measured, length)


def _holds(claim: Claim, found: Measurements, length: int) -> Finding:
    """Decide at the first length that is known to break, or is not known to hold, if there is one."""
    series = _first(claim)
    verdicts = {
        scored: verdict
        for scored, verdict in found.verdicts(series, claim.protocol).items()
        if scored <= length
    }
    broken, held = breaks_at(verdicts), holds_up_to(verdicts)
    unknown = min((scored for scored in verdicts if held is None or scored > held), default=None)
    decided_at = length if length not in verdicts else broken or unknown or length
    measured = found.change(series, decided_at, claim.protocol)
    if length not in verdicts:
        return Finding("unclear", measured, length)
    outcome: Outcome = "contradicted" if broken else "unclear" if unknown else "holds"
    return Finding(outcome, measured, decided_at)


def _breaks_first(claim: Claim, found: Measurements, length: int) -> Finding:
    """Decide at the first length at which one of two surely breaks while the other surely holds.

    Where the two change places there is none.
    """
    series = _first(claim), _second(claim)
    verdicts = [found.verdicts(own, claim.protocol) for own in series]
    earlier, later = _breaks_where_other_holds(*verdicts), _breaks_where_other_holds(*reversed(verdicts))
    if bool(earlier) is bool(later):
        return Finding("unclear", Paired(None, None, UNDECIDED), length)
    decided_at = min(earlier | later)
    measured = found.difference(*series, decided_at, claim.protocol, "change")
    return Finding("holds" if earlier else "contradicted", measured, decided_at)


def _breaks_where_other_holds(verdicts: Mapping[int, str], others: Mapping[int, str]) -> set[int]:
    broken = {length for length, verdict in verdicts.items() if verdict in BROKEN}
    return broken & {length for length, verdict in others.items() if verdict in ("holds", "improves")}


def _early_tokens(claim: Claim, found: Measurements, length: int) -> Finding:
    measured = found.between_protocols(_first(claim), length, "nonoverlapping", "sliding")
    return Finding(OPPOSITE[_below(measured.interval, 0.0)], measured, length)


def _reads_past_window(claim: Claim, found: Measurements, length: int) -> Finding:
    measured = found.gain_over_window(_first(claim), length)
    if measured.interval is None:
        return Finding("unclear", measured, length)
    answers: dict[str, Outcome] = {"yes": "holds", "no": "contradicted", "unclear": "unclear"}
    return Finding(answers[judge_gain_over_control(measured.interval, found.margin)], measured, length)


def _solves(claim: Claim, found: Measurements, length: int) -> Finding:
    interval, verdict = found.answers(_first(claim), length)
    if interval is None or verdict is None:
        return Finding("unclear", Paired(None, None, NOTHING), length)
    outcomes: dict[str, Outcome] = {"solves": "holds", "partial": "contradicted", "chance": "contradicted"}
    outcome = outcomes.get(verdict, "unclear")
    if outcome == "contradicted" and length <= found.length and not found.is_solved_by_any(claim.sweep):
        return Finding("unclear", Paired(interval.mean, interval, UNSOLVED), length)
    return Finding(outcome, Paired(interval.mean, interval, ""), length)


def _opposite_of(judge: Judge) -> Judge:
    def judge_opposite(claim: Claim, found: Measurements, length: int) -> Finding:
        finding = judge(claim, found, length)
        return finding._replace(outcome=OPPOSITE[finding.outcome])

    return judge_opposite


def _below(interval: Interval | None, bound: float) -> Outcome:
    """Return whether a difference is surely below a bound; infinite ones are known where both ends are."""
    if interval is None or math.isnan(interval.low) or math.isnan(interval.high):
        return "unclear"
    if interval.high < bound:
        return "holds"
    return "contradicted" if interval.low > bound else "unclear"


_JUDGES: dict[Kind, Judge] = {
    "order": _order,
    "falls": _falls,
    "rises": _opposite_of(_falls),
    "holds": _holds,
    "breaks": _breaks,
    "breaks_first": _breaks_first,
    "early_tokens": _early_tokens,
    "reads_past_window": _reads_past_window,
    "stays_in_window": _opposite_of(_reads_past_window),
    "solves": _solves,
    "misses": _opposite_of(_solves),
}
