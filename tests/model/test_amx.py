"""The kernel for bfloat16 is as exact as PyTorch's own attention, with tiles that are emulated or real."""

import ctypes
import math
import platform
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pe_bench.model.attention import native
from pe_bench.model.attention.native import causal_attention
from pe_bench.native import build
from pe_bench.system import machine

B, H, K = 2, 3, 20
SCALE = 0.2
# How far one rounding to bfloat16 is, relative to the number.
ROUNDING = 2.0**-8

pytestmark = [
    pytest.mark.skipif(build.find_compiler() is None, reason="no C++ compiler is here"),
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="tiles are of x86"),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def emulated_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = build.find_compiler()
    assert compiler is not None
    target = tmp_path_factory.mktemp("emulated") / build.LIBRARY
    build.compile_library(compiler, build.TILED_SOURCE, ["-march=native", "-DEMULATED_TILES"], target)
    return ctypes.CDLL(str(target))


@pytest.fixture(params=["emulated", "of this processor"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half precision takes the kernel, with these tiles."""
    if request.param == "emulated":
        library = request.getfixturevalue("emulated_library")
        monkeypatch.setattr(native, "usable_tiled_kernel", lambda: build.Kernel(library, "emulated"))
    elif native.usable_tiled_kernel().library is None:
        pytest.skip(native.usable_tiled_kernel().description)


def drawn(tokens: int, width: int = K, value_width: int = K, batch: int = B) -> list[Tensor]:
    """Queries, keys, values, a gradient of the output in bfloat16, and a table of biases in float32."""
    generator = torch.Generator().manual_seed(tokens)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    q, k = draw(2, batch, H, tokens, width).bfloat16().unbind()
    v, slope = draw(2, batch, H, tokens, value_width).bfloat16().unbind()
    return [q, k, v, slope, 2 * draw(H, tokens)]


def distances(tokens: int) -> Tensor:
    return torch.arange(tokens).unsqueeze(-1) - torch.arange(tokens)


def exactly(q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, scale: float) -> Tensor:
    distance = distances(q.shape[-2])
    logits = scale * q @ k.mT
    if table is not None:
        logits = logits + table[:, distance.clamp(min=0)]
    return logits.masked_fill(distance < 0, -math.inf).softmax(-1) @ v


def stock(q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, scale: float) -> Tensor:
    """PyTorch's attention, with its own type of mask and the one width that its fused kernel takes."""
    distance = distances(q.shape[-2])
    mask = None
    if table is not None:
        biases = table.to(q.dtype)[:, distance.clamp(min=0)]
        mask = biases.masked_fill(distance < 0, -math.inf).expand(q.shape[0], -1, -1, -1)
    width = max(q.shape[-1], v.shape[-1])
    wide = [functional.pad(x, (0, width - x.shape[-1])) for x in (q, k, v)]
    found = functional.scaled_dot_product_attention(
        *wide, attn_mask=mask, is_causal=mask is None, scale=scale
    )
    return found[..., : v.shape[-1]]


Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]


def output_and_gradients(attend: Attend, tensors: list[Tensor], biased: bool = True) -> list[Tensor]:
    q, k, v, slope, table = tensors
    leaves = [leaf.detach().clone().requires_grad_() for leaf in ((q, k, v, table) if biased else (q, k, v))]
    output = attend(leaves[0], leaves[1], leaves[2], leaves[3] if biased else None, SCALE)
    return [output.detach(), *torch.autograd.grad((output * slope).sum(), leaves)]


def in_doubles(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.double() for tensor in tensors]


def mean_error(a: Tensor, truth: Tensor) -> float:
    return float((a.double() - truth).square().mean().sqrt())


def worst(a: Tensor, truth: Tensor) -> float:
    return float((a.detach().double() - truth).abs().max())


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    ("tokens", "width", "value_width"),
    [(47, 7, 7), (64, 33, 32), (128, 32, 32), (129, 64, 64), (129, 20, 33), (300, 96, 96), (300, 32, 20)],
)
def test_output_and_gradients_are_as_exact_as_stock_attention_in_half_precision(
    tiles: None, tokens: int, width: int, value_width: int, biased: bool
) -> None:
    tensors = drawn(tokens, width, value_width)
    exact = output_and_gradients(exactly, in_doubles(tensors), biased)
    ours = output_and_gradients(causal_attention, tensors, biased)
    theirs = output_and_gradients(stock, tensors, biased)
    for number, (found, other, truth) in enumerate(zip(ours, theirs, exact, strict=True)):
        assert found.dtype == (torch.float32 if number == 4 else torch.bfloat16)
        # Where all that is lost is the result's own rounding, both lose the same, but for chance.
        assert mean_error(found, truth) <= 1.03 * mean_error(other, truth)
        assert worst(found, truth) <= 4 * ROUNDING * float(truth.abs().max())


