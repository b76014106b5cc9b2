"""The lines of a table: which rows belong together, and what each line says before it is judged."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pe_bench.report.statistics import is_sensitive, reads_nothing
from pe_bench.report.tables.break_point import BreakPoint
from pe_bench.report.tables.cells import Cell, ContextUse, label_of, make_cell
from pe_bench.report.tables.context_use import context_use, sensitivity
from pe_bench.report.tables.differences import Paired, ScoreFiles, has_number, largest_set, level_of
from pe_bench.report.tables.target_sets import Rank
from pe_bench.report.tables.task_cells import make_task_cell
from pe_bench.runs.rows import TASK, Row

# What is known of a line's weights at the training length: that they are surely worse than the trigram of the
# same tokens (trigram), or not even surely better than token frequencies (frequencies).
# Or that they have not surely learned their task there (task).
Unlearned = Literal["", "trigram", "frequencies", "task"]


@dataclass(frozen=True)
class Position:
    """Tokens that were scored at one range of places in their window: text of its own at each, no verdict.

    context: tokens that such a target sees, on average. levels: bits per byte, one for each seed.
    """

    context: float
    levels: tuple[float, ...]


@dataclass(frozen=True)
class Line:
    """One encoding, its seeds together; one cell for each length that it was scored at.

    run: set only where runs of one encoding share a seed, so that each is a line. runs: all of them. by: what
    else sets the line apart, such as train.lr=0.003, where that was asked for. sensitive: whether the model
    gains from a quarter to all of its training length; None where that was not scored. reads_nothing: it
    surely does not. positions: in rising order of context, empty where they were not scored. forced: scored
    with an encoding that is not compatible with the trained one. knows_length: it is given the final length
    of each text. unlearned: what it has not learned to beat. is_anchor: no encoding, but a model that cost no
    training.
    """

    encoding: str
    scored_with: str
    run: str
    seeds: int
    parameters: int
    tokens_per_second: float
    break_point: BreakPoint
    cells: dict[int, Cell]
    runs: tuple[str, ...] = ()
    sensitive: bool | None = None
    reads_nothing: bool = False
    positions: tuple[Position, ...] = ()
    by: str = ""
    forced: bool = False
    knows_length: bool = False
    unlearned: Unlearned = ""
    is_anchor: bool = False

    @property
    def is_ranked(self) -> bool:
        return not self.is_anchor and not self.unlearned

    @property
    def label(self) -> str:
        words = [label_of(self), self.by, f"({_suffix(self.run)})" if self.run else ""]
        return " ".join(word for word in words if word)


@dataclass(frozen=True)
class Member:
    """The rows of one line, all under one protocol, and those of its controls and of its positions."""

    run: str
    by: str
    rows: tuple[Row, ...]
    controls: tuple[Row, ...]
    positions: tuple[Row, ...]

    @property
    def runs(self) -> list[str]:
        return sorted({row.run for row in self.rows})

    def at(self, length: int) -> list[Row]:
        return [row for row in self.rows if row.length == length]


def members_of(
    rows: Sequence[Row], controls: Sequence[Row], positions: Sequence[Row], by: Callable[[Row], str]
) -> list[Member]:
    """Return the rows of each line, with the name of its run where it holds only one of several.

    Seeds of one encoding are a line. Runs of one encoding that share a seed differ in something its
    name does not show: which of them belong together is not known, and so each is a line.
    """
    lines: dict[tuple[str, str, str], dict[str, list[Row]]] = {}
    for row in rows:
        lines.setdefault((row.encoding, row.scored_with, by(row)), {}).setdefault(row.run, []).append(row)
    controls_of, positions_of = _by_run(controls), _by_run(positions)
    members = []
    for (_, scored_with, by_text), rows_of in lines.items():
        seeds_differ = len({own[0].seed for own in rows_of.values()}) == len(rows_of)
        parts = [("", list(rows_of))] if seeds_differ else [(run, [run]) for run in rows_of]
        members += [
            Member(
                name,
                by_text,
                tuple(row for run in runs for row in rows_of[run]),
                tuple(row for run in runs for row in controls_of.get((run, scored_with), [])),
                tuple(row for run in runs for row in positions_of.get((run, scored_with), [])),
            )
            for name, runs in parts
        ]
    return members


def make_line(
    member: Member,
    own_rows: Sequence[Row],
    whole_rows: Sequence[Row],
    ranks: Mapping[str, Rank],
    margin: float,
    files: ScoreFiles,
) -> Line:
    """Return the line without verdicts, which depend on the whole table.

    own_rows: of these runs, scored with the encoding that they were trained with. whole_rows: the same on all
    targets, where the others are of a slice.
    """
    rows = member.rows
    own_at_train_length = [row for row in own_rows if row.length == row.train_length]
    lengths = sorted({row.length for row in rows})
    at = {length: [row for row in rows if row.length == length] for length in lengths}
    cells = {
        length: make_task_cell(own, ranks, files)
        if own[0].protocol == TASK
        else make_cell(own, own_at_train_length, ranks, files)
        for length, own in at.items()
    }
    sensitive = sensitivity(whole_rows, files)
    speed_of = {row.run: row.tokens_per_second for row in rows}
    return Line(
        encoding=rows[0].encoding,
        scored_with=rows[0].scored_with,
        run=member.run,
        seeds=len({row.seed for row in rows}),
        parameters=rows[0].parameters,
        tokens_per_second=sum(speed_of.values()) / len(speed_of),
        break_point=BreakPoint(),
        cells={
            length: replace(cell, use=_use(member, cell, own_at_train_length, sensitive, margin, files))
            for length, cell in cells.items()
        },
        runs=tuple(member.runs),
        sensitive=None if sensitive.interval is None else is_sensitive(sensitive.interval),
        reads_nothing=sensitive.interval is not None and reads_nothing(sensitive.interval, margin),
        positions=_positions(member.positions),
        by=member.by,
        forced=rows[0].forced,
        knows_length=any(row.knows_length and has_number(row) for row in rows),
    )


def on_other_targets(lines: Sequence[Line], length: int) -> list[str]:
    """Return the labels of the lines whose level at a length is of other targets than that of most lines."""
    cells = {line.label: line.cells[length] for line in lines if length in line.cells}
    set_of = {label: cell.target_hash for label, cell in cells.items() if cell.levels}
    most = Counter(set_of.values()).most_common(1)
    return [label for label, target_hash in set_of.items() if target_hash != most[0][0]]


def _by_run(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows of each run and of what it was scored with."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.run, row.scored_with), []).append(row)
    return found


def _use(
    member: Member,
    cell: Cell,
    own_at_train_length: Sequence[Row],
    sensitive: Paired,
    margin: float,
    files: ScoreFiles,
) -> ContextUse | None:
    controls = [row for row in member.controls if row.length == cell.length]
    controlled = {row.target_hash for row in controls}
    rows = [row for row in member.at(cell.length) if row.target_hash in controlled]
    if controls and cell.levels and not rows:
        return ContextUse("", "", None, None, f"the controls at {cell.length} were scored on other targets")
    chosen = largest_set(rows)
    return context_use(
        [row for row in rows if row.target_hash == chosen],
        [row for row in controls if row.target_hash == chosen],
        own_at_train_length,
        sensitive,
        margin,
        files,
    )


def _positions(rows: Sequence[Row]) -> tuple[Position, ...]:
    """Return those of the set of windows that reaches furthest; a range that a seed lacks is left out."""
    scored = [row for row in rows if has_number(row)]
    if not scored:
        return ()
    chosen = max(scored, key=lambda row: (row.length, row.target_hash)).target_hash
    ranges: dict[int, list[Row]] = {}
    for row in sorted(scored, key=lambda row: (row.length, row.run)):
        if row.target_hash == chosen:
            ranges.setdefault(row.length, []).append(row)
    seeds = max(map(len, ranges.values()))
    return tuple(
        Position(own[0].context_mean or own[0].length, tuple(level_of(row) for row in own))
        for own in ranges.values()
        if len(own) == seeds
    )


def _suffix(run: str) -> str:
    """Return the seed and the hash, which end a run's name."""
    found = re.fullmatch(r".*-(s\d+-.+)", run)
    return found[1] if found else run
