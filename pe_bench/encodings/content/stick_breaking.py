r"""Stick-breaking attention: w_ij = s(z_ij) prod_{j < l < i} (1 - s(z_il)), s the sigmoid; no softmax.

Each query breaks a stick at the keys strictly before it, the nearest first, so that of two equal
scores the nearer wins. What is left, 1 - sum_j w_ij, goes to the token's own value (`remainder`).

$w_{ij} = \sigma(z_{ij}) \prod_{j < l < i} (1 - \sigma(z_{il})), \quad j < i$

Past the training length: defined, nothing changes.

Tan et al. 2025, "Scaling Stick-Breaking Attention: An Efficient Implementation and In-depth
Study", ICLR, arXiv:2410.17980.

The authors' kernel leaves the remainder to its caller. Without it the first token's output is 0.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pe_bench.encodings.base import LayerEncoding, Side, precise
from pe_bench.encodings.content.running_sums import suffix_sums


class StickBreaking(LayerEncoding):
    """Options:

    remainder: give what is left of the stick to the token's own value
    """

    def __init__(self, remainder: bool = True):
        super().__init__()
        self.remainder = remainder

    def visible(self, queries: Side, keys: Side) -> Tensor:
        return keys.index < queries.index.unsqueeze(-1)

    def weights(self, scores: Tensor, visible: Tensor) -> Tensor:
        weights: Tensor = _Breaking.apply(scores, visible)
        return weights

    def mix(self, weights: Tensor, v: Tensor, queries: Side, keys: Side) -> Tensor:
        output = weights @ v
        if not self.remainder:
            return output
        total = weights.sum(-1, keepdim=True, dtype=precise(weights.dtype))
        remainder = (1 - total).to(v.dtype)
        own_key = queries.index - keys.index[0]
        return output + remainder * v[..., own_key, :]


class _Breaking(torch.autograd.Function):
    """The weights, with a gradient written by hand: automatic differentiation takes twice as long or more.

    With g the gradient of w, the gradient of z_ij is w_ij g_ij - s(z_ij) sum_{l <= j} w_il g_il.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, visible: Tensor) -> Tensor:
        def log_remainders(keys: slice) -> Tensor:
            log_passed = nn.functional.logsigmoid(-scores[..., keys])
            return log_passed.masked_fill_(~visible[..., keys], 0)

        count = scores.shape[-1]
        least = least_exponent(scores.dtype)
        left = suffix_sums(count, log_remainders, lambda left: left < least)
        near = slice(count - left.shape[-1], count)
        # The stick that reaches key j is left by the keys after j: one place further.
        left_before = nn.functional.pad(left[..., 1:], (0, 1))
        weights = left_before.exp_()
        weights *= scores[..., near].sigmoid()
        weights.masked_fill_(~visible[..., near], 0)
        weights = nn.functional.pad(weights, (near.start, 0)) if near.start else weights
        ctx.save_for_backward(scores, visible, weights)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        scores, visible, weights = ctx.saved_tensors
        weighted = weights * gradients[0]
        sums = weighted.cumsum(-1)
        gradient = weighted.addcmul(scores.sigmoid(), sums, value=-1)
        return gradient.masked_fill_(~visible, 0), None


def least_exponent(dtype: torch.dtype) -> float:
    """Return the exponent below which the exponential is zero."""
    limits = torch.finfo(dtype)
    return math.log(limits.tiny) + math.log(limits.eps) - 1
