"""Which rows share a table, which of them a slice has, what separates tables, and in which order lines stand.

Rows of another setting (the model and how it was trained), data, tokenizer, training length,
protocol, stride or precision of scores are another table: they are never averaged or ranked together.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from pe_bench.errors import require
from pe_bench.report.lines import on_other_targets
from pe_bench.report.notes import Note, few_names
from pe_bench.report.pairs import ScoreFiles, grouped, has_number
from pe_bench.report.records import CHECKPOINTS, Line, TableKey, is_checkpoint
from pe_bench.report.selection import RunKeys
from pe_bench.runs.find import finished_runs
from pe_bench.runs.rows import ALL, Row
from pe_bench.values import unknown

QUICK_TOKENS = 20_480  # train.tokens of experiment=quick


def group_rows(rows: Sequence[Row], keys: RunKeys, by: Sequence[str]) -> dict[TableKey, list[Row]]:
    """Return the rows of each table; the tables of quick runs are last."""
    groups = {
        replace(key, model_sizes=keys.model_sizes(group, by), training=keys.training(group, by)): group
        for key, group in grouped(rows, lambda row: table_key(row, keys, by)).items()
    }
    return dict(sorted(groups.items(), key=lambda item: (all(map(_is_quick, item[1])), item[0].sort_key)))


def table_key(row: Row, keys: RunKeys, by: Sequence[str]) -> TableKey:
    """Return the key of a row's table, but for what its runs have in common; `by`: what may differ."""
    row = keys.first_stage(row)
    differ_in_steps = not {"train.steps", "train.tokens"}.isdisjoint(by)
    model, tokenizer, setting = row.model, row.tokenizer, keys.setting_without(row, by)
    if "model" in by and is_checkpoint(row.model):
        # The hash of the data is of its tokens too: where it is the same, so are the tokenizers.
        model, tokenizer, setting = CHECKPOINTS, "", ""
    return TableKey(
        model,
        row.data,
        row.data_hash,
        tokenizer,
        row.train_length,
        0 if differ_in_steps else row.steps,
        setting,
        row.protocol,
        row.stride_rule,
        row.score_dtype,
    )


def groups_of_newest(groups: Mapping[TableKey, list[Row]], results_dir: Path) -> dict[TableKey, list[Row]]:
    """Return the groups that hold the run that finished last; quick runs count as the oldest."""
    finished = {run.name: number for number, run in enumerate(finished_runs(results_dir))}
    rows = [row for group in groups.values() for row in group]
    newest = max(rows, key=lambda row: (not _is_quick(row), finished.get(row.run, -1)), default=None)
    runs_of = {key: {row.run for row in group} for key, group in groups.items()}
    return {key: group for key, group in groups.items() if newest is not None and newest.run in runs_of[key]}


def _is_quick(row: Row) -> bool:
    """Return whether a run was trained no longer than experiment=quick, whose scores mean nothing."""
    return row.train_tokens <= QUICK_TOKENS


def describe_swept(rows: Sequence[Row], swept: Sequence[str], keys: RunKeys) -> list[str]:
    """Return the swept keys with their values in one table, such as `train.lr (here 0.001)`."""
    return [
        f"{key} (here {', '.join(dict.fromkeys(str(keys.value(row, key)) for row in rows))})" for key in swept
    ]


def explain_separation(
    index: int, tables: Sequence[TableKey], settings: Sequence[str] = (), swept: Sequence[str] = ()
) -> str:
    """Return which of the tables' values differ; the setting only where nothing else tells them apart."""
    if len(tables) == 1:
        return ""
    names = [name for name in vars(tables[index]) if name != "setting"]
    values = {name: {getattr(key, name) for key in tables} for name in names}
    values["stride_rule"].discard("")  # of the other protocols
    differing = [name.replace("_", " ") for name in names if len(values[name]) > 1]
    together = ""
    visible = {tuple(getattr(key, name) for name in names) for key in tables}
    if len(visible) < len(tables):
        unnamed = f"training settings (here {tables[index].setting[:8]}; see the runs' config.yaml)"
        differing += settings or [unnamed]
        if swept:
            together = f"; lines of one table: pe-bench report --by {','.join(swept)}"
        if len(swept) == 1 and swept[0].startswith("train."):
            together += f"; the best of each encoding: pe-bench report --best {swept[0]}"
    if len(values["data"]) == 1 < len(values["data_hash"]) and values["model"] == {CHECKPOINTS}:
        together += "; other tokenizers make other targets of a text: compare bits per byte by eye"
    return (
        f"table {index + 1} of {len(tables)}: they differ in {', '.join(differing)}, "
        f"and such rows are never averaged or ranked together{together}"
    )


