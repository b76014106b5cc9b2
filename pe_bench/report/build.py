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
    best_note,
    check_best,
    differing_keys,
    explain_separation,
    group_rows,
    groups_of_newest,
    groups_of_slice,
    keep_best,
    labels_by,
    lacking_runs_note,
    newest_run,
    parse_by,
    slice_share,
)
from pe_bench.report.lines import (
    TableRows,
    anchor_lines,
    check_sort,
    lengths_of,
    make_lines,
    order_lines,
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
    is_hf_name,
    is_number,
    parse_condition,
    read_anchors,
    scores_hf_model,
    tagged_runs,
)
from pe_bench.runs.folder import RunFolder, folders_of_runs, read_all, read_rows_of_run, read_unfinished
from pe_bench.runs.rows import ALL, APART, POSITIONS, PROBE, Row, is_as_trained, one_per_run
from pe_bench.runs.scores import RECALL
from pe_bench.runs.typed import results_option, tags_of
from pe_bench.system.terminal import one_line_texts, say
from pe_bench.values import check_folder, check_type, listed, unknown


@dataclass(frozen=True)
class Report:
    """The tables of levels and of probes to show."""

    tables: list[Table]
    others: int  # the number of tables that are not shown
    folder_of: Callable[[str], RunFolder]  # the folder of a run, by its name
    problems: tuple[str, ...] = ()  # runs left out, and unknown facts; also in the notes of the last table
    probes: tuple[ProbeTable, ...] = ()  # the tables of probes of the same runs


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
    """Return the tables of the named runs, of a selection, of all runs, or of the newest run.

    everything: without names, tags and conditions, show all runs; False: only the runs with the tag of the
    run that finished last or, if it has no tag, the tables with this run. probe: require probes in place of
    levels. options: the other options of `api.results`. Raises `UserError` for values that are not possible,
    and if there is nothing to show.
    """
    by = options.get("by")
    best = options.get("best")
    margin = options.get("margin")
    protocol = check_type(options.get("protocol"), Protocol | None, "protocol")
    part = check_type(options.get("slice") or ALL, Slice, "slice")
    named = listed(runs)
    several = sum(map(is_hf_name, named)) > 1
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
    names = _run_names(named, folder) if named else None
    newest_only = not (everything or names or where)
    tag = options.get("tag")
    if tag is not None:
        tagged = [run.name for run in tagged_runs(folder, tag)]
        if names is not None:
            tagged = [name for name in names if name in tagged]
        names = tagged
        message = f"none of these runs has the tag {tag}: `pe-bench list runs --tag {tag}` lists it"
        require(bool(names), message)
        newest_only = False
    elif newest_only:
        names = _runs_with_newest_tag(folder)
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


def _run_names(typed_names: Sequence[str], results_dir: Path) -> list[str]:
    """Return the full names of the finished runs, or unfinished evaluations, that typed names select."""
    unfinished = [each.folder for each in read_unfinished(results_dir)]
    names: list[str] = []
    for name in typed_names:
        matching = [folder.path.name for folder in unfinished if _is_named_by(folder, name)]
        names += matching
        try:
            names += [run.name for run in find_runs([name], results_dir)]
        except UserError:
            if not matching:
                raise
    return names


def _is_named_by(folder: RunFolder, name: str) -> bool:
    """Return whether a name is the beginning of a run's name, or the Hugging Face model that it scores."""
    if folder.path.name.startswith(name):
        return True
    return is_hf_name(name) and scores_hf_model(folder, name)


def _runs_with_newest_tag(results_dir: Path) -> list[str] | None:
    """Print the last tag of the run that finished last, and return the names of all runs with this tag.

    Returns None if the run has no tag.
    """
    newest = newest_run(read_all(results_dir).rows, results_dir)
    tags = [] if newest is None else tags_of(newest)
    if not tags:
        return None
    tag = tags[-1]
    say(f"tag: {tag}; all runs: pe-bench report{results_option(results_dir)} --all")
    return [run.name for run in tagged_runs(results_dir, tag)]


