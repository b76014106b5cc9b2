"""Which rows may stand together, and the tables of them.

Rows of another setting (the model and how it was trained), data, tokenizer, training length,
protocol or stride are another table: they are never averaged or ranked together.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pe_bench.checking import unknown
from pe_bench.errors import RunError, UserError
from pe_bench.report.cells import Cell, ScoreFiles, label_of, make_cell
from pe_bench.report.notes import make_notes
from pe_bench.report.strides import by_stride_rule, describe_rule, order_of_rule
from pe_bench.report.target_sets import Rank, rank_sets
from pe_bench.results import Row, read_all, runs_folder
from pe_bench.statistics import MARGIN, break_point

PROTOCOLS = {"paired": 0, "nonoverlapping": 1, "sliding": 2}  # the order of their tables


@dataclass(frozen=True)
class Position:
    """Tokens that were scored at one range of places in the document: text of its own at each, no verdict.

    context: tokens that such a target sees, on average. levels: bits per byte, one for each seed.
    """

    context: float
    levels: tuple[float, ...]


@dataclass(frozen=True)
class Line:
    """One encoding, its seeds together; one cell for each length that it was scored at.

    run: empty, or the name of the only run, where several of one name have the same seed. runs: all of
    them. sensitive: whether the model gains from a quarter to all of its training length; None where
    that was not scored. positions: in rising order of context, empty where they were not scored.
    """

    encoding: str
    scored_with: str
    run: str
    seeds: int
    parameters: int
    tokens_per_second: float
    break_point: str  # a length, "none up to" one, or unknown
    cells: dict[int, Cell]
    runs: tuple[str, ...] = ()
    sensitive: bool | None = None
    positions: tuple[Position, ...] = ()

    @property
    def label(self) -> str:
        return label_of(self) + (f" ({_suffix(self.run)})" if self.run else "")


@dataclass(frozen=True)
class Group:
    """What all rows of a table have in common."""

    model: str
    data: str
    data_hash: str
    tokenizer: str
    train_length: int
    steps: int
    setting: str
    protocol: str
    stride_rule: str  # half or a number, of the sliding protocol

    @property
    def order(self) -> tuple[object, ...]:
        values = {
            name: value for name, value in vars(self).items() if name not in ("protocol", "stride_rule")
        }
        return (*values.values(), PROTOCOLS.get(self.protocol, 3), order_of_rule(self.stride_rule))


@dataclass(frozen=True)
class Table:
    """Encodings that may be compared, the best first.

    ranked_at: the longest length that all lines have a number at, None where there is none.
    why: why this is not the only table, empty where it is. notes: whole lines to read below it.
    """

    group: Group
    lengths: tuple[int, ...]
    lines: tuple[Line, ...]
    ranked_at: int | None
    why: str
    notes: tuple[str, ...]
    baseline: str = ""  # the label of the line that the others are compared with
    margin: float = MARGIN  # bits per byte, of the verdicts

    @property
    def title(self) -> str:
        of = self.group
        stride = f", stride {describe_rule(of.stride_rule)}" if of.stride_rule else ""
        return (
            f"{of.model} model, data {of.data} ({of.data_hash[:8]}), tokenizer {of.tokenizer}, "
            f"trained at length {of.train_length} for {of.steps} steps, {of.protocol} protocol{stride}"
        )


def build_tables(
    results_dir: Path, runs: Sequence[str] | None = None, protocol: str | None = None
) -> list[Table]:
    """The tables of all finished runs, or of those named, under all protocols or one.

    Raises `UserError` when there is nothing to show, `RunError` when all of it is damaged.
    """
    found = read_all(results_dir)
    if found.problems and not found.rows:
        raise RunError("\n".join(found.problems))
    rows = _uncontrolled(found.rows)
    if not rows:
        folder = runs_folder(results_dir)
        raise UserError(f"no scored run in {folder}: make one with `pe-bench train encoding=rope`")
    rows = _of_protocol(_of_runs(rows, runs), protocol)
    tables = _tables(rows, ScoreFiles(lambda row: runs_folder(results_dir) / row.run))
    left_out = tuple(f"left out: {problem}" for problem in found.problems)
    return [*tables[:-1], replace(tables[-1], notes=(*tables[-1].notes, *left_out))]


def run_table(rows: Iterable[Row], run: Path) -> Table:
    """The table of one run's rows under one protocol and stride; `run` is its directory."""
    tables = _tables(_uncontrolled(rows), ScoreFiles(lambda row: run))
    assert len(tables) == 1, "rows of one run, one protocol and one stride"
    return tables[0]


def group_of(row: Row, stride_rule: str = "") -> Group:
    return Group(
        row.model,
        row.data,
        row.data_hash,
        row.tokenizer,
        row.train_length,
        row.steps,
        row.setting,
        row.protocol,
        stride_rule,
    )


def _uncontrolled(rows: Iterable[Row]) -> list[Row]:
    """The rows without the controls, which are the same model kept from part of its context."""
    return [row for row in rows if row.control == "none"]


def _of_runs(rows: list[Row], runs: Sequence[str] | None) -> list[Row]:
    if runs is None:
        return rows
    names = [Path(run).name for run in runs]
    known = {row.run for row in rows}
    for name in names:
        if name not in known:
            raise UserError(unknown(name, "run", known))
    return [row for row in rows if row.run in names]


