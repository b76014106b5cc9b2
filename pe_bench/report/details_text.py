"""The detailed form of a table, for a terminal or a pipe.

Each encoding has a row for its level, its change with the interval, and the verdict in words; colour only
repeats the word. Where a terminal is too narrow the table is cut into blocks, one below the other: of
lengths, and of facts about an encoding as a whole, which need one line for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table as PlainTable
from rich.text import Text

from pe_bench.report.cell_text import (
    answers_texts,
    break_text,
    change_text,
    context_answers,
    level_text,
    memory_text,
    of_model,
    pairs_text,
    verdict_of,
)
from pe_bench.report.legend import legend
from pe_bench.report.statistics import Interval
from pe_bench.report.tables.cells import Cell
from pe_bench.report.tables.lines import Line
from pe_bench.report.tables.table import Table
from pe_bench.report.verdict_styles import STYLES

UNLIMITED = 100_000  # columns, to measure a grid
MIN_LABEL = 14


@dataclass(frozen=True)
class DetailsColumn:
    """A column beside the names: its heading, and its text for an encoding."""

    heading: str
    value: Callable[[Line], Text]


def render_details(table: Table, width: int) -> Group:
    """Return the table with its title, legend and notes, in blocks of at most `width` columns."""
    parts: list[Text | PlainTable] = [Text(table.title, style="bold")]
    if table.why:
        parts.append(Text(table.why, style="italic"))
    for block in _blocks(table, width):
        parts += [block, Text()]
    parts += [Text(line, style="dim") for line in [*legend(table), *table.notes]]
    return Group(*parts)


def _blocks(table: Table, width: int) -> list[PlainTable]:
    """Return as few tables as fit: one, or else blocks of lengths and then of facts."""
    label_width = max(MIN_LABEL, width // 5)
    lengths, facts = _length_columns(table), _fact_columns(table)
    whole = _grid(table, [*lengths, *facts], label_width)
    if _measure(whole) <= width:
        return [whole]
    return [
        *_fitting(lengths, lambda columns: _grid(table, columns, label_width), width),
        *_fitting(facts, lambda columns: _grid(table, columns, label_width, has_row_names=False), width),
    ]


def _fitting(
    columns: Sequence[DetailsColumn], grid_of: Callable[[Sequence[DetailsColumn]], PlainTable], width: int
) -> list[PlainTable]:
    """Return the grids of columns, each with as many as stay within the width."""
    blocks: list[list[DetailsColumn]] = []
    for column in columns:
        longer = [*blocks[-1], column] if blocks else []
        if longer and _measure(grid_of(longer)) <= width:
            blocks[-1] = longer
        else:
            blocks.append([column])
    return list(map(grid_of, blocks))


def _length_columns(table: Table) -> list[DetailsColumn]:
    return [DetailsColumn(_heading(table, length), _cell_of(table, length)) for length in table.lengths]


def _fact_columns(table: Table) -> list[DetailsColumn]:
    controlled = any(cell.use for line in table.lines for cell in line.cells.values())
    return [
        *(_context_columns() if controlled else []),
        DetailsColumn("break\npoint", lambda line: Text(of_model(line, break_text(line.break_point)))),
        DetailsColumn("seeds", lambda line: Text(str(line.seeds))),
        DetailsColumn("param-\neters", lambda line: Text(of_model(line, f"{line.parameters:,}"))),
        DetailsColumn(
            "trained\ntokens/s", lambda line: Text(of_model(line, f"{line.tokens_per_second:,.0f}"))
        ),
        *(DetailsColumn(f"MB at\n{length}", _memory_of(length)) for length in table.lengths[-1:]),
    ]


def _context_columns() -> list[DetailsColumn]:
    return [
        DetailsColumn("uses\ncontext", lambda line: _answers(line, "uses_context")),
        DetailsColumn("beats\nwindow", lambda line: _answers(line, "beats_window")),
    ]


def _answers(line: Line, question: str) -> Text:
    answers = context_answers(line, question)
    return Text("\n").join(
        Text(f"{length} {answer}", style=STYLES.get(answer, "")) for length, answer in answers
    )


def _memory_of(length: int) -> Callable[[Line], Text]:
    return lambda line: Text(memory_text(line, length))


def _heading(table: Table, length: int) -> str:
    return f"{length}\ntrained" if length == table.key.train_length else str(length)


def _cell_of(table: Table, length: int) -> Callable[[Line], Text]:
    return lambda line: _cell_text(line, line.cells.get(length), table)


def _cell_text(line: Line, cell: Cell | None, table: Table) -> Text:
    if cell is None:
        return Text("")
    if not cell.levels:
        return Text(cell.status.replace("_", "\n"), style="red", justify="right")
    rows = [Text(level_text(line, cell)), *_level_rows(cell, verdict_of(cell, table), table)]
    if cell.baseline is not None:
        first, *others = _difference_rows(cell.baseline.mean, cell.baseline.interval, cell.baseline.verdict)
        rows += [first.append(pairs_text(line, cell)), *others]
    return Text("\n", justify="right").join(rows)


def _level_rows(cell: Cell, verdict: str, table: Table) -> list[Text]:
    """Return what stands below the level: the change, or of a task the interval and the accuracy."""
    if not table.is_task:
        return _difference_rows(cell.change, cell.interval, verdict)
    low, high, accuracy = answers_texts(cell) or ["", "", ""]
    judged = Text(verdict, style=STYLES.get(verdict, ""))
    return [Text(low, style="dim"), Text(high, style="dim"), Text(accuracy), judged]


def _difference_rows(mean: float | None, interval: Interval | None, verdict: str) -> list[Text]:
    low, high = (interval.low, interval.high) if interval is not None else (None, None)
    bounds = [Text(change_text(low), style="dim"), Text(change_text(high), style="dim")]
    return [Text(change_text(mean)), *bounds, Text(verdict, style=STYLES.get(verdict, ""))]


def _row_names(line: Line, table: Table) -> list[str]:
    bounds = ["  95 % from", "  to"]
    of_level = [*bounds, "accuracy"] if table.is_task else ["change", *bounds]
    names = [table.measure.name, *of_level, "verdict"]
    compared = table.baseline and line.label != table.baseline
    return [*names, f"vs {table.baseline}", *bounds, "verdict"] if compared else names


def _grid(
    table: Table, columns: Sequence[DetailsColumn], label_width: int, *, has_row_names: bool = True
) -> PlainTable:
    grid = PlainTable(
        box=box.SIMPLE, pad_edge=False, show_edge=False, show_lines=has_row_names, padding=(0, 1, 0, 0)
    )
    grid.add_column("encoding", max_width=label_width, overflow="fold")
    if has_row_names:
        grid.add_column("", no_wrap=True, style="dim")
    for column in columns:
        grid.add_column(column.heading, justify="right", no_wrap=True)
    for line in table.all_lines:
        names = [Text("\n".join(_row_names(line, table)))] if has_row_names else []
        grid.add_row(
            Text(line.label, style="dim" if line.is_anchor else "bold"),
            *names,
            *(column.value(line) for column in columns),
        )
    return grid


def _measure(grid: PlainTable) -> int:
    console = Console(width=UNLIMITED, height=UNLIMITED)  # with both it does not ask the terminal
    return Measurement.get(console, console.options, grid).maximum
