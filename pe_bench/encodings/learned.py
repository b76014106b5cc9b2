"""Learned absolute positions: x_p + E_p, one trained row of E for each position.

E is [max_position, D], drawn from N(0, 0.02^2).

Past the training length: undefined, there is no row. `overflow` says what to do: `error`, `clamp`
(the last row again) or `interpolate` (the trained rows stretched linearly over the whole length,
first on first and last on last).

Gehring et al. 2017, "Convolutional Sequence to Sequence Learning", arXiv:1705.03122, section 3.1;
Devlin et al. 2018, "BERT", arXiv:1810.04805, section 3.

Their tables are made longer than the training length at times; the rows beyond it stay random.
Ours ends at the training length by default.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LengthError, PositionalEncoding
from pe_bench.errors import require

Overflow = Literal["error", "clamp", "interpolate"]


class Learned(PositionalEncoding):
    family = "input"
    paper = "arXiv:1705.03122"
    past_training = "undefined"

    def __init__(self, d_model: int, max_position: int, overflow: Overflow = "error"):
        super().__init__()
        require(max_position > 0, f"encoding.max_position must be positive, not {max_position}")
        self.overflow: Overflow = overflow
        self.table = nn.Parameter(0.02 * torch.randn(max_position, d_model))
        if overflow == "interpolate":
            self.claims = frozenset()  # how far the rows are stretched depends on the length

    def embed(self, x: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        return x + _rows(self.table, self._within_table(ids)).to(x.dtype)

    def _within_table(self, ids: Tensor) -> Tensor:
        last, largest = len(self.table) - 1, float(ids.max())
        if largest <= last:
            return ids
        if self.overflow == "clamp":
            return ids.clamp(max=last)
        if self.overflow == "interpolate":
            return ids.double() * (last / largest)
        raise LengthError(
            f"a learned table of max_position={last + 1} rows has none for position {largest:g}: set "
            "encoding.overflow=clamp or encoding.overflow=interpolate, or train with a larger train.length"
        )


def _rows(table: Tensor, position: Tensor) -> Tensor:
    """The rows of the table, between two of them where a position lies between."""
    if not position.is_floating_point():
        return table[position]
    below = position.floor().long().clamp(max=len(table) - 1)
    above = (below + 1).clamp(max=len(table) - 1)
    share = (position - below).unsqueeze(-1).to(table.dtype)
    return torch.lerp(table[below], table[above], share)
