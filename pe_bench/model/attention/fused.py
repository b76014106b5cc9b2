"""PyTorch's fused causal attention, for encodings that only transform and scale queries and keys.

Letters: B batch, H query heads, T tokens, Q queries and N keys of one block, K head width, D model width.
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.model.attention.reference import precise, project, share_of_keys


def fused_attention(
    encoding: LayerEncoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, position: Tensor, window: None = None
) -> Tensor:
    """Serve encodings with `transform`, `logit_scale` and `null_logit` alone."""
    queries, keys = project(encoding, x, q, k, position)
    scaled, null = scale_queries(encoding, queries), encoding.null_logit(queries)
    return fused_causal(scaled, keys.x, v, 1 / math.sqrt(q.shape[-1]), null)


def fused_causal(q: Tensor, k: Tensor, v: Tensor, scale: float, null: Tensor | None = None) -> Tensor:
    """Return causal attention of as many queries as keys."""
    if torch.is_grad_enabled() or q.shape[-1] <= v.shape[-1]:
        return fused(q, k, v, None, scale, null)
    # Padded values would take as much memory as the widened keys: those of one head at a time do not.
    nulls = [None] * q.shape[1] if null is None else null.expand(*q.shape[:-1], 1).split(1, 1)
    heads = zip(q.split(1, 1), k.split(1, 1), v.split(1, 1), nulls, strict=True)
    return torch.cat([fused(*qkv, mask=None, scale=scale, null=of_head) for *qkv, of_head in heads], 1)


def fused(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, null: Tensor | None = None
) -> Tensor:
    """Attend with what `mask` [1 or B, 1 or H, Q, N] or [Q, N] shows or adds, or else causally.

    The fused kernels want one width for all three: what is narrower is padded. `null` is the null logit,
    only on a CPU.
    """
    wide_q, wide_k, wide_v = _as_wide(q, k, v)
    if null is not None:
        return _beside_null(wide_q, wide_k, wide_v, mask, scale, null)[..., : v.shape[-1]]
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
    mask = _added(mask, q)
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *_as_wide(q, k, v), 0.0, False, attn_mask=mask, scale=scale
    )
    output, lse = output[..., : v.shape[-1]], lse.unsqueeze(-1)
    # The kernel returns 0 for a query that sees nothing.
    return output, lse if mask is None else lse.masked_fill(
        mask.amax(-1, keepdim=True).isneginf(), float("-inf")
    )


def merge_by_lse(parts: Sequence[tuple[Tensor, Tensor]], null: Tensor | None = None) -> Tensor:
    """Join outputs over parts of the keys, each with its log-sum-exp, into the output over all."""
    if len(parts) == 1 and null is None:
        return parts[0][0]
    total = reduce(torch.logaddexp, [*(lse for _, lse in parts), *([] if null is None else [null])])
    return reduce(torch.add, [(lse - total).exp() * output for output, lse in parts])


class _BesideNull(torch.autograd.Function):
    """Attention with a null logit [B, H, Q, 1], by the CPU's kernel without one.

    The null logit scales an output and adds to the log-sum-exp. From these two the kernel's gradients follow,
    with the null logit or without: weights are exp(logit - log-sum-exp), and the mean of their gradients is
    the product of the output and its gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, null: Tensor, mask: Tensor | None, scale: float
    ) -> Tensor:
        output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, mask is None, attn_mask=mask, scale=scale
        )
        lse = lse.unsqueeze(-1)
        output = (output * share_of_keys(lse, null)).to(output.dtype)
        total = torch.logaddexp(lse, null.to(lse.dtype))
        ctx.save_for_backward(q, k, v, null, mask, output, total)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _backward_once(ctx, *gradients)


@once_differentiable
def _backward_once(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, null, mask, output, total = ctx.saved_tensors
    of_qkv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, q, k, v, output, total.squeeze(-1), 0.0, mask is None, attn_mask=mask, scale=ctx.scale
    )
    return *of_qkv, gradient_of_null(null, total, output, gradient), None, None


def gradient_of_null(null: Tensor, total: Tensor, output: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient [B, H, Q, 1] of a null logit: its value is 0, and the mean is the product."""
    mean = (output * gradient).sum(-1, keepdim=True, dtype=total.dtype)
    return (-(null - total).exp() * mean).to(null.dtype)


def _beside_null(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, null: Tensor) -> Tensor:
    heads = torch.broadcast_shapes(q.shape[:2], k.shape[:2], v.shape[:2])
    q, k, v = (x.expand(*heads, *x.shape[2:]) for x in (q, k, v))
    output = _BesideNull.apply(q, k, v, null.expand(*q.shape[:-1], 1), _added(mask, q), scale)
    assert isinstance(output, Tensor)
    return output


def _added(mask: Tensor | None, q: Tensor) -> Tensor | None:
    """Return what a mask adds to the logits."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=precise(q.dtype)).masked_fill_(~mask, float("-inf"))


def _as_wide(*tensors: Tensor) -> list[Tensor]:
    """Return all of them, padded with zeros to the width of the widest."""
    widest = max(x.shape[-1] for x in tensors)
    return [x if x.shape[-1] == widest else functional.pad(x, (0, widest - x.shape[-1])) for x in tensors]


def scale_queries(encoding: LayerEncoding, queries: Side) -> Tensor:
    return times(queries.x, encoding.logit_scale(queries))


def times(x: Tensor, factor: Tensor | None) -> Tensor:
    """Return x [B, H, Q, *] times the `logit_scale` of its queries."""
    return x if factor is None else (x * factor).to(x.dtype)
