r"""Wall attention: each feature is forgotten apart, z_ij = sum_n q_in k_jn e^{P_in - P_jn} / sqrt(K).

P_t = sum_{s <= t} ln f_s with K forget gates f_s = sigmoid(W_h x_s + b_h) of each head and layer, read from
the layer's input; b_h is 8 at first, so that a feature keeps all but 1/3000 of itself at each token.

$z_{ij} = \frac{1}{\sqrt{K}} \sum_n q_{in} k_{jn}\, e^{P_{in} - P_{jn}}, \quad P_t = \sum_{s \le t} \ln
\sigma(W_h x_s + b_h)$

Past the training length: defined; what is far away was forgotten by then, or was never to be.

Averbuch and Pai 2026, Tilde Research, in https://github.com/fla-org/flash-linear-attention,
`layers/wall_attn.py` and `ops/wall_attn/naive.py`; no paper is known.

There one further gate of each head, an output gate and norms of queries and keys may be added, and are not by
default; they are left out. W is N(0, 1/D) at first, as all linear layers here. It runs on the reference path,
over ever smaller blocks of keys.
"""

import math

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, Side, full_precision

FORGOTTEN = "wall_log_forget"
INITIAL_BIAS = 8.0


class Wall(LayerEncoding):
    per_layer = True

    def __init__(self, d_model: int, n_heads: int, d_head: int):
        super().__init__()
        self.n_heads = n_heads
        self.weight = nn.Parameter(torch.randn(n_heads * d_head, d_model) / math.sqrt(d_model))
        self.intercept = nn.Parameter(torch.full((n_heads * d_head,), INITIAL_BIAS))

    def prepare(self, x: Tensor) -> dict[str, Tensor]:
        # A sum over thousands of tokens: never in half precision, not even where a model is autocast.
        with full_precision(x):
            gate = nn.functional.linear(x.to(self.weight.dtype), self.weight, self.intercept)
            passed = nn.functional.logsigmoid(gate).mT.double().cumsum(-1)
            return {FORGOTTEN: passed.unflatten(1, (self.n_heads, -1))}  # [B, H, K, T]

    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        """Multiply what is left of queries and of keys at a token between them, so that neither overflows.

        For the keys before the block that is its first query; for those in it `_within`.
        """
        dtype = torch.promote_types(queries.x.dtype, torch.float32)
        q, k = queries.x.to(dtype), keys.x.to(dtype)
        of_query, of_key = queries.values[FORGOTTEN].mT, keys.values[FORGOTTEN].mT  # [B, H, n, K]
        before = k.shape[-2] - q.shape[-2]
        first = of_query[..., :1, :]
        faded_q = q * (of_query - first).to(dtype).exp()
        faded_k = k[..., :before, :] * (first - of_key[..., :before, :]).to(dtype).exp()
        within = _within(q, k[..., before:, :], of_query)
        return scale * torch.cat([faded_q @ faded_k.mT, within], -1)


def _within(q: Tensor, k: Tensor, passed: Tensor) -> Tensor:
    """Return the scores of as many keys as queries [.., n, K]; those of keys after a query are 0.

    Keys of the first half of a block fade up to its middle and queries of the second half from there. Halves
    are blocks likewise, all of one size at once.
    """
    count, width = q.shape[-2:]
    size = 1 << (count - 1).bit_length()
    padded = (0, 0, 0, size - count)
    q, k = nn.functional.pad(q, padded), nn.functional.pad(k, padded)
    passed = torch.cat([passed, passed[..., -1:, :].expand(*passed.shape[:-2], size - count, width)], -2)
    scores = (q * k).sum(-1)[..., None, None]
    half = 1
    while half < size:
        (_, q_later), (k_earlier, _), (p_earlier, p_later) = (
            x.unflatten(-2, (-1, 2, half)).unbind(-3) for x in (q, k, passed)
        )
        middle = p_later[..., :1, :]
        faded_q = q_later * (p_later - middle).to(q.dtype).exp()
        faded_k = k_earlier * (middle - p_earlier).to(q.dtype).exp()
        first, second = scores.unflatten(-3, (-1, 2)).unbind(-3)
        upper = torch.cat([first, torch.zeros_like(first)], -1)
        scores = torch.cat([upper, torch.cat([faded_q @ faded_k.mT, second], -1)], -2)
        half *= 2
    return scores.squeeze(-3)[..., :count, :count]
