"""The JSON of commands with `--json`: their records as plain data, by the fields of their classes.

docs/json.md explains it, docs/pe-bench.schema.json defines it. Raise `JSON_VERSION` when a name is removed
or its meaning changes; a new name breaks no program.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.system.terminal import write_out

if TYPE_CHECKING:
    from pe_bench.commands.try_change.sequential import Look
    from pe_bench.commands.try_change.trying import Outcome
    from pe_bench.report.probes import ProbeLine

JSON_VERSION = 1
# Fields that repeat other fields in a sentence, or that only lay out a table.
OMITTED_FIELDS = {"why", "caveats", "chosen", "spread", "rows", "has_short_label"}


def print_data(command: str, **values: Any) -> None:
    """Print one JSON document, the whole standard output of a command."""
    document = {"version": JSON_VERSION, "command": command, **plain(values)}
    text = json.dumps(document, indent=1, allow_nan=False)
    write_out(f"{text}\n")


def print_runs(command: str, runs: Iterable[Path], failures: Iterable[str] = (), **values: Any) -> None:
    """Print the JSON document of a command on runs. runs: their folders."""
    named = [{"name": path.name, "path": path} for path in runs]
    print_data(command, runs=named, failures=filter(None, failures), **values)


def plain(value: Any) -> Any:
    """Convert a value to plain data for JSON: records to their fields, NaN and infinities to words."""
    if hasattr(value, "tolist"):  # an array or a number of NumPy
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
        fields = [field.name for field in dataclasses.fields(value) if field.name not in OMITTED_FIELDS]
        more = EXTRA_VALUES.get(type(value).__name__, lambda record: {})(value)
        return plain({name: getattr(value, name) for name in fields} | more)
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: plain(inner) for key, inner in value.items()}
        value = value.values()  # records, which contain their keys
    return [plain(inner) for inner in value]


def _values_of_probe(line: "ProbeLine") -> dict[str, Any]:
    """Return the numbers of a probe at each length and depth, or the reasons for missing numbers."""
    findings = []
    for (length, depth), found in line.found.items():
        values = {"reason": found} if isinstance(found, str) else plain(found)
        findings.append({"length": length, "depth": depth, "reason": "", **values})
    return {"found": findings}


def _values_of_look(look: "Look") -> dict[str, Any]:
    """Return both differences of an interim look of `try`, by name, each with the bounds that decide."""
    differences = {}
    for name, (low, high) in zip(("at_training", "at_longest"), look.bounds, strict=True):
        difference = plain(getattr(look, name))
        differences[name] = difference | plain({"low": low, "high": high})
    return differences


def _values_of_outcome(outcome: "Outcome") -> dict[str, Any]:
    """Return the answer of a try, and the break point of each of its sides."""
    change, baseline = outcome.works_to
    return {
        "answer": outcome.answer,
        "works_to": {"change": change.works_to, "baseline": baseline.works_to},
        "stops_by": {"change": change.stops_by, "baseline": baseline.stops_by},
    }


# Values of records in JSON that are not fields, by the class.
EXTRA_VALUES: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "Line": lambda line: {"label": line.label},
    "ProbeLine": _values_of_probe,
    "Look": _values_of_look,
    "Outcome": _values_of_outcome,
}
