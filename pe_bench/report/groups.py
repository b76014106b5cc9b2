"""Rows are selected, and grouped into tables; the rows of a slice; the values that separate tables.

Rows with another setting (of the model or its training), data, tokenizer, training length, protocol, stride
or precision of scores are another table: they are never averaged or ranked together.
"""

import hashlib
import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from pe_bench.config.groups import shipped_model, shipped_task
from pe_bench.config.schema import HF_SECTION, LOSES_TEXT
from pe_bench.errors import UserError, require
from pe_bench.report.records import SEVERAL_HF_MODELS, TableKey, hf_model_name
from pe_bench.runs.find import (
    Condition,
    ScoredRuns,
    check_selectable_key,
    finished_runs,
    is_hf_name,
    is_number,
    runs_of_sweep,
)
from pe_bench.runs.job import NOT_IDENTITY
from pe_bench.runs.rows import ALL, BY_RUN, Row, grouped, has_number, one_per_run

QUICK_TOKENS = 20_480  # train.tokens of experiment=quick, whose scores mean nothing
USUAL_TRAINING = {"train.optimizer": "muon", "train.encoding_lr": None}
# Keys that name a run, a different one for each seed.
PARENT_KEYS = ("train.from", "train.beside", "train.source")
# Keys of training whose values runs of one setting need not share.
NOT_SETTING_KEYS = (*PARENT_KEYS, "train.micro_batches")
MAX_NAMES = 4  # the most lines to name in one note

Groups = dict[TableKey, list[Row]]


@dataclass(frozen=True)
class Selection:
    """The part of all results that a report shows, and the form of its tables."""

    where: tuple[Condition, ...] = ()  # conditions that all shown rows meet
    by: tuple[str, ...] = ()  # keys whose values set lines apart
    best: str | None = None  # a key; each encoding keeps the runs with its best value of the key
    sort: str | None = None  # a length, or a key of `KEYS`
    baseline: str | None = None  # the label or the encoding of a line
    margin: float | None = None  # the margin for verdicts, in bits per byte; None for the margin of the runs
    slice: str = ALL  # the slice of the targets on which numbers are measured
    numbers_only: bool = False  # without notes and the small table of recall
    lengths: tuple[int, ...] = ()  # the lengths to show with the training length; all lengths if empty
    # The labels of the encodings that shown lines were scored with; all lines if None.
    labels: frozenset[str] | None = None
    # The names of runs that are not shown: the changes of their later stages are from their levels.
    references: frozenset[str] = frozenset()

    def shows(self, length: int, train_length: int, scored_with: str | None) -> bool:
        """Return whether a length of a line is shown; other lengths are still used as references.

        scored_with: the label of the line's encoding; None for an anchor, which has none.
        """
        if self.lengths and length not in (*self.lengths, train_length):
            return False
        if self.labels is not None and scored_with not in (None, *self.labels):
            return False
        values = {"length": length, "scored_with": scored_with}
        for condition in self.where:
            value = values.get(condition.key)
            if value is not None and not condition.holds(value):
                return False
        return True


EVERYTHING = Selection()


def parse_by(word: str) -> tuple[str, ...]:
    """Return the keys of a list such as `seed` or `train.lr,model.d_model`. Raises `UserError`."""
    names = filter(None, map(str.strip, word.split(",")))
    keys = tuple(dict.fromkeys(names))
    require(bool(keys), "--by is empty: name a key, such as --by seed or --by train.lr")
    for key in keys:
        check_selectable_key(key, "--by")
        message = "the lengths of an encoding are compared with each other, and are no lines"
        require(key != "length", f"--by {key}: {message}")
    return keys


def check_best(key: str, by: Sequence[str]) -> None:
    """Raise `UserError` for a key that `--best` may not choose: outside `train`, or one of the keys `by`."""
    message = "name a key of training, such as train.lr; seeds and encodings are not chosen by their results"
    require(key.startswith("train."), f"--best {key}: {message}")
    require(key not in by, f"--best {key} and --by {key} exclude each other: give one of them")


