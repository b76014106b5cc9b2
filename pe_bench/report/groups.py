"""Which rows may share a table, which of them a slice has, and what separates several tables.

Rows of another setting (the model and how it was trained), data, tokenizer, training length,
protocol, stride or precision of scores are another table: they are never averaged or ranked together.
"""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pe_bench.report.pairs import ScoreFiles, grouped, has_number
from pe_bench.report.places import few_names
from pe_bench.report.records import TableKey
from pe_bench.report.selection import RunKeys
from pe_bench.runs.find import finished_runs
from pe_bench.runs.rows import ALL, Row

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
    differ_in_steps = not {"train.steps", "train.tokens"}.isdisjoint(by)
    return TableKey(
        row.model,
        row.data,
        row.data_hash,
        row.tokenizer,
        row.train_length,
        0 if differ_in_steps else row.steps,
        keys.setting_without(row, by),
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

    Rows are of one group only where one judge, or the text, chose the same targets of each set.
    """
    if name == ALL:
        return {key: Group(rows, rows) for key, rows in groups.items()}
    found: dict[TableKey, Group] = {}
    for key, whole in groups.items():
        by_judge = grouped(files.of_slice(whole, name), lambda row: row.judge)
        for judge, rows in sorted(by_judge.items()):
            parts = _of_same_targets(rows)
            for slice_hash, part in parts.items():
                names = {"slice": name, "judge": judge, "slice_hash": slice_hash if len(parts) > 1 else ""}
                found[replace(key, **names)] = Group(part, whole)
    return found


def _of_same_targets(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return rows of a slice, a run's together, in parts with the same targets of each set.

    The largest part is first. Its name is a hash of the targets in the slice.
    """
    parts: list[tuple[dict[str, str], list[Row]]] = []
    for of_run in grouped(rows, lambda row: row.run).values():
        hash_of = {row.target_hash: row.slice_hash for row in of_run}
        same = [part for part in parts if all(part[0].get(*item) == item[1] for item in hash_of.items())]
        if not same:
            parts.append(({}, []))
            same = parts[-1:]
        same[0][0].update(hash_of)
        same[0][1].extend(of_run)
    parts.sort(key=lambda part: -len(part[1]))
    return {hashlib.sha256(repr(sorted(of.items())).encode()).hexdigest()[:8]: part for of, part in parts}
