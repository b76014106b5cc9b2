"""What commands print with `--json`: their records as plain data, by the fields of the classes.

docs/json.md explains it, and docs/pe-bench.schema.json defines it. Raise `VERSION` where a name goes, or
where what it means changes; a name that is added breaks no program.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pe_bench.system.terminal import write_out

VERSION = 1
# Fields that say in a sentence what others say as data, or that only lay out a table.
LEFT_OUT = {"why", "caveats", "chosen", "spread", "rows", "has_short_label"}


def print_data(command: str, **values: Any) -> None:
    """Print one JSON document on standard output, which has nothing else."""
    document = {"version": VERSION, "command": command, **plain(values)}
    write_out(json.dumps(document, indent=1, allow_nan=False) + "\n")


def print_runs(command: str, runs: Iterable[Path], failures: Iterable[str] = (), **values: Any) -> None:
    """Print what a command found of runs in these folders."""
    named = [{"name": path.name, "path": path} for path in runs]
    print_data(command, runs=named, failures=filter(None, failures), **values)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: records by their fields, and a number that is none as a word."""
    if hasattr(value, "tolist"):  # of numpy
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value) if field.name not in LEFT_OUT]
        more = MORE.get(type(value).__name__, lambda record: {})(value)
        return plain({name: getattr(value, name) for name in fields} | more)
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: plain(inner) for key, inner in value.items()}
        value = value.values()  # records, which say themselves what they are of
    return [plain(inner) for inner in value]


def _found(line: Any) -> dict[str, Any]:
    """Return what a probe found at each length and depth, or the reason why there is no number."""
    return {
        "found": [
            {"length": length, "depth": depth, "reason": found if isinstance(found, str) else ""}
            | ({} if isinstance(found, str) else plain(found))
            for (length, depth), found in line.found.items()
        ]
    }


def _bounds(look: Any) -> dict[str, Any]:
    """Return the two differences of a look with the bounds by which it judges."""
    names = ("at_training", "at_longest")
    return {
        name: plain(getattr(look, name)) | dict(zip(("low", "high"), plain(bounds), strict=True))
        for name, bounds in zip(names, look.bounds, strict=True)
    }


def _sides(outcome: Any) -> list[tuple[str, Any]]:
    """Return the break point of each side of a try, with the side's name."""
    return list(zip(("change", "baseline"), outcome.works_to, strict=True))


# What records of these classes say beside their fields.
MORE: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "Line": lambda line: {"label": line.label},
    "ProbeLine": _found,
    "Look": _bounds,
    "Outcome": lambda outcome: {
        "answer": outcome.answer,
        "works_to": {side: point.works_to for side, point in _sides(outcome)},
        "stops_by": {side: point.stops_by for side, point in _sides(outcome)},
    },
}