def keep_best(rows: Sequence[Row], runs: ScoredRuns, key: str) -> tuple[list[Row], dict[str, str]]:
    """Return the rows of each encoding's runs with its best value of a key, and the choice by run.

    The best has the lowest mean validation loss at the end of training, over the seeds that all values have.
    Raises `UserError` where a run has no validation loss.
    """
    runs.require(rows, key, "--best")
    compared_rows: dict[
        tuple[Any, ...], dict[str, dict[int, Row]]
    ] = {}  # the rows to compare, by value and seed
    for row in one_per_run(rows):
        first = runs.folder_of(row.run).first_stage
        settings = (setting_without(row, runs, (key,)), first and first.setting)
        alike = (row.encoding, row.data_hash, row.tokenizer, settings, row.steps)
        value = str(runs.value(row, key))
        compared_rows.setdefault(alike, {}).setdefault(value, {})[row.seed] = row
    choices: dict[str, str] = {}
    for (encoding, *_), values in compared_rows.items():
        losses = {value: _mean_loss(values, value, runs) for value in values}
        best = min(losses, key=losses.__getitem__)
        choice = f"{encoding} {best}"
        if len(values) > 1:
            choice += f" of {', '.join(sorted(values))}"
        choices |= {row.run: choice for row in values[best].values()}
    return [row for row in rows if row.run in choices], choices


def best_note(key: str, choices: Mapping[str, str], shown: Iterable[Row]) -> str:
    """Return a note on the best values of a key. choices: those of `keep_best`; shown: rows of the tables."""
    names = {row.run for row in shown}
    texts = dict.fromkeys(choice for run, choice in choices.items() if run in names)
    return (
        f"the best {key} of each encoding: {'; '.join(texts)}. Chosen by the mean validation loss at the "
        "training length, on documents that are scored here, so levels may be slightly too good"
    )


def _mean_loss(rows_by_value: Mapping[str, Mapping[int, Row]], value: str, runs: ScoredRuns) -> float:
    """Return the mean validation loss of the runs with a value, over the seeds that all values have.

    If no seed is common, all seeds of the value count. rows_by_value: for each value, the rows by seed.
    Infinite if a loss is not finite. Raises `UserError` for a run without a loss.
    """
    seeds_of_values = map(set, rows_by_value.values())
    common = set.intersection(*seeds_of_values)
    losses = []
    for seed in sorted(common or rows_by_value[value]):
        run = rows_by_value[value][seed].run
        loss = runs.folder_of(run).validation_loss
        if loss is None:
            raise UserError(f"--best: {run} has no validation loss in its train.csv; leave it out")
        losses.append(loss)
    mean = sum(losses) / len(losses)
    return mean if math.isfinite(mean) else math.inf


# Tables


def group_rows(rows: Sequence[Row], runs: ScoredRuns, varying: Sequence[str]) -> Groups:
    """Return the rows of each table, by its key; tables of quick runs are last.

    Rows of a table are equal in the facts of `_table_key`, such as data, training length, setting, protocol.
    varying: keys that the setting leaves out, such as train.lr, so that their values may differ.
    """
    groups: Groups = {}
    for key, group in grouped(rows, lambda row: _table_key(row, runs, varying)).items():
        chosen = _chosen_values(group, runs, varying)
        groups[replace(key, **chosen)] = group

    def table_order(key: TableKey) -> tuple[bool, tuple[object, ...]]:
        most_tokens = max(row.train_tokens for row in groups[key])
        return most_tokens <= QUICK_TOKENS, _sort_key(key)

    return {key: groups[key] for key in sorted(groups, key=table_order)}


def _as_first_stage(row: Row, runs: ScoredRuns) -> Row:
    """Return a later stage's row with the facts of its first stage, whose table shows it; others as is."""
    first = runs.folder_of(row.run).first_stage
    if first is None:
        return row
    facts = {"train_length": first.length, "steps": first.steps, "setting": first.setting}
    return replace(row, run=first.run, **facts)


