"""Rotary scores at the true distance of near tokens and at a shortened distance of far tokens.

ReRoPE and its kin turn queries and keys twice, by their positions and by other positions, and take each
pair's score from one of the two rotations. Visibility follows from indices, distance from positions; these
differ where ids jump.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import ScoreTerm, Side, distances
from pe_bench.encodings.rotary.rope import Rotary, rotate, rotate_both


@dataclass(eq=False)
class EffectiveDistance(Rotary):
    """Scores by the true distance within a window; beyond it by the distance of `far_positions`."""

    claims = frozenset({"shift_invariant", "prefix_consistent"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.frequencies = nn.Buffer(self.training_frequencies(), persistent=False)

    def keep_near(self, window: int, train_length: int = 0) -> None:
        """Keep distances below `window` true, and all distances in texts of up to `train_length` tokens.

        Training at this length is then plain RoPE.
        """
        self.near, self.plain_length = window, train_length
        if window < train_length:  # a text within train_length has other distances as a longer text's prefix
            self.claims = self.claims - {"prefix_consistent"}

    def far_positions(self, q_position: Tensor, k_position: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions of queries and of keys whose difference is the distance of far pairs."""
        far_q = q_position.new_full(q_position.shape, self.near)
        return far_q, k_position.new_zeros(k_position.shape)

    def is_near(self, queries: Side, keys: Side) -> Tensor:
        """Return the mask [.., Q, N] of the pairs at their true distance."""
        return distances(queries, keys) < self.near

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        """Turn by positions and, with far pairs, also by far positions: the result is then twice as wide."""
        if keys.x.shape[-2] <= self.plain_length:
            return rotate_both(queries, keys, self.frequencies, self.layout)
        far_q, far_k = self.far_positions(queries.position, keys.position)
        turned_q = self.turned(queries, queries.position, far_q)
        return turned_q, self.turned(keys, keys.position, far_k)

    def turned(self, side: Side, *positions: Tensor) -> Tensor:
        """Return `side.x` turned by each of the positions, concatenated along the width."""
        turned = [rotate(side.x, each, self.frequencies, self.layout) for each in positions]
        return torch.cat(turned, -1)

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
        near_q, far_q = queries.x.chunk(2, -1)
        near_k, far_k = keys.x.chunk(2, -1)
        return [ScoreTerm(near_q, near_k, is_near), ScoreTerm(far_q, far_k, ~is_near)]
