"""Dual chunk attention: rotary scores between chunks of s tokens, at no distance that is new.

With s = chunk_size - local_window, i the query and j the key: the distance is i - j in one chunk,
min(i mod s + s, chunk_size) - j mod s in neighbouring ones, which is the true one for the first local_window
queries, and min(2s - 1, chunk_size) - j mod s further away. Chunks start at position 0, so that moving all
positions changes scores.

Past the training length: defined; no distance is larger than chunk_size. Texts of up to train_length tokens
have all their distances: the method is for trained models, and training is plain RoPE.

An et al. 2024, "Training-Free Long-Context Scaling of Large Language Models", ICML, arXiv:2402.17463; as in
the authors' code, https://github.com/HKUNLP/ChunkLlama.

Distances are the code's: the paper's formulas were not read. The code has chunks in every text longer than s,
and past the training length L0 it multiplies queries and keys by 0.05 ln(L / L0) + 1 at L tokens, which the
paper's results do not have, as its comment says; `modifier=[temperature]` does likewise. Its defaults are
those here: three quarters and an eighth of the training length.
"""

import torch
from torch import Tensor

from pe_bench.encodings.base import ScoreTerm, Side
from pe_bench.encodings.distance.effective_distance import EffectiveDistance
from pe_bench.encodings.rotary.rope import FractionOf, Layout, rotate
from pe_bench.errors import require


class DualChunk(EffectiveDistance):
    """Options:

    chunk_size: the largest distance; null: three quarters of train_length
    local_window: tokens of the chunk before at true distances; null: an eighth of train_length
    base: of the geometric frequencies
    fraction: of the head, which is turned: less after partial_rope or p_rope
    """

    paper = "arXiv:2402.17463"
    claims = frozenset({"prefix_consistent"})

    def __init__(
        self,
        d_head: int,
        train_length: int,
        chunk_size: int | None = None,
        local_window: int | None = None,
        base: float = 10_000.0,
        layout: Layout = "half",
        fraction: float = 1.0,
        fraction_of: FractionOf = "features",
    ):
        self.chunk_size = max(1, 3 * train_length // 4) if chunk_size is None else chunk_size
        local = train_length // 8 if local_window is None else local_window
        require(
            0 <= local < self.chunk_size,
            f"encoding.local_window={local} must leave room in encoding.chunk_size={self.chunk_size}",
        )
        super().__init__(d_head, self.chunk_size - local, base, layout, fraction, fraction_of)
        self.leave_training(train_length)

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        """Turn the keys once, and the queries for keys of their chunk, of the one before and of others."""
        if keys.x.shape[-2] <= self.train_length:
            return super().transform(queries, keys)
        own = queries.position % self.window
        following = (own + self.window).clamp(max=self.chunk_size)
        further = torch.full_like(own, min(2 * self.window - 1, self.chunk_size))
        places = (own, following, further)
        turned = [rotate(queries.x, place, self.frequencies, self.layout) for place in places]
        return torch.cat(turned, -1), rotate(
            keys.x, keys.position % self.window, self.frequencies, self.layout
        )

    def terms(self, queries: Side, keys: Side) -> list[ScoreTerm]:
        chunk_of_query, chunk_of_key = (
            side.position.div(self.window, rounding_mode="floor") for side in (queries, keys)
        )
        between = chunk_of_query.unsqueeze(-1) - chunk_of_key.unsqueeze(-2)
        if queries.x.shape[-1] == keys.x.shape[-1]:
            return [ScoreTerm(queries.x, keys.x, torch.ones_like(between, dtype=torch.bool))]
        masks = (between <= 0, between == 1, between >= 2)
        turned = queries.x.chunk(3, -1)
        return [ScoreTerm(q, keys.x, mask) for q, mask in zip(turned, masks, strict=True)]
