"""The `report` command: tables of finished runs, to the terminal and to files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench import api
from pe_bench.cli.data import print_data
from pe_bench.cli.options import command
from pe_bench.errors import require
from pe_bench.system.terminal import say, write_out
from pe_bench.values import check_type, parse_lengths, require_apart, require_writable

if TYPE_CHECKING:
    from pe_bench.report.build import Report
    from pe_bench.report.records import PlotValues

TEXT_OPTIONS = ("--csv", "--markdown", "--latex")
TABLE_HINT = "intervals: --details    marks: docs/marks.md    picture: --plot curve.png"


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
    plot_of: "PlotValues" = "levels",
    details: bool = False,
    probe: bool = False,
    everything: bool = False,
    as_json: bool = False,
    **options: Any,
) -> None:
    """Compare runs in a table, and write it to files or draw it.

    sort KEY: Sort by a length, or by name, parameters or tokens_per_second.
    lengths N,N: Show these lengths beside the training length.
    csv FILE: Write the numbers to a file; - prints them.
    markdown FILE: Write the table as Markdown; - prints it.
    latex FILE: Write it as LaTeX (booktabs, graphicx); - prints it.
    html FILE: Write one page with tables and curves.
    plot FILE: Draw the curves to a PNG, SVG or PDF file.
    plot_of levels|change: What --plot draws.
    details: Add intervals, controls, speed and all notes.
    probe: Show what pe-bench probe found, instead of levels.
    everything: Print every table, not only those of the newest tag or sweep.

    Examples:
      pe-bench report --baseline rope
      pe-bench report --where 'seed<3' --sort 512
      pe-bench report --by train.lr
      pe-bench report --plot curve.png --html report.html
    """
    from pe_bench.report.build import read_report

    files = {"--csv": csv, "--markdown": markdown, "--latex": latex, "--html": html, "--plot": plot}
    printed, paths = _destinations(files, plot_of, as_json=as_json, probe=probe)
    require_apart(paths, options["results_dir"])
    if probe:
        has_levels = as_json or html is not None
        _refuse_options_of_levels(details=details, sort=sort, has_levels=has_levels, options=options)
    results = read_report(
        runs=runs,
        lengths=[] if lengths is None else parse_lengths(lengths),
        sort=sort,
        everything=everything,
        numbers_only=printed == "--csv" and not paths,
        probe=probe,
        **options,
    )
    if as_json:
        names = ("tables", "probes", "problems", "others")
        print_data("report", **{name: getattr(results, name) for name in names})
    elif printed:
        write_out(_text_of_option(results, printed, details=details, probe=probe))
    else:
        _show_tables(results, details=details, probe=probe)
    for option, path in paths.items():
        _write_option(results, option, path, plot_of, details=details, probe=probe)


def _refuse_options_of_levels(
    *, details: bool, sort: str | None, has_levels: bool, options: Mapping[str, Any]
) -> None:
    """Raise `UserError` for options that change only tables of levels, which --probe leaves out.

    --protocol is refused too, because probes have a protocol of their own.

    has_levels: a page or data are written, which have these tables too. options: the other options of
    `api.results`.
    """
    message = "--protocol would leave the probes out: leave out --protocol or --probe"
    require(options.get("protocol") is None, message)
    given: dict[str, Any] = {"--details": details or None}
    if not has_levels:
        given["--sort"] = sort
        given |= {f"--{name}": options.get(name) for name in ("baseline", "margin", "slice")}
    for option, value in given.items():
        require(
            value is None,
            f"{option} changes tables of levels, which --probe does not print: leave out {option} or --probe",
        )


def _destinations(
    files: Mapping[str, Path | None], plot_of: str, *, as_json: bool, probe: bool
) -> tuple[str, dict[str, Path]]:
    """Return the option whose text is printed in place of the table, and the files to write by option.

    The option is empty if the table or JSON is printed. Raises `UserError` for options that cannot be
    printed, drawn or written.
    """
    from pe_bench.report.records import PlotValues

    check_type(plot_of, PlotValues, "--plot-of")
    paths = {option: path for option, path in files.items() if path is not None}
    if probe:
        for option in ("--csv", "--latex", "--plot"):
            require(option not in paths, f"{option} has no probes: say --markdown, --html or --json")
    printed = [option for option, path in paths.items() if str(path) == "-"]
    together = [*printed, "--json"] if as_json else printed
    message = f"{' and '.join(together)} all print instead of the table: choose one of them"
    require(len(together) < 2, message)
    for option in printed:
        require(option in TEXT_OPTIONS, f"{option} - would print something other than text: name a file")
    written = {option: path for option, path in paths.items() if option not in printed}
    for option, path in written.items():
        require_writable(option, path)
        if option == "--plot":
            from pe_bench.render.paper import picture_format

            picture_format(path)
    return "".join(printed), written


def _write_option(
    report: "Report", option: str, path: Path, plot_of: "PlotValues", *, details: bool, probe: bool
) -> None:
    """Write the report to a file, as a picture for --plot or as the text of another option."""
    from pe_bench.system.files import write_text

    if option == "--plot":
        from pe_bench.report.draw import plot_tables

        plot_tables(report.tables, path, plot_of)
    else:
        write_text(path, _text_of_option(report, option, details=details, probe=probe))
    say(f"wrote {path}")


def _show_tables(report: "Report", *, details: bool, probe: bool) -> None:
    """Print the tables, and hints at probes and other tables."""
    from pe_bench.report.columns import show
    from pe_bench.report.probes import show_probes

    if probe:
        show_probes(report.probes)
        write_out("".join(f"{problem}\n" for problem in report.problems))
        return
    show(report.tables, hint=TABLE_HINT, details=details)
    if report.probes:
        write_out("what pe-bench probe found: --probe\n")
    if report.others:
        write_out(f"other tables: {report.others}, shown by --all\n")


def _text_of_option(report: "Report", option: str, *, details: bool, probe: bool) -> str:
    """Return the report as the text that an option writes: --html, --csv, --latex or --markdown."""
    from pe_bench.render import grid
    from pe_bench.report.columns import to_csv, to_latex, to_markdown
    from pe_bench.report.probes import grid_of

    tables = report.tables
    if option == "--html":
        from pe_bench.report.page import to_html

        losses = {}
        for table in tables:
            for line in table.lines:
                losses |= {run: report.folder_of(run).losses for run in line.runs}
        return to_html(tables, report.probes, losses)
    if probe:
        return grid.to_markdown(map(grid_of, report.probes))
    if option == "--csv":
        return to_csv(tables)
    if option == "--latex":
        return to_latex(tables, details=details)
    return to_markdown(tables, details=details)
