"""The tables of rows: read, selected, grouped, compared and ranked."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pe_bench.errors import RunError, UserError, require
from pe_bench.report.groups import (
    Group,
    RunKeys,
    differing_keys,
    explain_separation,
    group_rows,
    groups_of_newest,
    groups_of_slice,
)
from pe_bench.report.lines import Source, anchor_lines, line_of, members_of, rank_sets, with_baseline
from pe_bench.report.notes import make_notes
from pe_bench.report.pairs import BY_RUN, ScoreFiles, grouped
from pe_bench.report.probes import ProbeTable, probe_tables
from pe_bench.report.records import Line, Table, TableKey, quarter_of
from pe_bench.report.selection import EVERYTHING, Selection, keep_best, ordered
from pe_bench.report.statistics import MARGIN
from pe_bench.runs.find import Condition, is_checkpoint, is_number, one_a_run, scores_checkpoint
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
    folder_of, anchors = folders_in(runs_folder(results_dir)), read_anchors(results_dir / "anchors")
    keys = RunKeys(folder_of)
    problems += [*anchors.problems, *_unreadable(rows, keys)]
    for key in selection.by:
        keys.require(rows, key, "--by")
    rows = keys.select(_of_protocol(rows, protocol), selection.where)
    if selection.margin is None:
        margins = {keys.value(row, "report.margin") for row in one_a_run(rows)}
        margins = {float(margin) for margin in margins if is_number(margin)}
        selection = replace(selection, margin=margins.pop() if len(margins) == 1 else MARGIN)
        if margins:
            problems.append(f"the runs differ in report.margin: {MARGIN:g} is used; --margin sets another")
    if selection.best is not None:
        rows, note = keep_best(rows, keys, selection.best)
        problems.append(note)
    groups, probed = (
        group_rows([row for row in rows if (row.protocol in APART) is is_apart], keys, selection.varying)
        for is_apart in (False, True)
    )
    probed = {key: group for key, group in probed.items() if key.protocol == PROBE}
    shown = groups_of_newest(groups, results_dir) if newest_only else groups
    probed = groups_of_newest(probed, results_dir) if newest_only else probed
    probes = tuple(probe_tables(probed, keys, selection)) if probed else ()
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

    asked: lengths that the user named. There are several where rows contradict each other, as in a damaged
    file.
    """
    rows = list(rows)
    shown = tuple(str(length) for length in sorted({row.length for row in rows}))
    selection = Selection(where=(Condition("length", "=", shown),), margin=margin)
    folder = RunFolder(run)
    first = folder.first_stage
    unchanged = folder if first is None else RunFolder(run.parent / first.run)
    rows += _references(rows, run, unchanged)
    keys = RunKeys(lambda name: unchanged if name == unchanged.path.name else folder)
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
    return probe_tables(group_rows(probed, keys, ()), keys, EVERYTHING)


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


def _unreadable(rows: Sequence[Row], keys: RunKeys) -> list[str]:
    """Return a line for each run whose configuration cannot be read, so that its keys are not known."""
    problems = {row.run: keys.folder_of(row.run).config_problem for row in one_a_run(rows)}
    return [f"{run}: its config.yaml cannot be read ({text})" for run, text in problems.items() if text]


def _of_protocol(rows: list[Row], protocol: str | None) -> list[Row]:
    """Return the rows under a protocol, and those of positions, which belong to any."""
    there = sorted({row.protocol for row in rows}.difference(APART))
    require(
        protocol is None or protocol in there,
        f"no score under the protocol {protocol!r}: these runs were scored under {', '.join(there)}; "
        f"score one with `pe-bench eval RUN --protocol {protocol}`",
    )
    return [row for row in rows if protocol in (None, row.protocol) or row.protocol == POSITIONS]


def _references(rows: Sequence[Row], run: Path, unchanged: RunFolder) -> list[Row]:
    """Return other rows on the same targets that say more of a run's.

    They are its own at a quarter of its training length, by which it is known what it gains within it, and
    those of the unchanged model of a later stage.
    """
    scored, sets = {row.key for row in rows}, {(row.target_hash, row.score_dtype) for row in rows}
    lengths = {row.length for row in rows}
    quarters = [
        row
        for row in read_rows(run / "eval.csv")
        if row.length == quarter_of(row.train_length)
        and row.protocol == "paired"  # other protocols may share their targets with each other
    ]
    of_unchanged = [row for row in unchanged.rows if unchanged.path != run and row.length in lengths]
    of_unchanged = [row for row in of_unchanged if row.scored_with == row.encoding]
    return [
        row
        for row in [*quarters, *of_unchanged]
        if (row.target_hash, row.score_dtype) in sets and row.key not in scored
    ]


