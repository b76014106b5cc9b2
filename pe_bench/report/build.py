"""The tables of rows: read, selected, grouped, compared and ranked."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from pe_bench.config.schema import Protocol, Slice, check_margin, quarter_of
from pe_bench.errors import RunError, UserError, require
from pe_bench.report.groups import (
    EVERYTHING,
    Groups,
    Selection,
    check_best,
    differing_keys,
    explain_separation,
    group_rows,
    groups_of_newest,
    groups_of_slice,
    keep_best,
    labels_by,
    lacking_runs,
    newest_run,
    parse_by,
    share_of,
)
from pe_bench.report.lines import (
    Source,
    anchor_lines,
    check_sort,
    lengths_of,
    lines_of,
    ordered,
    with_baseline,
    with_short_labels,
)
from pe_bench.report.notes import with_notes
from pe_bench.report.probes import ProbeTable, probe_tables
from pe_bench.report.records import Line, Table, TableKey
from pe_bench.report.statistics import MARGIN
from pe_bench.report.verdicts import rank_sets
from pe_bench.runs.find import (
    Condition,
    ScoredRuns,
    anchors_folder,
    find_runs,
    is_checkpoint,
    is_number,
    parse_condition,
    read_anchors,
    scores_checkpoint,
    tagged_runs,
)
from pe_bench.runs.folder import RunFolder, folders_in, read_all, read_unfinished
from pe_bench.runs.rows import ALL, APART, POSITIONS, PROBE, Row, one_a_run, read_rows
from pe_bench.runs.scores import RECALL
from pe_bench.runs.typed import results_option, tags_of
from pe_bench.system.terminal import in_one_line, say
from pe_bench.values import check_folder, check_type, listed, unknown


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


def read_report(
    results_dir: str | Path,
    runs: str | Sequence[str] | None = None,
    *,
    everything: bool = True,
    lengths: Sequence[int] = (),
    sort: str | None = None,
    numbers_only: bool = False,
    probe: bool = False,
    **options: Any,
) -> Report:
    """Return the tables of the named runs, of a selection or of everything, or those with the newest run.

    probe: require probes in place of levels. options: those of `api.results`. Raises
    `UserError` for values that are not possible, and where there is nothing to show.
    """
    by, best, margin = (options.get(name) for name in ("by", "best", "margin"))
    protocol = check_type(options.get("protocol"), Protocol | None, "protocol")
    part = check_type(options.get("slice") or ALL, Slice, "slice")
    named = listed(runs)
    several = sum(map(is_checkpoint, named)) > 1
    keys = ("model",) if several else ()
    if by is not None:
        keys = parse_by(by)
    if sort is not None:
        check_sort(sort)
    if margin is not None:
        check_margin(margin, "--margin")
    if best is not None:
        check_best(best, keys)
    where = tuple(map(parse_condition, listed(options.get("where"))))
    selection = Selection(
        where,
        keys,
        best,
        sort,
        baseline=options.get("baseline"),
        margin=margin,
        slice=part,
        numbers_only=numbers_only,
        lengths=tuple(lengths),
    )
    folder = Path(results_dir)
    check_folder(folder, "--results-dir")
    names = _names_of(named, folder) if named else None
    newest_only = not (everything or names or where)
    tag = options.get("tag")
    if tag is not None:
        tagged = [run.name for run in tagged_runs(folder, tag)]
        names = tagged if names is None else [name for name in names if name in tagged]
        require(
            bool(names), f"none of these runs has the tag {tag}: `pe-bench list runs --tag {tag}` lists it"
        )
        newest_only = False
    elif newest_only:
        names = _newest_tag(folder)
    report = build_report(folder, names, protocol, selection, newest_only=newest_only)
    if numbers_only:  # else they are notes below the tables
        for problem in report.problems:
            say(f"warning: {problem}")
    if probe:
        require(bool(report.probes), "nothing was probed here: make probes with `pe-bench probe RUN`")
    else:
        message = (
            "these runs were only probed and have no levels: say pe-bench report --probe to see the probes"
        )
        require(bool(report.tables), message)
    return report


def _names_of(named: Sequence[str], results_dir: Path) -> list[str]:
    """Return the names of the runs that are named, and of evaluations of checkpoints that have not ended."""
    unfinished = [each.folder for each in read_unfinished(results_dir)]
    names: list[str] = []
    finished: list[str] = []
    for name in named:
        matching = [folder.path.name for folder in unfinished if _is_named(folder, name)]
        names += matching
        if not matching:
            finished.append(name)
    if finished:
        names += [run.name for run in find_runs(finished, results_dir)]
    return names


def _is_named(folder: RunFolder, name: str) -> bool:
    """Return whether a name is the beginning of the run's, or the Hugging Face model that it scores."""
    if folder.path.name.startswith(name):
        return True
    return is_checkpoint(name) and scores_checkpoint(folder, name)


