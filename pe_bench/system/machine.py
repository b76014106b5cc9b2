"""The machine of a run: its device, its processor, its cores, and the precision that suits it."""

import math
import os
import platform
from pathlib import Path

import torch

from pe_bench.errors import UserError

CPUINFO = Path("/proc/cpuinfo")
CONTAINER_QUOTA = Path(
    "/sys/fs/cgroup/cpu.max"
)  # microseconds of processor time, and of the period they are for


def resolve_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    kind, _, number = name.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()) or name.endswith(":"):
        raise UserError(f"device must be auto, cpu, cuda or cuda:N, not {name!r}")
    if int(number or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device={name} was not found (GPUs here: {torch.cuda.device_count()}): say device=cpu"
        )
    return torch.device(name)


def resolve_precision(precision: str, device: str) -> torch.dtype:
    """Return the type that matrices are multiplied in while training; parameters stay float32."""
    if precision == "auto":
        # Stock bfloat16 attention is slower than float32 on a CPU at these sizes.
        return torch.bfloat16 if resolve_device(device).type == "cuda" else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def set_threads(threads: str | int) -> int:
    """Use this many cores, or all that this process may use, and return how many."""
    count = threads if isinstance(threads, int) else available_cores()
    torch.set_num_threads(count)
    return count


def available_cores(quota: Path = CONTAINER_QUOTA) -> int:
    """Return how many of the machine's cores this process, in a container with this `quota`, may use."""
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text(encoding="ascii").split()
        return max(1, min(seen, math.ceil(int(allowed) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):  # no container, or "max", which is no limit
        return seen


def processor_facts() -> dict[str, str]:
    """Return what Linux lists for the first processor: its `model name`, its `flags`; empty elsewhere."""
    lines = CPUINFO.read_text(errors="replace").splitlines() if CPUINFO.exists() else []
    found: dict[str, str] = {}
    for name, _, value in (line.partition(":") for line in lines):
        found.setdefault(name.strip(), value.strip())
    return found


def processor_name() -> str:
    return processor_facts().get("model name") or platform.processor() or platform.machine()