def _require_shown(tables: Sequence[Table], selection: Selection, others: int) -> None:
    """Raises `UserError` where the options leave nothing, or name what is nowhere."""
    elsewhere = f" ({others} other tables: --all)" if others else ""
    lengths = sorted({length for table in tables for length in table.lengths})
    conditions = ", ".join(map(str, selection.where))
    message = f"no score is left by --where {conditions}: `pe-bench list runs` shows what there is"
    require(bool(lengths), message)
    if selection.baseline is not None and not any(table.baseline for table in tables):
        labels = {line.label for table in tables for line in table.all_lines}
        raise UserError(unknown(selection.baseline, "--baseline", labels) + elsewhere)
    sort, there = selection.sort or "", ", ".join(map(str, lengths))
    message = f"--sort {sort}: nothing was scored at that length; there are {there}{elsewhere}"
    require(not sort.isdecimal() or int(sort) in lengths, message)
    for length in selection.lengths:
        message = f"--lengths {length}: nothing was scored at that length; pe-bench eval RUN --lengths"
        require(length in lengths, f"{message} {length} adds it{elsewhere}")


# Tables


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
    files = ScoreFiles(lambda name: anchors.folders.get(name) or keys.folder_of(name))
    positions = grouped((row for row in rows if row.protocol == POSITIONS), BY_RUN)

    def tables_of(name: str) -> dict[TableKey, Table]:
        return {
            key: _table(key, group, positions if name == ALL else {}, anchors, files, keys, selection)
            for key, group in groups_of_slice(groups, name, files).items()
        }

    tables = tables_of(selection.slice)
    require(
        bool(tables) or selection.slice == ALL,
        f"--slice {selection.slice}: no run here has that slice of its targets under the protocol paired; "
        "pe-bench eval RUN... adds recall and novel without scoring again; --key-tokens-of JUDGE adds key",
    )
    if not selection.numbers_only:
        if selection.slice == ALL:
            recalls = {replace(key, slice=ALL): table for key, table in tables_of(RECALL).items()}
            tables = {key: _with_recall(table, recalls.get(key)) for key, table in tables.items()}
        swept = differing_keys(groups.values(), keys) if len(groups) > 1 else []
        for number, (key, table) in enumerate(tables.items()):
            runs = {run for line in table.lines for run in line.runs}
            of_table = [row for row in one_a_run(rows) if row.run in runs]
            values = {name: [keys.value(row, name) for row in of_table] for name in swept}
            tables[key] = replace(table, why=explain_separation(number, [*tables], values))
    return in_one_line([*tables.values()])


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
    positions: Mapping[str, list[Row]],
    anchors: StoredAnchors,
    files: ScoreFiles,
    keys: RunKeys,
    selection: Selection,
) -> Table:
    """Return the table of a group of rows; `why` is empty, because it depends on the other tables."""
    margin = selection.resolved_margin
    ranks = rank_sets(row for row in group.rows if row.control == "none")
    source = Source(group.rows, group.whole, ranks, anchors, files, margin)
    of_positions = [row for run in {row.run: None for row in group.rows} for row in positions.get(run, [])]
    members = members_of([*group.rows, *of_positions], lambda row: keys.label(row, selection.by))
    lines = [line_of(member, source, key.train_length) for member in members]
    for line, member in anchor_lines(source, key.slice):
        lines.append(line)
        members.append(member)
    baseline = _baseline_in(lines, selection.baseline, keys)
    if baseline:
        lines = with_baseline(lines, members, baseline, margin, files)
    lines = [line for line in (_shown(line, key.train_length, selection) for line in lines) if line.records]
    order = ordered([line for line in lines if not line.is_anchor], selection.sort)
    table = Table(
        key=key,
        lengths=tuple(sorted({length for line in order.lines for length in line.records})),
        lines=tuple(order.lines),
        ranked_at=order.ranked_at,
        baseline=baseline,
        margin=margin,
        anchors=tuple(line for line in lines if line.is_anchor),
        share=group.share,
        lacking=group.lacking,
    )
    table = replace(table, asked=tuple(filter(selection.asks_for, table.lengths)))
    if selection.numbers_only:
        return table
    notes = make_notes(table, group, order, keys)
    return replace(
        table,
        notes=tuple(note.text for note in notes),
        caveats=tuple(note.text for note in notes if note.is_caveat),
    )


def _shown(line: Line, train_length: int, selection: Selection) -> Line:
    """Return the line at the lengths that are asked for, which are none of an encoding that is not."""
    takes = line.is_anchor or selection.takes(line.scored_with)
    lengths = [length for length in line.records if takes and selection.shows(length, train_length)]
    return replace(line, records={length: line.records[length] for length in lengths})


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
