"""Which rows share a table, which of them a slice has, and what separates tables.

Rows of another setting (the model and how it was trained), data, tokenizer, training length,
protocol, stride or precision of scores are another table: they are never averaged or ranked together.
"""

import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pe_bench.config.groups import config_dir, names_in
from pe_bench.report.pairs import BY_RUN, ScoreFiles, grouped, has_number
from pe_bench.report.records import CHECKPOINTS, TableKey, is_checkpoint, name_of_checkpoint
from pe_bench.runs.find import RunValues, finished_runs, one_a_run
from pe_bench.runs.job import NOT_IDENTITY
from pe_bench.runs.rows import ALL, Row

QUICK_TOKENS = 20_480  # train.tokens of experiment=quick, whose scores mean nothing
USUAL_TRAINING = {"train.optimizer": "muon", "train.encoding_lr": None}
MAX_NAMES = 4  # of lines in one note


class RunKeys(RunValues):
    """The values of rows' columns and runs' configurations, and what tables derive from them."""

    def first_stage(self, row: Row) -> Row:
        """Return the row as one of its family's first stage would be, whose table it stands in."""
        first = self.folder_of(row.run).first_stage
        if first is None:
            return row
        facts = {"train_length": first.length, "steps": first.steps, "setting": first.setting}
        return replace(row, run=first.run, **facts)

    def label(self, row: Row, by: Sequence[str]) -> str:
        """Return what the label of a line says of these keys."""
        return " ".join(
            f"of {name_of_checkpoint(row.model, self._size_of_checkpoint(row))}"
            if key == "model" and is_checkpoint(row.model)
            else f"{key}={self.value(row, key)}"
            for key in by
        )

    def table_key(self, row: Row, by: Sequence[str]) -> TableKey:
        """Return the key of a row's table, but for what its runs have in common; `by`: what may differ."""
        row = self.first_stage(row)
        model, tokenizer, setting = row.model, row.tokenizer, self.setting_without(row, by)
        if "model" in by and is_checkpoint(row.model):
            # The hash of the data is of its tokens too: where it is the same, so are the tokenizers.
            model, tokenizer, setting = CHECKPOINTS, "", ""
        return TableKey(
            *(model, row.data, row.data_hash, tokenizer, row.train_length),
            row.steps if {"train.steps", "train.tokens"}.isdisjoint(by) else 0,
            *(setting, row.protocol, row.stride_rule, row.score_dtype),
            half=row.half,
        )

    def model_sizes(self, rows: Sequence[Row], by: Sequence[str]) -> str:
        """Return the sizes that the name of these rows' model does not imply, but for these keys.

        They are such as `d_model=96`; of a checkpoint its architecture and parameters.
        """
        if is_checkpoint(rows[0].model):
            return "" if "model" in by else self._size_of_checkpoint(rows[0])
        config = self.config_of(self.first_stage(rows[0]))
        usual = _usual_sizes(str(config.get("model.name")))
        sizes = {key: config.get(f"model.{key}", value) for key, value in usual.items()}
        changed = {key: value for key, value in sizes.items() if value != usual[key]}
        return " ".join(
            f"{key}={value}".lower() for key, value in changed.items() if f"model.{key}" not in by
        )

    def training(self, rows: Sequence[Row], by: Sequence[str]) -> str:
        """Return the optimizer and the rate of encodings that these rows' runs chose, but for these keys."""
        config = self.config_of(self.first_stage(rows[0]))
        chosen = {key: config.get(key, usual) for key, usual in USUAL_TRAINING.items() if key not in by}
        changed = {key: value for key, value in chosen.items() if value != USUAL_TRAINING[key]}
        return " ".join(f"{key.partition('.')[2]}={value}" for key, value in changed.items())

    def _size_of_checkpoint(self, row: Row) -> str:
        """Return its architecture, where that is known, and its parameters: `Llama, 0.26M`."""
        architecture = self.config_of(row).get("checkpoint.architecture")
        millions = row.parameters / 1e6
        size = f"{millions:.2f}M" if millions < 10 else f"{millions:,.0f}M"
        return ", ".join(filter(None, (architecture, size)))

    def setting_without(self, row: Row, by: Sequence[str]) -> str:
        """A hash of what rows must share to be compared, but for these keys of the configuration."""
        if not any("." in key for key in by):
            return row.setting
        config = self.config_of(row)
        left = {key: value for key, value in config.items() if _is_setting(key) and key not in by}
        words = json.dumps([left, row.train_dtype], sort_keys=True, default=str)
        return hashlib.sha256(words.encode()).hexdigest()[:8]


def _is_setting(key: str) -> bool:
    """Return whether a key is one of the model or the training, by which runs differ."""
    return key.partition(".")[0] in ("model", "train") and key.rpartition(".")[2] not in NOT_IDENTITY


@cache
def _usual_sizes(name: str) -> Mapping[str, Any]:
    """Return the sizes in the file that a model's name stands for, without those that follow from others."""
    if name not in names_in("model", ()):  # a run may be a stranger's, and name any path
        return {}
    sizes = yaml.safe_load((config_dir() / "model" / f"{name}.yaml").read_text(encoding="utf-8"))
    return {key: value for key, value in sizes.items() if isinstance(value, int)}