@dataclass(frozen=True)
class Group:
    """The rows of one table, which may be of a slice.

    whole: of the same runs, those of all targets, by which it is known what a model has learned at all.
    """

    rows: Sequence[Row]
    whole: Sequence[Row]

    @property
    def share(self) -> float:
        """Return the share of the targets that are in the slice, by the largest set of them."""
        sizes = {row.target_hash: row.targets for row in self.whole}
        counted = {row.target_hash: row.targets for row in self.rows}
        largest = max(counted, key=lambda target_hash: sizes[target_hash], default=None)
        return counted[largest] / sizes[largest] if largest is not None else 1.0

    @property
    def lacking(self) -> str:
        """Return which runs lack the slice, and so are not in the table; empty where none does."""
        runs = {row.run for row in self.rows}
        runs |= {row.judge for row in self.rows}  # a judge has no key targets that it chose
        lacking = {row.run: row.encoding for row in self.whole if has_number(row) and row.run not in runs}
        if not lacking or not self.rows:
            return ""
        names = few_names(list(dict.fromkeys(lacking.values())))
        what = f"{len(lacking)} {'run' if len(lacking) == 1 else 'runs'} of {names}"
        name, judge = self.rows[0].slice, self.rows[0].judge
        of_judge, way_out = "", "pe-bench eval RUN... adds it, without scoring again"
        if judge:
            of_judge = f" of {judge}"
            way_out = f"pe-bench eval RUN... --key-tokens-of {shlex.quote(judge)} adds it"
        return f"without the slice {name}{of_judge}, and so not in this table: {what}; {way_out}"


def groups_of_slice(
    groups: Mapping[TableKey, Sequence[Row]], name: str, files: ScoreFiles
) -> dict[TableKey, Group]:
    """Return the groups of a slice; none for runs without it.

    Rows are of one group only where one judge, or the text, chose the same targets of each set. Of several
    such choices, that of most rows is first.
    """
    if name == ALL:
        return {key: Group(rows, rows) for key, rows in groups.items()}
    sliced: dict[TableKey, Group] = {}
    for key, on_all in groups.items():
        by_judge = grouped(files.of_slice(on_all, name), lambda row: row.judge)
        for judge, rows in sorted(by_judge.items()):
            counts = Counter((row.target_hash, row.slice_hash) for row in rows)
            choices = [choice for choice, _ in counts.most_common()]

            def place(row: Row, choices: Sequence[tuple[str, str]] = choices) -> int:
                """Return the rank of a row's slice among those of its set of targets, by number of rows."""
                of_set = [slice_hash for target_hash, slice_hash in choices if target_hash == row.target_hash]
                return of_set.index(row.slice_hash)

            parts = sorted(grouped(rows, place).items())
            for _, part in parts:
                slice_hash = part[0].slice_hash[:8] if len(parts) > 1 else ""
                sliced[replace(key, slice=name, judge=judge, slice_hash=slice_hash)] = Group(part, on_all)
    return sliced


# In which order lines stand: by their level at a length, or by another of their numbers

# Rising, but for what is better the larger it is.
KEYS: dict[str, Callable[[Line], tuple[object, ...]]] = {
    "name": lambda line: (),
    "parameters": lambda line: (line.parameters,),
    "tokens_per_second": lambda line: (-line.tokens_per_second,),
    "peak_memory_mb": lambda line: (line.peak_memory_mb is None, line.peak_memory_mb),
}


