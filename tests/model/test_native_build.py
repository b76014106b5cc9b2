"""Compiling the kernel: once, kept safely, and never an error where it cannot be."""

import ctypes
import errno
import hashlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest
import torch
from support.native import here

from pe_bench.encodings.nope import NoPE
from pe_bench.model.attention import choose_path, native
from pe_bench.native import build
from pe_bench.system import files
from pe_bench.system.machine import processor_features


def forget() -> None:
    build.kernel.cache_clear()
    native.usable_kernel.cache_clear()


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """As on a machine that never compiled the kernel, which is a short one here."""
    source = tmp_path / "short.cpp"
    source.write_text('extern "C" void pe_bench_use_threads(void*) {}\n')
    monkeypatch.setenv("PE_BENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "KERNEL_SOURCE", source)
    forget()
    yield tmp_path
    forget()


@here
def test_it_is_compiled_once_and_kept(unbuilt: Path) -> None:
    assert build.kernel().library is not None
    (library,) = unbuilt.glob(f"kernel/*/{build.LIBRARY_FILE}")
    made = library.stat().st_mtime_ns
    build.kernel.cache_clear()
    assert build.kernel().library is not None
    assert library.stat().st_mtime_ns == made


def test_without_a_compiler_there_is_a_reason(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value, told in (
        ("PE_BENCH_KERNEL", "off", "PE_BENCH_KERNEL=off"),
        ("CXX", "no-such-compiler", "no C++ compiler is here (no-such-compiler)"),
        ("CXX", "false", "false failed: exit code 1"),
    ):
        forget()
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            kernel = native.usable_kernel(torch.float32)
            assert kernel.library is None and told in kernel.description
            assert (
                choose_path(NoPE(), torch.zeros(1, 3, 5, 20).requires_grad_(), torch.arange(5)).name
                == "fused"
            )
    assert not list(unbuilt.glob(f"kernel/*/{build.LIBRARY_FILE}"))


@here
def test_a_cache_that_cannot_be_written_is_named_with_the_variable_that_moves_it(
    unbuilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (unbuilt / "file").touch()
    monkeypatch.setenv("PE_BENCH_CACHE", str(unbuilt / "file"))
    kernel = build.kernel()
    assert kernel.library is None
    assert kernel.description.endswith("(Not a directory): set PE_BENCH_CACHE to another folder")


@here
@pytest.mark.parametrize("wrote", ["", "echo no library >", "cp /bin/true"])
def test_what_a_broken_compiler_wrote_is_not_kept(
    unbuilt: Path, monkeypatch: pytest.MonkeyPatch, wrote: str
) -> None:
    broken = unbuilt / "c++"
    good = build.find_compiler()
    last = 'for last in "$@"; do :; done'
    broken.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo c++ 1 && exit\n{last}\n{wrote} "$last"\nexit 0\n'
    )
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    kernel = build.kernel()
    assert kernel.library is None and kernel.description, kernel
    assert not list(unbuilt.glob(f"kernel/*/{build.LIBRARY_FILE}"))
    broken.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo c++ 1 && exit\nexec {good} "$@"\n')
    forget()
    assert build.kernel().library is not None, "mended, with the same version"


@here
def test_a_library_in_the_cache_that_cannot_be_loaded_is_built_again(unbuilt: Path) -> None:
    assert build.kernel().library is not None
    (library,) = unbuilt.glob(f"kernel/*/{build.LIBRARY_FILE}")
    entry = library.parent
    library.unlink()
    library.write_text("no library")
    meta = json.loads((entry / files.META).read_text())
    del meta[files.CHECKSUM_KEY]
    meta["files"] = {build.LIBRARY_FILE: hashlib.sha256(library.read_bytes()).hexdigest()}
    (entry / files.META).write_text(json.dumps({**meta, files.CHECKSUM_KEY: files.cache_key(meta)}))
    forget()
    assert build.kernel().library is not None


@pytest.mark.full
@here
@pytest.mark.parametrize("more", [[], ["-DEMULATED_TILES"], build.DOT_FLAGS])
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sanitizer: str, more: Sequence[str], tmp_path: Path) -> None:
    if more == build.DOT_FLAGS and not processor_features() >= build.DOT_FEATURES:
        pytest.skip("this processor has no dot products of bfloat16")
    compiler = build.find_compiler()
    assert compiler is not None
    program, source = tmp_path / "sanitized", Path(__file__).parents[1] / "support" / "sanitized.cpp"
    flags = [flag for flag in build.COMPILER_FLAGS if flag not in ("-shared", "-fPIC", "-O3")]
    checks = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-march=native", "-O1", "-g"]
    command = [compiler, *flags, *checks, *more, str(source), "-o", str(program)]
    subprocess.run(command, check=True, timeout=300)
    done = subprocess.run([program], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class FakeLibrary:
    """A library for bfloat16 whose `pe_bench_permit` returns `refusal`, an error number; 0 permits."""

    def __init__(self, refusal: int) -> None:
        self.refusal = refusal

    def pe_bench_permit(self) -> int:
        return self.refusal


@pytest.mark.parametrize(
    ("features", "refusal", "is_built", "said"),
    [
        (build.AMX_FEATURES, 0, True, "AMX, g++"),
        (build.AMX_FEATURES | build.DOT_FEATURES, errno.EPERM, True, "AVX512_BF16, g++"),
        (build.AMX_FEATURES, errno.EPERM, True, "the system refuses AMX: Operation not permitted"),
        (build.DOT_FEATURES, 0, True, "AVX512_BF16, g++"),
        (build.DOT_FEATURES, 0, False, "no C++ compiler is here"),
        (set(), 0, True, "this processor has no instructions for products of bfloat16"),
    ],
)
def test_bfloat16_takes_the_fastest_instructions_that_work(
    features: set[str], refusal: int, is_built: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_or_build(source: Path, flags: tuple[str, ...]) -> build.Kernel:
        if not is_built:
            return build.Kernel(None, "no C++ compiler is here")
        library = FakeLibrary(refusal if flags == build.AMX_FLAGS else 0)
        return build.Kernel(cast(ctypes.CDLL, library), "g++")

    monkeypatch.setattr(build, "processor_features", lambda: features)
    monkeypatch.setattr(build, "_find_or_build", find_or_build)
    kernel = build.bfloat16_kernel.__wrapped__()
    assert kernel.description.startswith(said)
    assert (kernel.library is not None) == said.endswith("g++")
