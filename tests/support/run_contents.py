"""The contents of a results folder, without times and dates."""

import csv
import json
from pathlib import Path

from safetensors.numpy import load_file
from support.commands import files_in

from pe_bench.runs.folder import CHECKSUM_LINE_PREFIX
from pe_bench.runs.scores import MEANS_FILE

CHANGING_LINES = (
    "results_dir",
    "cache_dir",
    CHECKSUM_LINE_PREFIX,
)  # of config.yaml: those that depend on the folder
# What depends on the clock or on the process, and not on what was computed.
CLOCK = {"seconds", "tokens_per_second", "peak_memory_mb", "date", "git", "train_seconds", "finished"}


def contents(results: Path) -> dict[str, object]:
    """Return the contents of a finished results folder, without times and dates."""
    return {name: _content(results / name) for name in files_in(results)}


def _content(path: Path) -> object:
    if path.suffix == ".csv":
        with path.open() as file:
            return [_lasting(row) for row in csv.DictReader(file)]
    if path.name == MEANS_FILE:
        return {key: value.tobytes() for key, value in load_file(path).items()}
    if path.suffix == ".safetensors":
        return path.read_bytes()
    if path.name in ("meta.json", "result.json"):
        return _lasting(json.loads(path.read_text()))
    if path.name == "config.yaml":
        return [line for line in path.read_text().splitlines() if not line.startswith(CHANGING_LINES)]
    return None


def _lasting(values: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if name not in CLOCK}
