"""Which rows are selected, which of them share a table, which of these a slice has, what separates tables.

Rows of another setting (the model and how it was trained), data, tokenizer, training length,
protocol, stride or precision of scores are another table: they are never averaged or ranked together.
"""

import hashlib
import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from pe_bench.config.groups import shipped_model
from pe_bench.config.schema import LOSES_TEXT
from pe_bench.errors import UserError, require
from pe_bench.report.records import CHECKPOINTS, TableKey, name_of_checkpoint
from pe_bench.runs.find import (
    Condition,
    ScoredRuns,
    check_key,
    finished_runs,
    is_checkpoint,
    runs_of_sweep,
)
from pe_bench.runs.job import NOT_IDENTITY
from pe_bench.runs.rows import ALL, BY_RUN, Row, grouped, has_number, one_a_run

QUICK_TOKENS = 20_480  # train.tokens of experiment=quick, whose scores mean nothing
USUAL_TRAINING = {"train.optimizer": "muon", "train.encoding_lr": None}
SOURCES = ("train.from", "train.beside", "train.source")  # keys that name a run, another for each seed
MAX_NAMES = 4  # of lines in one note

Groups = dict[TableKey, list[Row]]


@dataclass(frozen=True)
class Selection:
    """The choice of what is shown of all results, and how.

    where: conditions that all hold. by: keys whose values set lines apart. best: a key of which each encoding
    keeps its best value. sort: a length or a key of `KEYS`. baseline: an encoding. margin: bits per byte.
    slice: the part of the targets that numbers are of. numbers_only: without what only a reader needs: notes,
    and the small table of recall. lengths: those that are shown beside the training length; all where none is
    named. labels: what lines that are shown were scored with; all if None.
    """

    where: tuple[Condition, ...] = ()
    by: tuple[str, ...] = ()
    best: str | None = None
    sort: str | None = None
    baseline: str | None = None
    margin: float | None = None  # None: that of the runs
    slice: str = ALL
    numbers_only: bool = False
    lengths: tuple[int, ...] = ()
    labels: frozenset[str] | None = None

    def shows(self, length: int, train_length: int, scored_with: str | None) -> bool:
        """Return whether a length of a line is shown; one that is not still serves as a reference.

        scored_with: None for an anchor, of which no encoding is asked.
        """
        if self.lengths and length not in (*self.lengths, train_length):
            return False
        if self.labels is not None and scored_with not in (None, *self.labels):
            return False
        values = {"length": length, "scored_with": scored_with}
        conditions = [condition for condition in self.where if values.get(condition.key) is not None]
        return all(condition.holds(values[condition.key]) for condition in conditions)


EVERYTHING = Selection()


def parse_by(word: str) -> tuple[str, ...]:
    """`seed` or `train.lr,model.d_model`. Raises `UserError`."""
    keys = tuple(dict.fromkeys(key.strip() for key in word.split(",") if key.strip()))
    require(bool(keys), "--by is empty: name a key, such as --by seed or --by train.lr")
    for key in keys:
        check_key(key, "--by")
        message = "the lengths of an encoding are compared with each other, and are no lines"
        require(key != "length", f"--by {key}: {message}")
    return keys


def check_best(key: str, by: Sequence[str]) -> None:
    """Raise `UserError` for a key that may not be chosen by its results."""
    message = "name a key of training, such as train.lr; seeds and encodings are not chosen by their results"
    require(key.startswith("train."), f"--best {key}: {message}")
    require(key not in by, f"--best {key} and --by {key} exclude each other: give one of them")


def keep_best(rows: Sequence[Row], runs: ScoredRuns, key: str) -> tuple[list[Row], str]:
    """Return the rows of each encoding's runs with its best value of a key, and a note on the choice.

    The best has the lowest mean validation loss at the end of training, over the seeds that all values have.
    Raises `UserError` where a run has no validation loss.
    """
    runs.require(rows, key, "--best")
    families: dict[tuple[Any, ...], dict[str, dict[int, Row]]] = {}
    for row in one_a_run(rows):
        setting = setting_without(row, runs, (key,))
        family = (row.encoding, row.data_hash, row.tokenizer, setting, row.steps)
        values = families.setdefault(family, {})
        values.setdefault(str(runs.value(row, key)), {})[row.seed] = row
    kept: set[str] = set()
    chosen: list[str] = []
    for (encoding, *_), values in families.items():
        losses = {value: _mean_loss(values, value, runs) for value in values}
        best = min(losses, key=losses.__getitem__)
        others = f" of {', '.join(sorted(values))}" if len(values) > 1 else ""
        chosen.append(f"{encoding} {best}{others}")
        kept |= {row.run for row in values[best].values()}
    note = (
        f"the best {key} of each encoding: {'; '.join(chosen)}. Chosen by the mean validation loss at the "
        "training length, on documents that are scored here, so levels may be slightly too good"
    )
    return [row for row in rows if row.run in kept], note


