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
from pe_bench.system.files import SET_CACHE_VARIABLE, cache_key, cache_root, cached_folder
from pe_bench.system.machine import processor_facts, processor_features

SOURCE_FOLDER = Path(__file__).parent
KERNEL_SOURCE = SOURCE_FOLDER / "kernel.cpp"
BFLOAT16_SOURCE = SOURCE_FOLDER / "bfloat16.cpp"
HEADERS = (
    *("common.h", "entries.h", "layers.h", "muon.h", "muon_bfloat16.h", "products.h", "recurrence.h"),
    "tiles.h",
)
LIBRARY_FILE = "kernel.so"
ENTRY_FUNCTION = "pe_bench_use_threads"  # a function that each library has
COMPILERS = ("c++", "g++", "clang++")
# None of these flags reorders a sum or removes infinities: results follow from the source.
COMPILER_FLAGS = (
    *("-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=fast"),
    *("-shared", "-fPIC", "-pthread"),
)
# Flags for all instructions of this processor; some compilers do not know the first.
PROCESSOR_FLAGS = ("-march=native", "-mcpu=native")
# The features of processors with AMX, and with dot products of bfloat16, under Linux's names.
AMX_FEATURES = {"amx_tile", "amx_bf16", "avx512f"}
DOT_FEATURES = {"avx512_bf16", "avx512f"}
# Flags for a compiler that may not know the processor yet.
AMX_FLAGS = ("-mamx-tile", "-mamx-bf16")
DOT_FLAGS = ("-mavx512f", "-mavx512bf16", "-DDOT_PRODUCTS")
# The names of instructions for products of bfloat16, the fastest first, with their features and flags.
BFLOAT16_INSTRUCTIONS = (("AMX", AMX_FEATURES, AMX_FLAGS), ("AVX512_BF16", DOT_FEATURES, DOT_FLAGS))
COMPILER_SECONDS = 120  # the most seconds that a compiler may run
# Facts that distinguish the processors of machines with one cache folder.
PROCESSOR_FACTS = ("model name", "flags", "Features", "CPU part")


class Kernel(NamedTuple):
    """The loaded library of compiled code, or the reason why there is none."""

    library: ctypes.CDLL | None
    description: str  # one line: the compiler, or what is missing


@functools.cache
def kernel() -> Kernel:
    """Return the compiled code for float32, built at the first call. Never raises."""
    return _find_or_build(KERNEL_SOURCE, ())


@functools.cache
def bfloat16_kernel() -> Kernel:
    """Return the compiled code for bfloat16, for processors with AMX or AVX512_BF16. Never raises."""
    kernel = Kernel(None, "this processor has no instructions for products of bfloat16 (AMX, AVX512_BF16)")
    for instructions, features, flags in BFLOAT16_INSTRUCTIONS:
        if processor_features() >= features:
            kernel = _find_or_build(BFLOAT16_SOURCE, flags)
            refusal = 0 if kernel.library is None else kernel.library.pe_bench_permit()
            if refusal:
                kernel = Kernel(None, f"the system refuses {instructions}: {os.strerror(refusal)}")
            if kernel.library is not None:
                return Kernel(kernel.library, f"{instructions}, {kernel.description}")
    return kernel


def _find_or_build(source: Path, more_flags: Sequence[str]) -> Kernel:
    """Return the library of a C++ source: from the cache, or compiled now. Never raises."""
    if os.environ.get("PE_BENCH_KERNEL") == "off":
        return Kernel(None, "PE_BENCH_KERNEL=off")
    compiler = find_compiler()
    if compiler is None:
        named = os.environ.get("CXX", "").strip()
        names = named or ", ".join(COMPILERS)
        return Kernel(None, f"no C++ compiler is here ({names})")
    try:
        version, _, _ = _run_and_read([*shlex.split(compiler), "--version"]).partition("\n")
        sources = [source, *(SOURCE_FOLDER / name for name in HEADERS)]
        digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources]
        key = cache_key("kernel", digests, version, _processor_text(), [*COMPILER_FLAGS, *more_flags])
        build = partial(compile_into, compiler=compiler, source=source, more_flags=more_flags)
        library = _load_or_rebuild(cache_root(None) / "kernel", key, build)
        lend_threads(library)
        return Kernel(library, version)
    except subprocess.CalledProcessError as error:
        return Kernel(None, f"{compiler} failed: {_first_error_line(error)}")
    except (OSError, subprocess.TimeoutExpired, RunError) as error:
        return Kernel(None, first_line(error))


def _load_or_rebuild(root: Path, key: str, build: Callable[[Path], dict[str, Any]]) -> ctypes.CDLL:
    """Return the library of a cache entry; if it cannot be loaded, `build` makes it again, once."""
    entry, _ = cached_folder(root, key, build, way_out=SET_CACHE_VARIABLE)
    try:
        return load_library(entry / LIBRARY_FILE)
    except OSError:
        shutil.rmtree(entry, ignore_errors=True)
        entry, _ = cached_folder(root, key, build, way_out=SET_CACHE_VARIABLE)
        return load_library(entry / LIBRARY_FILE)


def load_library(path: Path) -> ctypes.CDLL:
    """Return a compiled library. Raise `OSError` for another file, or one without the entry function."""
    library = ctypes.CDLL(str(path))
    if not hasattr(library, ENTRY_FUNCTION):
        raise OSError(f"{path} has no function {ENTRY_FUNCTION}")
    return library


