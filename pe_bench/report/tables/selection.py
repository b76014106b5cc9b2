"""Which rows a report is about, what sets its lines apart, and how it compares and orders them."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from pe_bench.errors import UserError
from pe_bench.report.statistics import MARGIN
from pe_bench.report.tables.model_sizes import changed_sizes
from pe_bench.report.tables.scored_checkpoint import ScoredCheckpoint
from pe_bench.report.tables.training_machine import TrainingMachine, machine_of
from pe_bench.runs.conditions import Condition, RunValues, check_key, is_number, one_a_run
from pe_bench.runs.identity import NOT_IDENTITY
from pe_bench.runs.rows import ALL, Row


@dataclass(frozen=True)
class Selection:
    """The choice of what is shown of all results, and how.

    where: conditions that all hold. by: keys whose values set lines apart. best: a key of
    which each encoding keeps its best value. sort: a length or a key of
    `order`. baseline: an encoding. margin: bits per byte. slice: the part of the targets that numbers are of.
    """

    where: tuple[Condition, ...] = ()
    by: tuple[str, ...] = ()
    best: str | None = None
    sort: str | None = None
    baseline: str | None = None
    margin: float | None = None  # None: that of the runs
    slice: str = ALL

    @property
    def resolved_margin(self) -> float:
        return MARGIN if self.margin is None else self.margin

    @property
    def varying(self) -> tuple[str, ...]:
        """Return the keys in which rows of one table may differ."""
        return (*self.by, *([self.best] if self.best else []))

    def shows(self, length: int) -> bool:
        """Return whether a length has a column; without one it still serves as a reference."""
        return all(condition.holds(length) for condition in self.where if condition.key == "length")

    def asks_for(self, length: int) -> bool:
        """Return whether a length is named."""
        return any(
            condition.key == "length" and condition.sign == "=" and condition.holds(length)
            for condition in self.where
        )

    def takes(self, scored_with: str) -> bool:
        """Return whether an encoding that runs were scored with has a line."""
        return all(condition.holds(scored_with) for condition in self.where if condition.key == "scored_with")


EVERYTHING = Selection()


def parse_by(word: str) -> tuple[str, ...]:
    """`seed` or `train.lr,model.d_model`. Raises `UserError`."""
    keys = tuple(dict.fromkeys(key.strip() for key in word.split(",") if key.strip()))
    if not keys:
        raise UserError("--by is empty: name a key, such as --by seed or --by train.lr")
    for key in keys:
        check_key(key, "--by")
        if key == "length":
            raise UserError(
                f"--by {key}: the lengths of an encoding are compared with each other, and are no lines"
            )
    return keys


class RunKeys(RunValues):
    """The values of rows' columns and runs' configurations, and what tables derive from them."""

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

    def validation_loss(self, row: Row) -> float:
        """Return the loss at the end of a run's training. Raises `UserError` where it is not known."""
        loss = self.folder_of(row.run).validation_loss
        if loss is None:
            raise UserError(f"--best: {row.run} has no validation loss in its train.csv; leave it out")
        return loss

    def margins(self, rows: Sequence[Row]) -> set[float]:
        """Return the margins of the runs' own configurations."""
        found = [self.value(row, "report.margin") for row in one_a_run(rows)]
        return {float(margin) for margin in found if is_number(margin)}

    def machines(self, rows: Sequence[Row]) -> dict[str, TrainingMachine]:
        """Return the machine on which each run was trained."""
        return {row.run: machine_of(self.folder_of(row.run).environment) for row in one_a_run(rows)}

    def checkpoints(self, rows: Sequence[Row]) -> list[ScoredCheckpoint]:
        """Return what is known of the checkpoints among the runs, which pe-bench did not train."""
        return [
            ScoredCheckpoint(
                row.model,
                row.train_length,
                str(config.get("checkpoint.train_length_from")),
                config.get("checkpoint.layers") or config["model.n_layers"],
                config["model.n_layers"],
                config.get("checkpoint.begin"),
            )
            for row in one_a_run(rows)
            if "checkpoint.source" in (config := self.config_of(row))
        ]

    def model_sizes(self, rows: Sequence[Row], by: Sequence[str]) -> str:
        """Return the sizes that the name of these rows' model does not imply, but for these keys."""
        for row in one_a_run(rows):
            config = self.config_of(row)
            model = {
                key.removeprefix("model."): value
                for key, value in config.items()
                if key.startswith("model.") and key not in by
            }
            sizes = changed_sizes(model)
            if sizes:
                return sizes
        return ""

    def training(self, rows: Sequence[Row], by: Sequence[str]) -> str:
        """Return the optimizer and the rate of encodings that these rows' runs chose, but for these keys."""
        usual = {"train.optimizer": "muon", "train.encoding_lr": None}
        config = self.config_of(rows[0])
        chosen = {key: config.get(key, value) for key, value in usual.items() if key not in by}
        return " ".join(
            f"{key.partition('.')[2]}={value}" for key, value in chosen.items() if value != usual[key]
        )

    def label(self, row: Row, by: Sequence[str]) -> str:
        """Return what the label of a line says of these keys."""
        return " ".join(f"{key}={self.value(row, key)}" for key in by)

    def setting_without(self, row: Row, by: Sequence[str]) -> str:
        """A hash of what rows must share to be compared, but for these keys of the configuration."""
        if not any("." in key for key in by):
            return row.setting
        config = self.config_of(row)
        left = {
            key: value
            for key, value in config.items()
            if key.split(".")[0] in ("model", "train")
            and key.split(".")[-1] not in NOT_IDENTITY
            and key not in by
        }
        words = json.dumps([left, row.train_dtype], sort_keys=True, default=str)
        return hashlib.sha256(words.encode()).hexdigest()[:8]