def _newest_tag(results_dir: Path) -> list[str] | None:
    """Return the runs that have the newest tag of the run that finished last; None if it has no tag."""
    newest = newest_run(read_all(results_dir).rows, results_dir)
    tags = [] if newest is None else tags_of(newest)
    if not tags:
        return None
    say(f"tag: {tags[-1]}; all runs: pe-bench report{results_option(results_dir)} --all")
    return [run.name for run in tagged_runs(results_dir, tags[-1])]


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
    names: Sequence[str] | None = None,
    protocol: str | None = None,
    selection: Selection = EVERYTHING,
    *,
    newest_only: bool = False,
) -> Report:
    """Return the tables of `build_tables` with probes, or only the tables with the newest run."""
    rows, problems = _read(results_dir, names)
    runs = ScoredRuns(folders_in(results_dir / "runs"), read_anchors(results_dir / "anchors"))
    for key in selection.by:
        runs.require(rows, key, "--by")
    rows = rows if protocol is None else _of_protocol(rows, protocol)
    if selection.where:
        rows = runs.select(rows, selection.where)
    if selection.margin is None:
        selection = replace(selection, margin=_common_margin(rows, runs))
    varying = selection.by  # in which rows of a table may differ
    if selection.best is not None:
        rows, note = keep_best(rows, runs, selection.best)
        problems.append(note)
        varying = (*varying, selection.best)
    groups = group_rows([row for row in rows if row.protocol not in APART], runs, varying)
    probed = group_rows([row for row in rows if row.protocol == PROBE], runs, varying)
    shown = groups
    if newest_only and len(groups) > 1:
        shown = groups_of_newest(groups, results_dir)
    if newest_only and len(probed) > 1:
        probed = groups_of_newest(probed, results_dir)
    probes = tuple(probe_tables(probed, runs, selection)) if probed else ()
    if not groups and probes:  # a checkpoint that was only probed
        return Report([], 0, runs.folder_of, tuple(problems), probes)
    tables = _tables(shown, rows, runs, selection)
    others = len(groups) - len(shown)
    _require_shown(tables, selection, others)
    last = tables[-1]
    last = replace(last, notes=(*last.notes, *problems), caveats=(*problems, *last.caveats))
    return Report([*tables[:-1], last], others, runs.folder_of, tuple(problems), probes)


def _common_margin(rows: Sequence[Row], runs: ScoredRuns) -> float:
    """Return the margin that all runs' configurations name, or MARGIN where they name several or none."""
    named = {runs.folder_of(row.run).flat_config.get("report.margin", "") for row in one_a_run(rows)}
    margins = {float(margin) for margin in named if is_number(margin)}
    return margins.pop() if len(margins) == 1 else MARGIN


def run_tables(
    rows: Iterable[Row], run: Path, margin: float = MARGIN, chosen: Sequence[int] = ()
) -> list[Table]:
    """Return the table of one run's rows under one protocol and stride; `run` is its directory.

    chosen: lengths that the user named. There are several where rows contradict each other, as in a damaged
    file.
    """
    rows = list(rows)
    shown = tuple(str(length) for length in sorted({row.length for row in rows}))
    selection = Selection(where=(Condition("length", "=", shown),), margin=margin)
    folder = RunFolder(run)
    first = folder.first_stage
    unchanged = folder if first is None else RunFolder(run.parent / first.run)
    rows += _references(rows, run, unchanged)
    runs = ScoredRuns(
        lambda name: unchanged if name == unchanged.path.name else folder, read_anchors(anchors_folder(run))
    )
    groups = group_rows([row for row in rows if row.protocol not in APART], runs, ())
    return [replace(table, chosen=tuple(chosen)) for table in _tables(groups, rows, runs, selection)]


def tables_of_rows(rows: Sequence[Row], results_dir: Path, margin: float) -> list[Table]:
    """Return the tables of rows of several runs in a folder of results."""
    runs = ScoredRuns(folders_in(results_dir / "runs"), read_anchors(results_dir / "anchors"))
    return _tables(group_rows(rows, runs, ()), rows, runs, Selection(margin=margin))


def probes_of_rows(rows: Sequence[Row], folder_of: Callable[[str], RunFolder]) -> list[ProbeTable]:
    """Return the tables of a probe's rows, which may be of several runs; folder_of: by a run's name."""
    runs = ScoredRuns(folder_of, read_anchors(None))
    probed = [row for row in rows if row.protocol == PROBE]
    return probe_tables(group_rows(probed, runs, ()), runs, EVERYTHING)


