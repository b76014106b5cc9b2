"""The tables of rows: read, selected, grouped, compared and ranked."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pe_bench.errors import RunError, UserError
from pe_bench.report.statistics import MARGIN
from pe_bench.report.tables.anchors import anchor_lines, unlearned
from pe_bench.report.tables.context_use import quarter_of
from pe_bench.report.tables.differences import ScoreFiles
from pe_bench.report.tables.grouping import (
    describe_swept,
    explain_separation,
    group_positions,
    group_probes,
    group_rows,
    groups_of_newest,
    without_protocol,
)
from pe_bench.report.tables.lines import Line, make_line, members_of
from pe_bench.report.tables.notes import Note, make_notes
from pe_bench.report.tables.probes import ProbeTable, probe_tables
from pe_bench.report.tables.ranking import ordered
from pe_bench.report.tables.report import Report
from pe_bench.report.tables.selection import EVERYTHING, RunKeys, Selection
from pe_bench.report.tables.slices import Group, groups_of_slice, require_slice, with_recall
from pe_bench.report.tables.swept import differing_keys, keep_best
from pe_bench.report.tables.table import Table, TableKey
from pe_bench.report.tables.target_sets import rank_sets
from pe_bench.report.tables.verdicts import judge, with_baseline
from pe_bench.runs.anchors import StoredAnchors, anchors_folder, read_anchors
from pe_bench.runs.conditions import Condition
from pe_bench.runs.folder import RunFolder, folders_in
from pe_bench.runs.gather import Gathered, read_all, runs_folder
from pe_bench.runs.rows import ALL, APART, POSITIONS, Row, read_rows
from pe_bench.runs.slices import RECALL
from pe_bench.system.outside_text import in_one_line
from pe_bench.values import unknown


def build_tables(
    results_dir: Path,
    runs: Sequence[str] | None = None,
    protocol: str | None = None,
    selection: Selection = EVERYTHING,
) -> list[Table]:
    """Return the tables of all finished runs, or of those named, under all protocols or one.

    Raises `UserError` when there is nothing to show, `RunError` when all of it is damaged.
    """
    return build_report(results_dir, runs, protocol, selection).tables


def build_report(
    results_dir: Path,
    runs: Sequence[str] | None = None,
    protocol: str | None = None,
    selection: Selection = EVERYTHING,
    *,
    newest_only: bool = False,
) -> Report:
    """Return the same tables, or only those with the newest run; quick runs count as the oldest."""
    found = read_all(results_dir)
    if found.problems and not found.rows:
        raise RunError("\n".join(problem.text for problem in found.problems))
    if not found.rows:
        folder = runs_folder(results_dir)
        raise UserError(f"no scored run in {folder}: make one with `pe-bench train encoding=rope`")

    folder_of = folders_in(runs_folder(results_dir))
    anchors = read_anchors(results_dir / "anchors")
    keys = RunKeys(folder_of)
    rows = _rows_of_protocol(_rows_of_runs(found, runs), protocol)
    for key in selection.by:
        keys.require(rows, key, "--by")
    asked = [*selection.by, *(condition.key for condition in selection.where)]
    problems = [*(f"left out: {problem.text}" for problem in found.problems), *anchors.problems]
    problems += keys.unreadable(rows, [key for key in asked if "." in key])
    rows = keys.select(rows, selection.where)
    if selection.margin is None:
        margins = keys.margins(rows)
        selection = replace(selection, margin=margins.pop() if len(margins) == 1 else MARGIN)
        if margins:
            problems.append(f"the runs differ in report.margin: {MARGIN:g} is used; --margin sets another")
    if selection.best is not None:
        rows, note = keep_best(rows, keys, selection.best)
        problems.append(note)
    probed = group_probes(rows, keys, selection.varying)
    probed = groups_of_newest(probed, results_dir) if newest_only else probed
    probes = tuple(probe_tables(probed, keys, selection, folder_of))
    groups = group_rows(rows, keys, selection.varying)
    if not groups and probes:  # a checkpoint that was only probed
        return Report([], 0, folder_of, tuple(problems), probes)
    shown = groups_of_newest(groups, results_dir) if newest_only else groups
    files = ScoreFiles(anchors.with_folders(folder_of))
    tables = _tables(shown, rows, anchors, files, keys, selection)
    others = len(groups) - len(shown)
    _require_shown(tables, selection, others)
    last = tables[-1]
    last = replace(last, notes=(*last.notes, *problems), caveats=(*last.caveats, *problems))
    return Report([*tables[:-1], last], others, folder_of, tuple(problems), probes)


def run_tables(
    rows: Iterable[Row], run: Path, margin: float = MARGIN, asked: Sequence[int] = ()
) -> list[Table]:
    """Return the table of one run's rows under one protocol and stride; `run` is its directory.

    asked: lengths that the user named.

    There are several where rows contradict each other, as in a damaged file. What the run gains within its
    training length is known from its other rows, where it is not from these.
    """
    rows = list(rows)
    shown = tuple(str(length) for length in sorted({row.length for row in rows}))
    selection = Selection(where=(Condition("length", "=", shown),), margin=margin)
    rows += _quarters(run, rows)
    folder = RunFolder(run)
    keys = RunKeys(lambda name: folder)
    groups = group_rows(rows, keys, selection.by)
    anchors = read_anchors(anchors_folder(run))
    files = ScoreFiles(anchors.with_folders(lambda name: folder))
    tables = _tables(groups, rows, anchors, files, keys, selection)
    return [replace(table, asked=tuple(asked)) for table in tables]


def probes_of_rows(rows: Sequence[Row], folder_of: Callable[[str], RunFolder]) -> list[ProbeTable]:
    """Return the tables of a probe's rows, which may be of several runs; folder_of: by a run's name."""
    keys = RunKeys(folder_of)
    return probe_tables(group_probes(rows, keys, ()), keys, EVERYTHING, folder_of)


def _quarters(run: Path, rows: Sequence[Row]) -> list[Row]:
    """Return the run's other rows at a quarter of the training length, on the same targets."""
    known, sets = {row.key for row in rows}, {(row.target_hash, row.score_dtype) for row in rows}
    return [
        row
        for row in read_rows(run / "eval.csv")
        if row.length == quarter_of(row.train_length)
        and row.protocol == "paired"  # other protocols may share their targets with each other
        and (row.target_hash, row.score_dtype) in sets
        and row.key not in known
    ]


