"""A bias of the distance costs no T x T tensor, and keys are left out where they provably weigh nothing."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.attending import H, K
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.inspection.check.case import as_type, largest_difference, layer_inputs
from pe_bench.model.attention import fused, reference_attention
from pe_bench.model.attention.fused import (
    KEYS_PER_BLOCK,
    QUERIES_PER_CHUNK,
    NegligibleKeys,
    fused_distance_attention,
)

TOKENS = 4_096 + 77
# The pairs of a query and a key, of one head each, when nothing is left out.
ALL_PAIRS = H * sum(
    min(QUERIES_PER_CHUNK, TOKENS - first) * min(first + QUERIES_PER_CHUNK, TOKENS)
    for first in range(0, TOKENS, QUERIES_PER_CHUNK)
)
# Where chunks and blocks begin and end, and the last row, whose first keys are the furthest.
ROWS = (0, 1, QUERIES_PER_CHUNK - 1, QUERIES_PER_CHUNK, 1_500, 1_800, 2_500, 3_328, TOKENS - 78, TOKENS - 1)


def inputs(batch: int = 1, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return as_type(layer_inputs(TOKENS, batch=batch), dtype)


class Table(LayerEncoding):
    """The same bias of each distance for all heads."""

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

    def counting(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Tensor:
        counts.append(q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2])
        return kernel(q, k, v, *options)

    monkeypatch.setattr(fused, "fused", counting)
    return counts


@torch.no_grad()
def largest_relative_error(encoding: LayerEncoding, arguments: Sequence[Tensor]) -> float:
    """Return the largest difference of outputs from the reference in float64, in some rows."""
    position, largest = torch.arange(TOKENS), 0.0
    fast = fused_distance_attention(encoding, *arguments, position)
    exact = as_type(arguments, torch.float64)
    for row in ROWS:
        truth = reference_attention(encoding.double(), *exact, position=position, rows=range(row, row + 1))
        error = largest_difference(fast[:, :, row : row + 1], truth)
        largest = max(largest, error / max(1.0, float(truth.abs().max())))
    return largest


def test_far_keys_are_left_out_and_no_output_moves(touched: list[int]) -> None:
    assert largest_relative_error(ALiBi(H), inputs(dtype=torch.float32)) < 1e-6
    assert sum(touched) < 0.8 * ALL_PAIRS
    touched.clear()
    x, q, k, v = inputs(dtype=torch.float32)
    v.requires_grad_()
    fused_distance_attention(ALiBi(H), x, q, k, v, torch.arange(TOKENS))
    assert sum(touched) == ALL_PAIRS, "nothing is left out where a gradient is wanted"


def test_a_bias_that_rises_again_keeps_the_keys_where_it_does(touched: list[int]) -> None:
    table = falling()
    table[3_000:3_010] = 2.0
    assert largest_relative_error(Table(table), inputs()) < 1e-12
    # Chunks that no such distance is in need no more than without it.
    assert sum(touched) < ALL_PAIRS


def test_far_keys_with_huge_norms_and_huge_values_are_kept() -> None:
    x, q, k, v = inputs(batch=2)
    q[:, :, :, 0] = 1.0
    k[1, 2, 5, 0] = 4_000.0  # of one batch and one head; the slope at the end is 1,000 in all
    assert largest_relative_error(Table(falling()), (x, q, k, v)) < 1e-10
    with torch.no_grad():
        output = fused_distance_attention(Table(falling()), x, q, k, v, torch.arange(TOKENS))
    assert (output[1, 2, -1] - v[1, 2, 5]).abs().max() < 1e-12
    x, q, k, v = inputs()
    v[:, :, :KEYS_PER_BLOCK] *= 1e30
    assert largest_relative_error(Table(falling(0.05)), (x, q, k, v)) < 1e-10


def test_keys_that_are_left_out_have_negligible_weight() -> None:
    _, q, k, v = (0.1 * one for one in inputs(batch=2))  # so small that bounds of scores are tight
    table, start, stop = torch.tensor([[4.0], [1.2], [0.4], [0.12]]) * falling(), 3_072, 3_072 + 150
    distance = torch.arange(start, stop)[:, None] - torch.arange(stop)
    for dtype in (torch.float32, torch.float64):
        reach = NegligibleKeys(*(one.to(dtype) for one in (q, k, v, table)), K**-0.5)
        for head, first in enumerate(reach.first_keys(start, stop)):
            scores = (
                K**-0.5 * q[:, head, start:stop] @ k[:, head, :stop].mT + table[head, distance.clamp(min=0)]
            )
            lost = scores.masked_fill(distance < 0, -torch.inf).softmax(-1)[:, :, :first].sum(-1)
            assert first > 0 and float(lost.max()) < torch.finfo(dtype).eps / 3
