"""Versions of the program and its packages, and the environment of a run."""

import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from pe_bench.system.machine import available_cores, processor_name


def environment(device: torch.device, threads: int) -> dict[str, str | int]:
    """Return the content of a run's environment.json."""
    return {
        "pe_bench": package_version(),
        "git": git_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": processor_name(),
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
    """Return the commit of a checkout of pe-bench, with `+` after changes; empty when installed."""
    checkout = Path(__file__).parents[2]
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    if not (checkout / ".git").exists():
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
