"""The threads of PyTorch's OpenMP, lent to the compiled code."""

import ctypes
import os
from pathlib import Path

import torch


def lend_threads(library: ctypes.CDLL) -> None:
    """Have a library run in the threads of PyTorch's GNU OpenMP; without one it starts its own at every call.

    Those of OpenMP wait for work without sleeping, and threads beside them would wait for a processor.
    """
    parallel = _gomp_parallel()
    if parallel is not None:
        library.pe_bench_use_threads(parallel)


def _gomp_parallel() -> ctypes.c_void_p | None:
    if not hasattr(os, "RTLD_NOLOAD"):
        return None
    folder = Path(torch.__file__).parent / "lib"
    beside = (folder.parent.parent / "torch.libs").glob("libgomp*")
    for path in [*folder.glob("libgomp*"), *beside, "libgomp.so.1"]:
        try:  # one that is loaded already, and is so PyTorch's
            loaded = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            return ctypes.cast(loaded.GOMP_parallel, ctypes.c_void_p)
        except (OSError, AttributeError):
            continue
    return None
