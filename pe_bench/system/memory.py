"""Memory that training frees is kept for its next step, where the C library is glibc.

By default glibc gives every large tensor back to the system, which hands out each page again, zeroed, at the
next step: at a large vocabulary a fifth of the time or more. What is kept here is given back at the end, so
that it stands in no measurement of memory.
"""

import ctypes
import os
import platform
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import torch

from pe_bench.errors import RunError, first_line

# Of malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
# A tensor never has a mapping of its own, and the top of the heap is never given back.
KEEPING = ((MMAP_MAX, 0), (TRIM_THRESHOLD, -1))
# Whoever sets a threshold stops glibc from adjusting it: these are where its own adjustment ends.
AFTERWARDS = ((MMAP_MAX, 65_536), (MMAP_THRESHOLD, 32 * 2**20), (TRIM_THRESHOLD, 64 * 2**20))


@contextmanager
def retain_freed_memory() -> Iterator[bool]:
    """Whether they are: not everywhere is there a glibc."""
    library = _glibc()
    if library is None:
        yield False
        return
    for option, value in KEEPING:
        library.mallopt(option, value)
    try:
        yield True
    finally:
        for option, value in AFTERWARDS:
            library.mallopt(option, value)
        library.malloc_trim(0)


def give_back_free_memory() -> None:
    """To the system, so that what is taken next is seen."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if platform.libc_ver()[0] != "glibc":
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except OSError:
        return None


_CLEAR_HIGHEST = Path("/proc/self/clear_refs")


_STATUS = Path("/proc/self/status")


_PAGES = Path("/proc/self/statm")


SAMPLE_SECONDS = 0.01


def is_out_of_memory(error: BaseException) -> bool:
    return (
        isinstance(error, (torch.OutOfMemoryError, MemoryError))
        or "can't allocate memory" in str(error)  # how PyTorch says it on a CPU
    )


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
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
