"""A table for a terminal or a pipe.

Each encoding has three lines: bits per byte, perplexity, and the change with the mark of its
verdict. Colour only repeats what the mark says. Where a terminal is too narrow for all lengths
the table is cut into blocks of columns, one below the other.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from pe_bench.report.cells import Cell
from pe_bench.report.tables import Line, Table
from pe_bench.terminal import write_out

MARKS = {"improves": "<", "holds": "=", "degrades": ">", "fails": "!", "unclear": "?"}
MEANINGS = {
    "improves": "improves (by more than 0.01 bits/byte)",
    "holds": "holds (within 0.01)",
    "degrades": "degrades (by more than 0.01)",
    "fails": "fails (by more than 0.25)",
    "unclear": "unclear",
}
STYLES = {
    "improves": "cyan",
    "holds": "green",
    "degrades": "yellow",
    "fails": "bold red",
    "unclear": "magenta",
}
UNLIMITED = 100_000  # columns: a pipe has no width, and nothing may be cut
NARROWEST_LABEL = 14


@dataclass(frozen=True)
class Column:
    """A column beside the labels: its heading, and what stands in it for an encoding."""

    heading: str
    value: Callable[[Line], Text]


def show(tables: Sequence[Table], console: Console | None = None) -> None:
    """Print tables on the console, standard output by default; whole lines where it is no terminal."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = UNLIMITED
    with console.capture() as captured:
        for index, table in enumerate(tables):
            if index:
                console.print()
            console.print(render(table, console.width), highlight=False)
    write_out(captured.get(), console.file)


def render(table: Table, width: int = UNLIMITED) -> Group:
    """The table with its title, legend and notes, in blocks of at most `width` columns."""
    parts: list[Text | Grid] = [Text(table.title, style="bold")]
    if table.why:
        parts.append(Text(table.why, style="italic"))
    for block in _blocks(table, width):
        parts += [block, Text()]
    parts += [Text(line, style="dim") for line in [*legend(table), *table.notes]]
    return Group(*parts)


def legend(table: Table) -> list[str]:
    """What the table's marks mean, the used ones only, and what they do not judge."""
    beyond = [cell for line in table.lines for cell in line.cells.values() if mark(cell, table)]
    used = {cell.verdict for cell in beyond}
    train_length = table.group.train_length
    lines = []
    if any(cell.change is not None for line in table.lines for cell in line.cells.values()):
        lines.append(f"change: in bits/byte against length {train_length}, on the same targets; + is worse")
    if used:
        lines[-1] += "; by its 95 % interval: " + ", ".join(
            f"{MARKS[name]} {MEANINGS[name]}" for name in MARKS if name in used
        )
    return lines


def mark(cell: Cell, table: Table) -> str:
    """The mark of a verdict. None below the training length, where less context costs by nature."""
    return MARKS.get(cell.verdict, "") if cell.length >= table.group.train_length else ""


def change_text(cell: Cell, table: Table) -> str:
    if cell.change is None:
        return ""
    return f"{cell.change:+.3f} {mark(cell, table)}".rstrip()


def level_text(line: Line, cell: Cell) -> str:
    """Bits per byte, and the number of seeds where it is not all of the encoding's."""
    seeds = len(cell.levels)
    return f"{cell.bits_per_byte:.3f}" + (f" (n={seeds})" if seeds != line.seeds else "")


def perplexity_text(value: float | None) -> str:
    if value is None:
        return ""
    if not math.isfinite(value) or value >= 100_000:
        return f"{value:.1e}" if math.isfinite(value) else str(value)
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _blocks(table: Table, width: int) -> list[Grid]:
    """As few tables as fit: columns go to a block as long as it stays within the width."""
    label_width = max(NARROWEST_LABEL, width // 5)
    blocks: list[list[Column]] = []
    for column in _columns(table):
        longer = [*blocks[-1], column] if blocks else []
        if longer and _measure(_grid(table, longer, label_width)) <= width:
            blocks[-1] = longer
        else:
            blocks.append([column])
    return [_grid(table, block, label_width) for block in blocks]


def _columns(table: Table) -> list[Column]:
    lengths = [Column(_heading(table, length), _cell_of(table, length)) for length in table.lengths]
    return [
        *lengths,
        Column("break\npoint", lambda line: Text(line.break_point)),
        Column("seeds", lambda line: Text(str(line.seeds))),
        Column("parameters", lambda line: Text(f"{line.parameters:,}")),
    ]


def _heading(table: Table, length: int) -> str:
    return f"{length}\ntrained" if length == table.group.train_length else str(length)


def _cell_of(table: Table, length: int) -> Callable[[Line], Text]:
    return lambda line: _cell_text(line, line.cells.get(length), table)


def _cell_text(line: Line, cell: Cell | None, table: Table) -> Text:
    if cell is None:
        return Text("")
    if not cell.levels:
        return Text(cell.status.replace("_", "\n"), style="red", justify="right")
    style = STYLES.get(cell.verdict, "") if mark(cell, table) else ""
    return Text.assemble(
        level_text(line, cell),
        "\n",
        (perplexity_text(cell.perplexity), "dim"),
        "\n",
        (change_text(cell, table), style),
        justify="right",
    )


def _grid(table: Table, columns: Sequence[Column], label_width: int) -> Grid:
    grid = Grid(box=box.SIMPLE, pad_edge=False, show_edge=False, show_lines=True, padding=(0, 1, 0, 0))
    grid.add_column("encoding", max_width=label_width, overflow="fold")
    grid.add_column("", no_wrap=True, style="dim")
    for column in columns:
        grid.add_column(column.heading, justify="right", no_wrap=True)
    for line in table.lines:
        names = Text("bits/byte\nperplexity\nchange")
        grid.add_row(Text(line.label, style="bold"), names, *(column.value(line) for column in columns))
    return grid


def _measure(grid: Grid) -> int:
    console = Console(width=UNLIMITED)
    return Measurement.get(console, console.options, grid).maximum
