r"""GRAPE-A: ALiBi with slopes set by query and key, b(i, j) = -(i - j) (a_i + c_j).

a_i = w_h softplus(v_h . q_i / sqrt(K)) and c_j = w_h softplus(u_h . k_j / sqrt(K)), with queries and keys
that are not rotated. u and v are divided by their norms, and w_h = m_h softplus(omega_h), with m_h the slopes
of ALiBi. Each head of each layer has its own u, v and omega. With `of` query or key, the other term is left
out.

$b_{ij} = -(i - j)\, w_h \left( \text{softplus} \frac{v_h \cdot q_i}{\sqrt{K}} + \text{softplus} \frac{u_h
\cdot k_j}{\sqrt{K}} \right), \quad w_h = m_h\, \text{softplus}(\omega_h)$

Past the training length: defined; the bias goes on falling, at a rate that the content sets.

Zhang et al. 2025, "Group Representational Position Encoding", arXiv:2512.07805, equation 4.6; the three forms
as in the authors' code, https://github.com/model-architectures/GRAPE.

The authors normalise queries and keys first: `model.qk_norm=true` does so here. First values are those of
their code: u and v are N(0, 1/K), and omega is ln(e - 1), which makes slopes near 1.4 times those of ALiBi.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, Side, distances, precise
from pe_bench.encodings.bias.alibi import alibi_slopes
from pe_bench.encodings.content.gape import centred_positions

Of = Literal["both", "query", "key"]
SMALLEST_NORM = 1e-6
INVERSE_SOFTPLUS_OF_1 = math.log(math.e - 1)  # its softplus is 1


class GrapeA(LayerEncoding):
    """Options:

    of: the content that sets the slope: both, query or key
    """

    per_layer = True

    def __init__(self, n_heads: int, d_head: int, of: Of = "both"):
        super().__init__()
        self.slopes = nn.Buffer(torch.tensor(alibi_slopes(n_heads)), persistent=False)
        self.omega = nn.Parameter(torch.full((n_heads,), INVERSE_SOFTPLUS_OF_1))
        spread = 1 / math.sqrt(d_head)
        self.query = None if of == "key" else nn.Parameter(spread * torch.randn(n_heads, d_head))
        self.key = None if of == "query" else nn.Parameter(spread * torch.randn(n_heads, d_head))

    def bias(self, queries: Side, keys: Side) -> Tensor:
        query_slope = self.slope(queries, self.query).unsqueeze(-1)
        key_slope = self.slope(keys, self.key).unsqueeze(-2)
        return -distances(queries, keys) * (query_slope + key_slope)

    def columns(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        a = self.slope(queries, self.query)
        c = self.slope(keys, self.key)
        i, j = centred_positions(queries, keys)
        i = i.to(a.dtype).expand_as(a)
        j = j.to(a.dtype).expand_as(c)
        query_columns = torch.stack([-i * a, a, -i, torch.ones_like(a)], -1)
        key_columns = torch.stack([torch.ones_like(c), j, c, j * c], -1)
        return query_columns, key_columns

    def slope(self, side: Side, direction: Tensor | None) -> Tensor:
        """Return each token's part of the slope [B, H, n]: a of queries, c of keys; 0 without a direction.

        direction: v for queries or u for keys, [H, K].
        """
        dtype = precise(side.raw.dtype)
        x = side.raw.to(dtype)
        if direction is None:
            return x.new_zeros(x.shape[:-1])
        unit = nn.functional.normalize(direction.to(dtype), dim=-1, eps=SMALLEST_NORM)
        product = (x * unit.unsqueeze(-2)).sum(-1)
        projected = product / math.sqrt(x.shape[-1])
        learned_scale = nn.functional.softplus(self.omega.to(dtype))
        scale = self.slopes.to(dtype) * learned_scale
        return scale.unsqueeze(-1) * nn.functional.softplus(projected)
