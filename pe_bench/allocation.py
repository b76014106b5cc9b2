"""Memory that training frees is kept for its next step, where the C library is glibc.

By default glibc gives every large tensor back to the system, which hands out each page again, zeroed, at the
next step: at a large vocabulary a fifth of the time or more. What is kept here is given back at the end, so
that it stands in no measurement of memory.
"""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

# Of malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
# A tensor never has a mapping of its own, and the top of the heap is never given back.
KEEPING = ((MMAP_MAX, 0), (TRIM_THRESHOLD, -1))
# Whoever sets a threshold stops glibc from adjusting it: these are where its own adjustment ends.
AFTERWARDS = ((MMAP_MAX, 65_536), (MMAP_THRESHOLD, 32 * 2**20), (TRIM_THRESHOLD, 64 * 2**20))


@contextmanager
def large_allocations_kept() -> Iterator[bool]:
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
