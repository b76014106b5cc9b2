"""Which rows a report is about, what sets its lines apart, and how it compares and orders them."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pe_bench.config.groups import config_dir, names_in
from pe_bench.errors import UserError, require
from pe_bench.report.records import is_checkpoint, name_of_checkpoint
from pe_bench.report.statistics import MARGIN
from pe_bench.runs.find import Condition, RunValues, check_key, is_number, one_a_run
from pe_bench.runs.job import NOT_IDENTITY
from pe_bench.runs.rows import ALL, Row

USUAL_TRAINING = {"train.optimizer": "muon", "train.encoding_lr": None}


@dataclass(frozen=True)
class Selection:
    """The choice of what is shown of all results, and how.

    where: conditions that all hold. by: keys whose values set lines apart. best: a key of
    which each encoding keeps its best value. sort: a length or a key of
    `order`. baseline: an encoding. margin: bits per byte. slice: the part of the targets that numbers are of.
    numbers_only: without what only a reader needs: notes, the small table of recall and positions.
    lengths: those that are shown beside the training length; all where none is named.
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

    @property
    def resolved_margin(self) -> float:
        return MARGIN if self.margin is None else self.margin

    @property
    def varying(self) -> tuple[str, ...]:
        """Return the keys in which rows of one table may differ."""
        return (*self.by, *([self.best] if self.best else []))

    def shows(self, length: int, train_length: int) -> bool:
        """Return whether a length has a column; without one it still serves as a reference."""
        is_left_out = self.lengths and length not in (*self.lengths, train_length)
        return not is_left_out and all(
            condition.holds(length) for condition in self.where if condition.key == "length"
        )

    def asks_for(self, length: int) -> bool:
        """Return whether a length is named."""
        named = [condition for condition in self.where if (condition.key, condition.sign) == ("length", "=")]
        return length in self.lengths or any(condition.holds(length) for condition in named)

    def takes(self, scored_with: str) -> bool:
        """Return whether an encoding that runs were scored with has a line."""
        return all(condition.holds(scored_with) for condition in self.where if condition.key == "scored_with")


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


class RunKeys(RunValues):
    """The values of rows' columns and runs' configurations, and what tables derive from them."""

    def first_stage(self, row: Row) -> Row:
        """Return the row as one of its family's first stage would be, whose table it stands in."""
        first = self.folder_of(row.run).first_stage
        if first is None:
            return row
        facts = {"train_length": first.length, "steps": first.steps, "setting": first.setting}
        return replace(row, run=first.run, **facts)

    def unreadable(self, rows: Sequence[Row], keys: Sequence[str]) -> list[str]:
        """A line for each run whose configuration cannot be read; `keys` of it are asked for."""
        unknown_keys = f", so {' and '.join(keys)} are not known" if keys else ""
        left_out = "left out: " if keys else ""
        problems = {row.run: self.folder_of(row.run).config_problem for row in one_a_run(rows)}
        return [
            f"{left_out}{run}: its config.yaml cannot be read ({problem}){unknown_keys}"
            for run, problem in problems.items()
            if problem
        ]

    def margins(self, rows: Sequence[Row]) -> set[float]:
        """Return the margins of the runs' own configurations."""
        margins = [self.value(row, "report.margin") for row in one_a_run(rows)]
        return {float(margin) for margin in margins if is_number(margin)}

    def model_sizes(self, rows: Sequence[Row], by: Sequence[str]) -> str:
        """Return the sizes that the name of these rows' model does not imply, but for these keys.

        They are such as `d_model=96 d_head=24`; of a checkpoint its architecture and parameters.
        """
        if is_checkpoint(rows[0].model):
            return "" if "model" in by else self._size_of_checkpoint(rows[0])
        for row in one_a_run([self.first_stage(row) for row in one_a_run(rows)]):
            config = self.config_of(row)
            model = {key[6:]: value for key, value in config.items() if key[:6] == "model." and key not in by}
            usual = _usual_sizes(str(model.get("name")))
            changed = {key: model[key] for key, value in usual.items() if model.get(key, value) != value}
            words = [f"{key}={value}".lower() for key, value in changed.items() if isinstance(value, int)]
            if words:
                return " ".join(words)
        return ""

    def training(self, rows: Sequence[Row], by: Sequence[str]) -> str:
        """Return the optimizer and the rate of encodings that these rows' runs chose, but for these keys."""
        config = self.config_of(self.first_stage(rows[0]))
        chosen = {key: config.get(key, usual) for key, usual in USUAL_TRAINING.items() if key not in by}
        changed = {key: value for key, value in chosen.items() if value != USUAL_TRAINING[key]}
        return " ".join(f"{key.partition('.')[2]}={value}" for key, value in changed.items())

    def label(self, row: Row, by: Sequence[str]) -> str:
        """Return what the label of a line says of these keys."""
        return " ".join(
            f"of {name_of_checkpoint(row.model, self._size_of_checkpoint(row))}"
            if key == "model" and is_checkpoint(row.model)
            else f"{key}={self.value(row, key)}"
            for key in by
        )

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


