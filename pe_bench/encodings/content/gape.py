r"""GAPE: RoPE with a penalty on distance; the query scales the penalty, and a key can switch it off.

b(i, j) = -Gamma_h g_i (1 - l_j) (i - j) / train_length, with g_i = softplus(w_g . q_i + b_g), the landmark
l_j = sigmoid(w_l . k_j + b_l) and Gamma_h = softplus(gamma_h). A key with l = 1 is seen at any distance. Each
head of each layer has its own w_g, b_g, w_l, b_l and gamma. The penalty reads queries and keys before the
rotation.

$z_{ij} = \frac{R_{i-j}\, q_i \cdot k_j}{\sqrt{K}} - \Gamma_h\, g_i\, (1 - l_j)\, \frac{i - j}{L}, \quad
g_i = \text{softplus}(w_g \cdot q_i + b_g), \; l_j = \sigma(w_l \cdot k_j + b_l)$

Past the training length: defined; the penalty goes on falling, and the rotation is out of distribution as in
RoPE.

"Remember to Forget", arXiv:2605.10414; written from a page that describes the paper, which we could not get.

That page adds Gamma g_i (j (1 - l_j) + i l_j) / T, which is the penalty above plus one number for all keys of
a query. The page does not say whether T is the training length or the length of the text; with the length of
the text, the beginning of a text would depend on how much follows. Initial values are ours: w is N(0, 1/K), b
is 0 and Gamma is 1.
"""

import math

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast1, Base, Side, distances, precise
from pe_bench.encodings.rotary.rope import Layout, RoPE

INVERSE_SOFTPLUS_OF_1 = math.log(math.e - 1)  # its softplus is 1


class GAPE(RoPE):
    """Options:

    train_length: divides the distances
    """

    claims = frozenset({"shift_invariant", "prefix_consistent", "norm_preserving"})
    per_layer = True

    def __init__(
        self,
        n_heads: int,
        d_head: int,
        train_length: AtLeast1,
        base: Base = 10_000.0,
        layout: Layout = "half",
    ):
        super().__init__(d_head, base, layout)
        self.train_length = train_length
        self.gamma = nn.Parameter(torch.full((n_heads,), INVERSE_SOFTPLUS_OF_1))
        spread = 1 / math.sqrt(d_head)
        self.query = nn.Parameter(spread * torch.randn(n_heads, d_head))
        self.query_intercept = nn.Parameter(torch.zeros(n_heads))
        self.key = nn.Parameter(spread * torch.randn(n_heads, d_head))
        self.key_intercept = nn.Parameter(torch.zeros(n_heads))

    def bias(self, queries: Side, keys: Side) -> Tensor:
        slope = self.slope(queries).unsqueeze(-1)
        forgotten = self.forgotten(keys).unsqueeze(-2)
        return -distances(queries, keys) * slope * forgotten

    def columns(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        slope = self.slope(queries)
        forgotten = self.forgotten(keys)
        i, j = centred_positions(queries, keys)
        query_columns = torch.stack([-i * slope, slope], -1)
        key_columns = torch.stack([forgotten, j * forgotten], -1)
        return query_columns, key_columns

    def slope(self, queries: Side) -> Tensor:
        """Return Gamma g / train_length of each query [B, H, Q]."""
        projected = _projected(queries, self.query, self.query_intercept)
        gamma = nn.functional.softplus(self.gamma.to(projected.dtype))
        return gamma.unsqueeze(-1) * nn.functional.softplus(projected) / self.train_length

    def forgotten(self, keys: Side) -> Tensor:
        """Return 1 - l of each key [B, H, N]: the share of the penalty that the key has."""
        return torch.sigmoid(-_projected(keys, self.key, self.key_intercept))


def centred_positions(queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
    """Return the positions of queries and of keys, counted from the middle of the text.

    Products of such positions lose the fewest digits of float32.
    """
    first = keys.position[..., :1]
    middle = first + (keys.position[..., -1:] - first) // 2
    return queries.position - middle, keys.position - middle


def _projected(side: Side, direction: Tensor, intercept: Tensor) -> Tensor:
    """Return w . x + b of each head's vectors before the rotation, [B, H, n], in float32 or better.

    direction: w [H, K]. intercept: b [H].
    """
    dtype = precise(side.raw.dtype)
    x = side.raw.to(dtype)
    product = (x * direction.to(dtype).unsqueeze(-2)).sum(-1)
    return product + intercept.to(dtype).unsqueeze(-1)
