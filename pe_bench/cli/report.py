"""The `report` command: tables of finished runs, to the terminal and to files."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench import api
from pe_bench.cli.data import print_data
from pe_bench.cli.options import command
from pe_bench.errors import require
from pe_bench.system.terminal import say, write_out
from pe_bench.values import check_type, parse_lengths

if TYPE_CHECKING:
    from pe_bench.report.build import Report
    from pe_bench.report.records import PlotValues

TEXTS = ("--csv", "--markdown", "--latex")
HINTS = ("intervals: --details", "marks: docs/marks.md", "picture: --plot curve.png")
# For each option that names a file: returns its text, or draws a picture to it.
Contents = Mapping[str, Callable[..., str | None]]


class Outputs:
    """The files that a command writes beside its table, by option; `-` prints a text instead of the table."""

    def __init__(self, options: Mapping[str, Path | None], *, as_json: bool = False) -> None:
        """Raise `UserError` for what cannot be written. as_json: data replace the table."""
        from pe_bench.system.files import require_writable

        paths = {option: path for option, path in options.items() if path is not None}
        self.files = {option: path for option, path in paths.items() if str(path) != "-"}
        self.printed = [f"{option} -" for option in paths.keys() - self.files.keys()]
        printing = [*(["--json"] if as_json else []), *self.printed]
        self.shows_table = not printing
        require(
            len(printing) < 2, f"{' and '.join(printing)} all print instead of the table: choose one of them"
        )
        for option in paths.keys() - {*TEXTS}:
            require(option in self.files, f"{option} - would print something other than text: name a file")
        for option, path in self.files.items():
            require_writable(option, path)
            if option == "--plot":
                from pe_bench.plot.paper import picture_format

                picture_format(path)

    def write(self, contents: Contents) -> None:
        """Print what is to be printed, and write each file."""
        from pe_bench.system.files import write_text

        for text in self.printed:
            write_out(contents[text.removesuffix(" -")]() or "")
        for option, path in self.files.items():
            if option == "--plot":
                contents[option](path)
            else:
                write_text(path, contents[option]() or "")
            say(f"wrote {path}")


@command("report", api.results)
def report(
    runs: Sequence[str] = (),
    *,
    sort: str | None = None,
    lengths: str | None = None,
    csv: Path | None = None,
    markdown: Path | None = None,
    latex: Path | None = None,
    html: Path | None = None,
    plot: Path | None = None,
    plot_of: str | None = None,
    details: bool = False,
    probe: bool = False,
    everything: bool = False,
    as_json: bool = False,
    **options: Any,
) -> None:
    """Compare runs in a table, and write it to files or draw it.

    sort KEY: Sort by a length, or by name, parameters, tokens_per_second, peak_memory_mb.
    lengths N,N: Show these lengths beside the training length.
    csv FILE: Write the numbers to a file; - prints them.
    markdown FILE: Write the table as Markdown; - prints it.
    latex FILE: Write it as LaTeX (booktabs, graphicx); - prints it.
    html FILE: Write one page with tables and curves.
    plot FILE: Draw the curves to a PNG, SVG or PDF file.
    plot_of levels|change: What --plot draws.
    details: Add intervals, controls, speed and all notes.
    probe: Show what pe-bench probe found, instead of levels.
    everything: Print every table, not only the newest run's.

    Examples:
      pe-bench report --baseline rope
      pe-bench report --where 'seed<3' --sort 512
      pe-bench report --by train.lr
      pe-bench report --plot curve.png --html report.html
    """
    from pe_bench.report.records import PlotValues

    files = {"--csv": csv, "--markdown": markdown, "--latex": latex, "--html": html, "--plot": plot}
    outputs = Outputs(files, as_json=as_json)
    view: PlotValues = "levels" if plot_of is None else check_type(plot_of, PlotValues, "--plot-of")
    message = f"--plot-of {plot_of} draws nothing: name a file with --plot"
    require(plot_of is None or plot is not None, message)
    if probe:
        for option in ("--csv", "--latex", "--plot"):
            require(files[option] is None, f"{option} has no probes: say --markdown, --html or --json")
        require(not details, "--details adds nothing to --probe: leave it out")
        options["protocol"] = None
    tables = api.read_report(
        runs=runs,
        lengths=[] if lengths is None else parse_lengths(lengths),
        sort=sort,
        everything=everything,
        numbers_only=outputs.printed == ["--csv -"] and not outputs.files,
        **options,
    )
    contents = _probes(tables, outputs) if probe else _levels(tables, outputs, view, details)
    if as_json:
        names = ("tables", "probes", "problems", "others")
        print_data("report", **{name: getattr(tables, name) for name in names})
    outputs.write(contents)


def _levels(report: "Report", outputs: Outputs, view: "PlotValues", details: bool) -> Contents:
    """Print the table, and return what files can get. Raises `UserError` if there is nothing to print."""
    from pe_bench.report.columns import show, to_csv, to_latex, to_markdown

    api.require_levels(report)
    tables = report.tables
    if outputs.shows_table:
        show(tables, hint="    ".join(HINTS[: 2 if "--plot" in outputs.files else 3]), details=details)
        if report.probes:
            write_out("what pe-bench probe found: --probe\n")
        if report.others:
            write_out(f"{report.others} other table{'s' if report.others > 1 else ''}: --all\n")
    elif outputs.printed == ["--csv -"]:
        api.say_problems(report)

    def draw(path: Path) -> None:
        from pe_bench.report.draw import plot_tables

        plot_tables(tables, path, view)

    return {
        "--csv": partial(to_csv, tables),
        "--markdown": partial(to_markdown, tables, details=details),
        "--latex": partial(to_latex, tables, details=details),
        "--html": partial(_html, report),
        "--plot": draw,
    }


def _probes(report: "Report", outputs: Outputs) -> Contents:
    """Print the tables of probes, and return what files can get. Raises `UserError` if nothing was probed."""
    from pe_bench.report.probes import probes_to_markdown, show_probes

    probes = report.probes
    require(bool(probes), "nothing was probed here: make probes with `pe-bench probe RUN`")
    if outputs.shows_table:
        show_probes(probes)
        write_out("".join(f"{problem}\n" for problem in report.problems))
    return {
        "--markdown": partial(probes_to_markdown, probes),
        "--html": partial(_html, report),
    }


def _html(report: "Report") -> str:
    from pe_bench.report.page import to_html

    runs = {run for table in report.tables for line in table.lines for run in line.runs}
    return to_html(report.tables, report.probes, {run: report.folder_of(run).losses for run in runs})
