"""The tables that commands print: of runs that were just scored, and plain ones of names and facts."""

import shlex
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.cli.data import print_runs
from pe_bench.report.build import build_tables, run_tables
from pe_bench.report.columns import show as show_tables
from pe_bench.report.records import Table
from pe_bench.report.selection import Selection
from pe_bench.runs.commands import results_option
from pe_bench.runs.find import Condition
from pe_bench.runs.gather import results_file
from pe_bench.runs.job import encoding_in
from pe_bench.system.grid import MIN_FOLDED, Cell, Column, Grid, draw, show
from pe_bench.system.terminal import one_line, say

if TYPE_CHECKING:
    from pe_bench.scored import Run
    from pe_bench.sweep.show import SweepTable

Fact = str | int | float | None
MAX_NAMES = 4  # of encodings, in a command to type


def print_scored(
    command: str,
    alone: "Sequence[Run]",
    together: "Sequence[SweepTable]",
    failures: Iterable[str],
    *,
    as_json: bool,
    **choice: Any,
) -> None:
    """Print the tables of runs, or their data, and where the runs are.

    alone: runs that have tables of their own. together: runs that share tables. choice: fields of `Selection`
    for the shared tables.
    """
    runs = list(dict.fromkeys(run for part in together for run in part.runs))
    shared = {
        results_dir: [table for part in together for table in _shared_tables(part, results_dir, **choice)]
        for results_dir in dict.fromkeys(run.parent.parent for run in runs)
    }
    if as_json:
        tables = chain(*map(_tables_of_run, alone), *shared.values())
        print_runs(command, [*(run.path for run in alone), *runs], failures, tables=tables)
        return
    for run in alone:
        print_run(run)
    for results_dir, tables in shared.items():
        _print_tables(tables, [run for run in runs if run.parent.parent == results_dir])


def print_run(run: "Run") -> None:
    """Print the table of one run in any folder, and where it is; several if its rows cannot be compared."""
    _print_tables(_tables_of_run(run), [run.path])


def _tables_of_run(run: "Run") -> list[Table]:
    return run_tables(run.scored, run.path, run.margin, run.lengths)


def _shared_tables(part: "SweepTable", results_dir: Path, **choice: Any) -> list[Table]:
    names = [run.name for run in part.runs if run.parent.parent == results_dir]
    where = (Condition("target_hash", "=", tuple(part.target_hashes)),) if part.target_hashes else ()
    selection = Selection(where=where, margin=part.margin, **choice)
    return build_tables(results_dir, names, selection=selection) if names else []


def _print_tables(tables: Sequence[Table], runs: Sequence[Path]) -> None:
    """Print tables of runs in one folder, where these are, and how to see more about them and to compare."""
    folder = runs[0].parent
    option, is_in_results = results_option(folder.parent), folder.name == "runs"
    encodings = sorted({encoding_in(run.name) for run in runs})
    names = [run.name for run in runs] if len(runs) == 1 else encodings if len(encodings) <= MAX_NAMES else []
    command = f"pe-bench report{option} {shlex.join([*names, '--details'])}"
    show_tables(tables, hint=f"95 % intervals, controls, speed: {command}" if is_in_results else "")
    say(f"the run: {runs[0]}" if len(runs) == 1 else f"the runs: {folder}")
    if is_in_results:
        say(f"all rows: {results_file(folder.parent)}   compare: pe-bench report{option}")


def print_grids(grids: Iterable[Grid]) -> None:
    """Print grids one below the other, with a blank line between them."""
    show([partial(draw, grid) for grid in grids])


def plain_grid(
    headings: Sequence[str], rows: Iterable[Sequence[Cell | Fact]], notes: Sequence[str] = ()
) -> Grid:
    """Return a table that breaks no name of the first column."""
    cells = [list(map(_cell, row)) for row in rows]
    columns = [Column(headings[0], is_left=True)]
    for index, heading in enumerate(headings[1:], 1):
        is_left = not any(row[index].text.replace(",", "").isdecimal() for row in cells)
        columns.append(Column(heading, is_left, MIN_FOLDED))
    return Grid(columns, cells, notes=notes)


def _cell(value: Cell | Fact) -> Cell:
    if value is None or isinstance(value, Cell):
        return value or Cell()
    if isinstance(value, str):
        return Cell(one_line(value))
    return Cell(f"{value:,}" if isinstance(value, int) else f"{value:.3f}")
