"""Verdicts on changes and answers, one line at a time; on differences between lines; and break points."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TypeVar

from pe_bench.report.lines import Member
from pe_bench.report.measures import judge_answers
from pe_bench.report.pairs import Paired, ScoreFiles, of_one_set, paired, pairs_by_seed
from pe_bench.report.records import BreakPoint, Line, Record
from pe_bench.report.statistics import breaks_at, corrected_comparisons, holds_up_to, judge_change

HELD, BROKEN = ("improves", "holds"), ("degrades", "fails")
CLAIMED = (*HELD, *BROKEN, "unclear")
AS_CHANGES = {"solves": "holds", "partial": "degrades", "chance": "fails"}  # for the break point

Judged = TypeVar("Judged")


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

    def with_verdicts(
        judge: Callable[[Judged], str], found: Judged, of_models: Judged | None, of_seeds: Sequence[Judged]
    ) -> Record:
        return replace(
            record,
            verdict=judge(found),
            verdict_of_models="" if of_models is None else judge(of_models),
            verdicts_of_seeds=tuple(map(judge, of_seeds)),
        )

    answers, change = record.answers, record.compared
    if answers is not None:
        return with_verdicts(
            lambda intervals: judge_answers(intervals, answers.chance),
            answers.intervals,
            answers.of_models,
            answers.of_seeds,
        )
    if change.interval is None:
        return record
    return with_verdicts(
        lambda interval: judge_change(interval, margin), change.interval, change.of_models, change.of_seeds
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
    broken = breaks_at({length: verdict for length, verdict in verdicts.items() if verdict in CLAIMED})
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
    of_models, of_seeds = _as_change(record.verdict_of_models), map(_as_change, record.verdicts_of_seeds)
    each_breaks = bool(record.verdicts_of_seeds) and all(verdict in BROKEN for verdict in of_seeds)
    is_unclear = record.verdict == "unclear" and of_models not in BROKEN and not each_breaks
    return _as_change(record.verdict) in HELD or is_unclear


def with_baseline(
    lines: Sequence[Line], members: Sequence[Member], baseline: str, margin: float, files: ScoreFiles
) -> list[Line]:
    """Return the lines with their differences from the line of that label, which has none itself.

    Those at one length are corrected together; an anchor is compared, and not judged.
    """
    base_line, base = next(pair for pair in zip(lines, members, strict=True) if pair[0].label == baseline)
    differences = {
        (line.label, length): _difference(member, base, length, base_line.label, files)
        for line, member in zip(lines, members, strict=True)
        for length, record in line.records.items()
        if line is not base_line and record.levels
    }
    is_task = any(record.answers for record in base_line.records.values())  # and then more is better
    trained = {line.label for line in lines if not line.is_anchor}
    for length in {length for _, length in differences}:
        intervals = {
            key: difference.interval.mirrored if is_task else difference.interval
            for key, difference in differences.items()
            if key[1] == length and difference.interval is not None and key[0] in trained
        }
        verdicts = corrected_comparisons(list(intervals.values()), margin)
        for key, verdict in zip(intervals, verdicts, strict=True):
            differences[key] = replace(differences[key], verdict=verdict)
    return [
        replace(
            line,
            records={
                length: replace(record, baseline=differences.get((line.label, length)))
                for length, record in line.records.items()
            },
        )
        for line in lines
    ]


def _difference(member: Member, base: Member, length: int, label: str, files: ScoreFiles) -> Paired:
    rows, others = member.at(length), base.at(length)
    if {row.target_hash for row in rows} & {row.target_hash for row in others}:
        pairs = of_one_set(pairs_by_seed(rows, others))
        return paired(pairs, files, f"no seed in common with {label}")
    why = "was scored on other targets" if others else "has no score at this length"
    return Paired(None, None, f"{label} {why}")
