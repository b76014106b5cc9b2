"""Fused attention plus a bias of the distance, without a tensor of T x T.

Letters: B batch, H query heads, T tokens, Q queries and N keys of one chunk, K head width, D model width.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional

from pe_bench.encodings.base import LayerEncoding
from pe_bench.model.attention.fused import fused, scale_queries
from pe_bench.model.attention.negligible import NegligibleKeys, is_worthwhile
from pe_bench.model.attention.reference import precise, project

# So many queries are taken at a time, the more in texts of more than `LONG` tokens. Fewer see fewer keys in
# vain: those after a query, and those that only another one needs. But from 768 on the CPU's kernel reads the
# keys once for 256 queries and not for 64, which counts where they do not fit the processor's caches.
FUSED_QUERIES = 256
FUSED_QUERIES_LONG = 1_024
LONG = 8_192


def fused_distance_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: None = None
) -> Tensor:
    """Serve encodings with a `distance_bias`, at positions that count tokens.

    With the queries in reverse order the bias of query i' and key j depends on i' + j alone: a
    Hankel matrix, which is a view with strides (1, 1) of a vector of one value for each
    distance. Keys after the query lie at the end of that vector, at minus infinity.

    Where no gradient is wanted, keys that have provably no weight are left out (`NegligibleKeys`).
    """
    table = distance_table(encoding, q)
    assert table is not None
    queries, keys = project(encoding, x, q, k, position)
    scaled, scale = scale_queries(encoding, queries), 1 / math.sqrt(q.shape[-1])
    null = encoding.null_logit(queries)
    null = None if null is None else null.expand(*q.shape[:-1], 1)
    skips = is_worthwhile(table) and not _learns(scaled, keys.x, v)
    negligible = NegligibleKeys(scaled, keys.x, v, table, scale) if skips else None
    # The CPU kernel takes a float32 mask for half precision queries; others want one type.
    dtype = precise(q.dtype) if q.device.type == "cpu" else q.dtype
    size = FUSED_QUERIES if q.shape[-2] <= LONG else FUSED_QUERIES_LONG
    # [H, T + size]: distance T-1 first, then 0, then the keys that may not be seen.
    falling = functional.pad(table.flip(-1), (0, size), value=float("-inf")).to(dtype)
    chunks = []
    for start in range(0, q.shape[-2], size):
        stop = min(start + size, q.shape[-2])
        reversed_q = scaled[:, :, start:stop].flip(-2)
        reversed_null = None if null is None else null[:, :, start:stop].flip(-2)
        needed = negligible.first_keys(start, stop) if negligible else [0] * q.shape[1]
        outputs = []
        for heads, first in _heads_together(needed):
            mask = _hankel(falling[heads, q.shape[-2] - stop + first :], stop - start, stop - first)
            seen, values = keys.x[:, heads, first:stop], v[:, heads, first:stop]
            of_heads = None if reversed_null is None else reversed_null[:, heads]
            outputs.append(fused(reversed_q[:, heads], seen, values, mask, scale, of_heads))
        chunks.append(torch.cat(outputs, 1).flip(-2))
    return torch.cat(chunks, -2)


def distance_table(encoding: LayerEncoding, q: Tensor) -> Tensor | None:
    """Return the bias [H, T] of every distance for queries [B, H, T, K]; heads may share one."""
    table = encoding.distance_bias(torch.arange(q.shape[-2], device=q.device))
    return None if table is None else table.expand(q.shape[1], q.shape[-2])


def can_tabulate(position: Tensor) -> bool:
    """Return whether the bias at these positions is a table: one value for each distance in tokens."""
    if position.dim() != 1 or position.is_floating_point():
        return False
    return bool((position.diff() == 1).all())


def _learns(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _heads_together(needed: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Yield neighbouring heads that need the same first key, and that key."""
    start = 0
    for first, heads in groupby(needed):
        stop = start + len(list(heads))
        yield slice(start, stop), first
        start = stop


def _hankel(vector: Tensor, rows: int, columns: int) -> Tensor:
    """Return [1, H, rows, columns] whose entry (i, j) is vector[:, i + j], without a copy."""
    heads = vector.shape[0]
    return vector.as_strided((1, heads, rows, columns), (0, vector.stride(0), 1, 1))
