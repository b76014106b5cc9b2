"""Attention with any encoding: the reference that defines the truth, and the fast paths.

A path is chosen from the hooks that an encoding overrides, never by its name (`choose`). Every fast path
gives what the reference gives.
"""

from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.model.attention.paths import choose, is_kernel_here, training_kernel
from pe_bench.model.attention.reference import (
    logits,
    precise,
    project,
    reference_attention,
    slice_tokens,
    weigh,
)

__all__ = [
    "attention",
    "choose",
    "is_kernel_here",
    "logits",
    "precise",
    "project",
    "reference_attention",
    "slice_tokens",
    "training_kernel",
    "weigh",
]


def attention(
    encoding: LayerEncoding,
    x: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    position: Tensor,
    window: int | None = None,
) -> Tensor:
    """Return the attention output [B, H, T, K] of one layer, on the fastest path that is exact.

    `x` [B, T, D] is the layer's input, `q`, `k` and `v` are [B, H, T, K], `position` is [T] or
    [B, T]. Queries may be those of the last tokens alone. `window` limits every query to the last
    `window` tokens, from outside the encoding.
    """
    return choose(encoding, q, position, window).run(encoding, x, q, k, v, position, window)
