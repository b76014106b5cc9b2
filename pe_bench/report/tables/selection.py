"""Which rows a report is about, what sets its lines apart, and how it compares and orders them."""

import fnmatch
import hashlib
import json
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pe_bench.errors import UserError
from pe_bench.report.statistics import MARGIN
from pe_bench.report.tables.model_sizes import changed_sizes
from pe_bench.report.tables.training_machine import TrainingMachine, machine_of
from pe_bench.runs.find import names_of_label
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.identity import NOT_IDENTITY
from pe_bench.runs.rows import COLUMNS, Row
from pe_bench.values import unknown

CONDITION = re.compile(r"\s*([\w.]+)\s*(!=|<=|>=|==?|<|>)\s*(.*?)\s*")
ORDERS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
# What follows from others of a row, is chosen by an option of its own, or is a result: to choose seeds by
# how well they did would make any encoding the best.
NOT_KEYS = (
    *("control", "protocol", "setting", "status", "reason", "nll", "perplexity", "bits_per_byte"),
    *("context_mean", "targets", "documents", "target_hash", "peak_memory_mb", "stride"),
    *("stride_rule", "target_tokens", "forced", "knows_length"),
)
# These choose what is shown; a row that is not may still be a reference.
SHOWN = ("length", "scored_with")
LABELS = ("encoding", "scored_with")  # what tables call an encoding, with its options


@dataclass(frozen=True)
class Condition:
    """`key`, how it is compared, and the values, any of which will do."""

    key: str
    sign: str
    values: tuple[str, ...]

    def holds(self, value: Any) -> bool:
        if self.sign in ORDERS:
            return _is_number(value) and ORDERS[self.sign](float(value), float(self.values[0]))
        return any(self._names(value, wanted) for wanted in self.values) is (self.sign == "=")

    def unmet(self, found: Iterable[Any]) -> list[str]:
        """Return the values that are asked for and were not found."""
        wanted = self.values if self.sign == "=" else ()
        different = list(dict.fromkeys(found))
        return [name for name in wanted if not any(self._names(value, name) for value in different)]

    def _names(self, value: Any, wanted: str) -> bool:
        """Return whether a value is the wanted one; any of its names is, for an encoding."""
        names = names_of_label(str(value)) if self.key in LABELS else (value,)
        return any(_equal(name, wanted) for name in names)


@dataclass(frozen=True)
class Selection:
    """The choice of what is shown of all results, and how.

    where: conditions that all hold. by: keys whose values set lines apart. sort: a length or a key of
    `order`. baseline: an encoding. margin: bits per byte.
    """

    where: tuple[Condition, ...] = ()
    by: tuple[str, ...] = ()
    sort: str | None = None
    baseline: str | None = None
    margin: float | None = None  # None: that of the runs

    @property
    def resolved_margin(self) -> float:
        return MARGIN if self.margin is None else self.margin

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


def parse_condition(word: str) -> Condition:
    """`seed<3`, `encoding=rope,alibi` or `train.lr>=0.001`. Raises `UserError`."""
    found = CONDITION.fullmatch(word)
    if found is None or not found[3]:
        raise UserError(
            f"--where '{word}' cannot be read: say KEY=VALUE, KEY=VALUE,VALUE, KEY!=VALUE or KEY<NUMBER"
        )
    key, sign, text = found.groups()
    sign = sign.replace("==", "=")
    values = tuple(value.strip() for value in text.split(",")) if sign in ("=", "!=") else (text,)
    if sign in ORDERS and not _is_number(text):
        raise UserError(f"--where '{word}': {key}{sign} needs a number, and '{text}' is none")
    _check_key(key, "--where")
    return Condition(key, sign, values)


def parse_by(word: str) -> tuple[str, ...]:
    """`seed` or `train.lr,model.d_model`. Raises `UserError`."""
    keys = tuple(dict.fromkeys(key.strip() for key in word.split(",") if key.strip()))
    if not keys:
        raise UserError("--by is empty: name a key, such as --by seed or --by train.lr")
    for key in keys:
        _check_key(key, "--by")
        if key == "length":
            raise UserError(
                f"--by {key}: the lengths of an encoding are compared with each other, and are no lines"
            )
    return keys


def _check_key(key: str, option: str) -> None:
    if "." not in key and (key not in COLUMNS or key in NOT_KEYS):
        known = [column for column in COLUMNS if column not in NOT_KEYS]
        raise UserError(f"{unknown(key, option, known)}, or a key of a run's config.yaml such as train.lr")


