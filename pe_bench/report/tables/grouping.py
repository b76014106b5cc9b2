"""Which rows may share a table, and what separates several tables.

Rows of another setting (the model and how it was trained), data, tokenizer, training length,
protocol, stride or precision of scores are another table: they are never averaged or ranked together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pe_bench.report.tables.selection import RunKeys
from pe_bench.report.tables.table import TableKey
from pe_bench.runs.find import finished_runs
from pe_bench.runs.rows import APART, POSITIONS, PROBE, Row

QUICK_TOKENS = 20_480  # train.tokens of experiment=quick


def group_rows(rows: Sequence[Row], keys: RunKeys, by: Sequence[str]) -> dict[TableKey, list[Row]]:
    """Return the rows of each table of levels; the tables of quick runs are last."""
    return _grouped([row for row in rows if row.protocol not in APART], keys, by)


def group_probes(rows: Sequence[Row], keys: RunKeys, by: Sequence[str]) -> dict[TableKey, list[Row]]:
    """Return the rows of each table of a probe, in the same order."""
    return _grouped([row for row in rows if row.protocol == PROBE], keys, by)


def _grouped(rows: Sequence[Row], keys: RunKeys, by: Sequence[str]) -> dict[TableKey, list[Row]]:
    groups: dict[TableKey, list[Row]] = {}
    for row in rows:
        groups.setdefault(_table_key(row, keys, by), []).append(row)
    groups = _merge_steps(groups, by)
    sized = {
        replace(group, model_sizes=keys.model_sizes(found, by), training=keys.training(found, by)): found
        for group, found in groups.items()
    }
    return dict(sorted(sized.items(), key=lambda item: (all(map(_is_quick, item[1])), item[0].sort_key)))


def group_positions(rows: Sequence[Row], keys: RunKeys, by: Sequence[str]) -> dict[TableKey, list[Row]]:
    """Return the rows of positions under the keys that `without_protocol` makes of the groups' keys."""
    groups: dict[TableKey, list[Row]] = {}
    for row in rows:
        if row.protocol == POSITIONS:
            groups.setdefault(without_protocol(_table_key(row, keys, by)), []).append(row)
    return _merge_steps(groups, by)


def without_protocol(key: TableKey) -> TableKey:
    """Return the key of the rows of positions that belong to a table, whatever its protocol."""
    return replace(key, protocol=POSITIONS, stride_rule="", model_sizes="", training="")


def _is_quick(row: Row) -> bool:
    """Return whether a run was trained no longer than experiment=quick, whose scores mean nothing."""
    return row.train_tokens <= QUICK_TOKENS


def groups_of_newest(groups: Mapping[TableKey, list[Row]], results_dir: Path) -> dict[TableKey, list[Row]]:
    """Return the groups that hold the run that finished last; quick runs count as the oldest."""
    finished = {run.name: place for place, run in enumerate(finished_runs(results_dir))}
    rows = [row for found in groups.values() for row in found]
    newest = max(rows, key=lambda row: (not _is_quick(row), finished.get(row.run, -1)), default=None)
    return {
        group: found
        for group, found in groups.items()
        if newest is not None and any(row.run == newest.run for row in found)
    }


def _table_key(row: Row, keys: RunKeys, by: Sequence[str]) -> TableKey:
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


def describe_swept(rows: Sequence[Row], swept: Sequence[str], keys: RunKeys) -> list[str]:
    """Return the swept keys with their values in one table, such as `train.lr (here 0.001)`."""
    return [
        f"{key} (here {', '.join(dict.fromkeys(str(keys.value(row, key)) for row in rows))})" for key in swept
    ]


def explain_separation(
    index: int, groups: Sequence[TableKey], settings: Sequence[str], swept: Sequence[str]
) -> str:
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


def _merge_steps(groups: Mapping[TableKey, list[Row]], by: Sequence[str]) -> dict[TableKey, list[Row]]:
    """Return the groups, with those merged that differ only in steps if lines are distinguished by steps."""
    if not {"train.steps", "train.tokens"}.intersection(by):
        return dict(groups)
    together: dict[TableKey, list[Row]] = {}
    for group, rows in groups.items():
        together.setdefault(replace(group, steps=0), []).extend(rows)
    return together
