"""The lines of a table from its rows: which belong together, and what each says."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pe_bench.errors import RunError
from pe_bench.report.pairs import (
    BY_RUN,
    BY_SEED,
    ScoreFiles,
    grouped,
    has_number,
    level_of,
    of_one_set,
    paired,
    pairs_of,
)
from pe_bench.report.records import AnswerScores, Line, Paired, Position, Record, Unlearned
from pe_bench.report.statistics import corrected_comparisons, reads_nothing
from pe_bench.report.verdicts import (
    answer_intervals,
    gain_within_training,
    judge,
    judge_answers,
    judge_context,
    why_open_within,
)
from pe_bench.runs.gather import COPYING, FREQUENCIES, TRIGRAM, StoredAnchors, anchor_key
from pe_bench.runs.rows import POSITIONS, TASK, Row
from pe_bench.runs.scores import perplexity_of

# Of a set of targets; the larger is preferred. The hash is last: of sets alike in all the rest, one has to
# be taken.
Rank = tuple[int, int, int, int, str]


@dataclass(frozen=True)
class Source:
    """What the lines of a table are made of.

    rows: of the table's slice. whole: of the same runs, those of all targets, by which it is known what a
    model has learned at all. anchors: that are stored.
    """

    rows: Sequence[Row]
    whole: Sequence[Row]
    ranks: Mapping[str, Rank]
    anchors: StoredAnchors
    files: ScoreFiles
    margin: float


@dataclass(frozen=True)
class Member:
    """The rows of one line, all under one protocol, with those of its controls and of its positions.

    run: its name, where the line is one of several runs that share a seed. by: what else sets it apart.
    """

    run: str
    by: str
    rows: Sequence[Row]

    @cached_property
    def scored(self) -> list[Row]:
        """Return the rows of levels at a length."""
        return [row for row in self.rows if row.control == "none" and row.protocol != POSITIONS]

    @cached_property
    def runs(self) -> list[str]:
        return sorted({row.run for row in self.scored})

    def at(self, length: int) -> list[Row]:
        return [row for row in self.scored if row.length == length]


def members_of(rows: Sequence[Row], by: Callable[[Row], str]) -> list[Member]:
    """Return the rows of each line, with the name of its run where it holds only one of several.

    Seeds of one encoding are a line. Runs of one encoding that share a seed differ in something its
    name does not show: which of them belong together is not known, and so each is a line.
    """
    members = []
    of_lines = grouped(rows, lambda row: (row.encoding, row.scored_with, by(row)))
    for (_, _, by_text), of_line in of_lines.items():
        of_runs = grouped(of_line, BY_RUN)
        if len({of_run[0].seed for of_run in of_runs.values()}) == len(of_runs):
            members.append(Member("", by_text, [row for of_run in of_runs.values() for row in of_run]))
        else:
            members += [Member(run, by_text, of_run) for run, of_run in of_runs.items()]
    return [member for member in members if member.scored]


def line_of(member: Member, source: Source, train_length: int) -> Line:
    """Return a line with its verdicts, but for those against a baseline.

    The changes of later stages are from their first stage's level. What breaks and what uses context is
    judged from the longest length that they were trained at.
    """
    folder_of = source.files.folder_of
    stages = {run: folder_of(run).first_stage for run in member.runs}
    there = {row.run for row in source.rows}
    first_runs = [stage.run if stage else run for run, stage in stages.items()]
    first_runs = [run for run in first_runs if run in there] or member.runs
    line = judge(_make_line(member, source, first_runs, train_length), train_length, source.margin)
    stage = stages[member.runs[0]]
    if stage is None:
        return line
    own = replace(_make_line(member, source, member.runs, stage.longest), unlearned=line.unlearned)
    own = judge(own, stage.longest, source.margin)
    return replace(
        line,
        records={
            length: replace(record, use=own.records[length].use) for length, record in line.records.items()
        },
        break_point=own.break_point,
        reads_nothing=own.reads_nothing,
        longest=stage.longest,
    )


def anchor_lines(source: Source, name: str) -> list[tuple[Line, Member]]:
    """Return a line, and its rows, for each anchor that belongs to a table's rows, without verdicts.

    name: of the slice that the rows are of.
    """
    scored = [row for row in source.rows if row.control == "none"]
    rows = [row for label in (TRIGRAM, COPYING) for row in source.anchors.of(label, scored)]
    rows = source.files.of_slice(rows, name)
    differ_in_steps = len({row.steps for row in rows}) > 1
    members = members_of(rows, lambda row: f"of {row.steps} steps" if differ_in_steps else "")
    of_anchors = replace(source, rows=rows, whole=rows)
    return [
        (_make_line(member, of_anchors, member.runs, rows[0].train_length, is_anchor=True), member)
        for member in members
    ]


def _make_line(
    member: Member, source: Source, runs: Sequence[str], train_length: int, *, is_anchor: bool = False
) -> Line:
    """Return the line without verdicts.

    runs: whose levels at `train_length`, with the encoding that they were trained with, the changes are from.
    """
    own, whole = (
        [row for row in part if row.run in runs and row.control == "none" and row.scored_with == row.encoding]
        for part in (source.rows, source.whole)
    )
    trained = [row for row in own if row.length == train_length]
    files, margin, first = source.files, source.margin, member.scored[0]
    gain = gain_within_training(whole, files, train_length)
    why_open = why_open_within(train_length, gain, margin)
    controls = grouped((row for row in member.rows if row.control != "none"), lambda row: row.length)
    records = {}
    for length, rows in sorted(grouped(member.scored, lambda row: row.length).items()):
        record = make_record(rows, trained, files, source.ranks)
        beyond = controls.get(length, []) if length > train_length else []
        use = judge_context(rows, beyond, trained, why_open, margin, files)
        records[length] = replace(record, use=use)
    speed_of = {row.run: row.tokens_per_second for row in member.scored}
    return Line(
        encoding=first.encoding,
        scored_with=first.scored_with,
        run=member.run,
        seeds=len({row.seed for row in member.scored}),
        parameters=first.parameters,
        tokens_per_second=sum(speed_of.values()) / len(speed_of),
        records=records,
        runs=tuple(member.runs),
        by=member.by,
        reads_nothing=gain.interval is not None and reads_nothing(gain.interval, margin),
        positions=_positions(member.rows),
        forced=first.forced,
        knows_length=any(row.knows_length and has_number(row) for row in member.scored),
        unlearned="" if is_anchor else unlearned(whole, source.anchors, files),
        is_anchor=is_anchor,
    )


def make_record(
    rows: Sequence[Row],
    trained: Sequence[Row],
    files: ScoreFiles,
    ranks: Mapping[str, Rank] | None = None,
) -> Record:
    """Return the record of `rows`, the seeds of one encoding at one length.

    trained: of the same runs at the training length with their own encoding. ranks: of the table's sets of
    targets; of several the levels are of that which most seeds were scored on, then of that ranked highest.
    The change is of a set that no other line has a part in choosing.
    """
    first, scored = rows[0], [row for row in rows if has_number(row)]
    if not scored:
        return Record(
            first.length,
            "undefined" if first.status == "ok" else first.status,
            first.reason,
            verdict="undefined",
            target_hash=first.target_hash,
            stride=first.stride,
        )
    ranks, seeds = ranks or rank_sets(scored), Counter(row.target_hash for row in scored)
    chosen = max(seeds, key=lambda target_hash: (seeds[target_hash], ranks[target_hash]))
    shown = sorted((row for row in scored if row.target_hash == chosen), key=BY_RUN)
    nll = [row.nll for row in shown if row.nll is not None]
    record = Record(
        first.length,
        levels=tuple(map(level_of, shown)),
        target_hash=chosen,
        targets=min(row.targets for row in shown),
        documents=min(row.documents for row in shown),
        stride=shown[0].stride,
        peak_memory_mb=max(
            (row.peak_memory_mb for row in shown if row.peak_memory_mb is not None), default=None
        ),
    )
    if first.protocol == TASK:
        return _with_answers(record, shown, files)
    runs = {row.run for row in trained}

    def reference_run(row: Row) -> str:
        stage = None if row.run in runs else files.folder_of(row.run).first_stage
        return row.run if stage is None else stage.run

    pairs = of_one_set(pairs_of(scored, trained, reference_run))
    change = Paired()
    if not any(map(has_number, trained)):
        change = Paired(missing="the training length has no score to compare with")
    elif not pairs or any(row is not reference for row, reference in pairs):  # not the training length itself
        change = paired(pairs, files, "scored on other targets than the training length")
    return replace(
        record,
        perplexity=perplexity_of(float(np.mean(nll))) if nll else None,
        compared=change,
        changes=tuple(level_of(row) - level_of(reference) for row, reference in pairs),
    )


def _with_answers(record: Record, rows: Sequence[Row], files: ScoreFiles) -> Record:
    """Return the record of a task. Each length has examples of its own, so that there is no change."""
    try:
        right = np.stack([files.answers(row) for row in rows])
    except RunError as error:
        return replace(record, compared=Paired(missing=str(error)))
    exact, several = (right == 1).astype(float), len(rows) > 1
    answers = AnswerScores(
        rows[0].chance or 0.0,
        answer_intervals(right, exact),
        answer_intervals(right.mean(0, keepdims=True), exact.mean(0, keepdims=True)) if several else None,
        tuple(map(answer_intervals, right[:, None], exact[:, None])) if several else (),
    )
    return replace(record, answers=answers)


def _positions(rows: Sequence[Row]) -> tuple[Position, ...]:
    """Return those of the set of windows that reaches furthest; a range that a seed lacks is left out."""
    scored = [row for row in rows if row.protocol == POSITIONS and has_number(row)]
    if not scored:
        return ()
    chosen = max(scored, key=lambda row: (row.length, row.target_hash)).target_hash
    shown = [row for row in scored if row.target_hash == chosen]
    ranges = grouped(sorted(shown, key=lambda row: (row.length, row.run)), lambda row: row.length)
    seeds = max(map(len, ranges.values()))
    return tuple(
        Position(seeds_of[0].context_mean or seeds_of[0].length, tuple(map(level_of, seeds_of)))
        for seeds_of in ranges.values()
        if len(seeds_of) == seeds
    )


# Which of several sets of targets stands for a length. Lengths beyond `eval.max_length` have targets of their
# own, on which the training length is scored too.


def rank_sets(rows: Iterable[Row]) -> dict[str, Rank]:
    """Return the rank of each set: most lengths first, then the smaller longest one, rows and targets."""
    of_set = grouped(rows, lambda row: row.target_hash)
    lengths_of = {name: {row.length for row in rows} for name, rows in of_set.items()}
    return {
        name: (len(lengths), -max(lengths), len(of_set[name]), max(row.targets for row in of_set[name]), name)
        for name, lengths in lengths_of.items()
    }


def on_other_targets(lines: Sequence[Line], length: int) -> list[str]:
    """Return the labels of the lines whose level at a length is of other targets than that of most lines."""
    records = {line.label: line.records[length] for line in lines if length in line.records}
    set_of = {label: record.target_hash for label, record in records.items() if record.levels}
    most = Counter(set_of.values()).most_common(1)
    return [label for label, target_hash in set_of.items() if target_hash != most[0][0]]


# The differences from a baseline


def with_baseline(
    lines: Sequence[Line], members: Sequence[Member], baseline: str, margin: float, files: ScoreFiles
) -> list[Line]:
    """Return the lines with their differences from the line of that label, which has none itself.

    Those at one length are corrected together; an anchor is compared, and not judged.
    """
    base = next(member for line, member in zip(lines, members, strict=True) if line.label == baseline)
    is_task = base.scored[0].protocol == TASK  # and then more is better
    differences: dict[int, dict[str, Paired]] = {}
    for length in sorted({length for line in lines for length in line.records}):
        at_length = {
            line.label: _difference(member, base, length, baseline, files)
            for line, member in zip(lines, members, strict=True)
            if line.label != baseline and length in line.records and line.records[length].levels
        }
        intervals = {
            line.label: interval.mirrored if is_task else interval
            for line in lines
            if not line.is_anchor and line.label in at_length
            if (interval := at_length[line.label].interval) is not None
        }
        verdicts = corrected_comparisons(list(intervals.values()), margin)
        for label, verdict in zip(intervals, verdicts, strict=True):
            at_length[label] = replace(at_length[label], verdict=verdict)
        differences[length] = at_length
    return [
        replace(
            line,
            records={
                length: replace(record, baseline=differences[length].get(line.label))
                for length, record in line.records.items()
            },
        )
        for line in lines
    ]


def _difference(member: Member, base: Member, length: int, label: str, files: ScoreFiles) -> Paired:
    rows, others = member.at(length), base.at(length)
    if {row.target_hash for row in rows} & {row.target_hash for row in others}:
        pairs = of_one_set(pairs_of(rows, others, BY_SEED))
        return paired(pairs, files, f"no seed in common with {label}")
    why = "was scored on other targets" if others else "has no score at this length"
    return Paired(missing=f"{label} {why}")


# What trained lines did not learn to beat


def unlearned(own_rows: Sequence[Row], stored: StoredAnchors, files: ScoreFiles) -> Unlearned:
    """Return what weights have not learned to beat at their training length; empty where that is not known.

    own_rows: of a line's runs with their own encoding: it is the weights that learn.
    """
    trained = [row for row in own_rows if row.length == row.train_length]
    if any(row.protocol == TASK for row in own_rows):
        answers = make_record(trained, [], files).answers if trained else None
        is_solved = answers is None or judge_answers(answers.intervals, answers.chance) == "solves"
        return "" if is_solved else "task"

    scored = [row for row in trained if has_number(row)]
    for label in (FREQUENCIES, TRIGRAM):
        # Against an anchor that was counted on the same tokens; positive is worse.
        anchor_of = {anchor_key(row): row for row in stored.of(label, scored)}
        pairs = [(row, anchor_of[anchor_key(row)]) for row in scored if anchor_key(row) in anchor_of]
        interval = paired(of_one_set(pairs), files).interval
        if interval is not None and label == FREQUENCIES and not interval.high < 0:
            return "frequencies"
        if interval is not None and label == TRIGRAM and interval.low > 0:
            return "trigram"
    return ""
