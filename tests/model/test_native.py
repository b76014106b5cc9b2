"""Our own kernel gives what the reference gives, everywhere it is compiled, and nobody needs it."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.native import B, H, K, here, queries, worst
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.bias.bam import BAM
from pe_bench.encodings.bias.kerple_log import KerpleLog
from pe_bench.encodings.bias.sandwich import Sandwich
from pe_bench.encodings.bias.t5 import T5
from pe_bench.encodings.compose import Stack
from pe_bench.encodings.content.fox import FoX
from pe_bench.encodings.logits.logn import LogN
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.relative.tupe import TUPE
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.model.attention import choose, native, reference_attention
from pe_bench.model.attention.native import causal_attention, native_attention, native_column_attention
from pe_bench.model.attention.paths import REFERENCE, AttentionPath
from pe_bench.native import build

D = H * K
pytestmark = pytest.mark.usefixtures("one_thread")


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


class OneSlope(LayerEncoding):
    """A bias that all heads share, in a shape that broadcasts."""

    def __init__(self, *shape: int):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.full(shape, 0.3))

    def distance_bias(self, distance: Tensor) -> Tensor:
        return -self.slope * distance


class OneKeyForAllHeads(LayerEncoding):
    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        return queries.x, keys.x.mean(1, keepdim=True)


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
