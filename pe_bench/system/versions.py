"""Versions of the program and its packages, and the environment of a run."""

import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from pe_bench.system.machine import available_cores, processor_name

CHECKOUT = Path(__file__).parents[2]


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
    done = _git("describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*")
    return done.stdout.strip() if done else ""


def changed_files(version: str, commit: str, files: Iterable[Path]) -> list[Path]:
    """Return those files of pe-bench that may differ from what they were at an earlier version and commit.

    None do where the commit has them as they are; where it is not known, all do if the version is another.
    """
    commit, files = commit.rstrip("+"), list(files)
    if commit and _git("cat-file", "-e", f"{commit}^{{commit}}"):
        return [file for file in files if not _git("diff", "--quiet", commit, "--", str(file))]
    return [] if version == package_version() else files


def _git(*arguments: str) -> subprocess.CompletedProcess[str] | None:
    """Run git in the checkout of pe-bench; None where there is none, or git fails."""
    if not (CHECKOUT / ".git").exists():
        return None
    command = ["git", "-C", str(CHECKOUT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
