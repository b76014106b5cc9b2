"""Rotary scores at a distance that is the true one nearby and another far away.

What ReRoPE and its kin share: queries and keys are turned twice, by their positions and by other ones, and
every pair of tokens has the score of one of the two. Which keys are visible is a matter of indices, how far
they are of positions; the two differ where ids jump.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import ScoreTerm, Side
from pe_bench.encodings.rotary.rope import Rotary, rotate, rotate_both


@dataclass(eq=False)
class EffectiveDistance(Rotary):
    """The true distance within a window, and beyond it that of `far_positions`: by default the window's."""

    claims = frozenset({"shift_invariant", "prefix_consistent"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.frequencies = nn.Buffer(self.usual_frequencies(), persistent=False)

    def keep_near(self, window: int, train_length: int = 0) -> None:
        """Keep distances true within a window, and in texts of up to `train_length` tokens.

        With that training is plain RoPE.
        """
        self.near, self.plain_length = window, train_length
        if window < train_length:  # such a text has distances that it has not as the prefix of a longer one
            self.claims = self.claims - {"prefix_consistent"}

    def far_positions(self, q_position: Tensor, k_position: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions of the queries and of the keys whose difference is the distance far away."""
        return q_position.new_full(q_position.shape, self.near), k_position.new_zeros(k_position.shape)

    def is_near(self, queries: Side, keys: Side) -> Tensor:
        """Return which pairs [.., Q, N] have their true distance."""
        return queries.position.unsqueeze(-1) - keys.position.unsqueeze(-2) < self.near

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        """Turn by the positions and, twice as wide, also by the far ones, where there are any."""
        if keys.x.shape[-2] <= self.plain_length:
            return rotate_both(queries, keys, self.frequencies, self.layout)
        far_q, far_k = self.far_positions(queries.position, keys.position)
        return self.turned(queries, queries.position, far_q), self.turned(keys, keys.position, far_k)

    def turned(self, side: Side, *positions: Tensor) -> Tensor:
        """Return a side turned by each of the positions, beside one another."""
        return torch.cat([rotate(side.x, p, self.frequencies, self.layout) for p in positions], -1)

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