def _rows_of_runs(found: Gathered, runs: Sequence[str] | None) -> list[Row]:
    """Return the rows of the named runs that can be read: the problems say what is wrong with the others."""
    if runs is None:
        return found.rows
    names = [Path(run).name for run in runs]
    known = {row.run for row in found.rows}
    problems = {problem.run: problem.text for problem in found.problems}
    for name in names:
        if name not in known and name not in problems:
            raise UserError(unknown(name, "run", known))
    if not known.intersection(names):
        raise RunError("\n".join(problems[name] for name in dict.fromkeys(names)))
    return [row for row in found.rows if row.run in names]


def _rows_of_protocol(rows: list[Row], protocol: str | None) -> list[Row]:
    """Return the rows under a protocol, and those of positions, which belong to any."""
    chosen = [row for row in rows if protocol in (None, row.protocol) or row.protocol == POSITIONS]
    there = sorted({row.protocol for row in rows}.difference(APART))
    if protocol is not None and protocol not in there:
        raise UserError(
            f"no score under the protocol {protocol!r}: these runs were scored under {', '.join(there)}; "
            f"score one with `pe-bench eval RUN --protocol {protocol}`"
        )
    return chosen


def _require_shown(tables: Sequence[Table], selection: Selection, others: int) -> None:
    """Raises `UserError` where the options leave nothing, or name what is nowhere."""
    elsewhere = f" ({others} other tables: --all)" if others else ""
    if not any(table.lengths for table in tables):
        conditions = ", ".join(
            f"{condition.key}{condition.sign}{','.join(condition.values)}" for condition in selection.where
        )
        raise UserError(f"no score is left by --where {conditions}: `pe-bench list runs` shows what there is")
    if selection.baseline is not None and not any(table.baseline for table in tables):
        known = {line.label for table in tables for line in table.all_lines}
        raise UserError(unknown(selection.baseline, "--baseline", known) + elsewhere)
    lengths = sorted({length for table in tables for length in table.lengths})
    if selection.sort is not None and selection.sort.isdecimal() and int(selection.sort) not in lengths:
        there = ", ".join(map(str, lengths))
        raise UserError(
            f"--sort {selection.sort}: nothing was scored at that length; there are {there}{elsewhere}"
        )


