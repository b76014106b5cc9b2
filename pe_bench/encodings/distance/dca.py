r"""Dual chunk attention: rotary scores between chunks of s tokens, at no distance that is new.

With s = chunk_size - local_window, i the query and j the key: the distance is i - j in one chunk,
min(i mod s + s, chunk_size) - j mod s in neighbouring ones, which is the true one for the first local_window
queries, and min(2s - 1, chunk_size) - j mod s further away. Chunks start at position 0, so that moving all
positions changes scores.

$z_{ij} = \frac{R_\delta\, q_i \cdot k_j}{\sqrt{K}}, \quad \delta = \begin{cases} i - j & \lfloor i / s
\rfloor = \lfloor j / s \rfloor \\ \min(i \bmod s + s,\, C) - j \bmod s & \lfloor i / s \rfloor = \lfloor j /
s \rfloor + 1 \\ \min(2s - 1,\, C) - j \bmod s & \text{else} \end{cases} \quad C = \text{chunk\_size}$

Past the training length: defined; no distance is larger than chunk_size. Texts of up to train_length tokens
keep their true distances: the method is for trained models, and training is plain RoPE.

An et al. 2024, "Training-Free Long-Context Scaling of Large Language Models", ICML, arXiv:2402.17463; as in
the authors' code, https://github.com/HKUNLP/ChunkLlama.

Distances are the code's: the paper's formulas were not read. The code has chunks in every text longer than s,
and past the training length L0 it multiplies queries and keys by 0.05 ln(L / L0) + 1 at L tokens, which the
paper's results do not have, as its comment says; `modifier=[temperature]` does likewise. Its defaults are
those here: three quarters and an eighth of the training length.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pe_bench.encodings.base import AtLeast1, Natural, ScoreTerm, Side
from pe_bench.encodings.distance.effective_distance import EffectiveDistance
from pe_bench.errors import require


@dataclass(eq=False)
class DualChunk(EffectiveDistance):
    """Options:

    train_length: texts of up to this length keep their true distances
    chunk_size: the largest distance; null: three quarters of train_length
    local_window: tokens of the chunk before at true distances; null: an eighth of train_length
    """

    claims = frozenset({"prefix_consistent"})

    train_length: AtLeast1
    chunk_size: AtLeast1 | None = None
    local_window: Natural | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.chunk_size
        if size is None:
            size = max(1, 3 * self.train_length // 4)
        local = self.train_length // 8 if self.local_window is None else self.local_window
        require(local < size, f"encoding.local_window={local} must leave room in encoding.chunk_size={size}")
        self.largest = size
        self.keep_near(size - local, self.train_length)

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        """Turn keys once, and queries three times: for keys of their chunk, the chunk before and others."""
        if keys.x.shape[-2] <= self.plain_length:
            return super().transform(queries, keys)
        in_chunk = queries.position % self.near
        following = (in_chunk + self.near).clamp(max=self.largest)
        farthest = min(2 * self.near - 1, self.largest)
        further = torch.full_like(in_chunk, farthest)
        turned_keys = self.turned(keys, keys.position % self.near)
        return self.turned(queries, in_chunk, following, further), turned_keys

    def terms(self, queries: Side, keys: Side) -> list[ScoreTerm]:
        query_chunk = queries.position.div(self.near, rounding_mode="floor")
        key_chunk = keys.position.div(self.near, rounding_mode="floor")
        between = query_chunk.unsqueeze(-1) - key_chunk.unsqueeze(-2)
        if queries.x.shape[-1] == keys.x.shape[-1]:
            return [ScoreTerm(queries.x, keys.x, torch.ones_like(between, dtype=torch.bool))]
        own_q, following_q, further_q = queries.x.chunk(3, -1)
        return [
            ScoreTerm(own_q, keys.x, between <= 0),
            ScoreTerm(following_q, keys.x, between == 1),
            ScoreTerm(further_q, keys.x, between >= 2),
        ]
