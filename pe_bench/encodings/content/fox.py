r"""Forgetting attention: z_ij = q_i . k_j / sqrt(K) + c_i - c_j, c_t = sum_{s <= t} ln f_s.

f_t = sigmoid(w_h . x_t + b_h) is a forget gate of each head and layer, read from the layer's
input; b_h is initially 0, so that about half is forgotten at each token.

$z_{ij} = \frac{q_i \cdot k_j}{\sqrt{K}} + \sum_{s=j+1}^{i} \ln f_s, \quad f_t = \sigma(w_h \cdot x_t + b_h)$

Past the training length: defined; gates forget a token within this length, or never.

Lin et al. 2025, "Forgetting Transformer: Softmax Attention with a Forget Gate", ICLR,
arXiv:2503.02130. The released code of CABLE, arXiv:2503.08067, is the same with the sign of the gate's
weights reversed.

Only the gate, without the further blocks of the authors' "Pro" layer. Gate weights are N(0, 1/D),
as those of all linear layers here.
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, Side, full_precision, precise
from pe_bench.encodings.initial import random_matrix

LOG_FORGET_KEY = "fox_log_forget"


class FoX(LayerEncoding):
    per_layer = True

    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        self.weight = random_matrix(n_heads, d_model)
        self.intercept = nn.Parameter(torch.zeros(n_heads))

    def prepare(self, x: Tensor) -> dict[str, Tensor]:
        # A sum over thousands of tokens: never in half precision, not even where a model is autocast.
        with full_precision(x):
            x = x.to(self.weight.dtype)
            gate = nn.functional.linear(x, self.weight, self.intercept)
            log_forget = nn.functional.logsigmoid(gate).mT  # [B, H, T]
            return {LOG_FORGET_KEY: log_forget.double().cumsum(-1)}

    def bias(self, queries: Side, keys: Side) -> Tensor:
        dtype = precise(queries.x.dtype)
        query_forgotten = queries.values[LOG_FORGET_KEY].unsqueeze(-1)
        key_forgotten = keys.values[LOG_FORGET_KEY].unsqueeze(-2)
        # Relative to the first query, earlier keys add with one sign, so float32 does not cancel. Keys of the
        # block itself are subtracted in float64.
        first = query_forgotten[..., :1, :]
        since_first = (query_forgotten - first).to(dtype)
        bias = since_first - (key_forgotten - first).to(dtype)
        earlier = int((keys.index < queries.index[0]).sum())
        later_keys = key_forgotten[..., earlier:]
        bias[..., earlier:] = (query_forgotten - later_keys).to(dtype)
        return bias

    def columns(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        # Whole numbers are kept apart: float32 subtracts them exactly, however long the text is.
        query_whole, query_rest = _whole_and_rest(queries.values[LOG_FORGET_KEY])
        key_whole, key_rest = _whole_and_rest(keys.values[LOG_FORGET_KEY])
        query_ones = torch.ones_like(query_rest)
        key_ones = torch.ones_like(key_rest)
        query_columns = torch.stack([query_whole, query_ones, query_rest, query_ones], -1)
        key_columns = torch.stack([key_ones, -key_whole, key_ones, -key_rest], -1)
        return query_columns, key_columns


def _whole_and_rest(x: Tensor) -> tuple[Tensor, Tensor]:
    """Split each number into the nearest whole number, without a gradient, and the rest, with it."""
    whole = x.detach().round()
    return whole, x - whole
