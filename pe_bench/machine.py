"""What a run happens on: device, threads, precision, memory, and the versions that rows carry."""

import math
import os
import platform
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Self

import torch

from pe_bench.config import Config
from pe_bench.errors import RunError, UserError, first_line

_CLEAR_HIGHEST = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_PAGES = Path("/proc/self/statm")
CPUINFO = Path("/proc/cpuinfo")
CONTAINER_QUOTA = Path(
    "/sys/fs/cgroup/cpu.max"
)  # microseconds of processor time, and of the period they are for
SAMPLE_SECONDS = 0.01


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


def available_cores(quota: Path = CONTAINER_QUOTA) -> int:
    """Those that this process may use: of the machine's, and of what a container's `quota` leaves of them."""
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text(encoding="ascii").split()
        return max(1, min(seen, math.ceil(int(allowed) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):  # no container, or "max", which is no limit
        return seen


def is_out_of_memory(error: BaseException) -> bool:
    return (
        isinstance(error, (torch.OutOfMemoryError, MemoryError))
        or "can't allocate memory" in str(error)  # how PyTorch says it on a CPU
    )


@contextmanager
def memory_told() -> Iterator[None]:
    """Where training runs out of memory, one line says so, with the way out."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        ways = "train.micro_batches=2, a smaller train.batch_tokens, or a smaller model"
        raise RunError(f"out of memory ({first_line(error)}): try {ways}") from error


class PeakMemory:
    """The most memory held while a block runs: `with PeakMemory(device) as peak: ...`, and then `peak.mb`.

    On a GPU it is what PyTorch had allocated there. Elsewhere it is the resident memory of the whole process,
    from the first of these that the system offers:

    - the kernel's own highest count, which Linux lets a process set back: exact;
    - the count of the moment, read every 10 ms by a thread: a shorter peak may be missed;
    - the highest count since the process began, where that rose meanwhile. Where it did not, the block held
      no more than it, and `mb` is None: what training took before is never told of what came after.
    """

    mb: float | None = None

    def __init__(self, device: torch.device):
        self.device = device
        self._found: Callable[[], float | None]

    def __enter__(self) -> Self:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._found = lambda: torch.cuda.max_memory_allocated(self.device) / 2**20
        elif _reset_highest():
            self._found = _highest_mb
        elif _resident_mb() is not None:
            self._found = _Sampler().highest_mb
        else:
            before = _highest_ever_mb()
            self._found = lambda: after if (after := _highest_ever_mb()) > before else None
        return self

    def __exit__(self, *_: object) -> None:
        self.mb = self._found()


class _Sampler:
    """Reads the resident memory every 10 ms until it is asked for the highest."""

    def __init__(self) -> None:
        self._highest = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="resident memory", daemon=True)
        self._thread.start()

    def highest_mb(self) -> float:
        self._stopped.set()
        self._thread.join()
        return self._highest

    def _watch(self) -> None:
        self._read()
        while not self._stopped.wait(SAMPLE_SECONDS):
            self._read()
        self._read()

    def _read(self) -> None:
        self._highest = max(self._highest, _resident_mb() or 0.0)


def _reset_highest() -> bool:
    """Whether the kernel's count of the highest is now what is resident."""
    if not os.access(_CLEAR_HIGHEST, os.W_OK) or _highest_mb() is None:
        return False
    try:
        _CLEAR_HIGHEST.write_text("5")
    except OSError:  # not every kernel that has the file takes the word
        return False
    return True


def _highest_mb() -> float | None:
    lines = _STATUS.read_text().splitlines() if _STATUS.exists() else []
    # Some sandboxes leave the line out.
    found = next((line for line in lines if line.startswith("VmHWM")), None)
    return int(found.split()[1]) / 2**10 if found is not None else None


def _resident_mb() -> float | None:
    try:
        return int(_PAGES.read_text().split()[1]) * resource.getpagesize() / 2**20
    except (OSError, IndexError, ValueError):
        return None


def _highest_ever_mb() -> float:
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


def processor_facts() -> dict[str, str]:
    """What Linux says of the first processor: its `model name`, its `flags`; empty elsewhere."""
    lines = CPUINFO.read_text(errors="replace").splitlines() if CPUINFO.exists() else []
    found: dict[str, str] = {}
    for name, _, value in (line.partition(":") for line in lines):
        found.setdefault(name.strip(), value.strip())
    return found


def processor_name() -> str:
    return processor_facts().get("model name") or platform.processor() or platform.machine()
