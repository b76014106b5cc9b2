r"""Forgetting attention: z_ij = q_i . k_j / sqrt(K) + c_i - c_j, c_t = sum_{s <= t} ln f_s.

f_t = sigmoid(w_h . x_t + b_h) is a forget gate of each head and layer, read from the layer's
input; b_h is initially 0, so that about half is forgotten at each token.

$z_{ij} = \frac{q_i \cdot k_j}{\sqrt{K}} + \sum_{s=j+1}^{i} \ln f_s, \quad f_t = \sigma(w_h \cdot x_t + b_h)$

Past the training length: defined; what is far away was forgotten by then, or was never to be.

Lin et al. 2025, "Forgetting Transformer: Softmax Attention with a Forget Gate", ICLR,
arXiv:2503.02130. The released code of CABLE, arXiv:2503.08067, is the same with the sign of the gate's
weights reversed.

Only the gate, without the further blocks of the authors' "Pro" layer. Gate weights are N(0, 1/D),
as those of all linear layers here.
"""

import math

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, Side, full_precision

FORGOTTEN = "fox_log_forget"


class FoX(LayerEncoding):
    per_layer = True

    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_heads, d_model) / math.sqrt(d_model))
        self.intercept = nn.Parameter(torch.zeros(n_heads))

    def prepare(self, x: Tensor) -> dict[str, Tensor]:
        # A sum over thousands of tokens: never in half precision, not even where a model is autocast.
        with full_precision(x):
            gate = nn.functional.linear(x.to(self.weight.dtype), self.weight, self.intercept)
            return {FORGOTTEN: nn.functional.logsigmoid(gate).mT.double().cumsum(-1)}

    def bias(self, queries: Side, keys: Side) -> Tensor:
        dtype = torch.promote_types(queries.x.dtype, torch.float32)
        query_forgotten = queries.values[FORGOTTEN].unsqueeze(-1)
        key_forgotten = keys.values[FORGOTTEN].unsqueeze(-2)
        # Counted from the first query, what lies between it and an earlier key only adds to what lies between
        # it and a later query: nothing cancels, and float32 is exact. For the other keys float64 is.
        first = query_forgotten[..., :1, :]
        bias = (query_forgotten - first).to(dtype) - (key_forgotten - first).to(dtype)
        earlier = int((keys.index < queries.index[0]).sum())
        bias[..., earlier:] = (query_forgotten - key_forgotten[..., earlier:]).to(dtype)
        return bias

    def columns(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        # Whole numbers are kept apart: float32 subtracts them exactly, however long the text is.
        query_forgotten, key_forgotten = queries.values[FORGOTTEN], keys.values[FORGOTTEN]
        query_whole, key_whole = query_forgotten.detach().round(), key_forgotten.detach().round()
        query_ones, key_ones = torch.ones_like(query_forgotten), torch.ones_like(key_forgotten)
        return (
            torch.stack([query_whole, query_ones, query_forgotten - query_whole, query_ones], -1),
            torch.stack([key_ones, -key_whole, key_ones, key_whole - key_forgotten], -1),
        )