def _table_key(row: Row, runs: ScoredRuns, varying: Sequence[str]) -> TableKey:
    """Return the key of a row's table, without the values of `_chosen_values`."""
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
    if any("." in name for name in varying):
        key = replace(key, setting=setting_without(row, runs, varying))
    if "train.steps" in varying or "train.tokens" in varying:
        key = replace(key, steps=0)
    if "model" in varying and is_hf_name(row.model):
        # The hash of the data is of its tokens too: where it is the same, so are the tokenizers.
        tokenizer = LOSES_TEXT if row.loses_text else ""
        key = replace(key, model=SEVERAL_HF_MODELS, tokenizer=tokenizer, setting="")
    return key


def _sort_key(key: TableKey) -> tuple[object, ...]:
    """Return the sort key of a table: its fields in their order, but protocol, stride and precision last.

    Protocols are in the order paired, nonoverlapping, sliding, others; float32 is before other precisions.
    """
    last = ("protocol", "stride_rule", "score_dtype")
    first_values = [value for name, value in vars(key).items() if name not in last]
    protocols = {"paired": 0, "nonoverlapping": 1, "sliding": 2}
    protocol = protocols.get(key.protocol, 3)
    stride = int(key.stride_rule) if key.stride_rule.isdecimal() else 0
    return *first_values, protocol, stride, key.score_dtype != "float32", key.score_dtype


def setting_without(row: Row, runs: ScoredRuns, varying: Sequence[str]) -> str:
    """Return a hash of the values that rows must share to be compared, except for the keys `varying`.

    A key that is null counts as missing, because configurations of older versions lack it.
    """
    config = runs.folder_of(row.run).flat_config
    left = {}
    for key, value in config.items():
        if value is not None and _is_setting(key) and key not in (*NOT_SETTING_KEYS, *varying):
            left[key] = value
    words = json.dumps([left, row.train_dtype], sort_keys=True, default=str)
    return hashlib.sha256(words.encode()).hexdigest()[:8]


def _is_setting(key: str) -> bool:
    """Return whether a key is of the sections `model` or `train`, and its value part of a run's setting."""
    group, _, _ = key.partition(".")
    _, _, name = key.rpartition(".")
    return group in ("model", "train") and name not in NOT_IDENTITY


def _chosen_values(rows: Sequence[Row], runs: ScoredRuns, varying: Sequence[str]) -> dict[str, str]:
    """Return the fields `training`, `changed` and `model_sizes` of a table's key, as far as they are known.

    Values of the keys `varying` are left out, because they differ within the table.
    """
    first = rows[0]
    config = runs.folder_of(_as_first_stage(first, runs).run).flat_config
    chosen = []
    task_options = shipped_task(str(config.get("task.name")))
    usual_values = USUAL_TRAINING | {f"task.{option}": usual for option, usual in task_options.items()}
    for key, usual in usual_values.items():
        value = config.get(key, usual)
        if key not in varying and value != usual:
            chosen.append(f"{key.removeprefix('train.')}={value}")
    values = {"training": " ".join(chosen)}
    if not is_hf_name(first.model):
        values["changed"] = _differences_from_shipped_model(config, varying)
        values["model_sizes"] = _model_sizes(rows)
    elif "model" not in varying:
        values["model_sizes"] = _hf_model_size(first, runs)
    return values


def _differences_from_shipped_model(config: Mapping[str, Any], varying: Sequence[str]) -> str:
    """Return how a run's model differs from the shipped model of its name: `2 layers of 96`, or `d_ff=100`.

    Empty if they are equal. Keys of `varying` do not count.
    """
    shipped = shipped_model(str(config.get("model.name")))
    changed = {}
    for name, value in shipped.items():
        key = f"model.{name}"
        chosen = config.get(key)
        if key not in varying and chosen is not None and chosen != value:
            changed[name] = chosen
    if not {"n_layers", "d_model"}.isdisjoint(changed):
        layers = config["model.n_layers"]
        noun = "layer" if layers == 1 else "layers"
        return f"{layers} {noun} of {config['model.d_model']}"
    return ", ".join(f"{name}={value}" for name, value in changed.items())


def _model_sizes(rows: Sequence[Row]) -> str:
    """Return the parameters of the smallest and the largest model: `0.8M`, or `0.3M to 0.8M`."""
    parameters = [row.parameters for row in rows]
    sizes = [_in_millions(min(parameters)), _in_millions(max(parameters))]
    return " to ".join(dict.fromkeys(sizes))