def _mean_loss(values: Mapping[str, Mapping[int, Row]], value: str, runs: ScoredRuns) -> float:
    """Return the mean validation loss of a value's runs, over the seeds that all values have, if any."""
    common = set.intersection(*(set(rows) for rows in values.values())) or set(values[value])
    losses = []
    for seed in sorted(common):
        run = values[value][seed].run
        loss = runs.folder_of(run).validation_loss
        if loss is None:
            raise UserError(f"--best: {run} has no validation loss in its train.csv; leave it out")
        losses.append(loss)
    mean = sum(losses) / len(losses)
    return mean if math.isfinite(mean) else math.inf


# Tables


def group_rows(rows: Sequence[Row], runs: ScoredRuns, by: Sequence[str]) -> Groups:
    """Return the rows of each table; those of quick runs are last. by: keys that may differ in a table."""
    groups: Groups = {}
    for key, group in grouped(rows, lambda row: _table_key(row, runs, by)).items():
        groups[replace(key, **_chosen_values(group, runs, by))] = group

    def rank(key: TableKey) -> tuple[bool, tuple[object, ...]]:
        most_tokens = max(row.train_tokens for row in groups[key])
        return most_tokens <= QUICK_TOKENS, _order(key)

    return {key: groups[key] for key in sorted(groups, key=rank)}


def _as_first_stage(row: Row, runs: ScoredRuns) -> Row:
    """Return the row with the facts of its first stage, in whose table it is."""
    first = runs.folder_of(row.run).first_stage
    if first is None:
        return row
    facts = {"train_length": first.length, "steps": first.steps, "setting": first.setting}
    return replace(row, run=first.run, **facts)


def _table_key(row: Row, runs: ScoredRuns, by: Sequence[str]) -> TableKey:
    """Return the key of a row's table, without what all its runs chose."""
    row = _as_first_stage(row, runs)
    key = TableKey(
        model=row.model,
        data=row.data,
        data_hash=row.data_hash,
        tokenizer=row.tokenizer,
        train_length=row.train_length,
        steps=row.steps,
        setting=row.setting,
        protocol=row.protocol,
        stride_rule=row.stride_rule,
        score_dtype=row.score_dtype,
        half=row.half,
    )
    if any("." in name for name in by):
        key = replace(key, setting=setting_without(row, runs, by))
    if "train.steps" in by or "train.tokens" in by:
        key = replace(key, steps=0)
    if "model" in by and is_checkpoint(row.model):
        # The hash of the data is of its tokens too: where it is the same, so are the tokenizers.
        tokenizer = LOSES_TEXT if row.loses_text else ""
        key = replace(key, model=CHECKPOINTS, tokenizer=tokenizer, setting="")
    return key


def _order(key: TableKey) -> tuple[object, ...]:
    """Return the values that tables are sorted by; protocols and strides count last."""
    last = ("protocol", "stride_rule", "score_dtype")
    protocols = {"paired": 0, "nonoverlapping": 1, "sliding": 2}
    stride = int(key.stride_rule) if key.stride_rule.isdecimal() else 0
    return (
        *(value for name, value in vars(key).items() if name not in last),
        *(protocols.get(key.protocol, 3), stride, key.score_dtype != "float32", key.score_dtype),
    )


def setting_without(row: Row, runs: ScoredRuns, by: Sequence[str]) -> str:
    """Return a hash of what rows must share to be compared, except for these keys of the configuration.

    A key that is null counts like one that is missing: an older version did not have it.
    """
    config = runs.folder_of(row.run).flat_config
    left = {}
    for key, value in config.items():
        if value is not None and _is_setting(key) and key not in by:
            left[key] = value
    words = json.dumps([left, row.train_dtype], sort_keys=True, default=str)
    return hashlib.sha256(words.encode()).hexdigest()[:8]


def _is_setting(key: str) -> bool:
    """Return whether a key of the model or the training makes runs differ."""
    return key.partition(".")[0] in ("model", "train") and key.rpartition(".")[2] not in NOT_IDENTITY


