"""Numbers too small for full precision as zeros: as weights they cost some processors many times more."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

TINY = 1e-39  # in float32
PAUSE = 1  # omp_pause_soft


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Count denormal numbers as zeros on a CPU inside, in all threads that compute.

    Each thread has a switch of its own, which a new thread has as the one that started it. PyTorch turns that
    of the calling thread. So OpenMP has to end its threads, and starts new ones when it needs them.
    """
    before = _is_flushing()
    if not torch.set_flush_denormal(True):  # not every processor can
        yield
        return
    _renew_threads()
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
        _renew_threads()


def _is_flushing() -> bool:
    return float(torch.tensor(TINY) * 1) == 0


def _renew_threads() -> None:
    """Have OpenMP end its threads; where there is none, or an old one, only the calling thread changes."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        ctypes.CDLL(str(library)).omp_pause_resource_all(PAUSE)
    except (OSError, AttributeError):
        return
