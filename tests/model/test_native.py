"""Our own kernel gives what the reference gives, everywhere it is compiled, and nobody needs it."""

import ctypes
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import Command, tiny_overrides
from torch import Tensor
from torch.nn import functional

from pe_bench.encodings.alibi import ALiBi
from pe_bench.encodings.bam import BAM
from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.compose import Stack
from pe_bench.encodings.fox import FoX
from pe_bench.encodings.kerple_log import KerpleLog
from pe_bench.encodings.logn import LogN
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rope import RoPE
from pe_bench.encodings.sandwich import Sandwich
from pe_bench.encodings.t5 import T5
from pe_bench.encodings.tupe import TUPE
from pe_bench.model.attention import choose, native, reference_attention
from pe_bench.model.attention.native import (
    build,
    causal_attention,
    native_attention,
    native_column_attention,
    usable_kernel,
)
from pe_bench.model.attention.paths import REFERENCE, AttentionPath

B, H, K = 2, 3, 20
D = H * K

here = pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler is here")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def drawn(tokens: int, width: int = K, value_width: int = K, batch: int = B) -> list[Tensor]:
    """Queries, keys, values, a gradient of the output, and a table of biases, in float64."""
    generator = torch.Generator().manual_seed(tokens)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q, k = draw(2, batch, H, tokens, width).unbind()
    v, slope = draw(2, batch, H, tokens, value_width).unbind()
    return [q, k, v, slope, 2 * draw(H, tokens)]


def exactly(q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, scale: float) -> Tensor:
    distance = torch.arange(q.shape[-2]).unsqueeze(-1) - torch.arange(q.shape[-2])
    logits = scale * q @ k.mT
    if table is not None:
        logits = logits + table[:, distance.clamp(min=0)]
    return logits.masked_fill(distance < 0, float("-inf")).softmax(-1) @ v


def output_and_gradients(attend, tensors: list[Tensor], biased: bool) -> list[Tensor]:
    q, k, v, slope, table = tensors
    leaves = [leaf.detach().clone().requires_grad_() for leaf in ((q, k, v, table) if biased else (q, k, v))]
    output = attend(*leaves[:3], leaves[3] if biased else None, 0.2)
    return [output.detach(), *torch.autograd.grad((output * slope).sum(), leaves)]


def worst(a: Tensor, b: Tensor) -> float:
    return float((a.detach().double() - b.detach().double()).abs().max())


@here
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    ("tokens", "width", "value_width"),
    [(1, 4, 4), (2, 1, 1), (47, 7, 5), (48, 8, 8), (49, 32, 32), (128, 20, 33), (129, 64, 64), (300, 96, 16)],
)
def test_output_and_gradients_are_those_of_float64(
    tokens: int, width: int, value_width: int, biased: bool
) -> None:
    exact = output_and_gradients(exactly, drawn(tokens, width, value_width), biased)
    single = [tensor.float() for tensor in drawn(tokens, width, value_width)]
    found = output_and_gradients(causal_attention, single, biased)
    materialised = output_and_gradients(exactly, single, biased)
    for ours, theirs, truth in zip(found, materialised, exact, strict=True):
        # No worse than float32 by the textbook; that may be exact where there is little to add.
        assert worst(ours, truth) <= 4 * worst(theirs, truth) + 1e-6


@here
def test_any_strides_are_read_and_the_output_lies_as_the_decoder_wants_it() -> None:
    q, k, v, slope, table = (tensor.float() for tensor in drawn(37))
    expected = output_and_gradients(causal_attention, [q, k, v, slope, table], True)
    other = [x.mT.contiguous().mT for x in (q, k)] + [
        x.transpose(1, 2).contiguous().transpose(1, 2) for x in (v, slope)
    ]
    for a, b in zip(output_and_gradients(causal_attention, [*other, table], True), expected, strict=True):
        assert torch.equal(a, b)
    assert causal_attention(q, k, v, table, 0.2).transpose(1, 2).is_contiguous()


@here
def test_results_do_not_depend_on_the_number_of_threads() -> None:
    tensors = [tensor.float() for tensor in drawn(150, batch=5)]
    results = []
    for threads in (1, 2, 3, 16):
        torch.set_num_threads(threads)
        results.append(output_and_gradients(causal_attention, tensors, True))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@here