class RunKeys:
    """The values of rows' columns, and of keys in the configurations and environments of their runs."""

    def __init__(self, folder_of: Callable[[str], RunFolder]) -> None:
        """folder_of: by the name of a run."""
        self._folder_of = folder_of

    def value(self, row: Row, key: str) -> Any:
        """Return a value; None where a run does not have such a key."""
        return getattr(row, key) if key in COLUMNS else self._config(row).get(key)

    def _config(self, row: Row) -> dict[str, Any]:
        return self._folder_of(row.run).flat_config

    def select(self, rows: Sequence[Row], where: Sequence[Condition]) -> list[Row]:
        """Return the rows that meet all conditions, but for those on what is only shown.

        Raises `UserError` for a key that no run has, and for an encoding that none has.
        """
        for condition in where:
            self._require_encodings(rows, condition)
        wanted = [condition for condition in where if condition.key not in SHOWN]
        for condition in wanted:
            self.require(rows, condition.key, "--where")
        return [
            row
            for row in rows
            if all(condition.holds(self.value(row, condition.key)) for condition in wanted)
        ]

    def require(self, rows: Sequence[Row], key: str, option: str) -> None:
        if key in COLUMNS or any(self.value(row, key) is not None for row in _one_a_run(rows)):
            return
        known = {name for row in _one_a_run(rows) for name in self._config(row)}
        raise UserError(unknown(key, option, known))

    def _require_encodings(self, rows: Sequence[Row], condition: Condition) -> None:
        if condition.key in LABELS:
            labels = {getattr(row, condition.key) for row in rows}
            for wanted in condition.unmet(labels):
                known = {names_of_label(label)[-1] for label in labels}
                raise UserError(unknown(wanted, f"--where {condition.key}", known))

    def unreadable(self, rows: Sequence[Row], keys: Sequence[str]) -> list[str]:
        """A line for each run whose configuration cannot be read; `keys` of it are asked for."""
        unknown_keys = f", so {' and '.join(keys)} are not known" if keys else ""
        left_out = "left out: " if keys else ""
        problems = {row.run: self._folder_of(row.run).config_problem for row in _one_a_run(rows)}
        return [
            f"{left_out}{run}: its config.yaml cannot be read ({problem}){unknown_keys}"
            for run, problem in problems.items()
            if problem
        ]

    def margins(self, rows: Sequence[Row]) -> set[float]:
        """Return the margins of the runs' own configurations."""
        found = [self.value(row, "report.margin") for row in _one_a_run(rows)]
        return {float(margin) for margin in found if _is_number(margin)}

    def machines(self, rows: Sequence[Row]) -> dict[str, TrainingMachine]:
        """Return the machine on which each run was trained."""
        return {row.run: machine_of(self._folder_of(row.run).environment) for row in _one_a_run(rows)}

    def model_sizes(self, rows: Sequence[Row], by: Sequence[str]) -> str:
        """Return the sizes that the name of these rows' model does not imply, but for these keys."""
        for row in _one_a_run(rows):
            config = self._config(row)
            model = {
                key.removeprefix("model."): value
                for key, value in config.items()
                if key.startswith("model.") and key not in by
            }
            sizes = changed_sizes(model)
            if sizes:
                return sizes
        return ""

    def label(self, row: Row, by: Sequence[str]) -> str:
        """Return what the label of a line says of these keys."""
        return " ".join(f"{key}={self.value(row, key)}" for key in by)

    def setting_without(self, row: Row, by: Sequence[str]) -> str:
        """A hash of what rows must share to be compared, but for these keys of the configuration."""
        if not any("." in key for key in by):
            return row.setting
        config = self._config(row)
        left = {
            key: value
            for key, value in config.items()
            if key.split(".")[0] in ("model", "train")
            and key.split(".")[-1] not in NOT_IDENTITY
            and key not in by
        }
        words = json.dumps([left, row.train_dtype], sort_keys=True, default=str)
        return hashlib.sha256(words.encode()).hexdigest()[:8]


def _one_a_run(rows: Sequence[Row]) -> list[Row]:
    return list({row.run: row for row in rows}.values())


def _equal(value: Any, wanted: str) -> bool:
    if _is_number(value) and _is_number(wanted):
        return float(value) == float(wanted)
    text = "" if value is None else str(value)
    return text == wanted or fnmatch.fnmatchcase(text, wanted)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, bool)
