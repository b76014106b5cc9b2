r"""TUPE: z_ij = (q_i . k_j + U_Q p_i . U_K p_j) / sqrt(2 K), positions kept apart from what tokens say.

p_i is the LayerNorm of row i of a table [max_position, D], which is drawn from N(0, 0.02^2). U_Q and
U_K are [H K, D], drawn from N(0, 1/D) and shared by all layers, so that both products begin with the
same variance. Nothing is added to the embeddings. `positions: sinusoidal` reads a sinusoid in place of
the table.

$z_{ij} = \frac{q_i \cdot k_j + U_Q p_i \cdot U_K p_j}{\sqrt{2K}}$

Past the training length: undefined, there is no row. `overflow` says what to do: `error`, `clamp`
(the last row again) or `interpolate` (the rows stretched linearly over the whole length). Sinusoidal
positions are defined, out of distribution.

Ke, He, Liu 2021, "Rethinking Positional Encoding in Language Pre-training", ICLR,
arXiv:2006.15595, section 3.

The authors add the products of positions to the scores, computed once; here they are K columns of
the queries and keys. They treat a first token [CLS] apart, which a decoder does not have, and their
projections have intercepts and begin at N(0, 0.02^2). This is TUPE-A; TUPE-R adds T5's bias to it.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast1, LayerEncoding, Side
from pe_bench.encodings.inputs.learned import Learned, Overflow, require_learned_table
from pe_bench.encodings.inputs.sinusoidal import Sinusoidal

Positions = Literal["learned", "sinusoidal"]


class TUPE(LayerEncoding):
    """Options:

    max_position: rows of the table, where there is one
    overflow: past the last row: error, clamp or interpolate
    positions: learned, or sinusoidal: no table
    """

    past_training = "undefined"
    claims = frozenset({"prefix_consistent"})

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_head: int,
        max_position: AtLeast1,
        overflow: Overflow = "error",
        positions: Positions = "learned",
    ):
        super().__init__()
        require_learned_table(overflow, positions)
        if positions == "learned":
            self.positions = Learned(d_model, max_position, overflow)
        else:
            self.positions = Sinusoidal(d_model)
        self.past_training = self.positions.past_training
        self.claims = self.positions.claims
        self.norm = nn.LayerNorm(d_model)
        shape = (n_heads, d_model, d_head)
        self.query = nn.Parameter(torch.randn(shape) / math.sqrt(d_model))
        self.key = nn.Parameter(torch.randn(shape) / math.sqrt(d_model))

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        return self._widen(queries, self.query), self._widen(keys, self.key)

    def _widen(self, side: Side, projection: Tensor) -> Tensor:
        """Append U p to x [B, H, n, K], all times 2^(-1/4): queries and keys share 1/sqrt(2) equally."""
        rows = self.positions.rows(side.position)  # [n, D] or [B, 1, n, D]
        p = self.norm(rows.to(self.query.dtype))
        columns = (p @ projection).expand_as(side.x)
        wide = torch.cat([side.x, columns.to(side.x.dtype)], -1)
        return (wide * 2**-0.25).to(side.x.dtype)
