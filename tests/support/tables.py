"""Tables of written runs, and what a person reads of them."""

import io
from pathlib import Path

import numpy as np
from rich.console import Console

from pe_bench.report.build import build_tables
from pe_bench.report.columns import show
from pe_bench.report.groups import Selection
from pe_bench.report.records import Line, Table
from pe_bench.report.statistics import Interval
from pe_bench.runs.find import Condition, parse_condition
from pe_bench.runs.rows import read_rows
from pe_bench.runs.scores import load_scores, score_file

FLAT = {64: 3.1, 128: 3.0, 256: 3.002, 512: 3.003}
HOLDING = {64: 3.1, 128: 3.0, 256: 3.0, 512: 3.0}
BREAKING = {64: 2.9, 128: 2.7, 256: 2.8, 512: 4.0}


def only(results_dir: Path, **selection: object) -> Table:
    [table] = build_tables(results_dir, selection=Selection(**selection))  # type: ignore[arg-type]
    return table


def labels(table: Table) -> list[str]:
    return [line.label for line in table.lines]


def where(*conditions: str) -> tuple[Condition, ...]:
    return tuple(map(parse_condition, conditions))


def line_of(table: Table, label: str) -> Line:
    return next(line for line in table.lines if line.label == label)


def interval(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, 3, 30)


def bits_at(run: Path, length: int, control: str = "none") -> np.ndarray:
    """Return the bits per byte of each document."""
    [row] = [row for row in read_rows(run / "eval.csv") if (row.length, row.control) == (length, control)]
    return load_scores(score_file(run, row)).by_cluster()[1]


def printed(tables: list[Table], width: int | None = None, *, details: bool = False) -> str:
    """Return what a pipe gets, or a terminal of this width without colours."""
    file = io.StringIO()
    console = Console(file=file, width=width or 80, force_terminal=width is not None, color_system=None)
    show(tables, console, details=details)
    return file.getvalue()
