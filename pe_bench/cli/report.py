"""The `report` command, and the table after a run: to the terminal, and to files."""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.api import read_report, require_levels, say_problems
from pe_bench.cli.data import print_data
from pe_bench.errors import require
from pe_bench.plot.paper import picture_format
from pe_bench.report.build import Report, build_tables, run_tables
from pe_bench.report.columns import show, to_csv, to_latex, to_markdown
from pe_bench.report.curves import PlotValues
from pe_bench.report.probes import ProbeTable, probes_to_csv, probes_to_markdown, show_probes
from pe_bench.report.records import Table
from pe_bench.report.selection import Selection
from pe_bench.runs.commands import results_option
from pe_bench.runs.find import Condition
from pe_bench.runs.gather import results_file, runs_folder
from pe_bench.system.files import require_writable, write_text
from pe_bench.system.terminal import say, write_out
from pe_bench.values import check_type, parse_lengths

if TYPE_CHECKING:
    from pe_bench.scored import Run
    from pe_bench.sweep.show import SweepTable

Contents = Mapping[str, Callable[[], str]]  # what makes the text of each option
TEXTS = ("--csv", "--markdown", "--latex")
HINTS = ("intervals: --details", "marks: docs/marks.md")
PICTURE_HINT = "picture: --plot curve.png"


@dataclass(frozen=True)
class Outputs:
    """What a command writes beside its table, by the option that names the file; `-` prints a text instead.

    Raises `UserError` for what cannot be written. view: what pictures draw, if not levels. as_json: data are
    printed in place of the table.
    """

    paths: Mapping[str, Path] = field(default_factory=dict)
    view: str | None = None
    as_json: bool = False

    def __post_init__(self) -> None:
        printed = [option for option, path in self.paths.items() if str(path) == "-"]
        require(not (printed and self.as_json), f"--json and {''.join(printed)} - both print: leave one out")
        for option in printed:
            require(option in TEXTS, f"{option} - would print something other than text: name a file")
        options = " and ".join(f"{option} -" for option in printed)
        require(len(printed) < 2, f"{options} all print instead of the table: choose one of them")
        for option, path in self.files.items():
            require_writable(option, path)
            if option == "--plot":
                picture_format(path)
        if self.view is not None:
            check_type(self.view, PlotValues, "--plot-of")
            drawn = "--plot" in self.paths or "--html" in self.paths
            require(drawn, f"--plot-of {self.view} draws nothing: name a file with --plot or --html")

    @property
    def printed(self) -> str:
        """Return the option that prints in place of the table."""
        return next((option for option, path in self.paths.items() if str(path) == "-"), "")

    @property
    def files(self) -> dict[str, Path]:
        return {option: path for option, path in self.paths.items() if str(path) != "-"}

    def write(self, contents: "Contents", draw: Callable[[Path], None] | None = None) -> None:
        """Write each file. draw: draws the picture of `--plot`."""
        for option, path in self.files.items():
            if draw is not None and option == "--plot":
                draw(path)
            else:
                write_text(path, contents[option]())
            say(f"wrote {path}")


def tables_of_run(run: "Run") -> list[Table]:
    return run_tables(run.scored, run.path, run.margin, run.lengths)


def print_run(run: "Run") -> None:
    """Print the table of one run, and where its parts are, wherever that is.

    There are several tables where its rows contradict each other.
    """
    tables = tables_of_run(run)
    folder = run.path if run.path.parent.name == "runs" else Path(os.path.abspath(run.path))
    results_dir = folder.parent.parent
    in_results = folder.parent.name == "runs"
    show(tables, hint=_hint(results_dir, [run.path]) if in_results else "")
    if any(line.positions for table in tables for line in table.lines):
        say("the scores by position: pe-bench report --html FILE.html")
    say(f"the run: {run.path}")
    if in_results:
        _say_how_to_compare(results_dir)


def _say_how_to_compare(results_dir: Path) -> None:
    say(f"all rows: {results_file(results_dir)}   compare: pe-bench report{results_option(results_dir)}")


def _hint(results_dir: Path, runs: Sequence[Path]) -> str:
    """Return how to see more of what a command printed of these runs."""
    names = shlex.join(run.name for run in runs[:1]) if len(runs) == 1 else ""
    command = f"pe-bench report{results_option(results_dir)} {names}".rstrip()
    return f"95 % intervals, controls, speed: {command} --details"


