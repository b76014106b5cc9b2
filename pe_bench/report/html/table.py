"""A table of the page: a line for each encoding, which opens for its details."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pe_bench.report.cell_text import answers_texts, break_text, level_text, number_text, of_model, verdict_of
from pe_bench.report.html.style import ANCHOR, LineStyle
from pe_bench.report.html.text import (
    difference_text,
    interval_text,
    perplexity_text,
    signed,
    status_of,
)
from pe_bench.report.short import (
    MISSING,
    Value,
    context_answer,
    has_controls,
    has_trained_level,
    level_at_training,
    short_lengths,
    value_at,
    works_to,
)
from pe_bench.report.tables.cells import Cell
from pe_bench.report.tables.lines import Line
from pe_bench.report.tables.ranking import largest_memory
from pe_bench.report.tables.table import Table

ANSWERS = ("yes", "unclear", "no")  # on the use of context, the best first


@dataclass(frozen=True)
class Heading:
    """A heading of a column. first: the direction of the first click on it, ascending or descending."""

    text: str
    small: str = ""
    first: str = "ascending"


@dataclass(frozen=True)
class ShortCell:
    """A cell of a line. value: what it is sorted by, as the script reads it; None where that is last.

    verdict: in words, empty where the cell has none, and mark its sign. classes: of its column.
    """

    text: str
    value: str | None
    verdict: str = ""
    classes: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Details:
    """The details of a line: a row for each fact at each length, and facts of the line as a whole."""

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
    difference = f"vs {table.baseline}" if table.baseline else ""
    return [
        Heading("encoding"),
        Heading("works to", first="descending"),
        *([Heading(f"at {table.key.train_length}")] if has_trained_level(table) else []),
        *(Heading(f"{length}", difference) for length in short_lengths(table)),
        *([Heading("uses context")] if has_controls(table) else []),
    ]


def short_lines(table: Table, prefix: str, styles: Mapping[str, LineStyle]) -> list[ShortLine]:
    """Return the lines of a table; `prefix` begins their keys."""
    return [
        ShortLine(
            f"{prefix}-{place}",
            line.label,
            ANCHOR if line.is_anchor else styles[line.label],
            list(_cells(line, table)),
            _details(line, table),
        )
        for place, line in enumerate(table.all_lines)
    ]


def _cells(line: Line, table: Table) -> Iterator[ShortCell]:
    yield ShortCell(works_to(line, table), _sortable(line.break_point.works_to), classes="works")
    if has_trained_level(table):
        yield _number_cell(level_at_training(line, table), line.cells.get(table.key.train_length), "trained")
    for length in short_lengths(table):
        found = _number_cell(value_at(line, length, table), line.cells.get(length))
        # The baseline shows levels among the others' differences from it.
        yield replace(found, value=_sortable(0.0)) if line.label == table.baseline else found
    if has_controls(table):
        answer = context_answer(line)
        place = ANSWERS.index(answer) if answer in ANSWERS else None
        yield ShortCell(
            answer, _sortable(place), classes=f"answer {answer}" if place is not None else "answer"
        )


def _number_cell(value: Value | None, cell: Cell | None, classes: str = "") -> ShortCell:
    if value is None:
        return ShortCell(status_of(cell) if cell and not cell.levels else MISSING, None, classes=classes)
    text = number_text(value.number) if value.is_level else signed(value.number)
    return ShortCell(text, _sortable(value.number), value.verdict, classes, value.mark)


def _details(line: Line, table: Table) -> Details:
    cells = [line.cells.get(length) for length in table.lengths]
    rows = {
        table.measure.name: [_level_text(line, cell) for cell in cells],
        "from": [answers_texts(cell)[0] if cell and cell.answers else "" for cell in cells],
        "to": [answers_texts(cell)[1] if cell and cell.answers else "" for cell in cells],
        "accuracy": [answers_texts(cell)[2] if cell and cell.answers else "" for cell in cells],
        "perplexity": [perplexity_text(cell.perplexity) if cell else "" for cell in cells],
        "change": [signed(cell.change) if cell and cell.change is not None else "" for cell in cells],
        "95 %": [interval_text(cell.interval) if cell and cell.interval else "" for cell in cells],
        "verdict": [
            verdict_of(cell, table) if cell and (cell.interval or cell.answers) else "" for cell in cells
        ],
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
    missing = [cell for cell in cells if cell and not cell.levels and cell.reason]
    lengths = ", ".join(f"{cell.length}" for cell in missing)
    memory = largest_memory(line)
    facts = {
        "break point": of_model(line, break_text(line.break_point)),
        "seeds": f"{line.seeds}",
        "parameters": of_model(line, f"{line.parameters:,}"),
        "trained tokens/s": of_model(line, f"{line.tokens_per_second:,.0f}"),
        "MB at most": "" if memory is None else f"{memory:,.0f}",
        "no number at": f"{lengths}: {missing[0].reason}" if missing else "",
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
