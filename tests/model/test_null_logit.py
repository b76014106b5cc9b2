"""A null logit takes a share of the softmax, on every path the same, and no path is lost by it."""

import pytest
import torch
from support.native import here
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.bias.fire import FIRE
from pe_bench.encodings.bias.t5 import T5
from pe_bench.encodings.compose import Stack
from pe_bench.encodings.content.fox import FoX
from pe_bench.encodings.distance.rerope import ReRoPE
from pe_bench.encodings.logits.logn import LogN
from pe_bench.encodings.logits.sink import Sink
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.relative.shaw import Shaw
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.inspection.check.case import as_type, layer_inputs
from pe_bench.inspection.check.result import worst
from pe_bench.model.attention import attention, choose, paths, reference_attention
from pe_bench.model.attention.paths import AttentionPath

torch.set_num_threads(1)  # tensors are small here, and tests run side by side

H, K, D, T = 4, 8, 32, 300  # those of `layer_inputs`, and of more than one chunk

KINDS = {
    "nothing else": list,
    "a rotation": lambda: [RoPE(K), LogN(5)],
    "a fixed bias": lambda: [ALiBi(H)],
    "a learned bias": lambda: [T5(D, H)],
    "columns": lambda: [FoX(D, H)],
    "a window": lambda: [RoPE(K), SlidingWindow(6)],
    "a bias and a window": lambda: [ALiBi(H), SlidingWindow(6)],
    "a bias of the content": lambda: [FIRE(H, 4)],
    "two distances": lambda: [ReRoPE(K, train_length=8, window=5)],
    "relative values": lambda: [Shaw(K)],
}
kinds = pytest.mark.parametrize("kind", KINDS)
all_native = pytest.mark.parametrize("native", [pytest.param(True, marks=here), False])


class OfContent(LayerEncoding):
    """A null logit that differs between queries."""

    def null_logit(self, queries: Side) -> Tensor:
        return queries.raw[..., :1]


def stacked(kind: str, *nulls: LayerEncoding) -> Stack:
    torch.manual_seed(0)
    parts = [*KINDS[kind](), *nulls]
    for part in parts:
        for parameter in part.parameters():
            torch.nn.init.uniform_(parameter, -0.5, 1.0)
    return Stack(parts)


def chosen(encoding: LayerEncoding, q: Tensor) -> AttentionPath:
    return choose(encoding, q, torch.arange(q.shape[-2]))


def output_and_gradients(path, encoding: Stack, dtype: torch.dtype) -> list[Tensor]:
    parts = [part.to(dtype) for part in encoding.parts]
    inputs = [tensor.requires_grad_() for tensor in as_type(layer_inputs(T), dtype)]
    wanted = [*inputs, *(parameter for part in parts for parameter in part.parameters())]
    output = path(encoding, *inputs, torch.arange(T))
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = torch.autograd.grad((output * weight).sum(), wanted, allow_unused=True)
    return [output, *(torch.zeros(1) if gradient is None else gradient for gradient in found)]


def test_the_weights_are_those_of_a_softmax_with_one_more_column() -> None:
    x, q, k, v = layer_inputs(9)
    sink = stacked("nothing else", Sink(H)).parts[0].double()
    assert isinstance(sink, Sink)
    scores = (q @ k.mT * K**-0.5).masked_fill(~torch.ones(9, 9).tril().bool(), float("-inf"))
    column = sink.logit[:, None, None].expand(2, H, 9, 1)
    weights = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    assert worst(reference_attention(sink, x, q, k, v, torch.arange(9)), weights @ v) < 1e-14


@all_native
@kinds
def test_training_has_the_outputs_and_gradients_of_the_reference(kind, native: bool, monkeypatch) -> None:
    if not native:
        monkeypatch.setattr(paths, "is_kernel_here", lambda: False)
    exact = output_and_gradients(reference_attention, stacked(kind, Sink(H), OfContent()), torch.float64)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        found = output_and_gradients(attention, stacked(kind, Sink(H), OfContent()), dtype)
        for ours, truth in zip(found, exact, strict=True):
            assert worst(ours, truth) <= tolerance * max(1.0, float(truth.detach().abs().max()))


@kinds
@pytest.mark.parametrize("window", [None, 7])
@torch.no_grad()
def test_scoring_has_the_outputs_of_the_reference(kind: str, window: int | None) -> None:
    encoding, arguments = stacked(kind, Sink(H), OfContent()), (*layer_inputs(T), torch.arange(T))
    for part in encoding.parts:
        part.double()
    truth = reference_attention(encoding, *arguments, window=window)
    assert worst(attention(encoding, *arguments, window=window), truth) < 1e-12


@all_native
@kinds
@pytest.mark.parametrize("trains", [True, False])
def test_a_sink_leaves_every_path_as_it_is(kind: str, native: bool, trains: bool, monkeypatch) -> None:
    if not native:
        monkeypatch.setattr(paths, "is_kernel_here", lambda: False)
    q = torch.zeros(1, H, T, K, requires_grad=trains)
    with torch.set_grad_enabled(trains):
        assert chosen(stacked(kind, Sink(H)), q) == chosen(stacked(kind), q)


def test_a_gpu_takes_flex_attention_which_returns_the_log_sum_exp() -> None:
    with FakeTensorMode():
        q = torch.zeros(1, H, 5, K, device="cuda")
        assert chosen(Sink(H), q).name == "fused flex" and chosen(NoPE(), q).name == "fused"
        assert chosen(Sink(H), q.double()).name == "reference"


@pytest.mark.parametrize("path", [attention, reference_attention])
@pytest.mark.parametrize("trains", [True, False])
def test_a_very_high_null_logit_leaves_nothing_and_no_gradient_is_lost_to_nan(path, trains: bool) -> None:
    sink = Sink(H, initial=1e4)
    inputs = [tensor.requires_grad_(trains) for tensor in layer_inputs(40, torch.float32)]
    with torch.set_grad_enabled(trains):
        output = path(sink, *inputs, torch.arange(40))
    assert not output.any()
    if trains:
        gradients = torch.autograd.grad(output.sum(), [*inputs[1:], sink.logit])
        assert not any(gradient.any() for gradient in gradients)
