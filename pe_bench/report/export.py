"""Tables for other programs: GitHub's Markdown, and a long data frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pe_bench.report.cells import Cell
from pe_bench.report.tables import Line, Table
from pe_bench.report.text import change_text, legend, level_text

if TYPE_CHECKING:
    import pandas

COLUMNS = (
    *("model", "data", "data_hash", "tokenizer", "train_length", "steps", "setting", "protocol"),
    *("stride_rule", "encoding", "scored_with", "run", "length", "stride", "status", "reason", "seeds"),
    *("documents", "targets"),
    *("bits_per_byte", "perplexity", "change", "change_low", "change_high", "verdict", "break_point"),
    *("parameters", "tokens_per_second", "peak_memory_mb", "target_hash"),
)


def to_frame(tables: Sequence[Table]) -> pandas.DataFrame:
    """One row for each line and length of each table, in the tables' order.

    `run` is empty where seeds are averaged; `stride` is the number of tokens at that length.
    """
    import pandas

    records = [
        {**vars(table.group), **_line_record(line), **_cell_record(cell)}
        for table in tables
        for line in table.lines
        for _, cell in sorted(line.cells.items())
    ]
    # Whole numbers that may be missing: plain pandas would write 32.0.
    return pandas.DataFrame.from_records(records, columns=list(COLUMNS)).astype({"stride": "Int64"})


def to_markdown(tables: Sequence[Table]) -> str:
    """The tables one below the other, each with its title and notes; a cell is level and change."""
    return "\n\n".join(_markdown(table) for table in tables) + "\n"


def _line_record(line: Line) -> dict[str, Any]:
    names = ("encoding", "scored_with", "run", "break_point", "parameters", "tokens_per_second")
    return {name: getattr(line, name) for name in names}


def _cell_record(cell: Cell) -> dict[str, Any]:
    names = ("length", "stride", "status", "reason", "documents", "targets", "target_hash")
    numbers = ("bits_per_byte", "perplexity", "change", "verdict", "peak_memory_mb")
    record = {name: getattr(cell, name) for name in (*names, *numbers)}
    low, high = (cell.interval.low, cell.interval.high) if cell.interval else (None, None)
    return {**record, "seeds": len(cell.levels), "change_low": low, "change_high": high}


def _markdown(table: Table) -> str:
    headings = ["encoding", *(_heading(table, length) for length in table.lengths)]
    headings += ["break point", "seeds", "parameters"]
    rule = ["---", *["---:"] * (len(headings) - 1)]
    grid = [headings, rule, *(_cells(line, table) for line in table.lines)]
    parts = [f"**{table.title}**"]
    if table.why:
        parts.append(table.why)
    parts.append("\n".join(f"| {' | '.join(row)} |" for row in grid))
    parts.append(
        "\n".join(f"- {note}" for note in ["cells: bits per byte (change)", *legend(table), *table.notes])
    )
    return "\n\n".join(parts)


def _heading(table: Table, length: int) -> str:
    return f"{length} (trained)" if length == table.group.train_length else str(length)


def _cells(line: Line, table: Table) -> list[str]:
    cells = [_cell(line, line.cells.get(length), table) for length in table.lengths]
    values = [line.label, *cells, line.break_point, str(line.seeds), f"{line.parameters:,}"]
    return [value.replace("|", r"\|") for value in values]


def _cell(line: Line, cell: Cell | None, table: Table) -> str:
    if cell is None:
        return ""
    if not cell.levels:
        return cell.status.replace("_", " ")
    change = change_text(cell, table)
    return level_text(line, cell) + (f" ({change})" if change else "")
