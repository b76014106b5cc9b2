"""The tables that commands print: of runs that were just scored, and plain ones of names and facts."""

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
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
from pe_bench.runs.gather import results_file, runs_folder
from pe_bench.runs.job import encoding_in
from pe_bench.system.grid import MIN_FOLDED, Cell, Column, Grid, draw, show
from pe_bench.system.terminal import one_line, say

if TYPE_CHECKING:
    from pe_bench.scored import Run
    from pe_bench.sweep.show import SweepTable

Fact = str | int | float | None
MAX_NAMES = 4  # of encodings, in a command to type
MAX_LINK = 33  # characters of a link that a narrow terminal does not break


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
    shared = _shared_tables(together, **choice)
    if as_json:
        tables = chain(*map(_tables_of_run, alone), *shared.values())
        runs = dict.fromkeys([*(run.path for run in alone), *(run for part in together for run in part.runs)])
        print_runs(command, runs, failures, tables=tables)
        return
    for run in alone:
        print_run(run)
    for results_dir, tables in shared.items():
        show_tables(tables, hint=_hint(results_dir, [run for part in together for run in part.runs]))
        say(f"the runs: {runs_folder(results_dir)}")
        _say_how_to_compare(results_dir)


def print_run(run: "Run") -> None:
    """Print the table of one run in any folder, and where it is.

    There are several tables if rows of the run cannot be compared.
    """
    folder = run.path if run.path.parent.name == "runs" else Path(os.path.abspath(run.path))
    results_dir, in_results = folder.parent.parent, folder.parent.name == "runs"
    show_tables(_tables_of_run(run), hint=_hint(results_dir, [run.path]) if in_results else "")
    say(f"the run: {run.path}")
    if in_results:
        _say_how_to_compare(results_dir)


def _tables_of_run(run: "Run") -> list[Table]:
    return run_tables(run.scored, run.path, run.margin, run.lengths)


def _say_how_to_compare(results_dir: Path) -> None:
    say(f"all rows: {results_file(results_dir)}   compare: pe-bench report{results_option(results_dir)}")


def _hint(results_dir: Path, runs: Sequence[Path]) -> str:
    """Return how to see more about these runs."""
    names = {run.name if len(runs) == 1 else encoding_in(run.name) for run in runs}
    named = [shlex.quote(name) for name in sorted(names)] if len(names) <= MAX_NAMES else []
    command = " ".join([f"pe-bench report{results_option(results_dir)}", *named])
    return f"95 % intervals, controls, speed: {command} --details"


def _shared_tables(together: "Sequence[SweepTable]", **choice: Any) -> dict[Path, list[Table]]:
    """Return the tables of runs by their folder of results."""
    folders = dict.fromkeys(run.parent.parent for part in together for run in part.runs)
    return {
        results_dir: [table for part in together for table in _tables_of(part, results_dir, **choice)]
        for results_dir in folders
    }


def _tables_of(part: "SweepTable", results_dir: Path, **choice: Any) -> list[Table]:
    names = [run.name for run in part.runs if run.parent.parent == results_dir]
    where = (Condition("target_hash", "=", tuple(part.target_hashes)),) if part.target_hashes else ()
    selection = Selection(where=where, margin=part.margin, **choice)
    tables = build_tables(results_dir, names, selection=selection) if names else []
    if not part.words:
        return tables
    apart = f"{part.words}: other values of the sweep have tables of their own"
    return [replace(table, why="; ".join(filter(None, (apart, table.why)))) for table in tables]


def print_grids(grids: Iterable[Grid]) -> None:
    """Print grids one below the other, with a blank line between them."""
    show([partial(draw, grid) for grid in grids])


def plain_grid(
    headings: Sequence[str], rows: Iterable[Sequence[Cell | Fact]], notes: Sequence[str] = ()
) -> Grid:
    """Return a table that breaks no name of the first column, and no link of usual length."""
    cells = [list(map(_cell, row)) for row in rows]
    columns = [Column(headings[0], is_left=True)]
    for index, heading in enumerate(headings[1:], 1):
        texts = [row[index].text for row in cells]
        links = [
            len(word) for text in texts for word in text.split() if "://" in word and len(word) <= MAX_LINK
        ]
        is_left = not any(text.replace(",", "").isdecimal() for text in texts)
        columns.append(Column(heading, is_left, least=max([MIN_FOLDED, *links])))
    return Grid(columns, cells, notes=notes)


def _cell(value: Cell | Fact) -> Cell:
    if value is None or isinstance(value, Cell):
        return value or Cell()
    if isinstance(value, str):
        return Cell(one_line(value))
    return Cell(f"{value:,}" if isinstance(value, int) else f"{value:.3f}")
