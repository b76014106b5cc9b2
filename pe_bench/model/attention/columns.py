"""Fused attention plus a low-rank bias, as extra columns of the queries and the keys.

Letters: B batch, H query heads, T tokens, Q queries and N keys of one block, K head width, D model width.
"""

import math

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.model.attention.fused import fused_causal, times
from pe_bench.model.attention.reference import precise, project


def fused_column_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: None = None
) -> Tensor:
    """Serve encodings with `columns` and nothing else but `transform`, `logit_scale` and `null_logit`."""
    queries, keys = project(encoding, x, q, k, position)
    of_query, of_key = encoding.columns(queries, keys)
    # Columns are cumulative sums and positions, which half precision cannot hold, and no scale may round.
    dtype = precise(q.dtype)
    scaled = times(queries.x.to(dtype), encoding.logit_scale(queries)) / math.sqrt(q.shape[-1])
    wide_q = torch.cat([_like(of_query, scaled, dtype), scaled], -1)
    wide_k = torch.cat([_like(of_key, keys.x, dtype), keys.x.to(dtype)], -1)
    return fused_causal(wide_q, wide_k, v.to(dtype), 1.0, encoding.null_logit(queries)).to(v.dtype)


def _like(columns: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return columns [.., n, c] spread over the batch and the heads of x."""
    return columns.expand(*x.shape[:-1], columns.shape[-1]).to(dtype)