def _in_millions(parameters: int) -> str:
    """Return a number of parameters as text in millions: `0.8M`, `12M`."""
    millions = parameters / 1e6
    if millions >= 10:
        return f"{millions:,.0f}M"
    spec = ".1f" if millions >= 0.1 else ".2g"
    return f"{millions:{spec}}M"


def _hf_model_size(row: Row, runs: ScoredRuns) -> str:
    """Return the size of a Hugging Face model: `Llama, 0.26M`, or `Llama, 0.26M, Q8_0` from a GGUF file."""
    millions = row.parameters / 1e6
    spec = ".2f" if millions < 10 else ",.0f"
    architecture = runs.value(row, f"{HF_SECTION}.architecture")
    rounding = runs.value(row, f"{HF_SECTION}.rounding")
    return ", ".join(filter(None, (architecture, f"{millions:{spec}}M", rounding)))


def labels_by(rows: Sequence[Row], runs: ScoredRuns, by: Sequence[str]) -> Callable[[Row], str]:
    """Return a function that gives a row the text that separates its line from other lines of its encodings.

    The text is `KEY=VALUE ...` with the keys `by`, and for later stages of training also with the keys in
    which the stages of that encoding differ.
    """
    names = {row.run for row in rows}
    runs_of_later_stages = {name for name in names if runs.folder_of(name).first_stage}
    later_rows = [row for row in rows if row.run in runs_of_later_stages]
    differing_keys_of: dict[str, list[str]] = {}
    for encoding, stage_rows in grouped(later_rows, lambda row: row.encoding).items():
        settings = grouped(stage_rows, lambda row: row.setting)
        keys = differing_keys(settings.values(), runs) if len(settings) > 1 else []
        ignored = {*PARENT_KEYS, *by}
        keys = [key for key in keys if key not in ignored]
        # Labels have rounded numbers of tokens, which may be equal for different numbers of steps.
        if len({row.steps for row in stage_rows}) > 1:
            keys.append("steps")
        differing_keys_of[encoding] = keys

    @cache
    def has_fractions(key: str) -> bool:
        return any(isinstance(runs.value(row, key), float) for row in rows)

    def key_text(row: Row, key: str) -> str:
        if key == "model" and is_hf_name(row.model):
            return f"of {hf_model_name(row.model, _hf_model_size(row, runs))}"
        value = runs.value(row, key)
        # An option may have been typed as 8 in place of 8.0.
        if type(value) is int and is_number(value) and has_fractions(key):
            value = float(value)
        return f"{key}={value}"

    def label(row: Row) -> str:
        keys = [*by]
        if row.run in runs_of_later_stages:
            keys += differing_keys_of[row.encoding]
        return " ".join(key_text(row, key) for key in keys)

    return label


def newest_run(rows: Iterable[Row], results_dir: Path) -> Path | None:
    """Return the run of these rows that finished last, quick runs being the oldest; None without rows."""
    finished = {run.name: number for number, run in enumerate(finished_runs(results_dir))}

    def order_of_finishing(row: Row) -> tuple[bool, int]:
        return row.train_tokens > QUICK_TOKENS, finished.get(row.run, -1)

    newest = max(one_per_run(rows), key=order_of_finishing, default=None)
    return None if newest is None else results_dir / "runs" / newest.run


def groups_of_newest(groups: Groups, results_dir: Path) -> Groups:
    """Return the groups with the run that finished last, or with other runs of its sweep."""
    newest = newest_run(chain.from_iterable(groups.values()), results_dir)
    if newest is None:
        return {}
    names = {run.name for run in (newest, *runs_of_sweep(newest, results_dir))}
    return {key: rows for key, rows in groups.items() if not names.isdisjoint(map(BY_RUN, rows))}


def few_names(names: Iterable[str]) -> str:
    """Return the first few of the names, and the number of the others: `rope, alibi and 3 more`."""
    names = list(dict.fromkeys(names))
    text = ", ".join(names[:MAX_NAMES])
    others = len(names) - MAX_NAMES
    return f"{text} and {others} more" if others > 0 else text


