"""The kernels as libraries for this processor: compiled on first use, cached, never required."""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pe_bench.errors import RunError, first_line
from pe_bench.system.files import cache_root, cached_folder, key_of
from pe_bench.system.machine import processor_facts

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "kernel.cpp"
TILED_SOURCE = FOLDER / "amx.cpp"
HEADERS = ("common.h", "entries.h", "layers.h", "muon.h", "tiles.h")
LIBRARY = "kernel.so"
ENTRY = "pe_bench_use_threads"  # a function that each library has
COMPILERS = ("c++", "g++", "clang++")
# None of these flags reorders a sum or removes infinities: results follow from the source.
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread")
# Flags for all instructions of this processor; some compilers do not know the first.
PROCESSOR_FLAGS = ("-march=native", "-mcpu=native")
# Features of a processor with AMX, and flags for a compiler that may not know the processor yet.
TILES = {"amx_tile", "amx_bf16", "avx512f"}
TILED_FLAGS = ("-mamx-tile", "-mamx-bf16")
SECONDS = 120  # the most seconds that a compiler may run
# Facts that distinguish the processors of machines with one cache folder.
KINDS = ("model name", "flags", "Features", "CPU part")


class Kernel(NamedTuple):
    """The loaded library, or the reason why there is none."""

    library: ctypes.CDLL | None
    description: str  # one line: the compiler, or what is missing


@functools.cache
def kernel() -> Kernel:
    """Return the library of this processor in float32. Never raises."""
    return _find_or_build(SOURCE, ())


@functools.cache
def tiled_kernel() -> Kernel:
    """Return the library in bfloat16, for processors with AMX. Never raises."""
    features = set(processor_facts().get("flags", "").split())  # under Linux's names
    if not features >= TILES:
        return Kernel(None, "this processor has no tiles for bfloat16 (AMX)")
    built = _find_or_build(TILED_SOURCE, TILED_FLAGS)
    if built.library is not None:
        reason = built.library.pe_bench_permit()
        if reason != 0:
            return Kernel(None, f"the system lends no tiles of the processor: {os.strerror(reason)}")
    return built


def _find_or_build(source: Path, more_flags: Sequence[str]) -> Kernel:
    """Return the library of a source: from the cache, or compiled now."""
    if os.environ.get("PE_BENCH_KERNEL") == "off":
        return Kernel(None, "PE_BENCH_KERNEL=off")
    compiler = find_compiler()
    if compiler is None:
        named = os.environ.get("CXX", "").strip()
        names = named or ", ".join(COMPILERS)
        return Kernel(None, f"no C++ compiler is here ({names})")
    try:
        version, _, _ = _run_and_read([*shlex.split(compiler), "--version"]).partition("\n")
        sources = [source, *(FOLDER / name for name in HEADERS)]
        digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources]
        key = key_of("kernel", digests, version, _processor_text(), [*FLAGS, *more_flags])
        make = partial(compile_into, compiler=compiler, source=source, more_flags=more_flags)
        library = _load_or_rebuild(cache_root(None) / "kernel", key, make)
        lend_threads(library)
        return Kernel(library, version)
    except subprocess.CalledProcessError as error:
        return Kernel(None, f"{compiler} failed: {_first_error_line(error)}")
    except (OSError, subprocess.TimeoutExpired, RunError) as error:
        return Kernel(None, first_line(error))


def _load_or_rebuild(root: Path, key: str, make: Callable[[Path], dict[str, Any]]) -> ctypes.CDLL:
    """Return the library of a cache entry; a library that cannot be loaded is built again, once."""
    entry, _ = cached_folder(root, key, make)
    try:
        return load_library(entry / LIBRARY)
    except OSError:
        shutil.rmtree(entry, ignore_errors=True)
        entry, _ = cached_folder(root, key, make)
        return load_library(entry / LIBRARY)


def load_library(path: Path) -> ctypes.CDLL:
    """Return a compiled library. Raise `OSError` for another file, or one without the entry function."""
    library = ctypes.CDLL(str(path))
    if not hasattr(library, ENTRY):
        raise OSError(f"{path} has no function {ENTRY}")
    return library


def find_compiler() -> str | None:
    """Return the command of the compiler, quoted for a shell, with the full path of its program."""
    named = os.environ.get("CXX", "").strip()
    for name in [named] if named else COMPILERS:
        try:
            program, *words = shlex.split(name)
        except ValueError:  # a quote is left open, or quotes are empty
            continue
        if path := shutil.which(program):
            return shlex.join([path, *words])
    return None