def print_sweep_tables(sweep_tables: Sequence["SweepTable"], **choice: Any) -> None:
    """Print the tables of a sweep, and where its runs are. choice: of `Selection`."""
    for results_dir, tables in tables_of_sweep(sweep_tables, **choice).items():
        show(tables, hint=_hint(results_dir, [run for part in sweep_tables for run in part.runs]))
        say(f"the runs: {runs_folder(results_dir)}")
        _say_how_to_compare(results_dir)


def tables_of_sweep(sweep_tables: Sequence["SweepTable"], **choice: Any) -> dict[Path, list[Table]]:
    """Return the tables of runs by their folder of results."""
    folders = dict.fromkeys(run.parent.parent for part in sweep_tables for run in part.runs)
    return {
        results_dir: [table for part in sweep_tables for table in _tables_of(part, results_dir, **choice)]
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


def report(
    runs: Sequence[str], outputs: Outputs, lengths: str | None, details: bool, probe: bool, **options: Any
) -> None:
    """Print and write the newest run's tables, or those of the named runs, of a selection, or of everything.

    options: those of `read_report`. Raises `UserError` where there is none, before anything is printed.
    """
    if probe:
        require("--latex" not in outputs.paths, "--latex has no table of probes: say --markdown or --csv")
        require(not details, "--details adds nothing to --probe: leave it out")
        options["protocol"] = None
    chosen = [] if lengths is None else parse_lengths(lengths)
    numbers_only = outputs.printed == "--csv" and not outputs.files and not probe
    tables = read_report(runs=runs, lengths=chosen, numbers_only=numbers_only, **options)
    if probe:
        _report_probes(tables, outputs)
    else:
        _report_levels(tables, outputs, details)


def _report_levels(report: Report, outputs: Outputs, details: bool) -> None:
    """Raise `UserError` where there is nothing to print."""
    require_levels(report)
    view: PlotValues = "change" if outputs.view == "change" else "levels"
    contents = {
        "--csv": partial(to_csv, report.tables),
        "--markdown": partial(to_markdown, report.tables, details=details),
        "--latex": partial(to_latex, report.tables, details=details),
        "--html": partial(_html, report, view),
    }
    if outputs.as_json:
        _print_data(report)
    elif outputs.printed:
        write_out(contents[outputs.printed]())
        if outputs.printed == "--csv":
            say_problems(report)
    else:
        hints = [*HINTS, *([] if "--plot" in outputs.files else [PICTURE_HINT])]
        show(report.tables, hint="    ".join(hints), details=details)
        if report.probes:
            write_out("what pe-bench probe found: --probe\n")
        if report.others:
            write_out(f"{report.others} other table{'s' if report.others > 1 else ''}: --all\n")

    def draw(path: Path) -> None:
        from pe_bench.report.draw import plot_tables

        plot_tables(report.tables, path, view)

    outputs.write(contents, draw)


def _report_probes(report: Report, outputs: Outputs) -> None:
    """Raise `UserError` where nothing was probed."""
    require(bool(report.probes), "nothing was probed here: make probes with `pe-bench probe RUN`")
    contents = {
        "--csv": partial(probes_to_csv, report.probes),
        "--markdown": partial(probes_to_markdown, report.probes),
        "--html": partial(_html, report, "levels"),
    }
    if outputs.as_json:
        _print_data(report)
    elif outputs.printed:
        write_out(contents[outputs.printed]())
    else:
        show_probes(report.probes, hint="" if "--plot" in outputs.files else "by depth: --plot FILE.png")
        for problem in report.problems:
            write_out(f"{problem}\n")
    outputs.write(contents, partial(draw_probes, report.probes))


def _print_data(report: Report) -> None:
    print_data(
        "report", **{name: getattr(report, name) for name in ("tables", "probes", "problems", "others")}
    )


def draw_probes(tables: Sequence[ProbeTable], path: Path) -> None:
    from pe_bench.report.heat import plot_probes

    plot_probes(tables, path)


def _html(report: Report, view: PlotValues) -> str:
    from pe_bench.report.page import to_html
    from pe_bench.runs.folder import provenance

    runs = {run for table in report.tables for line in table.lines for run in line.runs}
    runs |= {run for table in report.probes for line in table.lines for run in line.runs}
    losses = {run: report.folder_of(run).losses for run in runs}
    records = provenance(map(report.folder_of, runs))
    return to_html(report.tables, records, view=view, probes=report.probes, losses=losses)
