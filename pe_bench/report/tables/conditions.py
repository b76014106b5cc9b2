"""How a run was trained, as far as its tokens a second depend on it."""

from collections.abc import Mapping
from pathlib import Path

from pe_bench.runs.untrusted import read_json

Conditions = Mapping[str, str]


def conditions_of(run: Path) -> Conditions:
    """In words: the machine, its threads and the path of attention; none where the run does not say."""
    try:
        found = read_json(run / "environment.json")
    except (OSError, ValueError):
        return {}
    on_processor, threads = found.get("device") == "cpu", found.get("threads")
    counted = "1 thread" if threads == 1 else f"{threads} threads"
    return {
        "machine": str(found.get("processor" if on_processor else "device", "")),
        "threads": counted if on_processor and threads else "",
        "attention": _kernel_name(found.get("attention")),
    }


def _kernel_name(attention: object) -> str:
    """Return the kernel and its type; older runs have a sentence, which begins with both."""
    if isinstance(attention, dict):
        name, dtype = attention.get("name", ""), attention.get("dtype", "")
        return f"{name} in {dtype}" if dtype else str(name)
    return str(attention or "").partition(",")[0]
