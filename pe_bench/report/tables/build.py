"""Which rows may stand together, and the tables of them.

Rows of another setting (the model and how it was trained), data, tokenizer, training length,
protocol, stride or precision of scores are another table: they are never averaged or ranked together.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pe_bench.errors import RunError, UserError
from pe_bench.report.statistics import MARGIN
from pe_bench.report.tables.context_use import quarter_of
from pe_bench.report.tables.differences import ScoreFiles
from pe_bench.report.tables.lines import Line, make_line, members_of
from pe_bench.report.tables.notes import make_notes
from pe_bench.report.tables.ranking import ordered
from pe_bench.report.tables.selection import EVERYTHING, RunKeys, Selection
from pe_bench.report.tables.swept import differing_keys, keep_best
from pe_bench.report.tables.target_sets import rank_sets
from pe_bench.report.tables.verdicts import judge, with_baseline
from pe_bench.runs.conditions import Condition
from pe_bench.runs.find import finished_runs
from pe_bench.runs.folder import RunFolder, folders_in
from pe_bench.runs.gather import Gathered, read_all, runs_folder
from pe_bench.runs.rows import HALF, POSITIONS, Row, read_rows
from pe_bench.system.outside_text import in_one_line
from pe_bench.values import unknown

QUICK_TOKENS = 20_480  # train.tokens of experiment=quick
PROTOCOLS = {"paired": 0, "nonoverlapping": 1, "sliding": 2}  # the order of their tables


@dataclass(frozen=True)
class TableKey:
    """The values that all rows of a table have in common."""

    model: str
    data: str
    data_hash: str
    tokenizer: str
    train_length: int
    steps: int  # 0 where lines differ in them
    setting: str
    protocol: str
    stride_rule: str  # half or a number, of the sliding protocol
    score_dtype: str
    model_sizes: str = ""  # that are not those of the model's name, such as d_model=96

    @property
    def sort_key(self) -> tuple[object, ...]:
        last = ("protocol", "stride_rule", "score_dtype")
        values = [value for name, value in vars(self).items() if name not in last]
        protocol, stride = (
            PROTOCOLS.get(self.protocol, 3),
            int(self.stride_rule) if self.stride_rule.isdecimal() else 0,
        )
        return (*values, protocol, stride, self.score_dtype != "float32", self.score_dtype)


@dataclass(frozen=True)
class Table:
    """Encodings that may be compared, the best first.

    ranked_at: the length whose levels rank the lines, None where they are in another order. why: why this
    is not the only table, empty where it is. notes: whole lines to read below it; caveats: those of them that
    the short form has too.
    """

    key: TableKey
    lengths: tuple[int, ...]
    lines: tuple[Line, ...]
    ranked_at: int | None
    why: str
    notes: tuple[str, ...]
    caveats: tuple[str, ...] = ()
    baseline: str = ""  # the label of the line that the others are compared with
    asked: tuple[
        int, ...
    ] = ()  # lengths that the user named, and that the short form shows before all others
    margin: float = MARGIN  # bits per byte, of the verdicts

    @property
    def title(self) -> str:
        return ", ".join(self.title_parts)

    @property
    def title_parts(self) -> tuple[str, str]:
        """Return the title in two parts: model and data, and how it was trained and scored."""
        key = self.key
        steps = f" for {key.steps} steps" if key.steps else ""
        rule = "half the length" if key.stride_rule == HALF else key.stride_rule
        stride = f", stride {rule}" if rule else ""
        coarse = f", scores in {key.score_dtype}" if key.score_dtype != "float32" else ""
        sizes = f" with {key.model_sizes}" if key.model_sizes else ""
        return (
            f"{key.model} model{sizes}, data {key.data} ({key.data_hash[:8]}), tokenizer {key.tokenizer}",
            f"trained at length {key.train_length}{steps}, {key.protocol} protocol{stride}{coarse}",
        )


@dataclass(frozen=True)
class Report:
    """Tables to show.

    others: how many more there are. folder_of: what was read of a run, by its name. problems: what is left
    out, and what is not known of a run; the notes of the last table have them too.
    """

    tables: list[Table]
    others: int
    folder_of: Callable[[str], RunFolder]
    problems: tuple[str, ...] = ()


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
    """Return the same tables, or only those that the newest run is in; a quick one counts as the oldest."""
    found = read_all(results_dir)
    if found.problems and not found.rows:
        raise RunError("\n".join(problem.text for problem in found.problems))
    if not found.rows:
        folder = runs_folder(results_dir)
        raise UserError(f"no scored run in {folder}: make one with `pe-bench train encoding=rope`")

    folder_of = folders_in(runs_folder(results_dir))
    keys = RunKeys(folder_of)
    rows = _rows_of_protocol(_rows_of_runs(found, runs), protocol)
    for key in selection.by:
        keys.require(rows, key, "--by")
    asked = [*selection.by, *(condition.key for condition in selection.where)]
    problems = [f"left out: {problem.text}" for problem in found.problems]
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
    groups = _groups_of(rows, keys, selection.varying)
    shown = _with_newest(groups, results_dir) if newest_only else groups
    tables = _tables(shown, rows, ScoreFiles(folder_of), keys, selection)
    others = len(groups) - len(shown)
    _require_shown(tables, selection, others)
    last = tables[-1]
    last = replace(last, notes=(*last.notes, *problems), caveats=(*last.caveats, *problems))
    return Report([*tables[:-1], last], others, folder_of, tuple(problems))


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
    groups = _groups_of(rows, keys, selection.by)
    tables = _tables(groups, rows, ScoreFiles(lambda name: folder), keys, selection)
    return [replace(table, asked=tuple(asked)) for table in tables]


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


def _key_of(row: Row, keys: RunKeys, by: Sequence[str]) -> TableKey:
    return TableKey(
        row.model,
        row.data,
        row.data_hash,
        row.tokenizer,
        row.train_length,
        row.steps,
        keys.setting_without(row, by),
        row.protocol,
        row.stride_rule,
        row.score_dtype,
    )


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
    there = sorted({row.protocol for row in rows} - {POSITIONS})
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
        known = {line.label for table in tables for line in table.lines}
        raise UserError(unknown(selection.baseline, "--baseline", known) + elsewhere)
    lengths = sorted({length for table in tables for length in table.lengths})
    if selection.sort is not None and selection.sort.isdecimal() and int(selection.sort) not in lengths:
        there = ", ".join(map(str, lengths))
        raise UserError(
            f"--sort {selection.sort}: nothing was scored at that length; there are {there}{elsewhere}"
        )


def _groups_of(rows: Sequence[Row], keys: RunKeys, by: Sequence[str]) -> dict[TableKey, list[Row]]:
    """Return the rows of each table, without those of positions; the tables of quick runs are last."""
    groups: dict[TableKey, list[Row]] = {}
    for row in rows:
        if row.protocol != POSITIONS:
            groups.setdefault(_key_of(row, keys, by), []).append(row)
    groups = _without_steps(groups, by)
    sized = {
        replace(group, model_sizes=keys.model_sizes(found, by)): found for group, found in groups.items()
    }
    return dict(sorted(sized.items(), key=lambda item: (all(map(is_quick, item[1])), item[0].sort_key)))


def is_quick(row: Row) -> bool:
    """Return whether a run was trained no longer than experiment=quick, whose scores mean nothing."""
    return row.train_tokens <= QUICK_TOKENS


def _with_newest(groups: Mapping[TableKey, list[Row]], results_dir: Path) -> dict[TableKey, list[Row]]:
    """Return the groups of the run that was finished last, quick ones counting as the oldest."""
    finished = {run.name: place for place, run in enumerate(finished_runs(results_dir))}
    rows = [row for found in groups.values() for row in found]
    newest = max(rows, key=lambda row: (not is_quick(row), finished.get(row.run, -1)), default=None)
    return {
        group: found
        for group, found in groups.items()
        if newest is not None and any(row.run == newest.run for row in found)
    }


def _tables(
    groups: Mapping[TableKey, list[Row]],
    rows: Sequence[Row],
    files: ScoreFiles,
    keys: RunKeys,
    selection: Selection,
) -> list[Table]:
    """Return a table for each group; `rows` are those of all groups, and those of positions.

    Whatever its text says stands on one line, because a run may be a stranger's.
    """
    positions: dict[TableKey, list[Row]] = {}
    for row in rows:
        if row.protocol == POSITIONS:
            positions.setdefault(_key_of(row, keys, selection.varying), []).append(row)
    positions = _without_steps(positions, selection.varying)
    tables = []
    for group, found in groups.items():
        own_positions = positions.get(replace(group, protocol=POSITIONS, stride_rule="", model_sizes=""), [])
        tables.append(_table(group, found, own_positions, files, keys, selection))
    shown = list(groups)
    swept = differing_keys(groups.values(), keys) if len(groups) > 1 else []
    settings = [_setting_words(found, swept, keys) for found in groups.values()]
    tables = [
        replace(table, why=_why(place, shown, settings[place], swept)) for place, table in enumerate(tables)
    ]
    return in_one_line(tables)


def _setting_words(rows: Sequence[Row], swept: Sequence[str], keys: RunKeys) -> list[str]:
    """Return the swept keys with their values in one table, such as `train.lr (here 0.001)`."""
    return [
        f"{key} (here {', '.join(dict.fromkeys(str(keys.value(row, key)) for row in rows))})" for key in swept
    ]


def _why(index: int, groups: Sequence[TableKey], settings: Sequence[str], swept: Sequence[str]) -> str:
    """Return which of the groups' values differ; the setting only where nothing else tells them apart."""
    if len(groups) == 1:
        return ""
    names = [name for name in vars(groups[index]) if name != "setting"]
    values = {name: {getattr(group, name) for group in groups} for name in names}
    values["stride_rule"].discard("")  # of the other protocols
    differing = [name.replace("_", " ") for name in names if len(values[name]) > 1]
    together = ""
    visible = {tuple(getattr(group, name) for name in names) for group in groups}
    if len(visible) < len(groups):
        unnamed = f"training settings (here {groups[index].setting[:8]}; see the runs' config.yaml)"
        differing += settings or [unnamed]
        if swept:
            together = f"; lines of one table: pe-bench report --by {','.join(swept)}"
        if len(swept) == 1 and swept[0].startswith("train."):
            together += f"; the best of each encoding: pe-bench report --best {swept[0]}"
    return (
        f"table {index + 1} of {len(groups)}: they differ in {', '.join(differing)}, "
        f"and such rows are never averaged or ranked together{together}"
    )