def build_tables(
    results_dir: Path,
    runs: Sequence[str] | None = None,
    protocol: str | None = None,
    selection: Selection = EVERYTHING,
) -> list[Table]:
    """Return the tables of all finished runs or of the named runs, under all protocols or one.

    Raises `UserError` if there is nothing to show, `RunError` if all runs are damaged.
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
    """Return the tables of `build_tables` and the tables of probes, with notes on runs that are left out.

    newest_only: only the tables with the run that finished last. Raises as `build_tables`.
    """
    rows, problems = _readable_rows(results_dir, names)
    runs = ScoredRuns.read(results_dir)
    for key in selection.by:
        runs.require(rows, key, "--by")
    rows = rows if protocol is None else _rows_of_protocol(rows, protocol)
    if selection.where:
        rows = runs.select(rows, selection.where)
    if selection.margin is None:
        selection = replace(selection, margin=_common_margin(rows, runs))
    varying = selection.by  # the keys in which rows of a table may differ
    choices: dict[str, str] = {}
    if selection.best is not None:
        rows, choices = keep_best(rows, runs, selection.best)
        varying = (*varying, selection.best)
    shown_names = {row.run for row in rows}
    first_stage_rows = _rows_of_first_stages(rows, runs)
    selection = replace(selection, references=frozenset(row.run for row in first_stage_rows))
    groups = group_rows([*_rows_of_levels(rows), *first_stage_rows], runs, varying)
    groups = {
        key: group for key, group in groups.items() if not shown_names.isdisjoint(row.run for row in group)
    }
    probe_rows = [row for row in rows if row.protocol == PROBE]
    probed = group_rows(probe_rows, runs, varying)
    shown = groups
    if newest_only and len(groups) > 1:
        shown = groups_of_newest(groups, results_dir)
    if newest_only and len(probed) > 1:
        probed = groups_of_newest(probed, results_dir)
    if selection.best is not None:
        problems.append(best_note(selection.best, choices, chain(*shown.values(), *probed.values())))
    probes = tuple(probe_tables(probed, runs, selection)) if probed else ()
    if not groups and probes:  # a Hugging Face model that was only probed
        return Report([], 0, runs.folder_of, tuple(problems), probes)
    tables = _make_tables(shown, rows, runs, selection)
    problems += runs.contradictions.values()
    others = len(groups) - len(shown)
    _require_shown(tables, selection, others)
    last = tables.pop()
    caveats = (*problems, *last.caveats)
    tables.append(replace(last, notes=(*last.notes, *problems), caveats=caveats))
    return Report(tables, others, runs.folder_of, tuple(problems), probes)


def _rows_of_levels(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of levels and controls, without probes and positions."""
    return [row for row in rows if row.protocol not in APART]


def _rows_of_first_stages(rows: Sequence[Row], runs: ScoredRuns) -> list[Row]:
    """Return the levels, with their own encoding, of first stages that are not among `rows`.

    rows: rows of runs, some of which are later stages.
    """
    names = dict.fromkeys(row.run for row in rows)
    first_stages = [runs.folder_of(name).first_stage for name in names]
    missing = {stage.run for stage in first_stages if stage is not None and stage.run not in names}
    levels: list[Row] = []
    for name in sorted(missing):
        levels += filter(is_as_trained, _rows_of_levels(runs.folder_of(name).rows))
    return levels


def _common_margin(rows: Sequence[Row], runs: ScoredRuns) -> float:
    """Return the margin of all runs' configurations, or MARGIN if they have several margins or none."""
    configs = [runs.folder_of(row.run).flat_config for row in one_per_run(rows)]
    named = {config.get("report.margin", "") for config in configs}
    margins = {float(margin) for margin in named if is_number(margin)}
    return margins.pop() if len(margins) == 1 else MARGIN


def run_tables(
    rows: Iterable[Row], run: Path, margin: float = MARGIN, chosen: Sequence[int] = ()
) -> list[Table]:
    """Return the table of one run's rows under one protocol and stride; `run` is its directory.

    chosen: lengths that the user named. Rows that contradict each other, as in a damaged file, make several
    tables.
    """
    rows = list(rows)
    lengths = sorted({row.length for row in rows})
    shown = tuple(map(str, lengths))
    selection = Selection(where=(Condition("length", "=", shown),), margin=margin)
    folder = RunFolder(run)
    first = folder.first_stage
    unchanged = folder
    if first is not None:
        unchanged = RunFolder(run.parent / first.run)
    rows += _reference_rows(rows, run, unchanged)

    def folder_of(name: str) -> RunFolder:
        return unchanged if name == unchanged.path.name else folder

    runs = ScoredRuns(folder_of, read_anchors(anchors_folder(run)))
    tables = _make_tables(group_rows(_rows_of_levels(rows), runs, ()), rows, runs, selection)
    return [replace(table, chosen=tuple(chosen)) for table in tables]