def test_logits_of_any_size_are_exact_and_what_is_no_number_stays_none() -> None:
    q, k, v, slope, table = (tensor.float() for tensor in drawn(60))
    large = [1e3 * q, k, v, slope, 1e4 * table]
    exact = exactly(*(tensor.double() for tensor in large[:3]), large[4].double(), 0.2)
    assert worst(causal_attention(*large[:3], large[4], 0.2), exact) < 1e-2
    q[0, 0, 30, 0] = float("nan")
    output = causal_attention(q, k, v, table, 0.2)
    assert output[0, 0, 30].isnan().all()
    assert output[0, 0, :30].isfinite().all()
    assert output[0, 1].isfinite().all()


@here
def test_a_bias_of_minus_infinity_hides_a_distance() -> None:
    q, k, v, slope, table = drawn(140)
    table[:, 3:] = float("-inf")
    tensors = [q, k, v, slope, table]
    found = output_and_gradients(causal_attention, [tensor.float() for tensor in tensors], True)
    exact = output_and_gradients(exactly, tensors, True)
    for ours, truth in zip(found, exact, strict=True):
        assert worst(ours, truth) < 2e-5


def trained(encoding: LayerEncoding) -> LayerEncoding:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return encoding


ENCODINGS = {
    "nope": lambda: [NoPE()],
    "rope": lambda: [RoPE(d_head=K)],
    "alibi": lambda: [ALiBi(H)],
    "t5": lambda: [T5(D, H)],
    "kerple_log": lambda: [KerpleLog(H)],
    "sandwich": lambda: [Sandwich(H)],
    "bam": lambda: [BAM(H)],
    "rope, alibi and logn": lambda: [RoPE(d_head=K), ALiBi(H), LogN(16)],
    "tupe": lambda: [TUPE(D, H, K, max_position=200)],
    "fox": lambda: [FoX(D, H)],
    "fox and rope": lambda: [FoX(D, H), RoPE(d_head=K)],
}


@here
@pytest.mark.parametrize("name", ENCODINGS)
def test_training_takes_the_kernel_and_has_the_gradients_of_the_reference(name: str) -> None:
    torch.manual_seed(0)
    parts = [trained(part) for part in ENCODINGS[name]()]
    position = torch.arange(130)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(B, 130, D, generator=generator)
    leaves = [x, *torch.randn(3, B, H, 130, K, generator=generator)]

    def gradients(dtype: torch.dtype, path: AttentionPath | None = None) -> tuple[str, list[Tensor | None]]:
        encoding = Stack([part.to(dtype) for part in parts]) if len(parts) > 1 else parts[0].to(dtype)
        inputs = [leaf.to(dtype).requires_grad_() for leaf in leaves]
        learned = [parameter for part in parts for parameter in part.parameters()]
        taken = path or choose(encoding, inputs[1], position)
        output = taken.run(encoding, *inputs, position)
        loss = (output * output.detach().cos()).sum()
        found = torch.autograd.grad(loss, [*inputs, *learned], allow_unused=True)
        return taken.name, [output.detach(), *found]

    taken, fast = gradients(torch.float32)
    _, exact = gradients(torch.float64, REFERENCE)
    assert taken == ("native column" if "fox" in name else "native")
    for ours, truth in zip(fast, exact, strict=True):
        assert (ours is None) == (truth is None)
        if ours is not None and truth is not None:
            assert worst(ours, truth) < 2e-5 * max(1.0, float(truth.abs().max()))


@here
def test_without_tiles_half_precision_is_computed_in_float32_and_comes_back_in_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "usable_tiled_kernel", lambda: build.Kernel(None, "switched off"))
    leaves = [torch.randn(B, H, 70, K).bfloat16().requires_grad_() for _ in range(3)]
    output = native_attention(ALiBi(H), leaves[0], *leaves, torch.arange(70))
    assert output.dtype == torch.bfloat16
    doubles = [leaf.detach().double() for leaf in leaves]
    exact = reference_attention(ALiBi(H), doubles[0], *doubles, torch.arange(70))
    assert worst(output, exact) < 2**-8 * float(exact.abs().max())


@here
def test_the_first_columns_of_wider_queries_are_enough_values() -> None:
    leaves = [torch.randn(B, H, 20, K).requires_grad_() for _ in range(3)]
    output = native_column_attention(FoX(D, H), torch.randn(B, 20, D), *leaves, torch.arange(20))
    assert output.shape == (B, H, 20, K)


