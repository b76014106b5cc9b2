"""A table of the page: a line for each encoding, which opens for its details."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pe_bench.report.cell_text import break_text, level_text, verdict_of
from pe_bench.report.html.style import LineStyle
from pe_bench.report.html.text import difference_text, interval_text, perplexity_text, signed, status_of
from pe_bench.report.tables.build import Table
from pe_bench.report.tables.cells import Cell
from pe_bench.report.tables.lines import Line
from pe_bench.report.tables.ranking import largest_memory

MARKS = {"improves": "v", "degrades": ">", "fails": "!", "unclear": "?", "better": "v", "worse": "!"}
# How the answers on the use of context are sorted, the best first.
ANSWERS = ("yes", "unclear", "no")


@dataclass(frozen=True)
class Heading:
    """A heading of a column. first: the direction of the first click on it, ascending or descending."""

    text: str
    small: str = ""
    first: str = "ascending"


@dataclass(frozen=True)
class ShortCell:
    """A cell of a line. value: what it is sorted by, as the script reads it; None where that is last.

    verdict: in words, empty where the cell has none. classes: of its column.
    """

    text: str
    value: str | None
    verdict: str = ""
    classes: str = ""

    @property
    def mark(self) -> str:
        return MARKS.get(self.verdict, "")


@dataclass(frozen=True)
class Details:
    """What a line opens for: a row for each fact at each length, and facts of the line as a whole."""

    lengths: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]
    facts: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class ShortLine:
    """A line of the table; key: what it has in common with its curves."""

    key: str
    label: str
    style: LineStyle
    cells: Sequence[ShortCell]
    details: Details


def headings(table: Table) -> list[Heading]:
    """Return the headings of a table's columns."""
    train_length = table.group.train_length
    change = f"vs {table.baseline}" if table.baseline else ""
    return [
        Heading("encoding"),
        Heading("works to", first="descending"),
        *([Heading(f"at {train_length}", "trained")] if train_length in table.lengths else []),
        *(Heading(f"{length}", change) for length in _beyond(table)),
        *([Heading("uses context")] if _is_controlled(table) else []),
    ]


def short_lines(table: Table, prefix: str, styles: Mapping[str, LineStyle]) -> list[ShortLine]:
    """Return the lines of a table; `prefix` begins their keys."""
    return [
        ShortLine(
            f"{prefix}-{place}",
            line.label,
            styles[line.label],
            list(_cells(line, table)),
            _details(line, table),
        )
        for place, line in enumerate(table.lines)
    ]


def describe_marks(table: Table) -> str:
    """Return in a sentence what the numbers and their marks are; empty where nothing was judged."""
    cells = [cell for line in table.lines for cell in line.cells.values()]
    verdicts = {verdict_of(cell, table) for cell in cells if cell.interval}
    if table.baseline:
        verdicts = {cell.baseline.verdict for cell in cells if cell.baseline and cell.baseline.interval}
    verdicts -= {""}
    if not verdicts:
        return ""
    against = (
        f"difference from {table.baseline}"
        if table.baseline
        else f"change against {table.group.train_length}"
    )
    marks = [f"{MARKS[verdict]} {verdict}" for verdict in MARKS if verdict in verdicts]
    unmarked = [f"no mark {verdict}" for verdict in ("holds", "same") if verdict in verdicts]
    return (
        f"bits per byte, lower is better; {against} on the same text: {', '.join([*unmarked, *marks])}. "
        "A line opens for intervals, controls and speed."
    )


def works_text(line: Line, table: Table) -> str:
    """Return the last length before the break point in words."""
    works_to = line.break_point.works_to
    if works_to is None:
        return "-"
    return "not at all" if works_to <= table.group.train_length else f"{works_to:,}"


def _beyond(table: Table) -> list[int]:
    return [length for length in table.lengths if length > table.group.train_length]


def _is_controlled(table: Table) -> bool:
    return any(cell.use for line in table.lines for cell in line.cells.values())


