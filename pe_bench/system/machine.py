"""The machine of a run: its device, processor, cores, threads, memory, precision, and versions of programs.

By default glibc returns every large tensor to the system, which provides each page again, zeroed, at the next
step: with a large vocabulary this takes a fifth of the time or more. A training therefore keeps freed memory,
and returns it before each measurement of memory.

With `threads=auto`, the number of threads is the number of cores that other processes leave free. OpenMP's
threads synchronise several times in each layer, and wait without sleeping. If another process takes one of
their cores, each synchronisation lasts until the end of its time slice: two runs with two threads each on two
cores compute a fraction of what two runs with one thread compute. So a fixed number of threads is at most the
number of cores. In trials, losses with one thread and with two were equal to the last digit.
"""

import ctypes
import math
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Self

import torch

from pe_bench.errors import RunError, first_line, require
from pe_bench.system.cost import count
from pe_bench.system.signals import local_rank, local_world_size, world_size
from pe_bench.system.terminal import say
from pe_bench.system.version import CHECKOUT, own_version

PROC_CPUINFO = Path("/proc/cpuinfo")
CONTAINER_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # microseconds of processor time, and their period
PROC_STAT = Path("/proc/stat")
MEASURE_INTERVAL_SECONDS = 0.5  # the least seconds between two measurements of the other processes
# Of a core's counts in /proc/stat: user, nice, system, irq, softirq and steal, but not idle and iowait.
BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)


def resolve_device(name: str) -> torch.device:
    """Return the device for `device=NAME`: auto, cpu, cuda or cuda:N. Raises `UserError` for others.

    Each of several processes of a run gets a GPU of its own.
    """
    match = re.fullmatch(r"auto|cpu|cuda(?::(\d+))?", name)
    gpus = torch.cuda.device_count()
    require(match is not None, f"device must be auto, cpu, cuda or cuda:N, not {name!r}")
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if world_size() > 1 and gpus:
        # Each process raises it, because only the first prints a mistake in the input.
        message = f"torchrun started {local_world_size()} processes here, which need as many GPUs, not {gpus}"
        require(local_world_size() <= gpus, f"{message}: say --nproc-per-node {gpus}, or device=cpu")
        torch.cuda.set_device(local_rank())
        return torch.device("cuda", local_rank())
    number = int(match[1] or 0) if match else 0
    require(number < gpus, f"device={name} was not found (GPUs here: {gpus}): say device=cpu")
    return torch.device("cuda" if name == "auto" else name)


def resolve_precision(precision: str, device: torch.device) -> torch.dtype:
    """Return the type of matrix products in training; parameters stay float32."""
    if precision == "auto":
        # On CPUs, float32, so that the same command makes the same run on every processor.
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def available_cores(quota: Path = CONTAINER_QUOTA) -> int:
    """Return the number of cores that this process may use. quota: the file with the container's quota.

    Slurm states the number of a job's cores, and does not always enforce it.
    """
    cores = [len(_core_names())]
    with suppress(OSError, ValueError, ZeroDivisionError):  # no container, or "max", which is no limit
        allowed, period = quota.read_text(encoding="ascii").split()
        cores.append(math.ceil(int(allowed) / int(period)))
    with suppress(KeyError, ValueError):
        cores.append(int(os.environ["SLURM_CPUS_PER_TASK"]))
    return max(1, min(cores))


# Threads


# The most threads, and the last result of `measure_other_processes`; None for a fixed number of threads.
_shared: tuple[int, float, float] | None = None


def set_threads(threads: str | int) -> int:
    """Set the number of PyTorch's threads, and return it; it is at most the number of available cores.

    With `auto` it is the most that `adapt_threads` will set.
    """
    global _shared
    number = available_cores()
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if isinstance(threads, int):
        if threads > number:
            _warn_of_threads(threads, number)
        number = min(threads, number)
    elif limit.isdecimal():
        number = max(1, min(number, int(limit)))
    torch.set_num_threads(number)
    _shared = (number, *measure_other_processes()) if threads == "auto" and number > 1 else None
    return number


@cache
def _warn_of_threads(threads: int, cores: int) -> None:
    """Say, once in a process, that a fixed number of threads, such as a larger machine's, is not used."""
    allowed = f"this process may use {count(cores, 'core')}"
    say(f"warning: {allowed}, so threads={threads} means {cores}: threads=auto fits any machine")


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: small tensors gain nothing from several, which wait long on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cores_of(device: torch.device, threads: int) -> int:
    """Return the number of cores for estimates of cost: the threads on a CPU, 0 on a GPU."""
    return threads if device.type == "cpu" else 0


def adapt_threads() -> None:
    """With `threads=auto`, set as many threads as there are cores that other processes leave free.

    It is cheap enough for every step.
    """
    global _shared
    if _shared is None:
        return
    most, time_before, busy_before = _shared
    if time.monotonic() - time_before >= MEASURE_INTERVAL_SECONDS:
        now, busy = measure_other_processes()
        # At least one, and as many as other processes left free since the last look.
        busy_elsewhere = (busy - busy_before) / (now - time_before)
        free = round(len(_core_names()) - busy_elsewhere)
        torch.set_num_threads(max(1, min(most, free)))
        _shared = most, now, busy