def _tables(
    groups: Mapping[TableKey, list[Row]],
    rows: Sequence[Row],
    anchors: StoredAnchors,
    files: ScoreFiles,
    keys: RunKeys,
    selection: Selection,
) -> list[Table]:
    """Return a table for each group; `rows` are those of all groups, and those of positions.

    Whatever its text says stands on one line, because a run may be a stranger's.
    """
    positions = group_positions(rows, keys, selection.varying)

    def table_of(key: TableKey, group: Group, slice_: str) -> Table:
        of_positions = positions.get(without_protocol(key), []) if slice_ == ALL else []
        return _table(key, group, of_positions, anchors, files, keys, replace(selection, slice=slice_))

    found = groups_of_slice(groups, selection.slice, files)
    require_slice(found, selection.slice)
    tables = [table_of(key, group, selection.slice) for key, group in found.items()]
    if selection.slice == ALL:
        recalls = {
            replace(key, slice=ALL, slice_hash=""): table_of(key, group, RECALL)
            for key, group in reversed(groups_of_slice(groups, RECALL, files).items())
        }
        tables = [with_recall(table, recalls.get(table.key)) for table in tables]
    shown = list(found)
    swept = differing_keys(groups.values(), keys) if len(groups) > 1 else []
    settings = [describe_swept(group.whole, swept, keys) for group in found.values()]
    tables = [
        replace(table, why=explain_separation(place, shown, settings[place], swept))
        for place, table in enumerate(tables)
    ]
    return in_one_line(tables)


def _table(
    key: TableKey,
    group: Group,
    positions: Sequence[Row],
    stored: StoredAnchors,
    files: ScoreFiles,
    keys: RunKeys,
    selection: Selection,
) -> Table:
    """Return the table of a group of rows; `why` is empty, because it depends on the other tables."""
    margin, rows = selection.resolved_margin, group.rows
    plain = [row for row in rows if row.control == "none"]
    controls = [row for row in rows if row.control != "none"]
    own_rows, whole_rows = _own_rows(rows), _own_rows(group.whole)
    members = members_of(plain, controls, positions, lambda row: keys.label(row, selection.by))
    ranks = rank_sets(plain)
    lines = []
    for member in members:
        own, whole = (
            [row for run in member.runs for row in rows_of.get(run, [])] for rows_of in (own_rows, whole_rows)
        )
        line = make_line(member, own, whole, ranks, margin, files)
        lines.append(replace(line, unlearned=unlearned(whole, stored, files)))
    anchors, members_of_anchors = anchor_lines(plain, stored, ranks, margin, files, selection.slice)
    lines += anchors
    baseline = _baseline_in(lines, selection.baseline)
    if baseline:
        lines = with_baseline(lines, [*members, *members_of_anchors], baseline, margin, files)
    shown_lines = [_shown(line, selection) for line in judge(lines, key.train_length, margin)]
    anchors = [line for line in shown_lines if line.is_anchor and line.cells]
    lines = [line for line in shown_lines if not line.is_anchor and selection.takes(line.scored_with)]
    order = ordered([line for line in lines if line.cells], selection.sort)
    lengths = tuple(sorted({length for line in order.lines for length in line.cells}))
    shown, of_slice = ([row for row in found if row.length in lengths] for found in (group.whole, rows))
    notes = make_notes(
        [*order.lines, *anchors],
        shown,
        of_slice,
        order.note,
        margin,
        keys.machines(rows),
        keys.checkpoints(rows),
    )
    notes += [Note(group.lacking, is_caveat=True)] if group.lacking else []
    return Table(
        key=key,
        lengths=lengths,
        lines=tuple(order.lines),
        ranked_at=order.ranked_at,
        why="",
        notes=tuple(note.text for note in notes),
        caveats=tuple(note.text for note in notes if note.is_caveat),
        baseline=baseline,
        asked=tuple(length for length in lengths if selection.asks_for(length)),
        margin=margin,
        anchors=tuple(anchors),
        share=group.share,
        lacking=group.lacking,
    )


def _own_rows(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return, by run, the rows without a control that are scored with the encoding that was trained."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.control == "none" and row.scored_with == row.encoding:
            found.setdefault(row.run, []).append(row)
    return found


def _shown(line: Line, selection: Selection) -> Line:
    """Return the line at the lengths that are asked for."""
    cells = {length: cell for length, cell in line.cells.items() if selection.shows(length)}
    return replace(line, cells=cells)


def _baseline_in(lines: Sequence[Line], wanted: str | None) -> str:
    """Return the label of the line that `--baseline` names: exactly, or as the only one of that encoding."""
    labels = [line.label for line in lines]
    if wanted is None or wanted in labels:
        return wanted or ""
    own = [line.label for line in lines if line.encoding == wanted and line.scored_with == wanted]
    if len(own) > 1:
        raise UserError(
            f"--baseline {wanted} may be several lines: {', '.join(own)}; name one of them in full"
        )
    return own[0] if own else ""
