"""The tables of rows: read, selected, grouped, compared and ranked."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pe_bench.errors import RunError, UserError, require
from pe_bench.report.groups import (
    Group,
    describe_swept,
    explain_separation,
    group_rows,
    groups_of_newest,
    groups_of_slice,
    ordered,
    table_key,
)
from pe_bench.report.lines import (
    Member,
    anchor_lines,
    make_line,
    members_of,
    rank_sets,
    unlearned,
    with_baseline,
)
from pe_bench.report.notes import Note, make_notes
from pe_bench.report.pairs import ScoreFiles, grouped
from pe_bench.report.probes import ProbeTable, probe_tables
from pe_bench.report.records import Line, Table, TableKey, quarter_of
from pe_bench.report.selection import EVERYTHING, RunKeys, Selection, differing_keys, keep_best
from pe_bench.report.statistics import MARGIN
from pe_bench.report.verdicts import judge
from pe_bench.runs.find import Condition, is_checkpoint, scores_checkpoint
from pe_bench.runs.folder import RunFolder, folders_in
from pe_bench.runs.gather import StoredAnchors, anchors_folder, read_all, read_anchors, runs_folder
from pe_bench.runs.rows import ALL, APART, POSITIONS, PROBE, Row, read_rows
from pe_bench.runs.scores import RECALL
from pe_bench.system.terminal import in_one_line
from pe_bench.values import unknown


@dataclass(frozen=True)
class Report:
    """Tables to show.

    probes: of the same runs. others: how many more tables there are. folder_of: what was read of a run, by
    its name. problems: what is left out, and what is not known of a run; the notes of the last table have
    them too.
    """

    tables: list[Table]
    others: int
    folder_of: Callable[[str], RunFolder]
    problems: tuple[str, ...] = ()
    probes: tuple[ProbeTable, ...] = ()


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
    rows, problems = _read(results_dir, runs)
    rows = _of_protocol(rows, protocol)
    folder_of = folders_in(runs_folder(results_dir))
    anchors, keys = read_anchors(results_dir / "anchors"), RunKeys(folder_of)
    for key in selection.by:
        keys.require(rows, key, "--by")
    asked = [*selection.by, *(condition.key for condition in selection.where)]
    problems += [*anchors.problems, *keys.unreadable(rows, [key for key in asked if "." in key])]
    rows = keys.select(rows, selection.where)
    if selection.margin is None:
        margins = keys.margins(rows)
        selection = replace(selection, margin=margins.pop() if len(margins) == 1 else MARGIN)
        if margins:
            problems.append(f"the runs differ in report.margin: {MARGIN:g} is used; --margin sets another")
    if selection.best is not None:
        rows, note = keep_best(rows, keys, selection.best)
        problems.append(note)
    groups, probed = (
        group_rows([row for row in rows if is_shown(row.protocol)], keys, selection.varying)
        for is_shown in (lambda protocol: protocol not in APART, lambda protocol: protocol == PROBE)
    )
    shown = groups_of_newest(groups, results_dir) if newest_only else groups
    probed = groups_of_newest(probed, results_dir) if newest_only else probed
    probes = tuple(probe_tables(probed, keys, selection, folder_of))
    if not groups and probes:  # a checkpoint that was only probed
        return Report([], 0, folder_of, tuple(problems), probes)
    tables = _tables(shown, rows, anchors, keys, selection)
    others = len(groups) - len(shown)
    _require_shown(tables, selection, others)
    last = tables[-1]
    last = replace(last, notes=(*last.notes, *problems), caveats=(*problems, *last.caveats))
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
    first = folder.first_stage
    unchanged = None if first is None else RunFolder(run.parent / first.run)
    keys = RunKeys(lambda name: unchanged if unchanged and name == unchanged.path.name else folder)
    rows += _unchanged(keys, rows)
    groups = group_rows([row for row in rows if row.protocol not in APART], keys, ())
    tables = _tables(groups, rows, read_anchors(anchors_folder(run)), keys, selection)
    return [replace(table, asked=tuple(asked)) for table in tables]


def tables_of_rows(rows: Sequence[Row], results_dir: Path, margin: float) -> list[Table]:
    """Return the tables of rows of several runs in a folder of results."""
    keys = RunKeys(folders_in(runs_folder(results_dir)))
    anchors = read_anchors(results_dir / "anchors")
    return _tables(group_rows(rows, keys, ()), rows, anchors, keys, Selection(margin=margin))


def probes_of_rows(rows: Sequence[Row], folder_of: Callable[[str], RunFolder]) -> list[ProbeTable]:
    """Return the tables of a probe's rows, which may be of several runs; folder_of: by a run's name."""
    keys = RunKeys(folder_of)
    probed = [row for row in rows if row.protocol == PROBE]
    return probe_tables(group_rows(probed, keys, ()), keys, EVERYTHING, folder_of)


def _read(results_dir: Path, runs: Sequence[str] | None) -> tuple[list[Row], list[str]]:
    """Return the rows of all runs or of those named that can be read, and what is left out."""
    gathered = read_all(results_dir)
    if not gathered.rows and gathered.problems:
        raise RunError("\n".join(gathered.lines))
    folder = runs_folder(results_dir)
    require(bool(gathered.rows), f"no scored run in {folder}: make one with `pe-bench train encoding=rope`")
    left_out = [f"left out: {line}" for line in gathered.lines]
    if runs is None:
        return gathered.rows, left_out
    names = [Path(run).name for run in runs]
    readable = {row.run for row in gathered.rows}
    for name in names:
        if name not in readable and name not in gathered.problems:
            raise UserError(unknown(name, "run", readable))
    if readable.isdisjoint(names):
        raise RunError("\n".join(gathered.problems[name] for name in dict.fromkeys(names)))
    return [row for row in gathered.rows if row.run in names], left_out


def _of_protocol(rows: list[Row], protocol: str | None) -> list[Row]:
    """Return the rows under a protocol, and those of positions, which belong to any."""
    there = sorted({row.protocol for row in rows}.difference(APART))
    require(
        protocol is None or protocol in there,
        f"no score under the protocol {protocol!r}: these runs were scored under {', '.join(there)}; "
        f"score one with `pe-bench eval RUN --protocol {protocol}`",
    )
    return [row for row in rows if protocol in (None, row.protocol) or row.protocol == POSITIONS]


def _unchanged(keys: RunKeys, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the unchanged model of a later stage's run, on the same targets."""
    sets = {(row.target_hash, row.score_dtype, row.length) for row in rows}
    first_runs = {keys.first_stage(row).run for row in rows} - {row.run for row in rows}
    return [
        row
        for first in first_runs
        for row in keys.folder_of(first).rows
        if (row.target_hash, row.score_dtype, row.length) in sets and row.scored_with == row.encoding
    ]