@here
@pytest.mark.parametrize("modifiers", [[], [LogN(5)]])
def test_no_scale_rounds_queries_of_half_precision_beside_columns(modifiers: list[LayerEncoding]) -> None:
    torch.manual_seed(0)
    x, q, k, v = torch.randn(4, B, H, 60, K).bfloat16()
    x = x.transpose(1, 2).flatten(2)
    fox, position = FoX(D, H), torch.arange(60)
    found = native_column_attention(Stack([fox, *modifiers]), x, q, k, v.float(), position)
    inputs = [one.double() for one in (x, q, k, v)]
    exact = reference_attention(Stack([fox.double(), *modifiers]), *inputs, position=position)
    assert worst(found, exact) < 1e-5


class OneSlope(LayerEncoding):
    """A bias that all heads share, in a shape that broadcasts."""

    def __init__(self, *shape: int):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.full(shape, 0.3))

    def distance_bias(self, distance: Tensor) -> Tensor:
        return -self.slope * distance


class OneKeyForAllHeads(LayerEncoding):
    def transform(
        self, q: Tensor, k: Tensor, q_position: Tensor, k_position: Tensor
    ) -> tuple[Tensor, Tensor]:
        return q, k.mean(1, keepdim=True)


@here
@pytest.mark.parametrize("encoding", [OneSlope(1), OneSlope(1, 1), OneSlope(H, 1), OneKeyForAllHeads()])
def test_what_heads_share_is_read_as_the_reference_reads_it(encoding: LayerEncoding) -> None:
    position, leaves = torch.arange(50), torch.randn(3, B, H, 50, K).unbind()
    wanted = [*(leaf.requires_grad_() for leaf in leaves), *encoding.parameters()]

    def found(path: Callable[..., Tensor]) -> list[Tensor]:
        output = path(encoding, leaves[0], *leaves, position)
        return [output, *torch.autograd.grad(output.square().sum(), wanted)]

    assert choose(encoding, leaves[0], position).run is native_attention
    for ours, truth in zip(found(native_attention), found(reference_attention), strict=True):
        assert worst(ours, truth) < 1e-4 * max(1.0, float(truth.detach().abs().max()))
    with torch.no_grad():
        scored = choose(encoding, leaves[0], position).run(encoding, leaves[0], *leaves, position)
        assert worst(scored, reference_attention(encoding, leaves[0], *leaves, position)) < 1e-5


@here
@pytest.mark.parametrize(
    "change",
    [
        lambda q, k, v, table: (q.half(), k.half(), v.half(), table),
        lambda q, k, v, table: (q, k.double(), v, table),
        lambda q, k, v, table: (q, k[..., 1:], v, table),
        lambda q, k, v, table: (q, k[:, :, 1:], v, table),
        lambda q, k, v, table: (q, k[:, :2], v, table),
        lambda q, k, v, table: (q, k, v, table[:, 1:]),
    ],
)
def test_what_the_kernel_would_read_wrongly_never_reaches_it(change: Callable[..., Any]) -> None:
    q, k, v, _, table = (tensor.float() for tensor in drawn(9))
    with pytest.raises((ValueError, RuntimeError)):
        causal_attention(*change(q, k, v, table), 0.2)


def queries(**changes: bool) -> Tensor:
    return torch.zeros(1, H, 5, K).requires_grad_(changes.get("learns", True))


def test_without_a_kernel_pytorch_serves_what_it_can_and_the_reference_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths = importlib.import_module("pe_bench.model.attention.paths")
    monkeypatch.setattr(paths, "usable_kernel", lambda: build.Kernel(None, "switched off"))
    taken = {name: choose(Stack(make()), queries(), torch.arange(5)).name for name, make in ENCODINGS.items()}
    assert taken["nope"] == taken["rope"] == taken["tupe"] == "fused"
    assert taken["alibi"] == taken["sandwich"] == "fused distance"
    assert taken["t5"] == taken["kerple_log"] == taken["bam"] == "reference"
    assert taken["fox"] == "fused column"


