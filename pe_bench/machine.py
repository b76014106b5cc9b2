"""What a run happens on: device, threads, precision, memory, and the versions that rows carry."""

import os
import platform
import resource
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from pe_bench.config import Config
from pe_bench.errors import UserError

_CLEAR_PEAK = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


def resolve_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    kind, _, number = name.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()) or name.endswith(":"):
        raise UserError(f"device must be auto, cpu, cuda or cuda:N, not {name!r}")
    if int(number or 0) >= torch.cuda.device_count():
        raise UserError(f"device={name} is not here ({torch.cuda.device_count()} GPUs are): say device=cpu")
    return torch.device(name)


def resolve_precision(config: Config) -> torch.dtype:
    """The type that matrices are multiplied in while training; parameters stay float32."""
    if config.precision == "auto":
        # Stock bfloat16 attention is slower than float32 on a CPU at these sizes.
        return torch.bfloat16 if resolve_device(config.device).type == "cuda" else torch.float32
    return torch.bfloat16 if config.precision == "bfloat16" else torch.float32


def set_threads(threads: str | int) -> int:
    """Use this many cores, or all that this process may use; how many that is."""
    count = threads if isinstance(threads, int) else available_cores()
    torch.set_num_threads(count)
    return count


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif os.access(_CLEAR_PEAK, os.W_OK):
        with suppress(OSError):  # not every kernel that has the file takes the word
            _CLEAR_PEAK.write_text("5")


def peak_memory_mb(device: torch.device) -> float:
    """Megabytes at the highest since the last reset: of the GPU, or of the whole process.

    Where the system cannot reset its count, the highest since the process began.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    status = _STATUS.read_text().splitlines() if _STATUS.exists() else []
    for line in status:  # some sandboxes leave the line out
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def environment(device: torch.device, threads: int) -> dict[str, str | int]:
    """What stands in a run's environment.json."""
    return {
        "pe_bench": package_version(),
        "git": git_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": _processor(),
        "device": device_name(device),
        "cores": available_cores(),
        "threads": threads,
        "date": today(),
    }


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def package_version() -> str:
    return version("pe-bench")


def today() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def git_commit() -> str:
    """The commit of a checkout of pe-bench, `+` where it was changed since; empty when installed."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    if not (here.parent / ".git").exists():
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor() or platform.machine()
    lines = cpuinfo.read_text(errors="replace").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