class Order(NamedTuple):
    """Lines in order; the length whose levels ranked them, if one did; and the note that says so.

    Levels on different targets put lines in order where that was asked for, and rank nothing.
    """

    lines: list[Line]
    ranked_at: int | None
    note: Note


def check_sort(word: str) -> None:
    """Raises `UserError` for what is neither a length nor a key."""
    require(word.isdecimal() or word in KEYS, f"{unknown(word, '--sort', KEYS)}; or a length such as 2048")


def ordered(lines: Sequence[Line], sort: str | None) -> Order:
    """Return the lines by their level at the length `sort`, or by a key.

    By default it is the longest length that most reach. A line without a level there stands below the others
    and moves none of them.
    """
    by_name = sorted(lines, key=lambda line: line.label)
    if sort in KEYS:
        return Order(sorted(by_name, key=KEYS[sort]), None, Note(f"in order of {sort}", is_caveat=True))
    is_task = any(record.answers for line in lines for record in line.records.values())
    if sort is None and is_task:
        text = "in order of the length that a line works to, then of its mean over lengths"
        return Order(sorted(by_name, key=_reach), None, Note(text, is_caveat=False))
    is_scored = sort is not None and any(_has_level(line, int(sort)) for line in lines)
    length = int(sort) if sort is not None and is_scored else _longest_of_most(lines)
    if length is None:
        text = "in order of names: no length has a number for most lines"
        return Order(by_name, None, Note(text, is_caveat=True))
    by_level = sorted(by_name, key=lambda line: _rank(line, length))
    if on_other_targets(lines, length):
        text = (
            f"not ranked, because the levels at {length} are of different targets: in order of "
            f"{'levels nevertheless' if is_scored else 'names'}. To rank them, repeat their commands with "
            "the same eval.* values (nothing is trained again), or pe-bench eval RUN... with the same "
            "--lengths, --max-length and --targets"
        )
        return Order(by_level if is_scored else by_name, None, Note(text, is_caveat=True))
    chosen = "" if is_scored else ", the longest length that most have a number at"
    below = [line.label for line in by_level if not _has_level(line, length)]
    text = f"ranked by {'exact' if is_task else 'bits/byte'} at {length}{chosen}"
    text += f"; below: {', '.join(below)}" if below else ""
    return Order(by_level, length, Note(text, is_caveat=is_scored))


def _reach(line: Line) -> tuple[bool, int, float]:
    """Return the place of a line of a task: at most lengths either all or none solve it."""
    levels = [record.level or 0.0 for record in line.records.values()]
    return not line.is_ranked, -(line.break_point.works_to or 0), -sum(levels)


def _rank(line: Line, length: int) -> tuple[bool, bool, int, float]:
    """Return the place of a line: those with a level at the length first, then the furthest reaching.

    What has not learned to beat the anchors is below all that has.
    """
    if _has_level(line, length):
        return not line.is_ranked, False, 0, _level(line, length)
    reached = max((reached for reached in line.records if _has_level(line, reached)), default=0)
    return not line.is_ranked, True, -reached, _level(line, reached)


def _longest_of_most(lines: Sequence[Line]) -> int | None:
    """Return the longest length that has a level for more than half of the lines that can be scored there."""
    for length in sorted({length for line in lines for length in line.records}, reverse=True):
        records = [line.records.get(length) for line in lines]
        able = [record for record in records if record is None or record.status != "undefined"]
        if 2 * sum(record is not None and bool(record.levels) for record in able) > len(able):
            return length
    return None


def _has_level(line: Line, length: int) -> bool:
    return length in line.records and bool(line.records[length].levels)


def _level(line: Line, length: int) -> float:
    """Return the level at a length, of which less is better; one that is no number, or not there, is last."""
    record = line.records.get(length)
    if record is None or record.level is None or record.level != record.level:
        return float("inf")
    return record.level if record.answers is None else -record.level