def measure_other_processes(stat: Path = PROC_STAT) -> tuple[float, float]:
    """Return the seconds of a clock, and the processor seconds of other processes on this process's cores.

    Only differences between two results have a meaning. The second number is 0 if unknown. stat: the file
    with the counts of each core.
    """
    busy = process = time.process_time()
    with suppress(OSError, ValueError, IndexError):
        ticks = 0
        for name, *counts in (line.split() for line in stat.read_text(encoding="ascii").splitlines()):
            if name in _core_names():
                ticks += sum(int(counts[index]) for index in BUSY_COLUMNS)
        busy = ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic(), busy - process


def _core_names() -> set[str]:
    """Return the names in /proc/stat of the cores that this process may use."""
    numbers = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return {f"cpu{number}" for number in numbers}


# Memory

_CLEAR_HIGHEST, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
GLIBC = ctypes.CDLL("libc.so.6") if platform.libc_ver()[0] == "glibc" else None
TRIM_THRESHOLD, MMAP_MAX = -1, -4  # constants of malloc.h
LESS_MEMORY_IN_TRAINING = "train.micro_batches=2, a smaller train.batch_tokens, or a smaller model"
LESS_MEMORY_IN_SCORING = "--precision bfloat16, or shorter --lengths"


def keep_freed_memory() -> None:
    """Make glibc keep freed memory: no tensor has a mapping of its own, and the heap never shrinks."""
    if GLIBC is not None:
        GLIBC.mallopt(MMAP_MAX, 0)
        GLIBC.mallopt(TRIM_THRESHOLD, -1)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is a lack of memory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return "can't allocate memory" in str(error)  # PyTorch's message on a CPU


@contextmanager
def explain_out_of_memory(ways: str = LESS_MEMORY_IN_TRAINING) -> Iterator[None]:
    """Turn a lack of memory within the context into a `RunError`. ways: advice, such as shorter lengths."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise RunError(f"out of memory ({first_line(error)}): try {ways}") from error


class PeakMemory:
    """The peak memory of a block: `with PeakMemory(device) as peak: ...`, and then `peak.mb`.

    On a GPU it is PyTorch's allocated memory. Elsewhere it is the resident memory of the whole process, by
    the kernel's peak count, which a process can reset on Linux; `mb` is None without this.
    """

    mb: float | None = None

    def __init__(self, device: torch.device):
        self.device = device
        self._is_counting = False

    def __enter__(self) -> Self:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            if GLIBC is not None:
                GLIBC.malloc_trim(0)  # return free memory, so that new allocations are seen
            with suppress(OSError):  # some kernels lack the file or the command
                self._is_counting = _CLEAR_HIGHEST.write_text("5") == 1
        return self

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            self.mb = torch.cuda.max_memory_allocated(self.device) / 2**20
        elif self._is_counting and (highest := re.search(r"VmHWM:\s*(\d+)", _STATUS.read_text())):
            self.mb = int(highest[1]) / 2**10


# Versions


def environment(device: torch.device, threads: int) -> dict[str, str | int]:
    """Return the content of a run's environment.json: versions, processor, device, threads and the date."""
    processor = processor_facts().get("model name") or platform.processor() or platform.machine()
    return {
        "pe_bench": own_version(),
        "git": git_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": processor,
        "instructions": vector_instructions(),
        "device": device_name(device),
        "cores": available_cores(),
        "threads": threads,
        "date": utc_now(),
    }


def processor_facts() -> dict[str, str]:
    """Return Linux's facts of the first processor, such as `model name` and `flags`; empty elsewhere."""
    lines = PROC_CPUINFO.read_text(errors="replace").splitlines() if PROC_CPUINFO.exists() else []
    facts: dict[str, str] = {}
    for name, _, value in (line.partition(":") for line in lines):
        facts.setdefault(name.strip(), value.strip())
    return facts


@cache
def processor_features() -> set[str]:
    """Return the features of the first processor under Linux's names (`flags` of x86, `Features` of ARM)."""
    facts = processor_facts()
    return set(f"{facts.get('flags', '')} {facts.get('Features', '')}".split())


def vector_instructions() -> str:
    """Return the name of the processor's widest instructions for matrix products: AMX, AVX512, AVX2, ..."""
    if "amx_tile" in processor_features():
        return "AMX"
    return torch.backends.cpu.get_cpu_capability()


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether a device has instructions for products of bfloat16 matrices."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(processor_features())


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def utc_now() -> str:
    """Return the present time in UTC as ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def git_commit() -> str:
    """Return the commit of a checkout of pe-bench, with `+` for uncommitted changes; empty when installed."""
    command = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    if (CHECKOUT / ".git").exists():
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
            return done.stdout.strip()
    return ""