def find_compiler() -> str | None:
    """Return the command of $CXX or of a usual C++ compiler, with the full path of its program, or None.

    The command is quoted for a shell.
    """
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
    """Compile a source to `LIBRARY_FILE` in a folder, and return the meta of the cache entry: the compiler.

    compiler: a command, quoted for a shell. more_flags: after `COMPILER_FLAGS` and those of the processor.
    Raises `CalledProcessError`, `TimeoutExpired`, `OSError`, or `RunError` if the library cannot be loaded.
    """
    first, second = ([processor, *more_flags] for processor in PROCESSOR_FLAGS)
    try:
        compile_library(compiler, source, first, folder / LIBRARY_FILE)
    except subprocess.CalledProcessError:
        compile_library(compiler, source, second, folder / LIBRARY_FILE)
    try:
        load_library(folder / LIBRARY_FILE)  # before it is kept: a broken compiler may end with exit code 0
    except OSError as error:
        raise RunError(f"{compiler} wrote a library that cannot be loaded ({first_line(error)})") from error
    return {"compiler": compiler}


def compile_library(compiler: str, source: Path, more_flags: Sequence[str], target: Path) -> None:
    """Compile a source to the shared library `target`. Raises as `_run_and_read`."""
    flags = [*COMPILER_FLAGS, f"-I{SOURCE_FOLDER}", *more_flags]
    _run_and_read([*shlex.split(compiler), *flags, str(source), "-o", str(target)])


def _run_and_read(command: list[str]) -> str:
    """Run a command, and return its standard output. Raises `CalledProcessError` and `TimeoutExpired`."""
    finished = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=COMPILER_SECONDS, check=True
    )
    return finished.stdout


def _first_error_line(error: subprocess.CalledProcessError) -> str:
    stderr: str = error.stderr or ""
    lines = [line for line in stderr.splitlines() if "error" in line]
    return lines[0].strip() if lines else f"exit code {error.returncode}"


def _processor_text() -> str:
    """Return the `PROCESSOR_FACTS` of this processor as lines of text, for the key of the cache."""
    facts = processor_facts()
    lines = [f"{kind}: {facts[kind]}" for kind in PROCESSOR_FACTS if kind in facts]
    if not lines:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(lines)


# The compiled code runs in the threads of PyTorch's OpenMP.


def lend_threads(library: ctypes.CDLL) -> None:
    """Let a library run in the threads of PyTorch's GNU OpenMP.

    Otherwise the library starts threads at every call. These threads wait for a core, because OpenMP's own
    threads wait for work without sleeping.
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


class AttentionShape(ctypes.Structure):
    """Sizes, scale, number of threads and first keys: the struct `Shape` of common.h."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batch", "heads", "tokens", "width", "value_width")),
        ("scale", ctypes.c_float),
        ("threads", ctypes.c_int32),
        ("first_keys", ctypes.c_void_p),
    ]


class StridedTensor(ctypes.Structure):
    """A tensor's address, its strides and its columns: the struct `Strided` of common.h."""


StridedTensor._fields_ = [
    ("data", ctypes.c_void_p),
    *((name, ctypes.c_int64) for name in ("batch", "heads", "tokens")),
    ("columns", ctypes.POINTER(StridedTensor)),
    ("columns_width", ctypes.c_int64),
]


def shape_of(
    q: Tensor, v: Tensor, scale: float, columns_width: int = 0, first_keys: Tensor | None = None
) -> Any:
    """Return a pointer to an `AttentionShape` for queries q and values v [B, H, T, *].

    scale: of the logits. columns_width: features that `strided` puts before each query and key. first_keys:
    the first key [T] that each query sees, contiguous int64, which the caller keeps during the kernel's call.
    """
    *sizes, width = q.shape
    threads = torch.get_num_threads()
    first = pointer_to(first_keys)
    shape = AttentionShape(*sizes, columns_width + width, v.shape[-1], scale, threads, first)
    return ctypes.byref(shape)


def strided(x: Tensor, columns: Tensor | None = None) -> Any:
    """Return a pointer to a `StridedTensor` for x [B, H, T, *].

    columns: a tensor [B, H, T, *] whose rows the kernels read before the rows of x.
    """
    first = None
    width = 0
    if columns is not None:
        first = ctypes.pointer(StridedTensor(columns.data_ptr(), *columns.stride()[:-1]))
        width = columns.shape[-1]
    rows = StridedTensor(x.data_ptr(), *x.stride()[:-1], first, width)
    return ctypes.byref(rows)


def has_cpu_data(x: Tensor) -> bool:
    """Return true if x is a plain tensor whose data lies in the memory of the CPU.

    Fake tensors, and those that `torch.compile` traces, have no data.
    """
    is_plain = type(x) in (Tensor, torch.nn.Parameter) and x.device.type == "cpu"
    return is_plain and not torch.compiler.is_compiling()


def pointer_to(x: Tensor | None) -> ctypes.c_void_p | None:
    return None if x is None else ctypes.c_void_p(x.data_ptr())


def with_whole_rows(x: Tensor) -> Tensor:
    """Return x, or a copy if the last axis of x is not contiguous; compiled code takes any other strides."""
    return x if x.stride(-1) == 1 else x.contiguous()


def empty_tokens_first(x: Tensor) -> Tensor:
    """Return an uninitialised tensor like x [B, H, T, V], with the decoder's memory layout [B, T, H, V]."""
    batch, heads, tokens, width = x.shape
    return x.new_empty(batch, tokens, heads, width).transpose(1, 2)
