"""Fused attention plus a bias of the distance, without a tensor of T x T.

Letters: B batch, H query heads, T tokens, Q queries and N keys of one block, K head width, D model width.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from pe_bench.attention.fused import scale_queries
from pe_bench.attention.reference import precise, sides
from pe_bench.encodings.base import LayerEncoding

# So many queries are taken at a time.
FUSED_QUERIES = 1_024


def fused_distance_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: None = None
) -> Tensor:
    """For encodings with a `distance_bias`, at positions that count tokens.

    With the queries in reverse order the bias of query i' and key j depends on i' + j alone: a
    Hankel matrix, which is a view with strides (1, 1) of a vector of one value for each
    distance. Keys after the query lie at the end of that vector, at minus infinity.
    """
    table = encoding.distance_bias(torch.arange(q.shape[-2], device=q.device))
    assert table is not None
    queries, keys = sides(encoding, x, q, k, position)
    scaled = scale_queries(encoding, queries)
    # [H, T + FUSED_QUERIES]: distance T-1 first, then 0, then the keys that may not be seen.
    # The CPU kernel takes a float32 mask for half precision queries; others want one type.
    dtype = precise(q.dtype) if q.device.type == "cpu" else q.dtype
    falling = functional.pad(table.flip(-1), (0, FUSED_QUERIES), value=float("-inf")).to(dtype)
    outputs = []
    for start in range(0, q.shape[-2], FUSED_QUERIES):
        stop = min(start + FUSED_QUERIES, q.shape[-2])
        mask = _hankel(falling[:, q.shape[-2] - stop :], stop - start, stop)
        block = functional.scaled_dot_product_attention(
            scaled[:, :, start:stop].flip(-2),
            keys.x[:, :, :stop],
            v[:, :, :stop],
            attn_mask=mask,
            scale=1 / math.sqrt(q.shape[-1]),
        )
        outputs.append(block.flip(-2))
    return torch.cat(outputs, -2)


def can_tabulate(position: Tensor) -> bool:
    """Whether the bias at these positions is a table: one value for each distance in tokens."""
    if position.dim() != 1 or position.is_floating_point():
        return False
    return bool((position.diff() == 1).all())


def _hankel(vector: Tensor, rows: int, columns: int) -> Tensor:
    """[1, H, rows, columns] whose entry (i, j) is vector[:, i + j], without a copy."""
    heads = vector.shape[0]
    return vector.as_strided((1, heads, rows, columns), (0, vector.stride(0), 1, 1))
