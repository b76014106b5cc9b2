"""Rotary scores at a distance that is the true one nearby and another far away.

What ReRoPE and its kin share: queries and keys are turned twice, by their positions and by other ones, and
every pair of tokens has the score of one of the two. Which keys are visible is a matter of indices, how far
they are of positions; the two differ where ids jump.
"""

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, ScoreTerm, Side
from pe_bench.encodings.families import ROTARY
from pe_bench.encodings.rotary.rope import FractionOf, Layout, rotate, turned_frequencies
from pe_bench.errors import require


class EffectiveDistance(LayerEncoding):
    """The true distance within a window, and beyond it that of `far_positions`: by default the window's."""

    family = "distance"
    compatible_with = ROTARY
    train_length = 0

    frequencies: Tensor

    def __init__(
        self,
        d_head: int,
        window: int,
        base: float,
        layout: Layout,
        fraction: float,
        fraction_of: FractionOf,
    ):
        super().__init__()
        require(window > 0, f"encoding.window must hold at least 1 token, not {window}")
        self.window = window
        self.layout: Layout = layout
        frequencies = turned_frequencies(d_head, base, fraction, fraction_of)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def leave_training(self, train_length: int) -> None:
        """Give texts of up to so many tokens all their distances, so that training is plain RoPE."""
        self.train_length = train_length
        if (
            self.window < train_length
        ):  # such a text has distances that it has not as the prefix of a longer one
            self.claims = self.claims - {"prefix_consistent"}

    def far_positions(self, q_position: Tensor, k_position: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions of the queries and of the keys whose difference is the distance far away."""
        return q_position.new_full(q_position.shape, self.window), k_position.new_zeros(k_position.shape)

    def is_near(self, queries: Side, keys: Side) -> Tensor:
        """Return which pairs [.., Q, N] have their true distance."""
        return queries.position.unsqueeze(-1) - keys.position.unsqueeze(-2) < self.window

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        """Turn by the positions and, twice as wide, also by the far ones, where there are any."""
        if keys.x.shape[-2] <= self.train_length:
            turned_q = rotate(queries.x, queries.position, self.frequencies, self.layout)
            return turned_q, rotate(keys.x, keys.position, self.frequencies, self.layout)
        far_q, far_k = self.far_positions(queries.position, keys.position)
        return self._turned_twice(queries, far_q), self._turned_twice(keys, far_k)

    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        near, *far = self.terms(queries, keys)
        scores = near.q @ near.k.mT
        for term in far:
            scores = torch.where(term.mask, term.q @ term.k.mT, scores)
        return scale * scores

    def terms(self, queries: Side, keys: Side) -> list[ScoreTerm]:
        is_near = self.is_near(queries, keys)
        if queries.x.shape[-1] == queries.raw.shape[-1]:
            return [ScoreTerm(queries.x, keys.x, torch.ones_like(is_near))]
        (near_q, far_q), (near_k, far_k) = queries.x.chunk(2, -1), keys.x.chunk(2, -1)
        return [ScoreTerm(near_q, near_k, is_near), ScoreTerm(far_q, far_k, ~is_near)]

    def _turned_twice(self, side: Side, far: Tensor) -> Tensor:
        places = (side.position, far)
        return torch.cat([rotate(side.x, place, self.frequencies, self.layout) for place in places], -1)
