"""Memory that training frees is kept for its next step, where the C library is glibc.

By default glibc gives every large tensor back to the system, which hands out each page again, zeroed, at the
next step: at a large vocabulary a fifth of the time or more. What is kept here is given back at the end, so
that it stands in no measurement of memory.
"""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

# Of malloc.h. A tensor never has a mapping of its own, and the top of the heap is never given back.
TRIM_THRESHOLD, MMAP_MAX = -1, -4
DEFAULT_TRIM_THRESHOLD, DEFAULT_MMAP_MAX = 128 * 2**10, 65_536
NEVER = -1


@contextmanager
def large_allocations_kept() -> Iterator[bool]:
    """Whether they are: not everywhere is there a glibc."""
    library = _glibc()
    if library is None:
        yield False
        return
    library.mallopt(MMAP_MAX, 0)
    library.mallopt(TRIM_THRESHOLD, NEVER)
    try:
        yield True
    finally:
        library.mallopt(MMAP_MAX, DEFAULT_MMAP_MAX)
        library.mallopt(TRIM_THRESHOLD, DEFAULT_TRIM_THRESHOLD)
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if platform.libc_ver()[0] != "glibc":
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except OSError:
        return None
