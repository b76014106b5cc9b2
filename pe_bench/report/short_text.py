"""The short form of a table for a terminal or a pipe: at most 100 columns, each encoding on one line."""

import textwrap
from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from pe_bench.report.cell_text import number_text
from pe_bench.report.short import (
    MARKS,
    MISSING,
    Value,
    broken_name,
    context_answer,
    fitted,
    has_controls,
    has_trained_level,
    level_at_training,
    recall_lengths,
    short_legend,
    short_lengths,
    short_title,
    slice_text,
    value_at,
    works_to,
)
from pe_bench.report.tables.lines import Line
from pe_bench.report.tables.table import Table, slice_name
from pe_bench.report.verdict_styles import STYLES
from pe_bench.system.terminal import wrap

WIDTH = 100  # columns at most, and in a pipe
GAP = "  "
MARK_WIDTH = 2
MARKED = {" ", *MARKS.values()}  # the last sign of a number: its mark, or a blank

Cells = list[Text]


def render_short(table: Table, width: int, hint: str) -> list[Text]:
    """Return the lines of the table in at most `width` columns; hint: where more of it is shown.

    The hint stays in one line: a command that we broke could not be copied.
    """
    width = min(width, WIDTH)
    grid, dropped = _fitted(table, width)
    rule = Text("-" * max(row.cell_len for row in grid))
    notes = [*short_legend(table, dropped), *table.caveats]
    title = [Text(line, style="bold") for line in _joined(short_title(table), width)]
    why = _wrapped(table.why, width, "italic")
    below = [line for text in notes for line in _wrapped(text, width, "dim")]
    recall = [Text(), *_recall(table.recall, width)] if table.recall is not None else []
    last = [Text(hint, style="dim")] if hint else []
    return [*title, *why, Text(), grid[0], rule, *grid[1:], Text(), *below, *recall, *last]


def _recall(table: Table, width: int) -> list[Text]:
    """Return the small table of a slice below that of all targets, with the lengths that tell most."""
    lengths = recall_lengths(table)
    columns = _columns(table, lengths, is_small=True)
    room = width - sum(map(_width, columns)) - len(GAP) * len(columns)
    names = [broken_name(line.label, room, cell_len) for line in table.all_lines]
    grid = _aligned([["encoding"], *names], columns, len(table.anchors))
    rule = Text("-" * max(row.cell_len for row in grid))
    title = Text(f"targets: {slice_name(table)}", style="bold")
    notes = [f"{slice_text(table)}; all lengths: --slice {table.key.slice}", table.lacking]
    below = [line for text in notes if text for line in _wrapped(text, width, "dim")]
    return [title, Text(), grid[0], rule, *grid[1:], Text(), *below]


def _fitted(table: Table, width: int) -> tuple[list[Text], list[int]]:
    """Return the grid's lines with as many lengths as fit, and the lengths that do not."""

    def room(lengths: Sequence[int]) -> int:
        columns = _columns(table, lengths)
        return width - sum(map(_width, columns)) - len(GAP) * len(columns)

    names, shown = fitted(table, room, cell_len)
    dropped = [length for length in short_lengths(table) if length not in shown]
    return _aligned([["encoding"], *names], _columns(table, shown), len(table.anchors)), dropped


def _columns(table: Table, lengths: Sequence[int], *, is_small: bool = False) -> list[Cells]:
    """Return the columns beside the names, each with its heading; a small table has no break points."""
    lines = table.all_lines
    columns = []
    if has_trained_level(table):
        levels = [level_at_training(line, table) for line in lines]
        columns.append([Text(f"at {table.key.train_length}"), *map(_value_text, levels)])
    for length in lengths:
        columns.append([Text(str(length)), *(_value_text(value_at(line, length, table)) for line in lines)])
    if not is_small:
        columns.append([Text("works to"), *(_works_text(works_to(line, table)) for line in lines)])
    if has_controls(table):
        columns.append([Text("uses context"), *map(_answer, lines)])
    return columns


def _value_text(value: Value | None) -> Text:
    """Return a number with its mark, or with a blank, which keeps digits below each other."""
    if value is None:
        return Text(MISSING)
    number = number_text(value.number, "" if value.is_level else "+")
    return Text(f"{number}{value.mark:<{MARK_WIDTH}}", style=STYLES.get(value.verdict, ""))


def _works_text(length: str) -> Text:
    """Return a length with its mark, or with a blank."""
    return Text(length if not length[0].isdecimal() or length.endswith("?") else f"{length} ")


def _answer(line: Line) -> Text:
    answer = context_answer(line)
    return Text(answer, style=STYLES.get(answer, ""))


def _width(column: Cells) -> int:
    return max(cell.cell_len for cell in column)


def _aligned(names: Sequence[Sequence[str]], columns: Sequence[Cells], faint: int) -> list[Text]:
    """Return the rows of the grid: names to the left, in one line or more, and all else to the right.

    faint: how many of the last names are no encodings.
    """
    columns = [_without_marks(column) for column in columns]
    name_width, widths = max(cell_len(line) for lines in names for line in lines), list(map(_width, columns))
    rows: list[Text] = []
    for place, ((first, *others), *cells) in enumerate(zip(names, *columns, strict=True)):
        row = Text(first + " " * (name_width - cell_len(first)))
        for cell, width in zip(cells, widths, strict=True):
            row += Text.assemble(GAP, " " * (width - cell.cell_len), cell)
        row.rstrip()
        style = "dim" if place >= len(names) - faint else ""
        rows += [Text(style=style).append_text(part) for part in (row, *map(Text, others))]
    return rows


def _without_marks(column: Cells) -> Cells:
    """Return a column without the blanks that all its numbers have in the marks' place."""
    blanks = [len(cell.plain) - len(cell.plain.rstrip()) for cell in column if cell.plain[-1] in MARKED]
    spare = min(blanks, default=0)
    return [
        cell[: len(cell) - spare] if spare and cell.plain.endswith(" " * spare) else cell for cell in column
    ]


def _joined(parts: Sequence[str], width: int) -> list[str]:
    """Return the parts on as few lines as hold them, none cut that has a line's room."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]} · {part}" if lines else ""
        if lines and cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines += textwrap.wrap(part, width)
    return lines


def _wrapped(text: str, width: int, style: str) -> list[Text]:
    return [Text(line, style=style) for line in wrap(text, width).split("\n") if text]
