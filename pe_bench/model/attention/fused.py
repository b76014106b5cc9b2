"""PyTorch's fused causal attention, for encodings that only transform and scale queries and keys.

Letters: B batch, H query heads, T tokens, Q queries and N keys of one block, K head width, D model width.
"""

import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.model.attention.reference import precise, project


def fused_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: None = None
) -> Tensor:
    """Serve encodings with `transform` and `logit_scale` alone."""
    queries, keys = project(encoding, x, q, k, position)
    return fused_causal(scale_queries(encoding, queries), keys.x, v, 1 / math.sqrt(q.shape[-1]))


def fused_causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Return causal attention of as many queries as keys."""
    if torch.is_grad_enabled() or q.shape[-1] <= v.shape[-1]:
        return fused(q, k, v, None, scale)
    # Padded values would take as much memory as the widened keys: those of one head at a time do not.
    heads = zip(q.split(1, 1), k.split(1, 1), v.split(1, 1), strict=True)
    return torch.cat([fused(*head, mask=None, scale=scale) for head in heads], 1)


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attend with what `mask` [1 or B, 1 or H, Q, N] or [Q, N] shows or adds, or else causally.

    The fused kernels want one width for all three: what is narrower is padded.
    """
    wide_q, wide_k, wide_v = _as_wide(q, k, v)
    # Autocast would turn into half precision what has to be float32 here: sums, and their biases.
    with torch.autocast(q.device.type, enabled=False):
        output = functional.scaled_dot_product_attention(
            wide_q, wide_k, wide_v, attn_mask=mask, is_causal=mask is None, scale=scale
        )
    return output[..., : v.shape[-1]]


def fused_with_lse(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the output, and the log-sum-exp [B, H, Q, 1] of the logits.

    `mask` is as in `fused`, and without one all keys are visible. On a CPU, and without gradients.
    """
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=precise(q.dtype)).masked_fill_(~mask, float("-inf"))
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *_as_wide(q, k, v), 0.0, False, attn_mask=mask, scale=scale
    )
    output, lse = output[..., : v.shape[-1]], lse.unsqueeze(-1)
    # The kernel returns 0 for a query that sees nothing.
    return output, lse if mask is None else lse.masked_fill(
        mask.amax(-1, keepdim=True).isneginf(), float("-inf")
    )


def merge_by_lse(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Join outputs over parts of the keys, each with its log-sum-exp, into the output over all."""
    if len(parts) == 1:
        return parts[0][0]
    total = reduce(torch.logaddexp, [lse for _, lse in parts])
    return reduce(torch.add, [(lse - total).exp() * output for output, lse in parts])


def _as_wide(*tensors: Tensor) -> list[Tensor]:
    """Return all of them, padded with zeros to the width of the widest."""
    widest = max(x.shape[-1] for x in tensors)
    return [x if x.shape[-1] == widest else functional.pad(x, (0, widest - x.shape[-1])) for x in tensors]


def scale_queries(encoding: LayerEncoding, queries: Side) -> Tensor:
    return times(queries.x, encoding.logit_scale(queries))


def times(x: Tensor, factor: Tensor | None) -> Tensor:
    """Return x [B, H, Q, *] times the `logit_scale` of its queries."""
    return x if factor is None else (x * factor).to(x.dtype)