def tables_of_rows(rows: Sequence[Row], results_dir: Path, margin: float) -> list[Table]:
    """Return the tables of rows of several runs in a folder of results."""
    runs = ScoredRuns.read(results_dir)
    return _make_tables(group_rows(rows, runs, ()), rows, runs, Selection(margin=margin))


def probes_of_rows(rows: Sequence[Row], folder_of: Callable[[str], RunFolder]) -> list[ProbeTable]:
    """Return the tables of the probe rows among `rows`. folder_of: returns a run's folder, by its name."""
    runs = ScoredRuns(folder_of, read_anchors(None))
    probed = [row for row in rows if row.protocol == PROBE]
    return probe_tables(group_rows(probed, runs, ()), runs, EVERYTHING)


def _readable_rows(results_dir: Path, runs: Sequence[str] | None) -> tuple[list[Row], list[str]]:
    """Return the readable rows of all runs or of the named runs, and notes on the runs that are left out.

    Raises `UserError` if nothing is scored, `RunError` if all runs or all named runs are unreadable.
    """
    gathered = read_all(results_dir)
    unfinished = read_unfinished(results_dir)
    rows = [*gathered.rows]
    for each in unfinished:
        rows += each.rows
    if not rows and gathered.problems:
        raise RunError("\n".join(dict.fromkeys(gathered.problems.values())))
    if not rows and unfinished:
        raise UserError("\n".join(each.text for each in unfinished))
    if not rows:
        raise UserError(_no_scored_run_text(results_dir))
    problems = dict.fromkeys(gathered.problems.values())
    left_out = [f"left out: {problem}" for problem in problems]
    names = None if runs is None else [Path(run).name for run in runs]
    for each in unfinished:
        if each.rows and (names is None or each.folder.path.name in names):
            left_out.append(each.text)
    if names is None:
        return rows, left_out
    readable = {row.run for row in rows}
    if readable.isdisjoint(names):
        reasons = [gathered.problems.get(name, f"unknown run {name!r}") for name in names]
        raise RunError("\n".join(reasons))
    return [row for row in rows if row.run in names], left_out


def _no_scored_run_text(results_dir: Path) -> str:
    """Return a message for a folder without scores, with the command that gives some."""
    begun = any((run / "config.yaml").is_file() for run in folders_of_runs(results_dir))
    way_out = "make one with `pe-bench train encoding=rope`"
    if begun:
        way_out = f"`pe-bench list runs{results_option(results_dir)}` shows what is not finished"
        way_out += ", and the same command continues it"
    tries = results_dir / "tries"
    if (tries / "runs").is_dir():
        way_out += f" (runs of try: --results-dir {tries})"
    return f"no scored run in {results_dir / 'runs'}: {way_out}"


def _rows_of_protocol(rows: list[Row], protocol: str) -> list[Row]:
    """Return the rows scored under a protocol, and the by-position rows, which every protocol shows.

    Raises `UserError` if nothing was scored under the protocol.
    """
    there = sorted({row.protocol for row in _rows_of_levels(rows)})
    message = (
        f"no score under the protocol {protocol!r}: these runs were scored under {', '.join(there)}; "
        f"score one with `pe-bench eval RUN --protocol {protocol}`"
    )
    require(protocol in there, message)
    return [row for row in rows if row.protocol in (protocol, POSITIONS)]


