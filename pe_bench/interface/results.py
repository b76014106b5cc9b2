"""`pe_bench.results`: all runs compared, with the numbers that `pe-bench report` shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.config.checks import check_margin
from pe_bench.config.schema import Protocol, Slice
from pe_bench.errors import require
from pe_bench.interface.request import listed
from pe_bench.interface.values import plain
from pe_bench.report.export import to_frame
from pe_bench.report.tables.build import build_report
from pe_bench.report.tables.ranking import check_sort
from pe_bench.report.tables.report import Report
from pe_bench.report.tables.selection import Selection, parse_by
from pe_bench.report.tables.swept import check_best
from pe_bench.runs.conditions import named_runs, parse_condition
from pe_bench.runs.gather import require_results_folder
from pe_bench.runs.rows import ALL
from pe_bench.runs.scores import explain_lost_scores, lengths_without_scores
from pe_bench.system.terminal import say
from pe_bench.values import check_type

if TYPE_CHECKING:
    import pandas


def results(
    results_dir: str | Path = "results",
    runs: str | Sequence[str] | None = None,
    *,
    where: str | Sequence[str] | None = None,
    by: str | None = None,
    best: str | None = None,
    baseline: str | None = None,
    margin: float | None = None,
    protocol: str | None = None,
    slice: str | None = None,  # noqa: A002  (the option's name)
) -> pandas.DataFrame:
    """Return the results of all runs as a data frame: a row for each line of the report and each length.

        pe_bench.results(where=["seed<3", "length=128,512"], baseline="rope")

    The columns are those of `pe-bench report --csv`: bits_per_byte is the level, and change, change_low,
    change_high and verdict compare it with that at the training length on the same text. Seeds are averaged.
    `anchor` is true in the lines of models that cost no training, such as (trigram).

    runs: encodings, names or their beginnings, if not all. where: conditions that all hold. by: a key whose
    values have lines of their own. best: a key of which each encoding keeps its best value. baseline: an
    encoding to compare the others with. margin: bits per byte by which a level that holds may change.
    slice: recall, novel or key, the targets that all numbers are of (docs/measuring.md).

    Raises `UserError` (a `ValueError`) where nothing was scored or a value cannot work, and `RunError` where
    all results are damaged.
    """
    by, best = check_type(by, str | None, "by"), check_type(best, str | None, "best")
    baseline = check_type(baseline, str | None, "baseline")
    margin = check_type(plain(margin), float | None, "margin")
    selection = read_selection(listed(where), by, None, baseline, margin, best, slice)
    report = read_report(Path(results_dir), listed(runs), protocol, selection, everything=True)
    require_levels(report)
    say_problems(report)
    return to_frame(report.tables)


def read_selection(
    where: Sequence[str],
    by: str | None,
    sort: str | None,
    baseline: str | None,
    margin: float | None,
    best: str | None = None,
    slice_: str | None = None,
) -> Selection:
    """Return the options as a selection. Raises `UserError` for values that are not possible."""
    if sort is not None:
        check_sort(sort)
    if margin is not None:
        check_margin(margin, "--margin")
    if best is not None:
        check_best(best, parse_by(by) if by is not None else ())
    return Selection(
        where=tuple(parse_condition(word) for word in where),
        by=parse_by(by) if by is not None else (),
        best=best,
        sort=sort,
        baseline=baseline,
        margin=margin,
        slice=ALL if slice_ is None else check_type(slice_, Slice, "--slice"),
    )


def read_report(
    results_dir: Path,
    names: Sequence[str],
    protocol: str | None,
    selection: Selection,
    *,
    everything: bool,
) -> Report:
    """Return the tables of the named runs, of a selection or of everything, or those with the newest run.

    Raises `UserError` where there is none.
    """
    if protocol is not None:
        protocol = check_type(protocol, Protocol, "--protocol")
    require_results_folder(results_dir)
    runs = [run.name for run in named_runs(names, results_dir)] or None
    newest_only = not (everything or runs or selection.where)
    return build_report(results_dir, runs, protocol, selection, newest_only=newest_only)


def require_levels(report: Report) -> None:
    """Raise `UserError` for runs that were only probed."""
    message = "these runs were only probed and have no levels: say pe-bench report --probe to see the probes"
    require(bool(report.tables), message)


def say_problems(report: Report) -> None:
    """Print the problems that tables show as notes and a data frame has no place for."""
    for problem in report.problems:
        say(f"warning: {problem}")
    runs = dict.fromkeys(run for table in report.tables for line in table.lines for run in line.runs)
    for folder in map(report.folder_of, runs):
        lengths = lengths_without_scores(folder.path, folder.rows)
        if lengths:
            say(f"warning: {folder.path.name}: {explain_lost_scores(folder.path.name, lengths)}")
