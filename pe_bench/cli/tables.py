"""The tables that a command prints after scoring runs."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pe_bench.cli.data import print_runs
from pe_bench.report.build import build_tables, run_tables
from pe_bench.report.columns import show
from pe_bench.report.groups import Selection
from pe_bench.report.records import Table
from pe_bench.runs.find import Condition
from pe_bench.runs.folder import encoding_in
from pe_bench.runs.typed import results_option
from pe_bench.system.terminal import say

if TYPE_CHECKING:
    from pe_bench.commands.evaluate import Run
    from pe_bench.commands.sweep.show import SweepTable

MAX_NAMES = 4  # the most encodings, or runs of `extend`, to name in a command to type


class RunsWithTables(NamedTuple):
    """Runs in one folder that the command scored, and their tables."""

    tables: list[Table]
    runs: Sequence[Path]


def tables_of_run(run: "Run") -> RunsWithTables:
    """Return a run with its table, or with several tables if its rows are not comparable."""
    tables = run_tables(run.scored, run.shown_path, run.margin, run.lengths)
    return RunsWithTables(tables, [run.shown_path])


def tables_by_folder(
    part: "SweepTable", lengths: Sequence[int] = (), **choice: Any
) -> Iterator[RunsWithTables]:
    """Yield the runs of each folder of results with their tables.

    lengths: the lengths that the command named. choice: values for fields of `Selection`.
    """
    where: tuple[Condition, ...] = ()
    if part.target_hashes:
        where = (Condition("target_hash", "=", tuple(part.target_hashes)),)
    selection = Selection(where=where, margin=part.margin, **choice)
    for folder in dict.fromkeys(run.parent for run in part.runs):
        runs = [run for run in part.runs if run.parent == folder]
        tables = build_tables(folder.parent, [run.name for run in runs], selection=selection)
        chosen = [replace(table, chosen=tuple(lengths)) for table in tables]
        yield RunsWithTables(chosen, runs)


def print_scored(
    command: str, parts: Iterable[RunsWithTables], failures: Iterable[str], *, as_json: bool
) -> None:
    """Print the tables of the scored runs, and the folders of the runs.

    as_json: print one JSON document in place of tables. failures: messages on runs that failed, for the JSON
    document; tables are printed without them.
    """
    parts = list(parts)
    if not as_json:
        for part in parts:
            _print_part(part)
        return
    runs = dict.fromkeys(chain.from_iterable(part.runs for part in parts))
    tables = list(chain.from_iterable(part.tables for part in parts))
    print_runs(command, runs, failures, tables=tables)


def print_quick_result(parts: Sequence[RunsWithTables]) -> None:
    """Say that a quick run went well; print where the runs are and the command that shows the table.

    The table itself is not printed, because the scores of a quick run mean nothing.
    """
    runs = list(chain.from_iterable(part.runs for part in parts))
    tables = chain.from_iterable(part.tables for part in parts)
    lines = sum(len(table.lines) for table in tables)
    rows = "1 row" if lines == 1 else f"{lines} rows"
    say(f"training, scoring and the table ({rows}) work; after so few steps the scores mean nothing")
    for folder in dict.fromkeys(run.parent for run in runs):
        say(f"the runs: {folder}   the table: pe-bench report{results_option(folder.parent)}")


def _print_part(part: RunsWithTables) -> None:
    runs = part.runs
    folder = runs[0].parent
    is_in_results = folder.name == "runs"
    option = results_option(folder.parent)
    command = details_command(runs, folder.parent)
    show(part.tables, hint=f"95 % intervals, controls, speed: {command}" if is_in_results else "")
    say(f"the run: {runs[0]}" if len(runs) == 1 else f"the runs: {folder}")
    if is_in_results:
        say(f"all rows: {folder.parent / 'results.csv'}   compare: pe-bench report{option}")


def details_command(
    runs: Sequence[Path], results_dir: Path, *, max_runs: int = 1, otherwise: Sequence[str] = ()
) -> str:
    """Return the command that shows the details of runs; it names up to `max_runs` runs, else encodings.

    otherwise: the arguments in place of more than `MAX_NAMES` encodings.
    """
    names = sorted({encoding_in(run.name) for run in runs})
    if len(runs) <= max_runs:
        names = [run.name for run in runs]
    elif len(names) > MAX_NAMES:
        names = [*otherwise]
    return f"pe-bench report{results_option(results_dir)} {shlex.join([*names, '--details'])}"