def list_lengths(lengths: Iterable[int]) -> str:
    """Return lengths as text, each once, the shortest first: `128, 2,048`."""
    texts = [f"{length:,}" for length in sorted(set(lengths))]
    return ", ".join(texts)


# Slices


def groups_of_slice(
    groups: Groups, name: str, runs: ScoredRuns
) -> dict[TableKey, tuple[list[Row], list[Row]]]:
    """Return the rows of a slice, and all rows, of each group; by the key of the group's table of the slice.

    The slice `key` has a table for each judge, the run that chose its targets. Some runs may lack the slice.
    If runs have different targets of one set in the slice, the rows with the most common targets are kept.
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


def slice_share(rows: Sequence[Row], unsliced: Sequence[Row]) -> float:
    """Return the share of targets that are in a slice, 0 to 1, for the largest set of targets.

    rows: the rows of the slice. unsliced: the rows of all targets.
    """
    if not rows:
        return 1.0
    sizes = {row.target_hash: row.targets for row in unsliced}
    targets = {row.target_hash: row.targets for row in rows}
    largest = max(targets, key=sizes.__getitem__)
    return targets[largest] / sizes[largest]


def lacking_runs_note(rows: Sequence[Row], unsliced: Sequence[Row]) -> str:
    """Return a note on the runs that lack the slice, and so are not in the table; empty without any."""
    runs = {row.run for row in rows} | {row.judge for row in rows}  # a judge chooses no targets for itself
    unsliced_rows = [row for row in unsliced if row.run not in runs]
    lacking = {row.run: row.encoding for row in filter(has_number, unsliced_rows)}
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
        values_of_keys: dict[str, set[str]] = {}
        for run in dict.fromkeys(map(BY_RUN, rows)):
            for key, value in runs.folder_of(run).flat_config.items():
                values_of_keys.setdefault(key, set()).add(str(value))
        values_of_groups.append(values_of_keys)
    keys = dict.fromkeys(chain.from_iterable(values_of_groups))
    keys.pop("train.length", None)  # lines of one table have one training length
    differing = []
    for key in filter(_is_setting, keys):
        first, *others = [values_of_keys.get(key) for values_of_keys in values_of_groups]
        if any(other != first for other in others):
            differing.append(key)
    return differing


def explain_separation(
    number: int,
    tables: Sequence[TableKey],
    swept: Mapping[str, Iterable[object]] | None = None,
    folder: str = "",
) -> str:
    """Return a sentence on the values in which tables differ: `table 1 of 2: they differ in ...`.

    number: the index of the table in `tables`. swept: the keys of configurations that differ between the
    tables, with their values in this table; they are named only if the other values do not tell the tables
    apart. folder: the option that names the folder of results, as `results_option` returns it.
    """
    values = {}
    for name in vars(tables[number]):
        values[name] = {getattr(key, name) for key in tables}
    values["stride_rule"].discard("")  # protocols without a stride
    differing = []
    for name, used in values.items():
        if name != "setting" and len(used) > 1:
            differing.append(name.replace("_", " "))
    advice = ""
    named = {replace(key, setting="") for key in tables}
    if len(named) < len(tables) and swept:
        for key, used in swept.items():
            here = ", ".join(dict.fromkeys(map(str, used)))
            differing.append(f"{key} (here {here})")
        advice = f"; lines of one table: pe-bench report{folder} --by {','.join(swept)}"
    elif len(named) < len(tables):
        setting = tables[number].setting[:8]
        differing.append(f"training settings (here {setting}; see the runs' config.yaml)")
    is_one_text = len(values["data"]) == 1 < len(values["data_hash"])
    if is_one_text and values["model"] == {SEVERAL_HF_MODELS}:
        advice += "; other tokenizers make other targets of a text: compare bits per byte by eye"
    place = f"table {number + 1} of {len(tables)}"
    differ = f"they differ in {', '.join(differing)}"
    return f"{place}: {differ}, and such rows are never averaged or ranked together{advice}"
