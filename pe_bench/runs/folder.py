"""A run's folder: its configuration, environment and rows, each read once."""

import csv
import io
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pe_bench.errors import RunError, first_line
from pe_bench.runs.config_file import read_values
from pe_bench.runs.means import KeptMeans, find_means
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.slice_rows import rows_of_slice
from pe_bench.runs.slices import KeptSlices
from pe_bench.runs.untrusted import read_json, read_regular
from pe_bench.runs.yaml_file import InvalidYamlError


class RunFolder:
    """A run on disk. What is damaged or missing of it is empty, so that it hides nothing else."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return its configuration. Raises `OSError`, and `InvalidYamlError` where it is damaged."""
        return read_values(self.path)

    @cached_property
    def flat_config(self) -> dict[str, Any]:
        """Return its configuration with keys such as train.lr; empty where it cannot be read."""
        return {} if self.config_problem else _flat(self.config, "")

    @cached_property
    def config_problem(self) -> str:
        """Return why its configuration cannot be read; empty where it can."""
        try:
            _ = self.config
        except FileNotFoundError:
            return "it is missing"
        except (OSError, InvalidYamlError) as error:
            return first_line(error)
        return ""

    @cached_property
    def environment(self) -> dict[str, Any]:
        try:
            return read_json(self.path / "environment.json")
        except (OSError, ValueError):
            return {}

    @cached_property
    def means(self) -> KeptMeans:
        return KeptMeans(self.path)

    @cached_property
    def slices(self) -> KeptSlices:
        return KeptSlices(self.path)

    def rows_of_slice(self, rows: Iterable[Row], name: str) -> list[Row]:
        """Return the rows of a slice for rows of this run; none where its slices were not written."""
        means = partial(find_means, self.path, kept=self.means, slices=self.slices)
        return list(rows_of_slice(rows, name, self.slices, means))

    @cached_property
    def validation_loss(self) -> float | None:
        """Return the last validation loss of train.csv, in nats per token; None where there is none."""
        try:
            records = list(csv.DictReader(io.StringIO(read_regular(self.path / "train.csv"), newline="")))
            losses = [float(record["validation_loss"]) for record in records if record["validation_loss"]]
        except (OSError, ValueError, KeyError, csv.Error):
            return None
        return losses[-1] if losses else None

    @cached_property
    def rows(self) -> list[Row]:
        try:
            return read_rows(self.path / "eval.csv")
        except RunError:
            return []


def folders_in(runs: Path) -> Callable[[str], RunFolder]:
    """Return a function that gives the folder of a run by its name, always the same one."""
    known: dict[str, RunFolder] = {}
    return lambda name: known.setdefault(name, RunFolder(runs / name))


def _flat(values: dict[Any, Any], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        found |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return found