def group_rows(rows: Sequence[Row], keys: RunKeys, by: Sequence[str]) -> dict[TableKey, list[Row]]:
    """Return the rows of each table; the tables of quick runs are last."""
    groups = {
        replace(key, model_sizes=keys.model_sizes(group, by), training=keys.training(group, by)): group
        for key, group in grouped(rows, lambda row: keys.table_key(row, by)).items()
    }

    def order(item: tuple[TableKey, list[Row]]) -> tuple[object, ...]:
        return max(row.train_tokens for row in item[1]) <= QUICK_TOKENS, item[0].sort_key

    return dict(sorted(groups.items(), key=order))


def groups_of_newest(groups: Mapping[TableKey, list[Row]], results_dir: Path) -> dict[TableKey, list[Row]]:
    """Return the groups that hold the run that finished last; quick runs count as the oldest."""
    finished = {run.name: number for number, run in enumerate(finished_runs(results_dir))}
    rows = [row for group in groups.values() for row in one_a_run(group)]
    newest = max(
        rows, key=lambda row: (row.train_tokens > QUICK_TOKENS, finished.get(row.run, -1)), default=None
    )
    return {
        key: group
        for key, group in groups.items()
        if newest is not None and any(row.run == newest.run for row in group)
    }


@dataclass(frozen=True)
class Group:
    """The rows of one table, which may be of a slice; whole: of the same runs, those of all targets."""

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
        what = f"{len(lacking)} {'run' if len(lacking) == 1 else 'runs'} of {few_names(lacking.values())}"
        name, judge = self.rows[0].slice, self.rows[0].judge
        of_judge, way_out = "", "pe-bench eval RUN... adds it, without scoring again"
        if judge:
            of_judge = f" of {judge}"
            way_out = f"pe-bench eval RUN... --key-tokens-of {shlex.quote(judge)} adds it"
        return f"without the slice {name}{of_judge}, and so not in this table: {what}; {way_out}"


def few_names(names: Iterable[str]) -> str:
    """Return the first few of the names, and how many more there are."""
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"


def groups_of_slice(
    groups: Mapping[TableKey, Sequence[Row]], name: str, files: ScoreFiles
) -> dict[TableKey, Group]:
    """Return the groups of a slice, each of one judge; none for runs without it.

    Where runs have other targets of a set in the slice, those that most rows have are kept.
    """
    if name == ALL:
        return {key: Group(rows, rows) for key, rows in groups.items()}
    sliced: dict[TableKey, Group] = {}
    for key, whole in groups.items():
        for judge, rows in sorted(grouped(files.of_slice(whole, name), lambda row: row.judge).items()):
            counts = Counter((row.target_hash, row.slice_hash) for row in rows).most_common()
            chosen = {target_hash: slice_hash for (target_hash, slice_hash), _ in reversed(counts)}
            kept = [row for row in rows if chosen[row.target_hash] == row.slice_hash]
            sliced[replace(key, slice=name, judge=judge)] = Group(kept, whole)
    return sliced


# What separates tables


def differing_keys(groups: Iterable[Sequence[Row]], keys: RunKeys) -> list[str]:
    """Return the keys of training and model whose values differ between groups of rows."""
    values_of_groups: list[dict[str, set[str]]] = []
    for rows in groups:
        values: dict[str, set[str]] = {}
        for of_run in grouped(rows, BY_RUN).values():
            for key, value in keys.config_of(of_run[0]).items():
                values.setdefault(key, set()).add(str(value))
        values_of_groups.append(values)
    names = dict.fromkeys(key for values in values_of_groups for key in values if _is_setting(key))
    return [
        key
        for key in names
        if key != "train.length"  # lines of one table have one training length
        and any(values.get(key) != values_of_groups[0].get(key) for values in values_of_groups)
    ]


def explain_separation(
    number: int, tables: Sequence[TableKey], swept: Mapping[str, Iterable[object]] | None = None
) -> str:
    """Return which of the tables' values differ; the setting only where nothing else tells them apart.

    swept: the keys of configurations that differ between the tables, with their values in this one.
    """
    if len(tables) == 1:
        return ""
    names = [name for name in vars(tables[number]) if name != "setting"]
    values = {name: {getattr(key, name) for key in tables} for name in names}
    values["stride_rule"].discard("")  # of the other protocols
    differing = [name.replace("_", " ") for name in names if len(values[name]) > 1]
    together = ""
    if len({tuple(getattr(key, name) for name in names) for key in tables}) < len(tables):
        unnamed = f"training settings (here {tables[number].setting[:8]}; see the runs' config.yaml)"
        here = {key: ", ".join(dict.fromkeys(map(str, own))) for key, own in (swept or {}).items()}
        differing += [f"{key} (here {own})" for key, own in here.items()] or [unnamed]
        together = f"; lines of one table: pe-bench report --by {','.join(here)}" if here else ""
        if len(here) == 1 and next(iter(here)).startswith("train."):
            together += f"; the best of each encoding: pe-bench report --best {next(iter(here))}"
    if len(values["data"]) == 1 < len(values["data_hash"]) and values["model"] == {CHECKPOINTS}:
        together += "; other tokenizers make other targets of a text: compare bits per byte by eye"
    return (
        f"table {number + 1} of {len(tables)}: they differ in {', '.join(differing)}, "
        f"and such rows are never averaged or ranked together{together}"
    )