def _of_protocol(rows: list[Row], protocol: str | None) -> list[Row]:
    chosen = [row for row in rows if protocol in (None, row.protocol)]
    if not chosen:
        there = ", ".join(sorted({row.protocol for row in rows}))
        raise UserError(
            f"no score under the protocol {protocol!r}: these runs were scored under {there}; "
            f"score one with `pe-bench eval RUN --protocol {protocol}`"
        )
    return chosen


def _tables(rows: Sequence[Row], files: ScoreFiles) -> list[Table]:
    alike: dict[Group, list[Row]] = {}
    for row in rows:
        alike.setdefault(group_of(row), []).append(row)
    groups: dict[Group, list[Row]] = {}
    for some in alike.values():
        for rule, row in by_stride_rule(some):
            groups.setdefault(group_of(row, rule), []).append(row)
    ordered = sorted(groups, key=lambda group: group.order)
    return [_table(group, groups[group], _why(index, ordered), files) for index, group in enumerate(ordered)]


def _why(index: int, groups: Sequence[Group]) -> str:
    """Which of the groups' values differ; the setting only where nothing else tells them apart."""
    if len(groups) == 1:
        return ""
    names = ("model", "data", "data_hash", "tokenizer", "train_length", "steps", "protocol", "stride_rule")
    values = {name: {getattr(group, name) for group in groups} - {""} for name in names}
    differing = [name.replace("_", " ") for name in names if len(values[name]) > 1]
    visible = {tuple(getattr(group, name) for name in names) for group in groups}
    if len(visible) < len(groups):
        differing.append(f"training settings (here {groups[index].setting[:8]}; see the runs' config.yaml)")
    return (
        f"table {index + 1} of {len(groups)}: they differ in {', '.join(differing)}, "
        "and such rows are never averaged or ranked together"
    )


def _table(group: Group, rows: Sequence[Row], why: str, files: ScoreFiles) -> Table:
    ranks = rank_sets(rows)
    references = [row for row in rows if row.scored_with == row.encoding and row.length == group.train_length]
    lines = [_line(own, run, references, ranks, files) for run, own in _members(rows)]
    ranked_at = _longest_common(lines)
    lines.sort(key=lambda line: (_level(line, ranked_at), line.label))
    lengths = tuple(sorted({row.length for row in rows}))
    return Table(group, lengths, tuple(lines), ranked_at, why, make_notes(lines, rows, ranked_at))


def _members(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """The rows of each line, after the name of its run where it holds only one of several.

    Seeds of one encoding are a line. Runs of one encoding that share a seed differ in something its
    name does not show: which of them belong together is not known, and so each is a line.
    """
    labels: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        labels.setdefault((row.encoding, row.scored_with), {}).setdefault(row.run, []).append(row)
    members = []
    for runs in labels.values():
        if len({own[0].seed for own in runs.values()}) == len(runs):
            members.append(("", [row for own in runs.values() for row in own]))
        else:
            members += runs.items()
    return members


def _suffix(run: str) -> str:
    """Seed and hash, which end a run's name."""
    found = re.fullmatch(r".*-(s\d+-.+)", run)
    return found[1] if found else run


def _line(
    rows: Sequence[Row], run: str, references: Sequence[Row], ranks: Mapping[str, Rank], files: ScoreFiles
) -> Line:
    lengths = sorted({row.length for row in rows})
    cells = {
        length: make_cell([row for row in rows if row.length == length], references, ranks, files)
        for length in lengths
    }
    runs = {row.run: row for row in rows}
    return Line(
        encoding=rows[0].encoding,
        scored_with=rows[0].scored_with,
        run=run,
        seeds=len({row.seed for row in rows}),
        parameters=rows[0].parameters,
        tokens_per_second=sum(row.tokens_per_second for row in runs.values()) / len(runs),
        break_point=_describe_break(cells, rows[0].train_length),
        cells=cells,
        runs=tuple(sorted(runs)),
    )


def _describe_break(cells: dict[int, Cell], train_length: int) -> str:
    """The break point in words.

    `by` a length where the verdict on a shorter one was unclear; `none up to` the last length that
    was seen to hold when all before it were; `none, ? from` where it becomes unclear.
    """
    beyond = {length: cell.verdict for length, cell in sorted(cells.items()) if length > train_length}
    found = break_point(beyond, train_length)
    if found is not None:
        unclear_before = "unclear" in [verdict for length, verdict in beyond.items() if length < found]
        return f"by {found}" if unclear_before else str(found)
    open_lengths = [length for length, verdict in beyond.items() if verdict not in ("holds", "improves")]
    held = [length for length in beyond if not open_lengths or length < open_lengths[0]]
    if open_lengths and beyond[open_lengths[0]] == "unclear":
        return f"none, ? from {open_lengths[0]}"
    return f"none up to {max(held)}" if held else "unknown"


def _longest_common(lines: Sequence[Line]) -> int | None:
    shared = set.intersection(
        *({length for length, cell in line.cells.items() if cell.levels} for line in lines)
    )
    return max(shared, default=None)


def _level(line: Line, length: int | None) -> float:
    """Bits per byte at a length; a level that is no number ranks last."""
    level = line.cells[length].bits_per_byte if length is not None else None
    return level if level is not None and level == level else float("inf")