def _chosen_values(rows: Sequence[Row], runs: ScoredRuns, by: Sequence[str]) -> dict[str, str]:
    """Return the chosen optimizer and model of a table's runs, without the keys of `by`, and the sizes."""
    first = rows[0]
    config = runs.folder_of(_as_first_stage(first, runs).run).flat_config
    training = {key: config.get(key, usual) for key, usual in USUAL_TRAINING.items() if key not in by}
    chosen = {key: value for key, value in training.items() if value != USUAL_TRAINING[key]}
    values = {"training": " ".join(f"{key.partition('.')[2]}={value}" for key, value in chosen.items())}
    if not is_checkpoint(first.model):
        values["changed"] = _changed_model(config, by)
        values["model_sizes"] = _sizes_of(rows)
    elif "model" not in by:
        values["model_sizes"] = _size_of_checkpoint(first, runs)
    return values


def _changed_model(config: Mapping[str, Any], by: Sequence[str]) -> str:
    """Return a run's differences from the shipped model of its name: `2 layers of 96`; empty without any.

    Keys of `by` do not count. A difference in neither layers nor width is named by its keys.
    """
    shipped = shipped_model(str(config.get("model.name")))
    changed = {}
    for name, value in shipped.items():
        key = f"model.{name}"
        chosen = config.get(key)
        if key not in by and chosen is not None and chosen != value:
            changed[name] = chosen
    if not {"n_layers", "d_model"}.isdisjoint(changed):
        layers = config["model.n_layers"]
        noun = "layer" if layers == 1 else "layers"
        return f"{layers} {noun} of {config['model.d_model']}"
    return ", ".join(f"{name}={value}" for name, value in changed.items())


def _sizes_of(rows: Sequence[Row]) -> str:
    """Return the parameters of the smallest and the largest model: `0.8M`, or `0.3M to 0.8M`."""
    parameters = [row.parameters for row in rows]
    sizes = [_in_millions(min(parameters)), _in_millions(max(parameters))]
    return " to ".join(dict.fromkeys(sizes))


def _in_millions(parameters: int) -> str:
    millions = parameters / 1e6
    if millions >= 10:
        return f"{millions:,.0f}M"
    return f"{millions:.1f}M" if millions >= 0.1 else f"{millions:.2g}M"


def _size_of_checkpoint(row: Row, runs: ScoredRuns) -> str:
    """Return a checkpoint's architecture, if known, its parameters, and their rounding in a GGUF file.

    Such as `Llama, 0.26M` and `Llama, 0.26M, Q8_0`.
    """
    millions = row.parameters / 1e6
    size = f"{millions:.2f}M" if millions < 10 else f"{millions:,.0f}M"
    facts = runs.value(row, "checkpoint.architecture"), size, runs.value(row, "checkpoint.rounding")
    return ", ".join(filter(None, facts))


def labels_by(rows: Sequence[Row], runs: ScoredRuns, by: Sequence[str]) -> Callable[[Row], str]:
    """Return a function that says what tells a row's line from others, beside its encodings.

    These are the values of these keys, and of those in which later stages of one name differ.
    """
    runs_of_later_stages = {row.run for row in one_a_run(rows) if runs.folder_of(row.run).first_stage}
    later_rows = [row for row in rows if row.run in runs_of_later_stages]
    differing: dict[str, list[str]] = {}
    for encoding, stage_rows in grouped(later_rows, lambda row: row.encoding).items():
        settings = grouped(stage_rows, lambda row: row.setting)
        keys = differing_keys(settings.values(), runs) if len(settings) > 1 else []
        differing[encoding] = [key for key in keys if key not in (*SOURCES, *by)]

    def part(row: Row, key: str) -> str:
        if key == "model" and is_checkpoint(row.model):
            return f"of {name_of_checkpoint(row.model, _size_of_checkpoint(row, runs))}"
        return f"{key}={runs.value(row, key)}"

    def label(row: Row) -> str:
        keys = [*by]
        if row.run in runs_of_later_stages:
            keys += differing[row.encoding]
        return " ".join(part(row, key) for key in keys)

    return label


def newest_run(rows: Iterable[Row], results_dir: Path) -> Path | None:
    """Return the run of these rows that finished last; quick runs count as the oldest."""
    finished = {run.name: number for number, run in enumerate(finished_runs(results_dir))}

    def age(row: Row) -> tuple[bool, int]:
        return row.train_tokens > QUICK_TOKENS, finished.get(row.run, -1)

    newest = max(one_a_run(rows), key=age, default=None)
    return None if newest is None else results_dir / "runs" / newest.run


def groups_of_newest(groups: Groups, results_dir: Path) -> Groups:
    """Return the groups that hold the run that finished last, or others of the sweep that trained it."""
    newest = newest_run(chain.from_iterable(groups.values()), results_dir)
    if newest is None:
        return {}
    names = {run.name for run in (newest, *runs_of_sweep(newest, results_dir))}
    return {key: group for key, group in groups.items() if any(row.run in names for row in group)}


