r"""Learned absolute positions: x_p + E_p, one trained row of E for each position.

E is [max_position, D], drawn from N(0, 0.02^2). A position between two rows adds a vector between them.

$x_p \mapsto x_p + E_p$

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

from pe_bench.encodings.base import AtLeast1, LengthError, PastTraining, PositionalEncoding
from pe_bench.errors import require

Overflow = Literal["error", "clamp", "interpolate"]
PAST_TRAINING: dict[Overflow, PastTraining] = {
    "error": "undefined",
    "clamp": "clamps",
    "interpolate": "defined",
}


class Learned(PositionalEncoding):
    """Options:

    max_position: rows of the table
    overflow: past the last row: error, clamp or interpolate
    """

    past_training = "undefined"
    changeable_after_training = frozenset({"overflow"})

    def __init__(self, d_model: int, max_position: AtLeast1, overflow: Overflow = "error"):
        super().__init__()
        self.overflow: Overflow = overflow
        self.past_training = PAST_TRAINING[overflow]
        if overflow == "interpolate":
            self.claims = frozenset()  # how far the rows are stretched depends on the length
        self.table = nn.Parameter(0.02 * torch.randn(max_position, d_model))

    def embed(self, x: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        return x + self.rows(ids).to(x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        """Return the vectors [.., D] that are added at positions [..]."""
        return table_rows(self.table, ids, self.overflow)


def require_learned_table(overflow: Overflow, positions: str) -> None:
    """Raise `UserError` if `overflow` is not error but `positions` is not learned: no table exists."""
    is_read = overflow == "error" or positions == "learned"
    require(is_read, f"encoding.overflow={overflow} is for encoding.positions=learned: leave it out")


def table_rows(table: Tensor, ids: Tensor, overflow: Overflow) -> Tensor:
    """Return rows [.., D] of a table [max_position, D] at positions [..].

    overflow: the rule for positions outside the table, as in `Learned`. Raises `LengthError`.
    """
    return rows_between(table, _within_table(len(table), ids, overflow))


def rows_between(table: Tensor, position: Tensor) -> Tensor:
    """Return rows of a table [n, D] at positions [..], interpolated between rows: [.., D]."""
    if not position.is_floating_point():
        return table[position]
    last = len(table) - 1
    below = position.floor().long().clamp(max=last)
    above = (below + 1).clamp(max=last)
    share = (position - below).unsqueeze(-1).to(table.dtype)
    return torch.lerp(table[below], table[above], share)


def _within_table(count: int, ids: Tensor, overflow: Overflow) -> Tensor:
    """Return the ids, brought within the rows 0 to count - 1 of a table. Raises `LengthError`."""
    last = count - 1
    smallest = float(ids.min())
    largest = float(ids.max())
    if smallest >= 0 and largest <= last:
        return ids
    if overflow == "clamp":
        return ids.clamp(0, last)
    if overflow == "interpolate":
        # Only a sequence's own length decides how far its rows are stretched.
        longest = ids.double().amax(-1, keepdim=True)
        lengths = longest.clamp(min=max(last, 1))
        return ids.clamp(min=0) * (last / lengths)
    missing = largest if largest > last else smallest
    raise LengthError(
        f"a learned table of max_position={count} rows has none for position {missing:g}: set "
        "encoding.overflow=clamp or encoding.overflow=interpolate, or train with a larger train.length "
        "(under a modifier that spreads positions, with an encoding.max_position as large as its own)"
    )