@here
def test_the_kernel_is_for_training_in_single_precision_on_a_processor() -> None:
    position = torch.arange(5)
    assert choose(NoPE(), queries(), position).run is native_attention
    assert choose(NoPE(), queries(learns=False), position).run is not native_attention
    assert choose(NoPE(), queries().double(), position).run is not native_attention
    with torch.no_grad():
        assert choose(NoPE(), queries(), position).run is not native_attention
    assert choose(ALiBi(H), queries(), 2 * position).run is not native_attention


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """As on a machine that never compiled the kernel."""
    monkeypatch.setenv("PE_BENCH_CACHE", str(tmp_path))
    build.kernel.cache_clear()
    native.usable_kernel.cache_clear()
    yield tmp_path
    build.kernel.cache_clear()
    native.usable_kernel.cache_clear()


@here
def test_it_is_compiled_once_and_kept(unbuilt: Path) -> None:
    first = build.kernel()
    assert first.library is not None
    (library,) = unbuilt.glob(f"kernel/*/{build.LIBRARY}")
    made = library.stat().st_mtime_ns
    build.kernel.cache_clear()
    assert build.kernel().library is not None
    assert library.stat().st_mtime_ns == made


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"PE_BENCH_KERNEL": "off"}, "PE_BENCH_KERNEL=off"),
        ({"CXX": "no-such-compiler"}, "no C++ compiler is here (no-such-compiler)"),
        ({"CXX": "false"}, "false failed: exit code 1"),
        ({"CXX": "env no-such-compiler -O1"}, "no-such-compiler -O1 failed: exit code 127"),
        ({"CXX": "'g++"}, "no C++ compiler is here ('g++)"),
    ],
)
def test_without_a_compiler_there_is_a_reason(
    unbuilt: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], told: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = usable_kernel()
    assert found.library is None
    assert told in found.description
    assert choose(NoPE(), queries(), torch.arange(5)).name == "fused"
    assert not list(unbuilt.glob(f"kernel/*/{build.LIBRARY}"))


