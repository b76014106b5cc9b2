r"""ASEntmax: weights that are exactly 0 for most keys, and logits that each query sharpens as the text grows.

The softmax gives way to entmax with alpha = 1.5: w_j = max(0, z_j / 2 - tau)^2, with the tau for which the
weights of a query add up to 1. Before that, the logits of query i, from 0, are multiplied by s_i = delta +
softplus(W_h x_i) ln(i + 2)^(gamma tanh(V_h x_i)), with x the layer's input; biases are not. Each head of each
layer has its own W and V. With `scaled` below 1, only this share of the heads is sharpened, from the last on.

$w_{ij} = \left[ \tfrac{1}{2} s_i z_{ij} - \tau_i \right]_+^2, \quad \sum_j w_{ij} = 1, \quad s_i = \delta +
\text{softplus}(W_h x_i) \ln(i + 2)^{\gamma \tanh(V_h x_i)}$

Past the training length: defined; more keys without weight do not dilute the others.

Vasylenko et al. 2025, "Long-Context Generalization with Sparse Attention", arXiv:2506.16640; as in the code
of the authors, https://github.com/deep-spin/asentmax.

Their models have NAPE as encoding: ALiBi with slopes 1, 1/2, 1/3, .. in half of the heads, and no slopes in
the other half; only the other half is sharpened. Here NAPE with entmax is `encoding=alibi encoding.silent=0.5
encoding.slopes=harmonic modifier=[asentmax] encoding.modifiers.asentmax.scaled=0.5`. tau is exact, by
sorting. A key without weight gets no gradient. W and V are N(0, 1/D) at first, as all linear layers here;
theirs are N(0, 0.0004). Their commands for ASEntmax set `attn_scale_proj_bias=True`, which is off in their
class and adds a learned number, 0 at first, to W_h x_i and another to V_h x_i; here there is none. Attention
runs on the reference path.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pe_bench.encodings.base import LayerEncoding, NotNegative, Share, Side, full_precision

SCALE, POWER = "asentmax_scale", "asentmax_power"
# Relative to the largest logit, after halving: logits 1 or more below the largest have no weight.
BELOW_ALL_LOGITS = -2.0


class ASEntmax(LayerEncoding):
    """Options:

    delta: the least factor of the logits
    gamma: the largest power of ln(i + 2) in the factor
    scaled: share of heads with multiplied logits, counted from the last head
    """

    per_layer = True

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        delta: NotNegative = 1.0,
        gamma: NotNegative = 2.0,
        scaled: Share = 1.0,
    ):
        super().__init__()
        self.delta = delta
        self.gamma = gamma
        count = round(scaled * n_heads)
        self.plain = n_heads - count
        spread = 1 / math.sqrt(d_model)
        self.scale = nn.Parameter(spread * torch.randn(count, d_model))
        self.power = nn.Parameter(spread * torch.randn(count, d_model))

    def prepare(self, x: Tensor) -> dict[str, Tensor]:
        with full_precision(x):
            x = x.to(self.scale.dtype)
            scale = nn.functional.softplus(nn.functional.linear(x, self.scale))
            power = self.gamma * nn.functional.linear(x, self.power).tanh()
            return {SCALE: scale.mT, POWER: power.mT}  # [B, scaled heads, T]

    def logit_scale(self, queries: Side) -> Tensor:
        scale, power = queries.values[SCALE], queries.values[POWER]
        logarithm = (queries.index + 2).double().log().to(scale.dtype)
        factor = self.delta + scale * logarithm**power
        # The plain heads come first.
        factors = nn.functional.pad(factor, (0, 0, self.plain, 0), value=1.0)
        return factors.unsqueeze(-1)

    def weights(self, scores: Tensor, visible: Tensor) -> Tensor:
        weights: Tensor = _Entmax.apply(scores, visible)
        return weights


class _Entmax(torch.autograd.Function):
    """Entmax with alpha = 1.5 over the last axis, exact, with its gradient.

    With r = sqrt(w) and g the gradient of w, the gradient of z is r (g - r . g / sum r).
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, visible: Tensor) -> Tensor:
        shown = scores.masked_fill(~visible, float("-inf"))
        lowest = torch.finfo(scores.dtype).min
        largest = shown.amax(-1, keepdim=True).clamp(min=lowest)
        halved = ((shown - largest) / 2).clamp(min=BELOW_ALL_LOGITS)
        above = (halved - _threshold(halved)).clamp(min=0)
        root = above.masked_fill(~visible, 0)
        ctx.save_for_backward(root)
        return root.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (root,) = ctx.saved_tensors
        weighted = root * gradients[0]
        tiny = torch.finfo(root.dtype).tiny
        total = root.sum(-1, keepdim=True).clamp(min=tiny)
        mean = weighted.sum(-1, keepdim=True) / total
        return weighted - root * mean, None


def _threshold(halved: Tensor) -> Tensor:
    """Return tau [.., 1] of halved logits [.., N] whose largest is 0.

    tau = m - sqrt((1 - k v) / k), with m the mean and v the variance of the k largest logits, for the largest
    k at which tau does not exceed the k-th logit.
    """
    falling = halved.double().sort(-1, descending=True).values
    count = torch.arange(1, halved.shape[-1] + 1, device=halved.device)
    mean = falling.cumsum(-1) / count
    mean_square = falling.square().cumsum(-1) / count
    variance = mean_square - mean.square()
    below_mean = (1 - count * variance).clamp(min=0) / count
    candidates = mean - below_mean.sqrt()
    fitting = (candidates <= falling).sum(-1, keepdim=True)
    last_fitting = fitting.clamp(min=1) - 1
    return candidates.gather(-1, last_fitting).to(halved.dtype)
