r"""Multiplicative positions: x_p * (1 + alpha P_p), feature by feature, instead of a sum.

P is `learned`, one row for each position, drawn so that the factors are 1 + N(0, 0.02^2) at first; or
`sinusoidal`, the P of the encoding of that name, without parameters. A feature that is 0 stays 0.

$x_p \mapsto x_p \odot (1 + \alpha P_p)$

Past the training length: undefined for a table, which has no row there. `overflow` says what to do:
`error`, `clamp` (the last row again) or `interpolate` (the trained rows stretched over the whole
length). Defined, out of distribution, for sinusoids.

No paper: one of the forms that Su 2021 lists, https://kexue.fm/archives/8130, which leaves P open. We know
of no published result.

alpha keeps tokens at their size: slow cosines are near 1 for every position of a training window, and with
alpha = 1 would double half of the features.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast1, PositionalEncoding, Positive, precise
from pe_bench.encodings.inputs.learned import PAST_TRAINING, Overflow, require_learned_table, table_rows
from pe_bench.encodings.inputs.sinusoidal import sinusoids

Positions = Literal["learned", "sinusoidal"]
SINUSOID_BASE = 10_000.0


class Multiplicative(PositionalEncoding):
    """Options:

    max_position: rows of the table, where there is one
    positions: learned (a table) or sinusoidal
    alpha: features are multiplied by 1 + alpha P, with P the vector of the position
    overflow: past the table's last row: error, clamp or interpolate
    """

    past_training = "undefined"

    def __init__(
        self,
        d_model: int,
        max_position: AtLeast1,
        positions: Positions = "learned",
        alpha: Positive = 0.25,
        overflow: Overflow = "error",
    ):
        super().__init__()
        require_learned_table(overflow, positions)
        self.d_model = d_model
        self.alpha = alpha
        self.overflow: Overflow = overflow
        self.table = None
        if positions == "sinusoidal":
            self.past_training = "defined"
            return
        self.past_training = PAST_TRAINING[overflow]
        if overflow == "interpolate":
            self.claims = frozenset()  # how far the rows are stretched depends on the length
        initial = 0.02 / alpha * torch.randn(max_position, d_model)
        self.table = nn.Parameter(initial)

    def embed(self, x: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        positions = self._positions(ids).to(precise(x.dtype))
        factors = 1 + self.alpha * positions
        return (x * factors).to(x.dtype)

    def _positions(self, ids: Tensor) -> Tensor:
        """Return the vectors P [.., D] at positions [..]."""
        if self.table is None:
            return sinusoids(ids, self.d_model, SINUSOID_BASE, "interleaved")
        return table_rows(self.table, ids, self.overflow)