def _quarters(run: Path, rows: Sequence[Row]) -> list[Row]:
    """Return the run's other rows at a quarter of the training length, on the same targets."""
    scored, sets = {row.key for row in rows}, {(row.target_hash, row.score_dtype) for row in rows}
    return [
        row
        for row in read_rows(run / "eval.csv")
        if row.length == quarter_of(row.train_length)
        and row.protocol == "paired"  # other protocols may share their targets with each other
        and (row.target_hash, row.score_dtype) in sets
        and row.key not in scored
    ]


def _require_shown(tables: Sequence[Table], selection: Selection, others: int) -> None:
    """Raises `UserError` where the options leave nothing, or name what is nowhere."""
    elsewhere = f" ({others} other tables: --all)" if others else ""
    lengths = sorted({length for table in tables for length in table.lengths})
    conditions = ", ".join(f"{one.key}{one.sign}{','.join(one.values)}" for one in selection.where)
    message = f"no score is left by --where {conditions}: `pe-bench list runs` shows what there is"
    require(bool(lengths), message)
    if selection.baseline is not None and not any(table.baseline for table in tables):
        labels = {line.label for table in tables for line in table.all_lines}
        raise UserError(unknown(selection.baseline, "--baseline", labels) + elsewhere)
    sort, there = selection.sort or "", ", ".join(map(str, lengths))
    message = f"--sort {sort}: nothing was scored at that length; there are {there}{elsewhere}"
    require(not sort.isdecimal() or int(sort) in lengths, message)
    for length in selection.lengths:
        message = (
            f"--lengths {length}: nothing was scored at that length; pe-bench eval RUN --lengths {length}"
        )
        require(length in lengths, f"{message} adds it{elsewhere}")


def _tables(
    groups: Mapping[TableKey, list[Row]],
    rows: Sequence[Row],
    anchors: StoredAnchors,
    keys: RunKeys,
    selection: Selection,
) -> list[Table]:
    """Return a table for each group; `rows` are those of all groups, and those of positions.

    Whatever its text says stands on one line, because a run may be a stranger's.
    """
    files = ScoreFiles(anchors.with_folders(keys.folder_of))
    positions = grouped(
        [row for row in rows if row.protocol == POSITIONS and not selection.numbers_only],
        lambda row: table_key(row, keys, selection.varying).of_positions,
    )

    def tables_of(name: str) -> dict[TableKey, Table]:
        def table_of(key: TableKey, group: Group) -> Table:
            of_positions = positions.get(key.of_positions, []) if name == ALL else []
            return _table(key, group, of_positions, anchors, files, keys, replace(selection, slice=name))

        return {key: table_of(key, group) for key, group in groups_of_slice(groups, name, files).items()}

    tables = tables_of(selection.slice)
    require(
        bool(tables) or selection.slice == ALL,
        f"--slice {selection.slice}: no run here has that slice of its targets under the protocol paired; "
        "pe-bench eval RUN... adds recall and novel without scoring again; --key-tokens-of JUDGE adds key",
    )
    if selection.numbers_only:
        return in_one_line(list(tables.values()))
    if selection.slice == ALL:
        # The largest part is first, and so the one that stays.
        of_recall = reversed(tables_of(RECALL).items())
        recalls = {replace(key, slice=ALL, slice_hash=""): table for key, table in of_recall}
        tables = {key: _with_recall(table, recalls.get(key)) for key, table in tables.items()}
    swept = differing_keys(groups.values(), keys) if len(groups) > 1 else []
    explained = []
    for index, (key, table) in enumerate(tables.items()):
        whole = groups[replace(key, slice=ALL, judge="", slice_hash="")]
        why = explain_separation(index, list(tables), describe_swept(whole, swept, keys), swept)
        explained.append(replace(table, why=why))
    return in_one_line(explained)


