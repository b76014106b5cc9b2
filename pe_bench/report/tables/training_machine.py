"""How a run was trained, as far as its tokens a second depend on it."""

from collections.abc import Mapping
from typing import Any

from pe_bench.runs.old_rows import kernel_in

TrainingMachine = Mapping[str, str]  # machine, threads and attention, in words


def machine_of(found: Mapping[str, Any]) -> TrainingMachine:
    """Return the machine, its threads and the kernel of attention.

    found: what environment.json says; empty where it is not known.
    """
    if not found:
        return {}
    on_processor, threads = found.get("device") == "cpu", found.get("threads")
    counted = "1 thread" if threads == 1 else f"{threads} threads"
    return {
        "machine": str(found.get("processor" if on_processor else "device", "")),
        "threads": counted if on_processor and threads else "",
        "attention": _kernel_name(found.get("attention")),
    }


def _kernel_name(attention: object) -> str:
    """Return the kernel and its type."""
    if isinstance(attention, dict):
        name, dtype = attention.get("name", ""), attention.get("dtype", "")
        return f"{name} in {dtype}" if dtype else str(name)
    return kernel_in(str(attention or ""))