@pytest.mark.parametrize(
    ("tokens", "width", "value_width"), [(2, 1, 1), (31, 3, 40), (33, 40, 2), (97, 65, 31)]
)
def test_every_length_and_width_is_right(tiles: None, tokens: int, width: int, value_width: int) -> None:
    tensors = drawn(tokens, width, value_width)
    exact = output_and_gradients(exactly, in_doubles(tensors))
    for found, truth in zip(output_and_gradients(causal_attention, tensors), exact, strict=True):
        assert worst(found, truth) <= 4 * ROUNDING * max(1.0, float(truth.abs().max()))


def test_no_token_sees_a_later_one_and_what_is_no_number_stays_none(tiles: None) -> None:
    q, k, v, _, table = drawn(60)
    before = causal_attention(q, k, v, table, SCALE)
    changed = [torch.cat([x[:, :, :40], -3 * x[:, :, 40:]], -2) for x in (q, k, v)]
    assert torch.equal(causal_attention(*changed, table, SCALE)[:, :, :40], before[:, :, :40])
    q[0, 0, 30, 0] = float("nan")
    output = causal_attention(q, k, v, table, SCALE)
    assert output[0, 0, 30].isnan().all()
    assert torch.equal(output[0, 0, :30], before[0, 0, :30])
    assert torch.equal(output[0, 1], before[0, 1])


def test_its_first_trial_tells_a_right_kernel_from_a_wrong_one(
    emulated_library: ctypes.CDLL, tmp_path: Path
) -> None:
    right = build.Kernel(emulated_library, "a compiler")
    assert native._tried(right, torch.bfloat16) is right
    compiler = build.find_compiler()
    assert compiler is not None
    wrong = tmp_path / "wrong.cpp"
    source = build.TILED_SOURCE.read_text()
    assert source.count("* scale + ") == 1
    wrong.write_text(source.replace("* scale + ", "* scale * 1.1f + "))
    build.compile_library(compiler, wrong, ["-DEMULATED_TILES", "-O1"], tmp_path / build.LIBRARY)
    tried = native._tried(
        build.Kernel(ctypes.CDLL(str(tmp_path / build.LIBRARY)), "a compiler"), torch.bfloat16
    )
    assert tried.library is None
    assert "wrong by" in tried.description


def test_a_processor_without_tiles_compiles_nothing_and_tells_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(build, "_made", lambda *_: pytest.fail("compiled"))
    build.tiled_kernel.cache_clear()
    assert build.tiled_kernel() == (None, "this processor has no tiles for bfloat16 (AMX)")
    build.tiled_kernel.cache_clear()


@pytest.mark.full
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sanitizer: str, tmp_path: Path) -> None:
    compiler = build.find_compiler()
    assert compiler is not None
    program, source = tmp_path / "sanitized", Path(__file__).parents[1] / "support" / "sanitized.cpp"
    flags = [flag for flag in build.FLAGS if flag not in ("-shared", "-fPIC", "-O3")]
    checks = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-march=native", "-O1", "-g"]
    command = [compiler, *flags, *checks, "-DEMULATED_TILES", str(source), "-o", str(program)]
    subprocess.run(command, check=True, timeout=300)
    done = subprocess.run([program], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
