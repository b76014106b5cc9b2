"""Made layers for tests of attention, and what each path gives of them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.bias.bam import BAM
from pe_bench.encodings.bias.fire import FIRE
from pe_bench.encodings.bias.kerple_log import KerpleLog
from pe_bench.encodings.bias.kerple_power import KerplePower
from pe_bench.encodings.bias.sandwich import Sandwich
from pe_bench.encodings.bias.t5 import T5
from pe_bench.encodings.compose import Stack
from pe_bench.encodings.content.cope import CoPE
from pe_bench.encodings.content.fox import FoX
from pe_bench.encodings.content.stick_breaking import StickBreaking
from pe_bench.encodings.distance.lm_infinite import LMInfinite
from pe_bench.encodings.distance.rerope import ReRoPE
from pe_bench.encodings.distance.self_extend import SelfExtend
from pe_bench.encodings.distance.streaming import Streaming
from pe_bench.encodings.layers.local_global import Chunks
from pe_bench.encodings.logits.logn import LogN
from pe_bench.encodings.logits.sink import Sink
from pe_bench.encodings.masks.ranges import window_ranges
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.relative.deberta import DeBERTa
from pe_bench.encodings.relative.shaw import Shaw
from pe_bench.encodings.relative.tupe import TUPE
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.inspection.check.case import largest_difference

H, K, D = 4, 8, 32  # those of `layer_inputs`


class WindowOfEachHead(LayerEncoding):
    """Head h sees the last 2h + 1 tokens; the ranges are those of the widest."""

    def visible(self, queries: Side, keys: Side) -> Tensor:
        distance = queries.index.unsqueeze(-1) - keys.index
        return (distance >= 0) & (distance <= 2 * torch.arange(H)[:, None, None])

    def ranges(self, start: int, stop: int) -> list[range]:
        return window_ranges(2 * H - 1, start, stop)


class Strided(LayerEncoding):
    """Head h sees every key at a multiple of h + 1; nothing is said of ranges."""

    def visible(self, queries: Side, keys: Side) -> Tensor:
        distance = queries.index.unsqueeze(-1) - keys.index
        return (distance >= 0) & (distance % torch.arange(1, H + 1)[:, None, None] == 0)


class OfContent(LayerEncoding):
    """A null logit that differs between queries."""

    def null_logit(self, queries: Side) -> Tensor:
        return queries.raw[..., :1]


def deberta(max_distance: int, **options: Any) -> LayerEncoding:
    return DeBERTa(D, H, K, 1, max_distance, **options).layer(0)


# Layers that only hide keys.
HIDING: dict[str, Callable[[], list[LayerEncoding]]] = {
    "a window of one": lambda: [SlidingWindow(1)],
    "a window": lambda: [SlidingWindow(6)],
    "a window of each head": lambda: [WindowOfEachHead()],
    "chunks": lambda: [Chunks(5)],
    "sinks": lambda: [Streaming(K, cache=9, sinks=3)],
    "global tokens": lambda: [LMInfinite(K, window=5, global_tokens=2)],
    "a window within chunks": lambda: [Chunks(7), SlidingWindow(4)],
    "sinks and a window": lambda: [Streaming(K, cache=9, sinks=3), SlidingWindow(20)],
    "windows of heads in chunks": lambda: [WindowOfEachHead(), Chunks(4)],
    "sinks and a shorter window": lambda: [Streaming(K, cache=9, sinks=3), SlidingWindow(4)],
    "strides of heads": lambda: [Strided()],
}
# Layers that change logits, beside those that hide keys.
SCORING: dict[str, Callable[[], list[LayerEncoding]]] = {
    "nothing": lambda: [NoPE()],
    "a rotation": lambda: [RoPE(K), LogN(5)],
    "a slope": lambda: [ALiBi(H)],
    "a rotation and a slope": lambda: [RoPE(K), ALiBi(H), LogN(16)],
    "buckets": lambda: [T5(D, H)],
    "a learned logarithm": lambda: [KerpleLog(H)],
    "a learned power": lambda: [KerplePower(H)],
    "peaks": lambda: [BAM(H)],
    "sandwich": lambda: [Sandwich(H)],
    "an absolute table": lambda: [TUPE(D, H, K, max_position=1_000)],
    "columns": lambda: [FoX(D, H)],
    "columns and a rotation": lambda: [FoX(D, H), RoPE(K), LogN(5)],
    "columns and a slope": lambda: [FoX(D, H), ALiBi(H)],
    "a bias of positions": lambda: [FIRE(H, 4)],
    "two biases": lambda: [FIRE(H, 4), ALiBi(H)],
    "relative values": lambda: [Shaw(K, max_distance=5)],
    "relative values of the token before": lambda: [Shaw(K, max_distance=1)],
    "relative values beyond the text": lambda: [Shaw(K, max_distance=999)],
    "disentangled": lambda: [deberta(11)],
    "disentangled in buckets": lambda: [deberta(24, buckets=8)],
    "content to position": lambda: [deberta(11, terms="c2p")],
    "position to content": lambda: [deberta(11, terms="p2c")],
    "relative values and a factor": lambda: [Shaw(K, max_distance=5), LogN(3)],
    "positions by content": lambda: [CoPE(K, 5)],
    "a broken stick": lambda: [StickBreaking()],
    "a rotation and a window": lambda: [RoPE(K), SlidingWindow(6), LogN(5)],
    "a slope and a window": lambda: [ALiBi(H), SlidingWindow(6)],
    "a slope and windows of heads": lambda: [ALiBi(H), WindowOfEachHead()],
    "buckets in chunks": lambda: [T5(D, H), Chunks(7), LogN(3)],
    "columns and a window": lambda: [FoX(D, H), SlidingWindow(6)],
    "two distances": lambda: [ReRoPE(K, train_length=8, window=5)],
    "two distances as in training": lambda: [ReRoPE(K, train_length=999, window=5)],
    "two distances of groups": lambda: [SelfExtend(K, train_length=8, window=6, group_size=3)],
    "two distances and a slope": lambda: [ReRoPE(K, train_length=8, window=5), ALiBi(H)],
    "a sink": lambda: [Sink(H, initial=0.7)],
}
ALL = {**HIDING, **SCORING}


def made(name: str, *more: Callable[[], LayerEncoding], dtype: torch.dtype = torch.float64) -> LayerEncoding:
    """Return a layer with parameters as large as queries and keys, the same at every call."""
    torch.manual_seed(0)
    parts = [part.double() for part in (*ALL[name](), *(make() for make in more))]
    for part in parts:
        for parameter in part.parameters():
            torch.nn.init.uniform_(parameter, -0.5, 1.0)
    parts = [part.to(dtype) for part in parts]
    return parts[0] if len(parts) == 1 else Stack(parts)


def output_and_gradients(
    path: Callable[..., Tensor],
    encoding: LayerEncoding,
    inputs: Sequence[Tensor],
    position: Tensor,
    window: int | None = None,
) -> list[Tensor]:
    """Return the output, and gradients of a weighted sum of it, zeros where there are none."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    parts = getattr(encoding, "parts", [encoding])
    learned = [parameter for part in parts for parameter in part.parameters()]
    for parameter in learned:
        parameter.requires_grad_()
    output = path(encoding, *leaves, position, window)
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loss = (output * weight).sum()
    gradients = torch.autograd.grad(loss, [*leaves, *learned], allow_unused=True)
    return [output.detach(), *(torch.zeros(1) if one is None else one for one in gradients)]


def largest_error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Return the largest error of any tensor, relative to its largest number where that is above 1."""
    pairs = zip(found, exact, strict=True)
    return max(
        largest_difference(one, truth) / max(1.0, float(truth.detach().abs().max())) for one, truth in pairs
    )
