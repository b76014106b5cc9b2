"""A bias of the distance costs no T x T tensor, and keys are left out where they provably weigh nothing."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.bias.bam import BAM
from pe_bench.encodings.bias.kerple_log import KerpleLog
from pe_bench.encodings.bias.kerple_power import KerplePower
from pe_bench.encodings.bias.sandwich import Sandwich
from pe_bench.encodings.bias.t5 import T5
from pe_bench.encodings.compose import Stack
from pe_bench.encodings.logits.logn import LogN
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.model.attention import fused, reference_attention
from pe_bench.model.attention.fused import (
    BLOCK,
    FUSED_QUERIES,
    NegligibleKeys,
    fused_distance_attention,
    log_epsilon,
)
from pe_bench.scoring.scorer import flush_denormals

torch.set_num_threads(1)  # tensors are small here, and tests run side by side

H, K = 4, 8
D = H * K
TOKENS = 4_096 + 77
# Where chunks and blocks begin and end, and the last row, whose first keys are the furthest.
ROWS = (0, 1, FUSED_QUERIES - 1, FUSED_QUERIES, 1_500, 1_800, 2_500, 3_328, TOKENS - 78, TOKENS - 1)

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def inputs(batch: int = 1, dtype: torch.dtype = torch.float64) -> Inputs:
    """The input of a layer, queries, keys and values."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, TOKENS, D, generator=generator, dtype=torch.float64)
    q, k, v = torch.randn(3, batch, H, TOKENS, K, generator=generator, dtype=torch.float64)
    return x.to(dtype), q.to(dtype), k.to(dtype), v.to(dtype)


class Table(LayerEncoding):
    """The same given bias of each distance for all heads."""

    def __init__(self, table: Tensor):
        super().__init__()
        self.register_buffer("table", table.expand(H, -1))

    def distance_bias(self, distance: Tensor) -> Tensor:
        return self.get_buffer("table")[:, distance]


def falling(slope: float = 0.25) -> Tensor:
    return -slope * torch.arange(TOKENS, dtype=torch.float64)


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pairs of a query and a key, of one head each, the kernel was given, call by call."""
    counts: list[int] = []
    kernel = fused.fused

    def counting(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> Tensor:
        counts.append(q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2])
        return kernel(q, k, v, *others)

    monkeypatch.setattr(fused, "fused", counting)
    return counts


def everything(queries: int = FUSED_QUERIES) -> int:
    """The pairs when nothing is left out, with so many queries at a time."""
    starts = range(0, TOKENS, queries)
    return H * sum(min(queries, TOKENS - start) * min(start + queries, TOKENS) for start in starts)


@torch.no_grad()
def off(encoding: LayerEncoding, given: Inputs, rows: tuple[int, ...] = ROWS) -> float:
    """The largest difference of the given inputs' outputs from the reference in float64, in some rows."""
    position = torch.arange(TOKENS)
    fast = fused_distance_attention(encoding, *given, position)
    exact = [tensor.double() for tensor in given]
    worst = 0.0
    for row in rows:
        truth = reference_attention(encoding.double(), *exact, position=position, rows=range(row, row + 1))
        worst = max(worst, float((fast[:, :, row : row + 1].double() - truth).abs().max()))
    return worst


def stack(*parts: LayerEncoding) -> Stack:
    """In float64: a stack's parts are registered where they belong, and not in it."""
    return Stack([part.double() for part in parts])


def test_alibi_leaves_out_far_keys_and_no_output_moves(touched: list[int]) -> None:
    assert off(ALiBi(H), inputs(dtype=torch.float32)) < 1e-6
    assert sum(touched) < 0.8 * everything()


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    "make",
    [
        lambda: ALiBi(H),
        lambda: T5(D, H),
        lambda: KerpleLog(H),
        lambda: KerplePower(H),
        lambda: BAM(H),
        lambda: Sandwich(H),
        lambda: stack(ALiBi(H), LogN(5)),
        lambda: stack(RoPE(d_head=K), ALiBi(H)),
    ],
)
def test_outputs_are_those_of_the_reference(make, batch: int) -> None:
    assert off(make().double(), inputs(batch)) < 1e-6  # encodings' tables are of float32 distances


def test_a_bias_that_rises_again_keeps_the_keys_where_it_does(touched: list[int]) -> None:
    table = falling()
    table[3_000:3_010] = 2.0
    assert off(Table(table), inputs()) < 1e-12
    # Chunks that no such distance is in need no more than without it.
    assert sum(touched) < everything()
    learned = BAM(H)
    with torch.no_grad():
        learned.shape.copy_(torch.tensor([1.0, -1.0, -0.5, 2.0]))  # two heads rise
        learned.location.copy_(torch.tensor([0.0, 0.0, -7.0, -8.5]))  # peaks at 1,097 and 4,915
    assert off(learned.double(), inputs()) < 1e-6