def _read(results_dir: Path, runs: Sequence[str] | None) -> tuple[list[Row], list[str]]:
    """Return the rows of all runs or of those named that can be read, and what is left out."""
    gathered = read_all(results_dir)
    unfinished = read_unfinished(results_dir)
    rows = [*gathered.rows]
    for each in unfinished:
        rows += each.rows
    if not rows and gathered.problems:
        raise RunError("\n".join(dict.fromkeys(gathered.problems.values())))
    if not rows and unfinished:
        raise UserError("\n".join(each.text for each in unfinished))
    message = f"no scored run in {results_dir / 'runs'}: make one with `pe-bench train encoding=rope`"
    tries = results_dir / "tries"
    if (tries / "runs").is_dir():
        message += f" (runs of try: --results-dir {tries})"
    require(bool(rows), message)
    left_out = [f"left out: {line}" for line in dict.fromkeys(gathered.problems.values())]
    partly_scored = [each for each in unfinished if each.rows]
    if runs is None:
        return rows, [*left_out, *(each.text for each in partly_scored)]
    names = [Path(run).name for run in runs]
    left_out += [each.text for each in partly_scored if each.folder.path.name in names]
    readable = {row.run for row in rows}
    if readable.isdisjoint(names):
        raise RunError("\n".join(gathered.problems.get(name, f"unknown run {name!r}") for name in names))
    return [row for row in rows if row.run in names], left_out


def _of_protocol(rows: list[Row], protocol: str) -> list[Row]:
    """Return the rows under a protocol, and those of positions, which belong to any."""
    there = sorted({row.protocol for row in rows}.difference(APART))
    require(
        protocol in there,
        f"no score under the protocol {protocol!r}: these runs were scored under {', '.join(there)}; "
        f"score one with `pe-bench eval RUN --protocol {protocol}`",
    )
    return [row for row in rows if row.protocol in (protocol, POSITIONS)]


def _references(rows: Sequence[Row], run: Path, unchanged: RunFolder) -> list[Row]:
    """Return other rows on the same targets that say more of a run's.

    They are its own at a quarter of its training length, by which it is known what it gains within it, and
    those of the unchanged model of a later stage.
    """
    scored = {row.key for row in rows}
    sets = {(row.target_hash, row.score_dtype) for row in rows}
    lengths = {row.length for row in rows}
    # Other protocols may share their targets with each other.
    paired_rows = [row for row in read_rows(run / "eval.csv") if row.protocol == "paired"]
    references = [row for row in paired_rows if row.length == quarter_of(row.train_length)]
    if unchanged.path != run:
        at_lengths = [row for row in unchanged.rows if row.length in lengths]
        references += [row for row in at_lengths if row.scored_with == row.encoding]
    on_same_sets = [row for row in references if (row.target_hash, row.score_dtype) in sets]
    return [row for row in on_same_sets if row.key not in scored]


def _require_shown(tables: Sequence[Table], selection: Selection, others: int) -> None:
    """Raises `UserError` where the options leave nothing, or name what is nowhere."""
    elsewhere = f" ({others} other tables: --all)" if others else ""
    lengths = set().union(*(table.lengths for table in tables))
    conditions = ", ".join(map(str, selection.where))
    message = f"no score is left by --where {conditions}: `pe-bench list runs` shows what there is"
    require(bool(lengths), message)
    if selection.baseline is not None and not any(table.baseline for table in tables):
        lines = chain.from_iterable(table.all_lines for table in tables)
        labels = {line.label for line in lines}
        raise UserError(unknown(selection.baseline, "--baseline", labels) + elsewhere)
    named = [("--lengths", length) for length in selection.lengths]
    if selection.sort and selection.sort.isdecimal():
        named.insert(0, ("--sort", int(selection.sort)))
    for option, length in named:
        message = f"{option} {length}: nothing was scored at that length; pe-bench eval RUN --lengths"
        require(length in lengths, f"{message} {length} adds it{elsewhere}")


# Tables