def few_names(names: Iterable[str]) -> str:
    """Return the first few of the names, and how many more there are."""
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"


def list_lengths(lengths: Iterable[int]) -> str:
    return ", ".join(f"{length:,}" for length in sorted(set(lengths)))


# Slices


def groups_of_slice(
    groups: Groups, name: str, runs: ScoredRuns
) -> dict[TableKey, tuple[list[Row], list[Row]]]:
    """Return, for each group and judge, the rows of a slice and of the group. Some runs may lack the slice.

    If runs have different targets of one set in the slice, the rows with the most common ones are kept.
    """
    sliced = {}
    for key, unsliced in groups.items():
        rows_by_judge = grouped(runs.slice_rows(unsliced, name), lambda row: row.judge)
        for judge, rows in sorted(rows_by_judge.items()):
            counts = Counter((row.target_hash, row.slice_hash) for row in rows).most_common()
            chosen = {target_hash: slice_hash for (target_hash, slice_hash), _ in reversed(counts)}
            kept = [row for row in rows if chosen[row.target_hash] == row.slice_hash]
            sliced[replace(key, slice=name, judge=judge)] = kept, unsliced
    return sliced


def share_of(rows: Sequence[Row], unsliced: Sequence[Row]) -> float:
    """Return the share of the targets in a slice, for the largest set of targets."""
    if not rows:
        return 1.0
    sizes = {row.target_hash: row.targets for row in unsliced}
    targets = {row.target_hash: row.targets for row in rows}
    largest = max(targets, key=sizes.__getitem__)
    return targets[largest] / sizes[largest]


def lacking_runs(rows: Sequence[Row], unsliced: Sequence[Row]) -> str:
    """Return a note on the runs that lack the slice, and so are not in the table; empty without any."""
    runs = {row.run for row in rows} | {row.judge for row in rows}  # a judge chooses no targets for itself
    lacking = {row.run: row.encoding for row in unsliced if has_number(row) and row.run not in runs}
    if not lacking or not rows:
        return ""
    name = rows[0].slice
    command = "pe-bench eval RUN..."
    judge = rows[0].judge
    if judge:
        name += f" of {judge}"
        command += f" --key-tokens-of {shlex.quote(judge)}"
    names = few_names(lacking.values())
    return f"without the slice {name}, and so not in this table: {names}; {command} adds it"


# What separates tables


def differing_keys(groups: Iterable[Sequence[Row]], runs: ScoredRuns) -> list[str]:
    """Return the keys of training and model whose values differ between groups of rows."""
    values_of_groups: list[dict[str, set[str]]] = []
    for rows in groups:
        values: dict[str, set[str]] = {}
        for run in dict.fromkeys(map(BY_RUN, rows)):
            for key, value in runs.folder_of(run).flat_config.items():
                values.setdefault(key, set()).add(str(value))
        values_of_groups.append(values)
    keys = dict.fromkeys(chain.from_iterable(values_of_groups))
    keys.pop("train.length", None)  # lines of one table have one training length
    differing = []
    for key in filter(_is_setting, keys):
        first, *others = [values.get(key) for values in values_of_groups]
        if any(other != first for other in others):
            differing.append(key)
    return differing


def explain_separation(
    number: int, tables: Sequence[TableKey], swept: Mapping[str, Iterable[object]] | None = None
) -> str:
    """Return the values in which tables differ; the setting only where no other value differs.

    swept: the keys of configurations that differ between the tables, with their values in this one.
    """
    names = [name for name in vars(tables[number]) if name != "setting"]
    values = {}
    for name in names:
        values[name] = {getattr(key, name) for key in tables}
    values["stride_rule"].discard("")  # of the other protocols
    differing = [name.replace("_", " ") for name in names if len(values[name]) > 1]
    together = ""
    named = {replace(key, setting="") for key in tables}
    if len(named) < len(tables) and swept:
        for key, used in swept.items():
            differing.append(f"{key} (here {', '.join(dict.fromkeys(map(str, used)))})")
        together = f"; lines of one table: pe-bench report --by {','.join(swept)}"
    elif len(named) < len(tables):
        setting = tables[number].setting[:8]
        differing.append(f"training settings (here {setting}; see the runs' config.yaml)")
    if len(values["data"]) == 1 < len(values["data_hash"]) and values["model"] == {CHECKPOINTS}:
        together += "; other tokenizers make other targets of a text: compare bits per byte by eye"
    return (
        f"table {number + 1} of {len(tables)}: they differ in {', '.join(differing)}, "
        f"and such rows are never averaged or ranked together{together}"
    )
