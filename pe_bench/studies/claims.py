"""A paper's claims against our measurements: each holds, is contradicted, or stays unclear.

All follow from 95 % intervals of paired differences by the rules of statistics.py. A claim is judged alone:
with twenty of them, one is judged wrongly by chance.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pe_bench.report.statistics import Interval, breaks_at, holds_up_to, judge_gain_over_control
from pe_bench.report.tables.differences import Paired
from pe_bench.runs.rows import TASK
from pe_bench.studies.definition import Claim, Kind
from pe_bench.studies.measurements import NOTHING, Measurements, Series

Outcome = Literal["contradicted", "holds", "unclear"]
OPPOSITE: dict[Outcome, Outcome] = {"holds": "contradicted", "contradicted": "holds", "unclear": "unclear"}

UNLEARNED = "not learned at the training length"
UNDECIDED = "no length where one surely breaks and the other surely holds"
BROKEN = ("degrades", "fails")


@dataclass(frozen=True)
class Judged:
    """A claim with what our runs say of it. missing: why there is no interval."""

    claim: Claim
    length: int
    outcome: Outcome
    interval: Interval | None
    missing: str = ""


def judge_claim(claim: Claim, found: Measurements) -> Judged:
    """Return what our runs say of a claim; unclear where they do not have its scores."""
    length = _deciding_length(claim, found) or round(claim.at * found.length)
    series = {_first(claim), _second(claim)}
    if length > found.length and not all(map(found.has_learned, series)):
        return Judged(claim, length, "unclear", None, UNLEARNED)
    measured, outcome = _JUDGES[claim.kind](claim, found, length)
    return Judged(claim, length, outcome, measured.interval, measured.missing)


def _first(claim: Claim) -> Series:
    return Series(claim.of, claim.sweep)


def _second(claim: Claim) -> Series:
    return Series(claim.than or claim.of, claim.than_sweep or claim.sweep)


def _order(claim: Claim, found: Measurements, length: int) -> tuple[Paired, Outcome]:
    measured = found.difference(_first(claim), _second(claim), length, claim.protocol, claim.measure)
    below = _below(measured.interval, 0.0)
    return measured, OPPOSITE[below] if claim.protocol == TASK else below  # of answers, more is better


def _falls(claim: Claim, found: Measurements, length: int) -> tuple[Paired, Outcome]:
    measured = found.change(_first(claim), length, claim.protocol)
    return measured, _below(measured.interval, 0.0)


def _rises(claim: Claim, found: Measurements, length: int) -> tuple[Paired, Outcome]:
    measured, falls = _falls(claim, found, length)
    return measured, OPPOSITE[falls]


def _breaks(claim: Claim, found: Measurements, length: int) -> tuple[Paired, Outcome]:
    measured = found.change(_first(claim), length, claim.protocol)
    return measured, OPPOSITE[_below(measured.interval, found.margin)]


def _holds(claim: Claim, found: Measurements, length: int) -> tuple[Paired, Outcome]:
    series = _first(claim)
    verdicts = {
        scored: verdict
        for scored, verdict in found.verdicts(series, claim.protocol).items()
        if scored <= length
    }
    measured = found.change(series, length, claim.protocol)
    if length not in verdicts:
        return measured, "unclear"
    if breaks_at(verdicts) is not None:
        return measured, "contradicted"
    return measured, "holds" if holds_up_to(verdicts) == length else "unclear"


def _deciding_length(claim: Claim, found: Measurements) -> int | None:
    """Return the first length at which one of two encodings surely breaks while the other surely holds.

    None where there is none, for other kinds of claims, and where the two change places.
    """
    if claim.kind != "breaks_first":
        return None
    verdicts = [found.verdicts(series, claim.protocol) for series in (_first(claim), _second(claim))]
    earlier, later = _breaks_where_other_holds(*verdicts), _breaks_where_other_holds(*reversed(verdicts))
    return None if earlier and later else min(earlier | later, default=None)


def _breaks_first(claim: Claim, found: Measurements, length: int) -> tuple[Paired, Outcome]:
    if _deciding_length(claim, found) is None:
        return Paired(None, None, UNDECIDED), "unclear"
    breaks = found.verdicts(_first(claim), claim.protocol)[length] in BROKEN
    measured = found.difference(_first(claim), _second(claim), length, claim.protocol, "change")
    return measured, "holds" if breaks else "contradicted"


def _breaks_where_other_holds(verdicts: Mapping[int, str], others: Mapping[int, str]) -> set[int]:
    broken = {length for length, verdict in verdicts.items() if verdict in BROKEN}
    return broken & {length for length, verdict in others.items() if verdict in ("holds", "improves")}


def _early_tokens(claim: Claim, found: Measurements, length: int) -> tuple[Paired, Outcome]:
    series = _first(claim)
    measured = found.between_protocols(series, length, "nonoverlapping", "sliding")
    return measured, OPPOSITE[_below(measured.interval, 0.0)]


def _reads_past_window(claim: Claim, found: Measurements, length: int) -> tuple[Paired, Outcome]:
    measured = found.gain_over_window(_first(claim), length)
    if measured.interval is None:
        return measured, "unclear"
    answers: dict[str, Outcome] = {"yes": "holds", "no": "contradicted", "unclear": "unclear"}
    return measured, answers[judge_gain_over_control(measured.interval, found.margin)]


def _stays_in_window(claim: Claim, found: Measurements, length: int) -> tuple[Paired, Outcome]:
    measured, reads_past = _reads_past_window(claim, found, length)
    return measured, OPPOSITE[reads_past]


def _solves(claim: Claim, found: Measurements, length: int) -> tuple[Paired, Outcome]:
    interval, verdict = found.answers(_first(claim), length)
    if interval is None or verdict is None:
        return Paired(None, None, NOTHING), "unclear"
    outcomes: dict[str, Outcome] = {"solves": "holds", "partial": "contradicted", "chance": "contradicted"}
    return Paired(interval.mean, interval, ""), outcomes.get(verdict, "unclear")


def _misses(claim: Claim, found: Measurements, length: int) -> tuple[Paired, Outcome]:
    measured, solves = _solves(claim, found, length)
    return measured, OPPOSITE[solves]


def _below(interval: Interval | None, bound: float) -> Outcome:
    """Return whether a difference is surely below a bound; infinite ones are known where both ends are."""
    if interval is None or math.isnan(interval.low) or math.isnan(interval.high):
        return "unclear"
    if interval.high < bound:
        return "holds"
    return "contradicted" if interval.low > bound else "unclear"


_JUDGES: dict[Kind, Callable[[Claim, Measurements, int], tuple[Paired, Outcome]]] = {
    "order": _order,
    "falls": _falls,
    "rises": _rises,
    "holds": _holds,
    "breaks": _breaks,
    "breaks_first": _breaks_first,
    "early_tokens": _early_tokens,
    "reads_past_window": _reads_past_window,
    "stays_in_window": _stays_in_window,
    "solves": _solves,
    "misses": _misses,
}