def test_a_cache_folder_that_cannot_be_written_is_no_error(
    unbuilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (unbuilt / "kernel").write_text("a file where the folder would be")
    found = usable_kernel()
    assert found.library is None
    assert "\n" not in found.description


@here
def test_a_compiler_may_be_a_command_of_several_words(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = build.find_compiler()
    monkeypatch.setenv("CXX", f"env PE_BENCH_WORD='two words' {compiler}")
    assert build.kernel().library is not None
    (entry,) = unbuilt.glob("kernel/*/meta.json")
    assert json.loads(entry.read_text())["compiler"].endswith(f"'PE_BENCH_WORD=two words' {compiler}")


@here
def test_a_damaged_library_is_made_again(unbuilt: Path) -> None:
    script = "import pe_bench.model.attention.native.build as build; build.kernel()"
    environment = {**os.environ, "PE_BENCH_CACHE": str(unbuilt)}
    subprocess.run([sys.executable, "-c", script], env=environment, timeout=120, check=True)
    (library,) = unbuilt.glob(f"kernel/*/{build.LIBRARY}")
    library.write_bytes(bytes(library.stat().st_size))
    assert build.kernel().library is not None
    assert any(library.read_bytes())


@here
def test_no_library_is_loaded_that_another_user_could_have_written(
    unbuilt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build.kernel().library is not None
    (library,) = unbuilt.glob(f"kernel/*/{build.LIBRARY}")
    library.write_bytes(b"code of theirs")
    library.parent.chmod(0o777)
    build.kernel.cache_clear()
    assert build.kernel().library is not None  # compiled again, in a private folder
    assert library.read_bytes() == b"code of theirs"
    assert f"can change {library.parent.resolve()}" in capsys.readouterr().err
    build.kernel.cache_clear()


@here
def test_a_kernel_that_computes_wrongly_is_not_used(
    unbuilt: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.cpp"
    source = build.SOURCE.read_text()
    assert source.count("shape.scale, query.at(0)") == 1
    wrong.write_text(source.replace("shape.scale, query.at(0)", "1.01f * shape.scale, query.at(0)"))
    monkeypatch.setattr(build, "SOURCE", wrong)
    found = usable_kernel()
    assert found.library is None
    assert "wrong by" in found.description


@here
def test_a_head_without_memory_is_an_error_and_no_crash() -> None:
    library = build.kernel().library
    assert library is not None
    shape = native._Shape(1, 1, 2**50, 64, 64, 1.0, 2)
    nowhere = ctypes.byref(native._Strided(0, 0, 0, 0))
    assert library.pe_bench_forward(ctypes.byref(shape), *[nowhere] * 3, None, nowhere, None) == 1


@here
def test_the_kernel_is_faster_code_but_the_same_model() -> None:
    """Loss and gradient of a decoder's layer are those of PyTorch's own attention."""
    q, k, v = (torch.randn(B, H, 128, K, requires_grad=True) for _ in range(3))
    stock = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    ours = causal_attention(q, k, v, None, K**-0.5)
    assert worst(stock, ours) < 1e-5


@pytest.mark.full
@here
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sanitizer: str, tmp_path: Path) -> None:
    compiler = build.find_compiler()
    assert compiler is not None
    program, source = tmp_path / "sanitized", Path(__file__).parents[1] / "support" / "sanitized.cpp"
    flags = [flag for flag in build.FLAGS if flag not in ("-shared", "-fPIC", "-O3")]
    checks = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-march=native", "-O1", "-g"]
    subprocess.run([compiler, *flags, *checks, str(source), "-o", str(program)], check=True, timeout=300)
    done = subprocess.run([program], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@here
def test_a_process_that_is_killed_while_compiling_leaves_nothing_in_the_way(unbuilt: Path) -> None:
    """A folder half built, as a kill would leave it, and the lock it held."""
    script = (
        "import os, pe_bench.model.attention.native.build as build\n"
        "compile_library = build.compile_library\n"
        "build.compile_library = lambda *a: (compile_library(*a), os._exit(9))\n"
        "build.kernel()\n"
    )
    environment = {**os.environ, "PE_BENCH_CACHE": str(unbuilt)}
    died = subprocess.run([sys.executable, "-c", script], env=environment, timeout=120, check=False)
    assert died.returncode == 9
    assert build.kernel().library is not None
    assert len(list(unbuilt.glob(f"kernel/*/{build.LIBRARY}"))) == 1


CPU = torch.device("cpu")


def test_the_kernel_of_training_has_a_type_a_compiler_and_a_reason_why_it_is_not_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths = importlib.import_module("pe_bench.model.attention.paths")

    def found(single: str | None, half: str | None, dtype: torch.dtype = torch.float32) -> tuple[str, ...]:
        library = ctypes.CDLL(None)
        kernels = {"usable_kernel": (single, "c++ 12"), "usable_tiled_kernel": (half, "c++ 13")}
        for name, (reason, compiler) in kernels.items():
            kernel = build.Kernel(library, compiler) if reason is None else build.Kernel(None, reason)
            monkeypatch.setattr(paths, name, lambda kernel=kernel: kernel)
        return paths.training_kernel(CPU, dtype)

    ours, other = "pe-bench's kernel", "PyTorch's fused kernels and the reference"
    assert found(None, "no tiles") == (ours, "float32", "c++ 12", "")
    assert found(None, None, torch.bfloat16) == (ours, "bfloat16", "c++ 13", "")
    assert found(None, "no tiles", torch.bfloat16) == (ours, "float32", "c++ 12", "no tiles")
    assert found("no compiler", "no tiles") == (other, "", "", "no compiler")
    assert "FlexAttention" in paths.training_kernel(torch.device("cuda"), torch.bfloat16).name
    assert str(found(None, "no tiles", torch.bfloat16)) == f"{ours} in float32, compiled by c++ 12; no tiles"
    assert str(found("no compiler", "no tiles")) == f"{other}; no compiler"


def test_a_runs_environment_file_names_it(folder: Path, command: Command) -> None:
    assert command("train", *tiny_overrides(folder)).code == 0
    (written,) = (folder / "results" / "runs").glob("*/environment.json")
    attention = json.loads(written.read_text())["attention"]
    assert attention["name"].startswith(("pe-bench's kernel", "PyTorch's"))
    assert attention["compiler"] or attention["missing"]


@here
@pytest.mark.parametrize("tokens", [128, 1_024])
def test_the_sums_of_fox_lose_no_digits_however_long_the_text(tokens: int) -> None:
    encoding, generator = trained(FoX(D, H)), torch.Generator().manual_seed(0)
    x = torch.randn(1, tokens, D, generator=generator)
    q, k, v = torch.randn(3, 1, H, tokens, K, generator=generator).unbind()
    found = native_column_attention(encoding, x, q.requires_grad_(), k, v, torch.arange(tokens))
    exact = reference_attention(
        encoding.double(), x.double(), *(one.detach().double() for one in (q, k, v)), torch.arange(tokens)
    )
    assert worst(found, exact) < 2e-6
