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
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
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
    findings = []
    for (length, depth), found in line.found.items():
        finding = {"length": length, "depth": depth, "reason": ""}
        findings.append(finding | ({"reason": found} if isinstance(found, str) else plain(found)))
    return {"found": findings}


def _bounds(look: Any) -> dict[str, Any]:
    """Return the two differences of a look with the bounds by which it judges."""
    differences = {}
    for name, (low, high) in zip(("at_training", "at_longest"), look.bounds, strict=True):
        differences[name] = plain(getattr(look, name)) | {"low": plain(low), "high": plain(high)}
    return differences


def _answers(outcome: Any) -> dict[str, Any]:
    """Return the answer of a try, and the break point of each of its sides."""
    change, baseline = outcome.works_to
    return {
        "answer": outcome.answer,
        "works_to": {"change": change.works_to, "baseline": baseline.works_to},
        "stops_by": {"change": change.stops_by, "baseline": baseline.stops_by},
    }


# What records of these classes say beside their fields.
MORE: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "Line": lambda line: {"label": line.label},
    "ProbeLine": _found,
    "Look": _bounds,
    "Outcome": _answers,
}