def _with_recall(table: Table, recall: Table | None) -> Table:
    """Return the table with that of the slice `recall`, whose lines are in its own order."""
    if recall is None or not recall.lines:
        return table
    rank = {line.label: number for number, line in enumerate(table.lines)}
    lines = sorted(recall.lines, key=lambda line: rank.get(line.label, len(rank)))
    return replace(table, recall=replace(recall, lines=tuple(lines), asked=table.asked, ranked_at=None))


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
    ranks, trained, whole = rank_sets(plain), _as_trained(rows), _as_trained(group.whole)
    members = members_of(plain, controls, positions, lambda row: keys.label(row, selection.by))
    lines, own_lines = [], {}
    for member in members:
        first_runs = [first for first in map(files.first_run, member.runs) if first in trained]

        def line_of(runs: Sequence[str], train_length: int, member: Member = member) -> Line:
            of_runs, whole_of_runs = (
                [row for run in dict.fromkeys(runs) for row in rows_of.get(run, [])]
                for rows_of in (trained, whole)
            )
            line = make_line(member, of_runs, whole_of_runs, ranks, margin, files, train_length)
            return replace(line, unlearned=unlearned(whole_of_runs, stored, files))

        lines.append(line_of(first_runs or member.runs, key.train_length))
        first = keys.folder_of(member.runs[0]).first_stage
        if first is not None:
            own = replace(line_of(member.runs, first.longest), unlearned=lines[-1].unlearned)
            own_lines[lines[-1].label] = replace(judge(own, first.longest, margin), longest=first.longest)
    for line, member in anchor_lines(plain, stored, ranks, margin, files, selection.slice):
        lines.append(line)
        members.append(member)
    baseline = _baseline_in(lines, selection.baseline, keys)
    if baseline:
        lines = with_baseline(lines, members, baseline, margin, files)
    lines = [judge(line, key.train_length, margin) for line in lines]
    lines = [_of_own_length(line, own_lines.get(line.label)) for line in lines]
    lines = [_shown(line, key, selection) for line in lines]
    anchors = [line for line in lines if line.is_anchor and line.records]
    taken = [line for line in lines if not line.is_anchor and selection.takes(line.scored_with)]
    order = ordered([line for line in taken if line.records], selection.sort)
    lengths = tuple(sorted({length for line in order.lines for length in line.records}))
    shown, of_slice = ([row for row in part if row.length in lengths] for part in (group.whole, rows))
    notes: list[Note] = []
    if not selection.numbers_only:
        notes = make_notes([*order.lines, *anchors], shown, of_slice, order.note, margin, keys)
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


def _of_own_length(line: Line, own: Line | None) -> Line:
    """Return a line of later stages with what is judged from the longest length that it was trained at."""
    if own is None:
        return line
    records = {
        length: replace(record, use=own.records[length].use) for length, record in line.records.items()
    }
    kept = {name: getattr(own, name) for name in ("break_point", "reads_nothing", "longest")}
    return replace(line, records=records, **kept)


def _as_trained(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return, by run, the rows without a control that are scored with the encoding that was trained."""
    own = [row for row in rows if row.control == "none" and row.scored_with == row.encoding]
    return grouped(own, lambda row: row.run)


def _shown(line: Line, key: TableKey, selection: Selection) -> Line:
    """Return the line at the lengths that are asked for."""
    shown = [length for length in line.records if selection.shows(length, key.train_length)]
    return replace(line, records={length: line.records[length] for length in shown})


def _baseline_in(lines: Sequence[Line], name: str | None, keys: RunKeys) -> str:
    """Return the label of the line that `--baseline` names: exactly, or as the only one of an encoding.

    Or of a checkpoint, by hf:....
    """
    if name is None or any(line.label == name for line in lines):
        return name or ""
    own = [line for line in lines if line.encoding == line.scored_with]
    if is_checkpoint(name):
        labels = [line.label for line in own if scores_checkpoint(keys.folder_of(line.runs[0]), name)]
    else:
        labels = [line.label for line in own if line.encoding == name]
    message = f"--baseline {name} may be several lines: {', '.join(labels)}; name one of them in full"
    require(len(labels) < 2, message)
    return labels[0] if labels else ""
