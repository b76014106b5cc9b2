"""The `report` command, and the table that follows a run: to the terminal, and to files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pe_bench.config import Protocol, check_type
from pe_bench.files import write_text
from pe_bench.progress import say
from pe_bench.report import Table, build_tables, run_table, show, to_frame, to_markdown
from pe_bench.results import Row, results_file, runs_folder
from pe_bench.runs import find_run


@dataclass(frozen=True)
class Outputs:
    """Files to write beside the table that is printed; `-` prints Markdown in its place."""

    csv: Path | None = None
    markdown: Path | None = None
    plot: Path | None = None


def print_run(rows: list[Row], results_dir: Path) -> None:
    """The table of one run, and where its parts are."""
    show([run_table(rows, results_dir)])
    run = runs_folder(results_dir) / rows[0].run
    say(f"the run: {run}   all rows: {results_file(results_dir)}   all runs: pe-bench report")


def print_report(results_dir: Path, words: Sequence[str], protocol: str | None, outputs: Outputs) -> None:
    """All runs, or the named ones. Raises `UserError` when there is none."""
    if protocol is not None:
        protocol = check_type(protocol, Protocol, "--protocol")
    runs = [find_run(word, results_dir).name for word in words] or None
    tables = build_tables(results_dir, runs, protocol)
    if outputs.markdown == Path("-"):
        print(to_markdown(tables))
    else:
        show(tables)
    write_files(tables, outputs)


def write_files(tables: Sequence[Table], outputs: Outputs) -> None:
    if outputs.plot is not None:
        from pe_bench.plot import plot_tables

        plot_tables(tables, outputs.plot)
    if outputs.csv is not None:
        write_text(outputs.csv, to_frame(tables).to_csv(index=False, lineterminator="\n"))
    if outputs.markdown not in (None, Path("-")):
        write_text(outputs.markdown, to_markdown(tables) + "\n")
    for path in (outputs.plot, outputs.csv, outputs.markdown):
        if path not in (None, Path("-")):
            say(f"wrote {path}")
