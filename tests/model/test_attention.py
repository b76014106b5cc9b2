"""The reference runs the hooks in their order; every fast path gives what the reference gives."""

import pytest
import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.bias.t5 import T5
from pe_bench.encodings.compose import Stack
from pe_bench.encodings.content.cope import CoPE
from pe_bench.encodings.content.fox import FoX
from pe_bench.encodings.content.stick_breaking import StickBreaking
from pe_bench.encodings.distance.lm_infinite import LMInfinite
from pe_bench.encodings.logits.logn import LogN
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.relative.shaw import Shaw
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.model.attention import attention, choose, reference_attention
from pe_bench.model.attention.fused import (
    FUSED_QUERIES,
    fused_attention,
    fused_column_attention,
    fused_distance_attention,
)

torch.set_num_threads(1)  # tensors are small here, and tests run side by side

B, H, K = 2, 3, 4
D = H * K


def inputs(tokens: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The input of a layer, queries, keys and values."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(B, tokens, D, generator=generator, dtype=dtype)
    q, k, v = torch.randn(3, B, H, tokens, K, generator=generator, dtype=dtype)
    return x, q, k, v


def worst(a: Tensor, b: Tensor) -> float:
    return float((a.detach() - b.detach()).abs().max())


def stack(*parts: LayerEncoding) -> Stack:
    """In float64: a stack's parts are registered where they belong, and not in it."""
    return Stack([part.double() for part in parts])


class Recording(LayerEncoding):
    """Every hook leaves its name, and changes its result in a way that depends on the order."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    def prepare(self, x: Tensor) -> dict[str, Tensor]:
        self.called.append("prepare")
        return {"first": x[..., 0]}

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        self.called.append("transform")
        return torch.cat([queries.x, queries.x], -1), torch.cat(
            [keys.x, keys.x], -1
        )  # as of a wider head: twice the scores

    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        self.called.append("scores")
        return super().scores(queries, keys, scale)

    def logit_scale(self, queries: Side) -> Tensor:
        self.called.append("logit_scale")
        return queries.values["first"][:, None, :, None]

    def bias(self, queries: Side, keys: Side) -> Tensor:
        self.called.append("bias")
        return torch.full((H, len(queries.index), len(keys.index)), 0.25)

    def adjust(self, scores: Tensor, visible: Tensor, queries: Side, keys: Side) -> Tensor:
        self.called.append("adjust")
        return scores.square()

    def visible(self, queries: Side, keys: Side) -> Tensor:
        self.called.append("visible")
        return super().visible(queries, keys)

    def weights(self, scores: Tensor, visible: Tensor) -> Tensor:
        self.called.append("weights")
        return scores * visible

    def mix(self, weights: Tensor, v: Tensor, queries: Side, keys: Side) -> Tensor:
        self.called.append("mix")
        return weights @ v


def test_hooks_are_called_and_applied_in_their_order() -> None:
    encoding, (x, q, k, v) = Recording(), inputs(5)
    result = attention(encoding, x, q, k, v, torch.arange(5))
    order = [hook for hook in encoding.called if hook != "visible"]  # adjust is told what is visible
    assert order == ["prepare", "transform", "scores", "logit_scale", "bias", "adjust", "weights", "mix"]
    # The scale is that of the model's own width, whatever transform widened.
    scores = 2 * (q @ k.mT) / K**0.5 * x[:, None, :, :1] + 0.25
    assert worst(result, scores.square().tril() @ v) < 1e-12


def test_transform_sees_all_keys_and_a_block_of_queries_those_that_it_may() -> None:
    class Seen(LayerEncoding):
        def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
            assert queries.x.shape[-2] == keys.x.shape[-2] == 7
            return queries.x, keys.x

        def mix(self, weights: Tensor, v: Tensor, queries: Side, keys: Side) -> Tensor:
            assert weights.shape[-2] == len(queries.index) <= 2
            assert len(keys.index) == v.shape[-2] == queries.index[-1] + 1
            return weights @ v

    result = reference_attention(Seen(), *inputs(7), position=torch.arange(7), block=2)
    assert worst(result, reference_attention(NoPE(), *inputs(7), position=torch.arange(7))) < 1e-12


@pytest.mark.parametrize(
    "encoding", [NoPE(), RoPE(d_head=K), ALiBi(H), FoX(D, H), StickBreaking(), SlidingWindow(9), Shaw(K)]
)
def test_a_window_is_the_sliding_window_of_that_many_tokens(encoding: LayerEncoding) -> None:
    encoding, position = encoding.double(), torch.arange(11)
    limited = attention(encoding, *inputs(11), position=position, window=4)
    inside = Stack([encoding, SlidingWindow(4)])
    assert worst(limited, reference_attention(inside, *inputs(11), position=position)) < 1e-12
    unlimited = attention(encoding, *inputs(11), position=position)
    assert worst(limited, unlimited) > 1e-3
    # In blocks, keys before the window of a block's first query are left out.
    blocks = reference_attention(encoding, *inputs(11), position=position, window=4, block=2)
    assert worst(blocks, limited) < 1e-12
    everything = attention(encoding, *inputs(11), position=position, window=11)
    assert worst(everything, unlimited) < 1e-12


def path_of(encoding: LayerEncoding, position: Tensor | None = None) -> str:
    """Which path `attention` takes."""
    position = torch.arange(5) if position is None else position
    return choose(encoding, inputs(5)[1], position).name


@pytest.mark.parametrize(
    ("encoding", "path"),
    [
        (NoPE(), "fused"),
        (RoPE(d_head=K), "fused"),
        (LogN(2), "fused"),
        (Stack([RoPE(d_head=K), LogN(2)]), "fused"),
        (ALiBi(H), "fused distance"),
        (Stack([ALiBi(H), LogN(2)]), "fused distance"),
        (FoX(D, H), "fused column"),
        (Stack([FoX(D, H), LogN(2)]), "fused column"),
        (Shaw(K), "reference"),
        (CoPE(K), "reference"),
        (StickBreaking(), "reference"),
        (Stack([RoPE(d_head=K), SlidingWindow(3)]), "fused chunk"),
    ],
)
def test_the_path_follows_from_the_hooks_that_are_overridden(encoding: LayerEncoding, path: str) -> None:
    assert path_of(encoding) == path


@pytest.mark.parametrize("tokens", [1, 2, 3, 17, FUSED_QUERIES, FUSED_QUERIES + 1, 2 * FUSED_QUERIES + 77])
@pytest.mark.parametrize("make", [lambda: ALiBi(H), lambda: T5(D, H), lambda: stack(ALiBi(H), LogN(5))])
def test_table_of_distances_is_the_reference_at_any_length(make, tokens: int) -> None:
    encoding, position = make().double(), torch.arange(tokens)
    with torch.no_grad():
        fast = fused_distance_attention(encoding, *inputs(tokens), position)
        sample = sorted({0, tokens // 2, tokens - 1, min(tokens - 1, FUSED_QUERIES)})
        for row in sample:
            exact = reference_attention(encoding, *inputs(tokens), position, rows=range(row, row + 1))
            assert worst(fast[:, :, row : row + 1], exact) < 1e-6
    assert fast.isfinite().all()


@pytest.mark.parametrize(
    ("make", "fused"),
    [
        (lambda: NoPE(), fused_attention),
        (lambda: RoPE(d_head=K), fused_attention),
        (lambda: stack(RoPE(d_head=K), LogN(5)), fused_attention),
        (lambda: ALiBi(H), fused_distance_attention),
        (lambda: FoX(D, H), fused_column_attention),
        (lambda: stack(FoX(D, H), RoPE(d_head=K), LogN(5)), fused_column_attention),
    ],
)
def test_gradients_of_a_fast_path_are_those_of_the_reference(make, fused) -> None:
    torch.manual_seed(0)
    encoding, position = make().double(), torch.arange(19)
    leaves = [tensor.requires_grad_() for tensor in inputs(19)]
    seen = {
        id(parameter): parameter
        for part in getattr(encoding, "_parts", [encoding])
        for parameter in part.parameters()
    }
    wanted = [*leaves, *seen.values()]
    weight = torch.randn(B, H, 19, K, dtype=torch.float64)

    def gradients(path) -> list[Tensor | None]:
        output = path(encoding, *leaves, position)
        return list(torch.autograd.grad((output * weight).sum(), wanted, allow_unused=True))

    for fast, exact in zip(gradients(fused), gradients(reference_attention), strict=True):
        assert (fast is None) == (exact is None)
        if fast is not None and exact is not None:
            assert worst(fast, exact) < 1e-6


def test_columns_of_a_composition_are_the_sum_of_its_biases() -> None:
    class MoreColumns(LayerEncoding):
        """A second low-rank bias: -j / 10."""

        def bias(self, queries: Side, keys: Side) -> Tensor:
            return (-keys.index / 10).double().expand(H, len(queries.index), -1)

        def columns(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
            ones = torch.ones(len(queries.index), 1, dtype=torch.float64)
            return ones.expand(B, H, -1, -1), (-keys.index[:, None] / 10).double().expand(B, H, -1, -1)

    encoding = Stack([FoX(D, H).double(), MoreColumns(), LogN(5)])
    exact = reference_attention(encoding, *inputs(9), position=torch.arange(9))
    assert worst(fused_column_attention(encoding, *inputs(9), torch.arange(9)), exact) < 1e-10


def test_a_bias_without_columns_is_not_left_out_of_a_composition() -> None:
    encoding = Stack([FoX(D, H).double(), ALiBi(H).double()])
    exact = reference_attention(encoding, *inputs(9), position=torch.arange(9))
    assert worst(attention(encoding, *inputs(9), position=torch.arange(9)), exact) < 1e-12
    alone = reference_attention(FoX(D, H).double(), *inputs(9), position=torch.arange(9))
    assert worst(exact, alone) > 1e-3


class RawScores(LMInfinite):
    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        return scale * (queries.raw @ keys.raw.mT)


class Everything(SlidingWindow):
    def visible(self, queries: Side, keys: Side) -> Tensor:
        return keys.index <= queries.index.unsqueeze(-1)


class Halved(FoX):
    def bias(self, queries: Side, keys: Side) -> Tensor:
        return 0.5 * super().bias(queries, keys)


@pytest.mark.parametrize(
    "encoding",
    [RawScores(K, window=4), Everything(2), Halved(D, H)],
    ids=lambda encoding: type(encoding).__name__,
)
@pytest.mark.parametrize("trains", [False, True])
def test_a_class_that_changes_a_hook_does_not_inherit_the_faster_form_of_the_old_one(encoding, trains):
    x, q, k, v = inputs(700, torch.float32)
    given = (x, q.requires_grad_(trains), k.requires_grad_(trains), v, torch.arange(700))
    with torch.set_grad_enabled(trains):
        assert worst(attention(encoding, *given), reference_attention(encoding, *given)) < 1e-6
