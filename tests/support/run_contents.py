"""The contents of a results folder, without times and dates."""

import csv
import json
from pathlib import Path

from safetensors.numpy import load_file
from support.commands import files_in

from pe_bench.runs.folder import CONFIG_CHECKSUM
from pe_bench.runs.scores import MEANS

# Lines of config.yaml that depend on the folder.
NOT_SAME = ("results_dir", "cache_dir", CONFIG_CHECKSUM)


# What depends on the clock or on the process, and not on what was computed.
CLOCK = {"seconds", "tokens_per_second", "peak_memory_mb", "date", "git"}


def contents(results: Path) -> dict[str, object]:
    """Return the contents of a finished results folder, without times and dates."""
    found: dict[str, object] = {}
    for name in files_in(results):
        path = results / name
        if path.suffix == ".csv":
            with path.open() as file:
                found[name] = [
                    {k: v for k, v in row.items() if k not in CLOCK} for row in csv.DictReader(file)
                ]
        elif path.name == MEANS:
            found |= {f"{name}: {key}": value.tobytes() for key, value in load_file(path).items()}
        elif path.suffix == ".safetensors":
            found[name] = path.read_bytes()
        elif path.name in ("meta.json", "result.json"):
            values = json.loads(path.read_text())
            found[name] = {k: v for k, v in values.items() if k not in ("train_seconds", "finished")}
        elif path.name == "config.yaml":
            text = path.read_text().splitlines()
            found[name] = [line for line in text if not line.startswith(NOT_SAME)]
        else:
            found[name] = None
    return found
