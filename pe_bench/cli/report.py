"""The `report` command, and the table after a run: to the terminal, and to files."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.api import read_report, read_selection, require_levels, say_problems
from pe_bench.config.parse import parse_lengths
from pe_bench.errors import UserError, require
from pe_bench.report.build import Report, build_tables, run_tables
from pe_bench.report.columns import show, to_latex, to_markdown
from pe_bench.report.curves import PlotValues
from pe_bench.report.export import to_csv
from pe_bench.report.probes import probes_to_csv, probes_to_markdown, show_probes
from pe_bench.report.records import Table
from pe_bench.report.selection import Selection
from pe_bench.report.statistics import MARGIN
from pe_bench.runs.commands import results_option
from pe_bench.runs.find import Condition
from pe_bench.runs.gather import results_file, runs_folder
from pe_bench.runs.rows import Row
from pe_bench.system.files import write_text
from pe_bench.system.terminal import say, write_out
from pe_bench.values import check_type

if TYPE_CHECKING:
    from pe_bench.sweep.states import SweepTable


STANDARD_OUTPUT = Path("-")
TEXTS = ("--csv", "--markdown", "--latex")


@dataclass(frozen=True)
class Outputs:
    """Files to write beside the table that is printed; `-` prints text in its place."""

    csv: Path | None = None
    markdown: Path | None = None
    latex: Path | None = None
    html: Path | None = None
    plot: Path | None = None
    view: PlotValues = "levels"  # of the pictures

    @property
    def files(self) -> dict[str, Path]:
        """Return the files by the option that names them."""
        return {option: path for option, path in self._given.items() if path != STANDARD_OUTPUT}

    @property
    def printed(self) -> list[str]:
        """Return the options that print in place of the table."""
        return [option for option, path in self._given.items() if path == STANDARD_OUTPUT]

    @property
    def _given(self) -> dict[str, Path]:
        return {f"--{name}": path for name, path in vars(self).items() if isinstance(path, Path)}


def check_outputs(outputs: Outputs) -> None:
    """Raises `UserError` for a target that cannot be written, with the way out."""
    for option in outputs.printed:
        if option not in TEXTS:
            raise UserError(f"{option} - would print something other than text: name a file")
    if len(outputs.printed) > 1:
        options = " and ".join(f"{option} -" for option in outputs.printed)
        raise UserError(f"{options} all print instead of the table: choose one of them")
    taken: dict[Path, str] = {}
    for option, path in outputs.files.items():
        _require_writable(option, path)
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise UserError(f"{other} and {option} both name {path}: name a file for each")
    if outputs.plot is not None:
        from pe_bench.plot.paper import picture_format

        picture_format(outputs.plot)


def text_of(option: str, tables: Sequence[Table], details: bool) -> str:
    """Return what an option of `TEXTS` writes; the numbers of CSV are the same with and without details."""
    if option == "--markdown":
        return to_markdown(tables, details=details)
    if option == "--latex":
        return to_latex(tables, details=details)
    return to_csv(tables)


def _require_writable(option: str, path: Path) -> None:
    folder = path.parent
    if not folder.is_dir():
        raise UserError(f"{option} {path}: there is no folder {folder}; make it, or name a file elsewhere")
    if path.is_dir():
        raise UserError(f"{option} {path} is a folder: name a file in it")
    if path.exists() and not path.is_file():
        raise UserError(f"{option} {path} is not a regular file: name one that may be replaced")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UserError(f"{option} {path} cannot be written (no permission): name a file elsewhere")


HINTS = ("intervals: --details", "marks: docs/marks.md")
PICTURE_HINT = "picture: --plot curve.png"


def print_run(rows: list[Row], run: Path, margin: float = MARGIN, asked: Sequence[int] = ()) -> None:
    """Print the table of one run, and where its parts are; `run` is its directory, wherever that is.

    There are several tables where its rows contradict each other. asked: lengths that the user named.
    """
    tables = run_tables(rows, run, margin, asked)
    folder = run if run.parent.name == "runs" else Path(os.path.abspath(run))
    results_dir = folder.parent.parent
    in_results = folder.parent.name == "runs"
    show(tables, hint=_hint(results_dir, [run]) if in_results else "")
    if any(line.positions for table in tables for line in table.lines):
        say("the scores by position: in pictures, pe-bench report --plot FILE.png or --html FILE.html")
    if in_results:
        command = f"pe-bench report{results_option(results_dir)}"
        say(f"the run: {run}   all rows: {results_file(results_dir)}   compare: {command}")
    else:
        say(f"the run: {run}")


def _hint(results_dir: Path, runs: Sequence[Path]) -> str:
    """Return how to see more of what a command printed of these runs."""
    names = shlex.join(run.name for run in runs[:1]) if len(runs) == 1 else ""
    command = f"pe-bench report{results_option(results_dir)} {names}".rstrip()
    return f"95 % intervals, controls, speed: {command} --details"


def print_sweep_tables(sweep_tables: Sequence["SweepTable"]) -> None:
    """Print the tables of a sweep, and where its runs are."""
    folders = {run.parent.parent: None for part in sweep_tables for run in part.runs}
    for results_dir in folders:
        tables = [table for part in sweep_tables for table in _tables_of(part, results_dir)]
        show(tables, hint=_hint(results_dir, [run for part in sweep_tables for run in part.runs]))
        rows, command = results_file(results_dir), f"pe-bench report{results_option(results_dir)}"
        say(f"the runs: {runs_folder(results_dir)}   all rows: {rows}   compare: {command}")


def _tables_of(part: "SweepTable", results_dir: Path) -> list[Table]:
    names = [run.name for run in part.runs if run.parent.parent == results_dir]
    where = (Condition("target_hash", "=", tuple(part.target_hashes)),) if part.target_hashes else ()
    selection = Selection(where=where, margin=part.margin)
    tables = build_tables(results_dir, names, selection=selection) if names else []
    if not part.words:
        return tables
    apart = f"{part.words}: other values of the sweep have tables of their own"
    return [replace(table, why="; ".join(filter(None, (apart, table.why)))) for table in tables]


def report(
    runs: Sequence[str] | None,
    protocol: str | None,
    where: Sequence[str] | None,
    by: str | None,
    best: str | None,
    sort: str | None,
    baseline: str | None,
    margin: float | None,
    slice_: str | None,
    plot_of: str | None,
    lengths: str | None,
    results_dir: Path,
    *,
    details: bool,
    probe: bool,
    everything: bool,
    **files: Path | None,
) -> None:
    """Print and write the newest run's tables, or those of the named runs, of a selection, or of everything.

    files: those to write. Raises `UserError` where there is none, before anything is printed.
    """
    selection = read_selection(where, by, sort, baseline, margin, best, slice_)
    if lengths is not None:
        selection = replace(selection, lengths=tuple(parse_lengths(lengths)))
    outputs = Outputs(**files, view=read_view(plot_of, files["plot"] or files["html"]))
    check_outputs(outputs)
    require(
        not probe or outputs.latex is None,
        "--latex has no table of probes: write it with --markdown or --csv",
    )
    numbers_only = outputs.printed == ["--csv"] and not outputs.files and not probe
    selection = replace(selection, numbers_only=numbers_only)
    tables = read_report(results_dir, runs, None if probe else protocol, selection, everything=everything)
    if probe:
        print_probes(tables, outputs)
    else:
        print_report(tables, outputs, details)


def read_view(view: str | None, picture: Path | None) -> PlotValues:
    """Return what pictures draw. Raises `UserError` for an unknown view, and where there is no picture."""
    if view is None:
        return "levels"
    require(picture is not None, f"--plot-of {view} draws nothing: name a file with --plot or --html")
    return check_type(view, PlotValues, "--plot-of")


def print_report(report: Report, outputs: Outputs, details: bool) -> None:
    """Raise `UserError` where there is nothing to print."""
    require_levels(report)
    if outputs.printed:
        write_out(text_of(outputs.printed[0], report.tables, details))
        if "--csv" in outputs.printed:
            say_problems(report)
    else:
        hints = [*HINTS, *([] if outputs.plot else [PICTURE_HINT])]
        show(report.tables, hint="    ".join(hints), details=details)
        if report.probes:
            write_out("what pe-bench probe found: --probe\n")
        if report.others:
            tables = "1 other table" if report.others == 1 else f"{report.others} other tables"
            write_out(f"{tables}: --all\n")
    write_files(report, outputs, details)


def write_files(report: Report, outputs: Outputs, details: bool) -> None:
    for option, path in outputs.files.items():
        if option == "--plot":
            from pe_bench.report.draw import plot_tables

            plot_tables(report.tables, path, outputs.view)
        elif option == "--html":
            write_text(path, _html(report, outputs.view))
        else:
            write_text(path, text_of(option, report.tables, details))
        say(f"wrote {path}")


def _html(report: Report, view: PlotValues) -> str:
    from pe_bench.report.page import to_html
    from pe_bench.runs.folder import provenance

    runs = {run for table in report.tables for line in table.lines for run in line.runs}
    runs |= {run for table in report.probes for line in table.lines for run in line.runs}
    losses = {run: report.folder_of(run).losses for run in runs}
    records = provenance(map(report.folder_of, runs))
    return to_html(report.tables, records, view=view, probes=report.probes, losses=losses)


def print_probes(report: Report, outputs: Outputs) -> None:
    """Raise `UserError` where nothing was probed."""
    require(bool(report.probes), "nothing was probed here: make probes with `pe-bench probe RUN`")
    texts = {"--csv": probes_to_csv, "--markdown": probes_to_markdown}
    if outputs.printed:
        write_out(texts[outputs.printed[0]](report.probes))
    else:
        show_probes(report.probes, hint="" if outputs.plot else "by depth: --plot FILE.png")
        for problem in report.problems:
            write_out(f"{problem}\n")
    for option, path in outputs.files.items():
        if option == "--plot":
            from pe_bench.report.heat import plot_probes

            plot_probes(report.probes, path)
        else:
            write_text(path, _html(report, "levels") if option == "--html" else texts[option](report.probes))
        say(f"wrote {path}")
