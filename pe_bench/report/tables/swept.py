"""The keys in which the runs of a sweep differ, and the choice of the best value for each encoding."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pe_bench.errors import UserError
from pe_bench.report.tables.selection import RunKeys
from pe_bench.runs.conditions import one_a_run
from pe_bench.runs.identity import NOT_IDENTITY
from pe_bench.runs.rows import Row


def differing_keys(groups: Iterable[Sequence[Row]], keys: RunKeys) -> list[str]:
    """Return the keys of training and model whose values differ between groups of rows."""
    found: list[dict[str, set[str]]] = []
    for rows in groups:
        values: dict[str, set[str]] = {}
        for row in one_a_run(rows):
            for key, value in keys.config_of(row).items():
                values.setdefault(key, set()).add(str(value))
        found.append(values)
    known = dict.fromkeys(key for values in found for key in values)
    return [
        key
        for key in known
        if key.partition(".")[0] in ("model", "train")
        and key.rpartition(".")[2] not in NOT_IDENTITY
        and key != "train.length"  # lines of one table have one training length
        and any(values.get(key) != found[0].get(key) for values in found)
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
    losses = [keys.validation_loss(values[value][seed]) for seed in sorted(common)]
    mean = sum(losses) / len(losses)
    return mean if math.isfinite(mean) else math.inf


def check_best(key: str, by: Sequence[str]) -> None:
    """Raise `UserError` for a key that may not be chosen by its results."""
    if not key.startswith("train."):
        raise UserError(
            f"--best {key}: name a key of training, such as train.lr; seeds and encodings are not chosen by "
            "their results"
        )
    if key in by:
        raise UserError(f"--best {key} and --by {key} exclude each other: give one of them")