def _reference_rows(rows: Sequence[Row], run: Path, unchanged: RunFolder) -> list[Row]:
    """Return further rows, on the same targets, with which the rows of a run are compared.

    They are the run's own rows at a quarter of its training length, which show its gain within training, and
    at other lengths beyond that length, which show where it breaks, and for a later stage the rows of the
    model before it, `unchanged`.
    """
    scored = {row.key for row in rows}
    sets = {(row.target_hash, row.score_dtype) for row in rows}
    lengths = {row.length for row in rows}
    labels = {row.scored_with for row in rows}
    protocols = {(row.protocol, row.stride_rule) for row in rows}
    references: list[Row] = []
    for row in read_rows_of_run(run):
        # Other protocols may share their targets with each other.
        is_quarter = row.protocol == "paired" and row.length == quarter_of(row.train_length)
        is_own = row.scored_with == row.encoding or row.scored_with in labels
        is_longer = row.length > row.train_length and row.length not in lengths
        is_level = row.control == "none" and row.scored_with in labels
        is_like = (row.protocol, row.stride_rule) in protocols
        if (is_quarter and is_own) or (is_longer and is_level and is_like):
            references.append(row)
    if unchanged.path != run:
        at_lengths = [row for row in unchanged.rows if row.length in lengths]
        references += [row for row in at_lengths if row.scored_with == row.encoding]
    on_same_sets = [row for row in references if (row.target_hash, row.score_dtype) in sets]
    return [row for row in on_same_sets if row.key not in scored]


def _require_shown(tables: Sequence[Table], selection: Selection, others: int) -> None:
    """Raise `UserError` if the options leave nothing, or name a baseline or a length that no table has.

    others: the number of tables that are not shown, for the message.
    """
    elsewhere = f" ({others} other tables: --all)" if others else ""
    lengths = set().union(*(table.lengths for table in tables))
    conditions = ", ".join(map(str, selection.where))
    message = f"no score is left by --where {conditions}: `pe-bench list runs` shows what there is"
    require(bool(lengths), message)
    has_baseline = any(table.baseline for table in tables)
    if selection.baseline is not None and not has_baseline:
        lines = chain.from_iterable(table.all_lines for table in tables)
        labels = {line.label for line in lines}
        raise UserError(unknown(selection.baseline, "--baseline", labels) + elsewhere)
    named = [("--lengths", length) for length in selection.lengths]
    if selection.sort and selection.sort.isdecimal():
        named.insert(0, ("--sort", int(selection.sort)))
    for option, length in named:
        message = f"{option} {length}: nothing was scored at that length"
        way_out = f"pe-bench eval RUN --lengths {length} adds it{elsewhere}"
        require(length in lengths, f"{message}; {way_out}")


# Tables


def _make_tables(groups: Groups, rows: Sequence[Row], runs: ScoredRuns, selection: Selection) -> list[Table]:
    """Return a table for each group, with the small table of its recall targets if they have scores.

    rows: the rows of all groups, and the rows by position. Raises `UserError` if no run has the slice.

    Texts of runs are put on one line each, because a stranger may have written them.
    """
    parts = {key: (group, group) for key, group in groups.items()}
    if selection.slice != ALL:
        of_slice = groups_of_slice(groups, selection.slice, runs)
        parts = {key: part for key, part in of_slice.items() if _shown_rows(part[0], selection)}
    tables = {}
    for key, (sliced, unsliced) in parts.items():
        tables[key] = _make_table(key, sliced, unsliced, rows, runs, selection)
    message = (
        f"--slice {selection.slice}: no run here has that slice of its targets under the protocol paired; "
        "pe-bench eval RUN... adds recall and novel without scoring again; --key-tokens-of JUDGE adds key"
    )
    require(bool(tables) or selection.slice == ALL, message)
    if selection.numbers_only:
        return one_line_texts([*tables.values()])
    if selection.slice == ALL:
        for key, group in groups_of_slice(groups, RECALL, runs).items():
            recall = _make_table(key, *group, (), runs, selection)
            key_of_all = replace(key, slice=ALL)
            tables[key_of_all] = _with_recall(tables[key_of_all], recall)
    if len(tables) > 1:
        swept = differing_keys((_shown_rows(group, selection) for group in groups.values()), runs)
        for number, (key, table) in enumerate(tables.items()):
            names = set().union(*(line.runs for line in table.lines))
            table_rows = [row for row in one_per_run(rows) if row.run in names]
            values = {}
            for name in swept:
                values[name] = [runs.value(row, name) for row in table_rows]
            folder = results_option(runs.folder_of(rows[0].run).path.parent.parent)
            tables[key] = replace(table, why=explain_separation(number, [*tables], values, folder))
    return one_line_texts([*tables.values()])


def _shown_rows(rows: Sequence[Row], selection: Selection) -> list[Row]:
    """Return the rows of the runs to show: without runs that are only references of changes."""
    return [row for row in rows if row.run not in selection.references]


