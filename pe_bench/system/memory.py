"""Memory: the peak of a block, lack of it, and what glibc keeps for the next step of training.

By default glibc gives every large tensor back to the system, which hands out each page again, zeroed, at the
next step: at a large vocabulary a fifth of the time or more. What is kept here is given back at the end, so
that it is part of no measurement of memory.
"""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import torch

from pe_bench.errors import RunError, first_line, text_of

_CLEAR_HIGHEST, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
# Of malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
# A tensor never has a mapping of its own, and the top of the heap is never given back.
KEEPING = ((MMAP_MAX, 0), (TRIM_THRESHOLD, -1))
# Whoever sets a threshold stops glibc from adjusting it: these are where its own adjustment ends.
AFTERWARDS = ((MMAP_MAX, 65_536), (MMAP_THRESHOLD, 32 * 2**20), (TRIM_THRESHOLD, 64 * 2**20))

LESS_TO_TRAIN = "train.micro_batches=2, a smaller train.batch_tokens, or a smaller model"


@contextmanager
def retain_freed_memory() -> Iterator[bool]:
    """Keep the memory that is freed inside, and yield whether it is kept: not every system has a glibc."""
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
    """Give free memory back to the system, so that what is taken next is seen."""
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


def is_out_of_memory(error: BaseException) -> bool:
    return (
        isinstance(error, (torch.OutOfMemoryError, MemoryError))
        or "can't allocate memory" in text_of(error)  # how PyTorch says it on a CPU
    )


@contextmanager
def explain_out_of_memory(ways: str = LESS_TO_TRAIN) -> Iterator[None]:
    """Turn lack of memory into a `RunError` with the ways out."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise RunError(f"out of memory ({first_line(error)}): try {ways}") from error


class PeakMemory:
    """The most memory held while a block runs: `with PeakMemory(device) as peak: ...`, and then `peak.mb`.

    On a GPU it is what PyTorch had allocated there. Elsewhere it is the resident memory of the whole process,
    by the kernel's own highest count, which Linux lets a process set back; `mb` is None where it cannot.
    """

    mb: float | None = None

    def __init__(self, device: torch.device):
        self.device = device
        self._is_counting = True

    def __enter__(self) -> Self:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            self._is_counting = _reset_highest()
        return self

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            self.mb = torch.cuda.max_memory_allocated(self.device) / 2**20
        elif self._is_counting:
            self.mb = _highest_mb()


def _reset_highest() -> bool:
    """Set the kernel's highest count back to what is resident; return whether it could be done."""
    if not os.access(_CLEAR_HIGHEST, os.W_OK) or _highest_mb() is None:
        return False
    try:
        _CLEAR_HIGHEST.write_text("5")
    except OSError:  # not every kernel that has the file takes the command
        return False
    return True


def _highest_mb() -> float | None:
    lines = _STATUS.read_text().splitlines() if _STATUS.exists() else []
    # Some sandboxes leave the line out.
    found = next((line for line in lines if line.startswith("VmHWM")), None)
    return int(found.split()[1]) / 2**10 if found is not None else None