def _cells(line: Line, table: Table) -> Iterator[ShortCell]:
    yield ShortCell(works_text(line, table), _sortable(line.break_point.works_to), classes="works")
    trained = line.cells.get(table.group.train_length)
    if table.group.train_length in table.lengths:
        yield _level_cell(line, trained)
    for length in _beyond(table):
        yield _change_cell(line, line.cells.get(length), table)
    if _is_controlled(table):
        yield _context_cell(line)


def _level_cell(line: Line, cell: Cell | None) -> ShortCell:
    if cell is None or not cell.levels:
        return ShortCell(status_of(cell) if cell else "", None, classes="trained")
    return ShortCell(level_text(line, cell), _sortable(cell.bits_per_byte), classes="trained")


def _change_cell(line: Line, cell: Cell | None, table: Table) -> ShortCell:
    """Return the change, the difference from the baseline, or where there is neither the level."""
    if cell is None or not cell.levels:
        return ShortCell(status_of(cell) if cell else "", None)
    if table.baseline and line.label != table.baseline:
        if cell.baseline is None or cell.baseline.mean is None:
            return ShortCell("-", None)
        return ShortCell(signed(cell.baseline.mean), _sortable(cell.baseline.mean), cell.baseline.verdict)
    if cell.change is None:
        return ShortCell(level_text(line, cell), None)
    return ShortCell(signed(cell.change), _sortable(cell.change), verdict_of(cell, table))


def _context_cell(line: Line) -> ShortCell:
    """Return the answer at the longest length that has one."""
    answers = [cell.use.uses_context for _, cell in sorted(line.cells.items()) if cell.use]
    answer = next((answer for answer in reversed(answers) if answer), "")
    value = _sortable(ANSWERS.index(answer)) if answer in ANSWERS else None
    return ShortCell(answer or "-", value, classes=f"answer {answer}")


def _details(line: Line, table: Table) -> Details:
    cells = [line.cells.get(length) for length in table.lengths]
    rows = {
        "bits/byte": [_level_text(line, cell) for cell in cells],
        "perplexity": [perplexity_text(cell.perplexity) if cell else "" for cell in cells],
        "change": [signed(cell.change) if cell and cell.change is not None else "" for cell in cells],
        "95 %": [interval_text(cell.interval) if cell and cell.interval else "" for cell in cells],
        "verdict": [verdict_of(cell, table) if cell and cell.interval else "" for cell in cells],
        f"vs {table.baseline}": [
            difference_text(cell.baseline) if cell and cell.baseline else "" for cell in cells
        ],
        "  95 %": [
            interval_text(cell.baseline.interval) if cell and cell.baseline and cell.baseline.interval else ""
            for cell in cells
        ],
        "uses context": [cell.use.uses_context if cell and cell.use else "" for cell in cells],
        "beats window": [cell.use.beats_window if cell and cell.use else "" for cell in cells],
    }
    reasons = [f"{cell.length}: {cell.reason}" for cell in cells if cell and not cell.levels and cell.reason]
    memory = largest_memory(line)
    facts = {
        "break point": break_text(line.break_point),
        "seeds": f"{line.seeds}",
        "parameters": f"{line.parameters:,}",
        "trained tokens/s": f"{line.tokens_per_second:,.0f}",
        "MB at most": "" if memory is None else f"{memory:,.0f}",
        "no number at": "; ".join(reasons),
    }
    return Details(
        [f"{length}" for length in table.lengths],
        [(name, values) for name, values in rows.items() if any(values)],
        [(name, value) for name, value in facts.items() if value],
    )


def _level_text(line: Line, cell: Cell | None) -> str:
    if cell is None:
        return ""
    return level_text(line, cell) if cell.levels else status_of(cell)


def _sortable(value: float | None) -> str | None:
    """Return a value as the script reads it; None for what is no number and so sorts last."""
    if value is None or math.isnan(value):
        return None
    return repr(value) if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"