def _with_recall(table: Table, recall: Table) -> Table:
    """Return the table with `recall`, its small table of recall targets, whose lines get the same order."""
    if not recall.lines:
        return table
    places = {line.label: place for place, line in enumerate(table.lines)}

    def place_in_table(line: Line) -> int:
        return places.get(line.label, len(places))

    lines = tuple(sorted(recall.lines, key=place_in_table))
    return replace(table, recall=replace(recall, lines=lines, chosen=table.chosen, ranked_at=None))


def _make_table(
    key: TableKey,
    sliced: Sequence[Row],
    unsliced: Sequence[Row],
    rows: Sequence[Row],
    runs: ScoredRuns,
    selection: Selection,
) -> Table:
    """Return the table of a group of rows; its `why`, which depends on the other tables, is empty.

    sliced, unsliced: the group's rows of the table's slice, and of all targets. rows: also the rows of
    positions, which only lines of all targets have.
    """
    ranks = rank_sets(row for row in sliced if row.control == "none")
    table_rows = TableRows(sliced, unsliced, ranks, runs, selection.margin or MARGIN, key.train_length)
    sliced = _shown_rows(sliced, selection)
    unsliced = _shown_rows(unsliced, selection)
    is_of_all = key.slice == ALL
    names = {row.run for row in sliced}
    positions = [row for row in rows if row.protocol == POSITIONS]
    shown = sliced
    if is_of_all:
        shown = [*sliced, *(row for row in positions if row.run in names)]
    by = labels_by(shown, runs, selection.by)
    lines = with_short_labels(make_lines(shown, table_rows, by))
    lines += anchor_lines(replace(table_rows, rows=sliced), key.slice)
    baseline = _baseline_label(lines, selection.baseline, runs) if selection.baseline else ""
    if baseline:
        lines = with_baseline(lines, baseline, table_rows)
    lines = [_with_shown_records(line, key.train_length, selection) for line in lines]
    lines = [line for line in lines if line.records]
    ranked = [line for line in lines if not line.is_anchor]
    order = order_lines(ranked, selection.sort, key.loss)
    lengths = lengths_of(order.lines)
    chosen = [length for length in lengths if length in selection.lengths]
    conditions = [(condition.key, condition.sign) for condition in selection.where]
    if ("length", "=") in conditions:
        chosen = lengths
    table = Table(
        key=key,
        lengths=tuple(lengths),
        lines=tuple(order.lines),
        ranked_at=order.ranked_at,
        baseline=baseline,
        chosen=tuple(chosen),
        margin=table_rows.margin,
        anchors=tuple(line for line in lines if line.is_anchor),
    )
    if not is_of_all:
        share = slice_share(sliced, unsliced)
        table = replace(table, share=share, lacking=lacking_runs_note(sliced, unsliced))
    if selection.numbers_only:
        return table
    return with_notes(table, replace(table_rows, rows=sliced, unsliced=unsliced), order)


def _with_shown_records(line: Line, train_length: int, selection: Selection) -> Line:
    """Return the line with its records at the shown lengths; without records if its encoding is not shown."""
    encoding = None if line.is_anchor else line.scored_with
    records = {}
    for length, record in line.records.items():
        if selection.shows(length, train_length, encoding):
            records[length] = record
    return replace(line, records=records, rows=())


def _baseline_label(lines: Sequence[Line], name: str, runs: ScoredRuns) -> str:
    """Return the label of the line that `--baseline` names; empty without such a line.

    The name is a label, the encoding of only one line, with or without its options, or hf:... for the only
    line of a Hugging Face model. Raises `UserError` if several lines have the name.
    """
    for line in lines:
        if name in (line.label, replace(line, has_short_label=False).label):
            return line.label
    trained = [line for line in lines if line.encoding == line.scored_with]
    is_whole_encoding = any(line.encoding == name for line in trained)
    labels = []
    for line in trained:
        without_options, _, _ = line.encoding.partition(" ")
        is_named = line.encoding == name
        if not is_whole_encoding:
            is_named = without_options == name
        if is_hf_name(name):
            is_named = scores_hf_model(runs.folder_of(line.runs[0]), name)
        if is_named:
            labels.append(line.label)
    message = f"--baseline {name} may be several lines: {', '.join(labels)}; name one of them in full"
    require(len(labels) < 2, message)
    return labels[0] if labels else ""