def differing_keys(groups: Iterable[Sequence[Row]], keys: RunKeys) -> list[str]:
    """Return the keys of training and model whose values differ between groups of rows."""
    values_of_groups: list[dict[str, set[str]]] = []
    for rows in groups:
        values: dict[str, set[str]] = {}
        for row in one_a_run(rows):
            for key, value in keys.config_of(row).items():
                values.setdefault(key, set()).add(str(value))
        values_of_groups.append(values)
    names = dict.fromkeys(key for values in values_of_groups for key in values if _is_setting(key))
    return [
        key
        for key in names
        if key != "train.length"  # lines of one table have one training length
        and any(values.get(key) != values_of_groups[0].get(key) for values in values_of_groups)
    ]


def keep_best(rows: Sequence[Row], keys: RunKeys, key: str) -> tuple[list[Row], str]:
    """Return the rows of each encoding's runs with its best value of a key, and a note on the choice.

    The best has the lowest mean validation loss at the end of training, over the seeds that all values have.
    Raises `UserError` where a run has no validation loss.
    """
    keys.require(rows, key, "--best")
    families: dict[tuple[Any, ...], dict[str, dict[int, Row]]] = {}
    for row in one_a_run(rows):
        family = (row.encoding, row.data_hash, row.tokenizer, keys.setting_without(row, (key,)), row.steps)
        families.setdefault(family, {}).setdefault(str(keys.value(row, key)), {})[row.seed] = row
    kept: set[str] = set()
    chosen: list[str] = []
    for (encoding, *_), values in families.items():
        best = min(values, key=lambda value: _mean_loss(values, value, keys))
        chosen.append(f"{encoding} {best}" + (f" of {', '.join(sorted(values))}" if len(values) > 1 else ""))
        kept |= {row.run for row in values[best].values()}
    note = (
        f"the best {key} of each encoding: {'; '.join(chosen)}. Chosen by the mean validation loss at the "
        "training length, on windows of the same documents that are scored here, so levels may be slightly "
        "too good"
    )
    return [row for row in rows if row.run in kept], note


def _mean_loss(values: Mapping[str, Mapping[int, Row]], value: str, keys: RunKeys) -> float:
    """Return the mean validation loss of a value's runs, over the seeds that all values have, if any."""
    common = set.intersection(*(set(rows) for rows in values.values())) or set(values[value])
    losses = [_validation_loss(values[value][seed].run, keys) for seed in sorted(common)]
    mean = sum(losses) / len(losses)
    return mean if math.isfinite(mean) else math.inf


def _validation_loss(run: str, keys: RunKeys) -> float:
    loss = keys.folder_of(run).validation_loss
    if loss is None:
        raise UserError(f"--best: {run} has no validation loss in its train.csv; leave it out")
    return loss


def _is_setting(key: str) -> bool:
    """Return whether a key is one of the model or the training, by which runs differ."""
    return key.partition(".")[0] in ("model", "train") and key.rpartition(".")[2] not in NOT_IDENTITY


@cache
def _usual_sizes(name: str) -> Mapping[str, Any]:
    """Return the sizes in the file that a model's name stands for; none for a custom file."""
    # Through OmegaConf, because a size may follow from another (`d_head`). Rows have no columns of sizes.
    if name not in names_in("model", ()):  # a run may be a stranger's, and name any path
        return {}
    from omegaconf import OmegaConf

    from pe_bench.config.compose import register_resolvers

    register_resolvers()
    composed = OmegaConf.create({"model": OmegaConf.load(config_dir() / "model" / f"{name}.yaml")})
    sizes = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(sizes, dict)
    return sizes["model"]
