r"""Relative keys and values: z_ij = q_i . (k_j + a^K_c) / sqrt(K), out_i = sum_j w_ij (v_j + a^V_c).

c = clip(j - i, -max_distance, 0) + max_distance; row 0 serves every key that far back or farther.
The tables a^K and a^V are [max_distance + 1, K] and drawn from N(0, 0.02^2); heads share them,
layers do not.

$z_{ij} = \frac{q_i \cdot (k_j + a^K_c)}{\sqrt{K}}, \quad o_i = \sum_j w_{ij} (v_j + a^V_c), \quad c =
\text{clip}(j - i, -M, 0) + M, \quad M = \text{max\_distance}$

Past the training length: clamps at max_distance.

Shaw, Uszkoreit, Vaswani 2018, "Self-Attention with Relative Position Representations", NAACL,
arXiv:1803.02155, section 3.

Heads share tables in the paper's big model, with a max_distance of 8; its base model has 16, and tables
for each head (section 4.1). The authors' tables also have max_distance rows for keys after the query,
which a decoder never reads. They add row vectors for each pair; here scores are gathered, and weights
summed, by row; long texts are scored from `tables`.
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast1, Side, distances, precise
from pe_bench.encodings.relative.tables import Relative, Tables


class Shaw(Relative):
    """Options:

    max_distance: keys farther back share one vector
    """

    past_training = "clamps"
    per_layer = True

    def __init__(self, d_head: int, max_distance: AtLeast1 = 16):
        super().__init__()
        self.max_distance = max_distance
        rows = max_distance + 1
        self.keys = nn.Parameter(0.02 * torch.randn(rows, d_head))
        self.values = nn.Parameter(0.02 * torch.randn(rows, d_head))

    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        content = queries.x @ keys.x.mT
        by_row = queries.x @ self.keys.to(queries.x.dtype).mT
        rows = self._table_rows(queries, keys).expand_as(content)
        return scale * (content + by_row.gather(-1, rows))

    def mix(self, weights: Tensor, v: Tensor, queries: Side, keys: Side) -> Tensor:
        # Many small weights fall on row 0: their sum is float32 or better.
        summands = weights.to(precise(weights.dtype))
        empty = summands.new_zeros(*weights.shape[:-1], len(self.values))
        rows = self._table_rows(queries, keys).expand_as(weights)
        by_row = empty.scatter_add(-1, rows, summands)
        relative_values = by_row.to(v.dtype) @ self.values.to(v.dtype)
        return weights @ v + relative_values

    def tables(self) -> Tables:
        return Tables(relative_keys=self.keys.flip(0), relative_values=self.values.flip(0))

    def _table_rows(self, queries: Side, keys: Side) -> Tensor:
        """Return the row c of the tables for each pair, [Q, N] or [B, 1, Q, N]."""
        distance = distances(queries, keys).clamp(0, self.max_distance)
        return (self.max_distance - distance).long()