def _without_steps(groups: Mapping[TableKey, list[Row]], by: Sequence[str]) -> dict[TableKey, list[Row]]:
    """Return groups that differ in their number of steps alone as one, where that sets lines apart."""
    if not {"train.steps", "train.tokens"}.intersection(by):
        return dict(groups)
    together: dict[TableKey, list[Row]] = {}
    for group, rows in groups.items():
        together.setdefault(replace(group, steps=0), []).extend(rows)
    return together


def _table(
    key: TableKey,
    rows: Sequence[Row],
    positions: Sequence[Row],
    files: ScoreFiles,
    keys: RunKeys,
    selection: Selection,
) -> Table:
    """Return the table of a group of rows; `why` is empty, because it depends on the other tables."""
    margin = selection.resolved_margin
    plain = [row for row in rows if row.control == "none"]
    controls = [row for row in rows if row.control != "none"]
    own_rows: dict[str, list[Row]] = {}
    for row in plain:
        if row.scored_with == row.encoding:
            own_rows.setdefault(row.run, []).append(row)
    members = members_of(plain, controls, positions, lambda row: keys.label(row, selection.by))
    ranks = rank_sets(plain)
    lines = []
    for member in members:
        of_member = [row for run in member.runs for row in own_rows.get(run, [])]
        lines.append(make_line(member, of_member, ranks, margin, files))
    baseline = _baseline_in(lines, selection.baseline)
    if baseline:
        lines = with_baseline(lines, members, baseline, margin, files)
    judged = judge(lines, key.train_length, margin)
    lines = [_shown(line, selection) for line in judged if selection.takes(line.scored_with)]
    order = ordered([line for line in lines if line.cells], selection.sort)
    lengths = tuple(sorted({length for line in order.lines for length in line.cells}))
    shown = [row for row in rows if row.length in lengths]
    notes = make_notes(order.lines, shown, order.note, margin, keys.machines(rows))
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
    )


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