def test_a_bias_of_minus_infinity_hides_keys_and_they_cost_nothing(touched: list[int]) -> None:
    table = torch.zeros(TOKENS, dtype=torch.float64)
    table[300:] = -math.inf
    assert off(Table(table), inputs()) < 1e-12
    assert sum(touched) <= H * TOKENS * (FUSED_QUERIES + 2 * BLOCK)
    table[300:310] = 0.0
    table[3_000:] = 1.0
    assert off(Table(table), inputs()) < 1e-12


def test_far_keys_with_huge_norms_are_kept() -> None:
    x, q, k, v = inputs(batch=2)
    q[:, :, :, 0] = 1.0
    k[1, 2, 5, 0] = 4_000.0  # of one batch and one head; the slope at the end is 1,000 in all
    assert off(Table(falling()), (x, q, k, v)) < 1e-10
    with torch.no_grad():
        output = fused_distance_attention(Table(falling()), x, q, k, v, torch.arange(TOKENS))
    assert (output[1, 2, -1] - v[1, 2, 5]).abs().max() < 1e-12


def test_far_values_that_are_huge_count_for_what_they_are() -> None:
    x, q, k, v = inputs()
    v[:, :, :BLOCK] *= 1e30
    moved = fused_distance_attention(Table(falling(0.05)), x, q, k, v, torch.arange(TOKENS))
    for row in ROWS:
        truth = reference_attention(
            Table(falling(0.05)), x, q, k, v, torch.arange(TOKENS), rows=range(row, row + 1)
        )
        assert torch.allclose(moved[:, :, row : row + 1], truth, rtol=1e-10, atol=1e-10)


def test_nothing_is_left_out_where_a_gradient_is_wanted(touched: list[int]) -> None:
    x, q, k, v = inputs(dtype=torch.float32)
    v.requires_grad_()
    fused_distance_attention(ALiBi(H), x, q, k, v, torch.arange(TOKENS))
    assert sum(touched) == everything()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("mean", [0.0, 2.0])
def test_what_is_left_out_has_no_weight(dtype: torch.dtype, size: float, mean: float) -> None:
    _, q, k, v = inputs(batch=2)
    q, k = size * q + mean, size * k + mean
    slopes = torch.tensor([[1.0], [0.3], [0.1], [0.03]], dtype=torch.float64)
    table, start, stop = slopes * falling(1.0), 3_072, 3_072 + 150
    reach = NegligibleKeys(q.to(dtype), k.to(dtype), v.to(dtype), table.to(dtype), K**-0.5)
    firsts = reach.first_keys(start, stop)
    assert firsts[0] > 2_000
    distances = (torch.arange(start, stop)[:, None] - torch.arange(stop)).clamp(min=0)
    for head, first in enumerate(firsts):
        scores = K**-0.5 * q[:, head, start:stop] @ k[:, head, :stop].mT + table[head, distances]
        weights = scores.masked_fill(torch.arange(stop) > torch.arange(start, stop)[:, None], -math.inf)
        lost = weights.softmax(-1)[:, :, :first].sum(-1)
        assert float(lost.max()) < torch.finfo(dtype).eps / 3


def test_the_bound_counts_every_key_of_every_block() -> None:
    """With queries of zero it is tight: only the bias counts, and the row's sum is little more than 1."""
    _, q, k, v = inputs(dtype=torch.float32)
    table = torch.full((H, TOKENS), -12.0)
    table[:, 0] = 0.0
    single, block = log_epsilon(torch.float32), log_epsilon(torch.float32) - math.log(BLOCK)
    table[:, 500:] = torch.tensor([[single - 0.1], [block + 0.1], [block - 0.1], [block - math.log(3) - 0.1]])
    firsts = NegligibleKeys(0 * q, k, torch.ones_like(v), table, K**-0.5).first_keys(
        3_072, 3_072 + FUSED_QUERIES
    )
    assert firsts == [0, 0, BLOCK, 3 * BLOCK]


def flushed(tiny: Tensor) -> set[bool]:
    """Whether the first and the last of many products, which two threads make, are zeros."""
    products = (tiny * 1.0).view(torch.int32)  # as bits: where denormals count as zeros, one equals zero
    return {bool(products[0] == 0), bool(products[-1] == 0)}


def test_denormals_are_zeros_in_all_threads_while_they_are_flushed() -> None:
    tiny = torch.full((1_000_000,), 1e-39)
    torch.set_num_threads(2)
    try:
        assert flushed(tiny) == {False}
        with flush_denormals():
            assert flushed(tiny) == {True}
            with flush_denormals():
                assert flushed(tiny) == {True}
            assert flushed(tiny) == {True}
        assert flushed(tiny) == {False}
        with pytest.raises(RuntimeError), flush_denormals():
            raise RuntimeError
        assert flushed(tiny) == {False}
    finally:
        torch.set_num_threads(1)