def _tables(groups: Groups, rows: Sequence[Row], runs: ScoredRuns, selection: Selection) -> list[Table]:
    """Return a table for each group; `rows` are those of all groups, and those of positions.

    Whatever its text says stands on one line, because a run may be a stranger's.
    """
    parts = {key: (group, group) for key, group in groups.items()}
    if selection.slice != ALL:
        parts = groups_of_slice(groups, selection.slice, runs)
    tables = {key: _table(key, *pair, rows, runs, selection) for key, pair in parts.items()}
    require(
        bool(tables) or selection.slice == ALL,
        f"--slice {selection.slice}: no run here has that slice of its targets under the protocol paired; "
        "pe-bench eval RUN... adds recall and novel without scoring again; --key-tokens-of JUDGE adds key",
    )
    if selection.numbers_only:
        return in_one_line([*tables.values()])
    if selection.slice == ALL:
        for key, group in groups_of_slice(groups, RECALL, runs).items():
            recall = _table(key, *group, (), runs, selection)
            key_of_all = replace(key, slice=ALL)
            tables[key_of_all] = _with_recall(tables[key_of_all], recall)
    if len(tables) > 1:
        swept = differing_keys(groups.values(), runs)
        for number, (key, table) in enumerate(tables.items()):
            names = set().union(*(line.runs for line in table.lines))
            table_rows = [row for row in one_a_run(rows) if row.run in names]
            values = {}
            for name in swept:
                values[name] = [runs.value(row, name) for row in table_rows]
            tables[key] = replace(table, why=explain_separation(number, [*tables], values))
    return in_one_line([*tables.values()])


def _with_recall(table: Table, recall: Table) -> Table:
    """Return the table with the table of its recall targets, whose lines are in the same order."""
    if not recall.lines:
        return table
    rank = {line.label: number for number, line in enumerate(table.lines)}
    lines = sorted(recall.lines, key=lambda line: rank.get(line.label, len(rank)))
    recall = replace(recall, lines=tuple(lines), chosen=table.chosen, ranked_at=None)
    return replace(table, recall=recall)


def _table(
    key: TableKey,
    sliced: Sequence[Row],
    unsliced: Sequence[Row],
    rows: Sequence[Row],
    runs: ScoredRuns,
    selection: Selection,
) -> Table:
    """Return the table of a group of rows; `why` is empty, because it depends on the other tables.

    sliced, unsliced: the group's rows of the table's slice, and of all targets. rows: also those of
    positions, which only lines of all targets have.
    """
    ranks = rank_sets(row for row in sliced if row.control == "none")
    source = Source(sliced, unsliced, ranks, runs, selection.margin or MARGIN, key.train_length)
    is_of_all = key.slice == ALL
    names = {row.run for row in sliced}
    positions = [row for row in rows if row.protocol == POSITIONS and row.run in names]
    shown = [*sliced, *positions] if is_of_all else sliced
    by = labels_by(shown, runs, selection.by)
    lines = with_short_labels(lines_of(shown, source, by))
    lines += anchor_lines(source, key.slice)
    baseline = _baseline_in(lines, selection.baseline, runs) if selection.baseline else ""
    if baseline:
        lines = with_baseline(lines, baseline, source)
    lines = [_shown(line, key.train_length, selection) for line in lines]
    lines = [line for line in lines if line.records]
    order = ordered([line for line in lines if not line.is_anchor], selection.sort, key.loss)
    lengths = lengths_of(order.lines)
    chosen = [length for length in lengths if length in selection.lengths]
    if any((condition.key, condition.sign) == ("length", "=") for condition in selection.where):
        chosen = lengths
    table = Table(
        key=key,
        lengths=tuple(lengths),
        lines=tuple(order.lines),
        ranked_at=order.ranked_at,
        baseline=baseline,
        chosen=tuple(chosen),
        margin=source.margin,
        anchors=tuple(line for line in lines if line.is_anchor),
    )
    if not is_of_all:
        share = share_of(sliced, unsliced)
        table = replace(table, share=share, lacking=lacking_runs(sliced, unsliced))
    return table if selection.numbers_only else with_notes(table, source, order)


def _shown(line: Line, train_length: int, selection: Selection) -> Line:
    """Return the line at the lengths that are shown, which are none of an encoding that is not."""
    encoding = None if line.is_anchor else line.scored_with
    lengths = [length for length in line.records if selection.shows(length, train_length, encoding)]
    return replace(line, records={length: line.records[length] for length in lengths}, rows=())


def _baseline_in(lines: Sequence[Line], name: str, runs: ScoredRuns) -> str:
    """Return the label of the line that `--baseline` names: exactly, or as the only one of an encoding.

    Or of a checkpoint, by hf:....
    """
    for line in lines:
        if name in (line.label, replace(line, has_short_label=False).label):
            return line.label
    trained = [line for line in lines if line.encoding == line.scored_with]
    if is_checkpoint(name):
        labels = [line.label for line in trained if scores_checkpoint(runs.folder_of(line.runs[0]), name)]
    else:
        labels = [line.label for line in trained if line.encoding == name]
    message = f"--baseline {name} may be several lines: {', '.join(labels)}; name one of them in full"
    require(len(labels) < 2, message)
    return labels[0] if labels else ""
