r"""Wall attention: each feature is forgotten apart, z_ij = sum_n q_in k_jn e^{P_in - P_jn} / sqrt(K).

P_t = sum_{s <= t} ln f_s with K forget gates f_s = sigmoid(W_h x_s + b_h) of each head and layer, read from
the layer's input; b_h is 8 at first, so that a feature keeps all but 1/3000 of itself at each token.

$z_{ij} = \frac{1}{\sqrt{K}} \sum_n q_{in} k_{jn}\, e^{P_{in} - P_{jn}}, \quad P_t = \sum_{s \le t} \ln
\sigma(W_h x_s + b_h)$

Past the training length: defined; gates forget a token within this length, or never.

Averbuch and Pai 2026, Tilde Research, in https://github.com/fla-org/flash-linear-attention,
`layers/wall_attn.py` and `ops/wall_attn/naive.py`; no paper is known.

There one further gate of each head, an output gate and norms of queries and keys may be added, and are not by
default; they are left out. W is N(0, 1/D) at first, as all linear layers here. It runs on the reference path,
over ever smaller blocks of keys.
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, Side, full_precision, precise
from pe_bench.encodings.initial import random_matrix

LOG_FORGET_KEY = "wall_log_forget"
INITIAL_BIAS = 8.0


class Wall(LayerEncoding):
    per_layer = True

    def __init__(self, d_model: int, n_heads: int, d_head: int):
        super().__init__()
        self.n_heads = n_heads
        self.weight = random_matrix(n_heads * d_head, d_model)
        self.intercept = nn.Parameter(torch.full((n_heads * d_head,), INITIAL_BIAS))

    def prepare(self, x: Tensor) -> dict[str, Tensor]:
        # A sum over thousands of tokens: never in half precision, not even where a model is autocast.
        with full_precision(x):
            x = x.to(self.weight.dtype)
            gate = nn.functional.linear(x, self.weight, self.intercept)
            passed = nn.functional.logsigmoid(gate).mT.double().cumsum(-1)
            return {LOG_FORGET_KEY: passed.unflatten(1, (self.n_heads, -1))}  # [B, H, K, T]

    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        """Return the scores as products of queries and keys that are both faded up to a token between them.

        No fading factor is above 1, so that none overflows. For keys before the block, the token between is
        the block's first query; for keys of the block see `_scores_within_blocks`.
        """
        dtype = precise(queries.x.dtype)
        q = queries.x.to(dtype)
        k = keys.x.to(dtype)
        before = k.shape[-2] - q.shape[-2]
        query_forgotten = queries.values[LOG_FORGET_KEY].mT  # [B, H, Q, K]
        forgotten_before = keys.values[LOG_FORGET_KEY].mT[..., :before, :]
        first = query_forgotten[..., :1, :]
        faded_q = q * (query_forgotten - first).to(dtype).exp()
        faded_k = k[..., :before, :] * (first - forgotten_before).to(dtype).exp()
        within = _scores_within_blocks(q, k[..., before:, :], query_forgotten)
        return scale * torch.cat([faded_q @ faded_k.mT, within], -1)


def _scores_within_blocks(q: Tensor, k: Tensor, passed: Tensor) -> Tensor:
    """Return the unscaled scores [.., n, n] of n queries [.., n, K] and the keys [.., n, K] of their tokens.

    passed: P [.., n, K], the log forget gates summed up to each token. Scores of keys after the query are 0.
    The scores of a block are built from those of its two halves, all blocks of one size at once: keys of the
    first half fade up to the block's middle, and queries of the second half from there.
    """
    count = q.shape[-2]
    size = 1 << (count - 1).bit_length()
    q, k = (nn.functional.pad(x, (0, 0, 0, size - count)) for x in (q, k))
    last = passed[..., -1:, :].expand(*passed.shape[:-2], size - count, -1)
    passed = torch.cat([passed, last], -2)
    own_scores = (q * k).sum(-1)
    scores = own_scores[..., None, None]
    half = 1
    while half < size:
        _, later_q = _halves(q, half)
        earlier_k, _ = _halves(k, half)
        passed_earlier, passed_later = _halves(passed, half)
        middle = passed_later[..., :1, :]
        faded_q = later_q * (passed_later - middle).to(q.dtype).exp()
        faded_k = earlier_k * (middle - passed_earlier).to(q.dtype).exp()
        first, second = scores.unflatten(-3, (-1, 2)).unbind(-3)
        upper = torch.cat([first, torch.zeros_like(first)], -1)
        lower = torch.cat([faded_q @ faded_k.mT, second], -1)
        scores = torch.cat([upper, lower], -2)
        half *= 2
    return scores.squeeze(-3)[..., :count, :count]


def _halves(x: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """Return the first and the second half [.., blocks, half, K] of each block of x [.., n, K]."""
    first, second = x.unflatten(-2, (-1, 2, half)).unbind(-3)
    return first, second
