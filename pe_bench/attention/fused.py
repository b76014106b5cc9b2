"""PyTorch's fused causal attention, for encodings that only transform and scale queries and keys.

Letters: B batch, H query heads, T tokens, Q queries and N keys of one block, K head width, D model width.
"""

import math

from torch import Tensor
from torch.nn import functional

from pe_bench.attention.reference import sides
from pe_bench.encodings.base import LayerEncoding, Side


def fused_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: None = None
) -> Tensor:
    """For encodings with `transform` and `logit_scale` alone."""
    queries, keys = sides(encoding, x, q, k, position)
    return fused_causal(scale_queries(encoding, queries), keys.x, v, 1 / math.sqrt(q.shape[-1]))


def fused_causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The fused kernels want one width for all three: the values are padded to that of the queries."""
    wide_v = functional.pad(v, (0, q.shape[-1] - v.shape[-1])) if q.shape[-1] > v.shape[-1] else v
    output = functional.scaled_dot_product_attention(q, k, wide_v, is_causal=True, scale=scale)
    return output[..., : v.shape[-1]]


def scale_queries(encoding: LayerEncoding, queries: Side) -> Tensor:
    factor = encoding.logit_scale(queries)
    return queries.x if factor is None else (queries.x * factor).to(queries.x.dtype)