def compile_into(folder: Path, compiler: str, source: Path, more_flags: Sequence[str]) -> dict[str, Any]:
    """Write the library into a folder.

    Raises `CalledProcessError`, `TimeoutExpired`, `OSError`, or `RunError` if the library cannot be loaded.
    """
    first, second = ([processor, *more_flags] for processor in PROCESSOR_FLAGS)
    try:
        compile_library(compiler, source, first, folder / LIBRARY)
    except subprocess.CalledProcessError:
        compile_library(compiler, source, second, folder / LIBRARY)
    try:
        load_library(folder / LIBRARY)  # before it is kept: a broken compiler may end with exit code 0
    except OSError as error:
        raise RunError(f"{compiler} wrote a library that cannot be loaded ({first_line(error)})") from error
    return {"compiler": compiler}


def compile_library(compiler: str, source: Path, more_flags: Sequence[str], target: Path) -> None:
    """Compile a source to the shared library `target`. Raises as `_run_and_read`."""
    flags = [*FLAGS, f"-I{FOLDER}", *more_flags]
    _run_and_read([*shlex.split(compiler), *flags, str(source), "-o", str(target)])


def _run_and_read(command: list[str]) -> str:
    """Run a command, and return its standard output. Raises `CalledProcessError` and `TimeoutExpired`."""
    finished = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=True
    )
    return finished.stdout


def _first_error_line(error: subprocess.CalledProcessError) -> str:
    stderr: str = error.stderr or ""
    lines = [line for line in stderr.splitlines() if "error" in line]
    return lines[0].strip() if lines else f"exit code {error.returncode}"


def _processor_text() -> str:
    """Return the facts that distinguish this processor from others, as text."""
    facts = processor_facts()
    lines = [f"{kind}: {facts[kind]}" for kind in KINDS if kind in facts]
    if not lines:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(lines)


# The compiled code runs in the threads of PyTorch's OpenMP.


def lend_threads(library: ctypes.CDLL) -> None:
    """Let a library run in the threads of PyTorch's GNU OpenMP.

    Otherwise the library starts threads at every call, which wait for a core: OpenMP's own threads wait for
    work without sleeping.
    """
    package = Path(torch.__file__).parent
    inside = (package / "lib").glob("libgomp*")
    beside = (package.parent / "torch.libs").glob("libgomp*")
    for path in [*inside, *beside, "libgomp.so.1"]:
        with suppress(OSError, AttributeError):  # RTLD_NOLOAD finds only the library that PyTorch has loaded
            loaded = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            library.pe_bench_use_threads(ctypes.cast(loaded.GOMP_parallel, ctypes.c_void_p))
            return


# Tensors as arguments of the compiled code.
#
# Letters: B batch, H heads, T tokens, V width of the output.


class Shape(ctypes.Structure):
    """The `Shape` of common.h."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batch", "heads", "tokens", "width", "value_width")),
        ("scale", ctypes.c_float),
        ("threads", ctypes.c_int32),
    ]


class Strided(ctypes.Structure):
    """The `Strided` of common.h."""


Strided._fields_ = [
    ("data", ctypes.c_void_p),
    *((name, ctypes.c_int64) for name in ("batch", "heads", "tokens")),
    ("columns", ctypes.POINTER(Strided)),
    ("columns_width", ctypes.c_int64),
]


def shape_of(q: Tensor, v: Tensor, scale: float, columns_width: int = 0) -> Any:
    """Return a pointer to the `Shape` of queries q and values v [B, H, T, *]."""
    *sizes, width = q.shape
    threads = torch.get_num_threads()
    shape = Shape(*sizes, columns_width + width, v.shape[-1], scale, threads)
    return ctypes.byref(shape)


def strided(x: Tensor, columns: Tensor | None = None) -> Any:
    """Return a pointer to the `Strided` of a tensor [B, H, T, *]; `columns` come before each of its rows."""
    first = None
    width = 0
    if columns is not None:
        first = ctypes.pointer(Strided(columns.data_ptr(), *columns.stride()[:-1]))
        width = columns.shape[-1]
    rows = Strided(x.data_ptr(), *x.stride()[:-1], first, width)
    return ctypes.byref(rows)


def pointer_to(x: Tensor | None) -> ctypes.c_void_p | None:
    return None if x is None else ctypes.c_void_p(x.data_ptr())


def with_whole_rows(x: Tensor) -> Tensor:
    """Return a tensor with contiguous rows; compiled code takes any strides of the other dimensions."""
    return x if x.stride(-1) == 1 else x.contiguous()


def empty_tokens_first(x: Tensor) -> Tensor:
    """Return an empty tensor [B, H, T, V] with the memory layout [B, T, H, V] of the decoder."""
    batch, heads, tokens, width = x.shape
    return x.new_empty(batch, tokens, heads, width).transpose(1, 2)
