r"""Clipped RoPE: RoPE whose slowest frequencies fade to 0, theta'_c = theta_c m_c.

Of the n pairs that make no full turn within the training length, 2 pi / theta_c > train_length, the i-th has
m = (1 + cos(pi i / (n - 1))) / 2: the first keeps its frequency and the slowest knows no position. All others
have m = 1. `clipped` gives n; one pair alone is left as it is.

$\theta'_c = \theta_c\, \frac{1 + \cos(\pi i / (n - 1))}{2}, \quad c = K / 2 - n + i, \quad i = 0, \dots, n -
1$

Past the training length: defined; the pairs whose angles would be new turn less, or not at all.

Li et al. 2026, "CoPE: Clipped RoPE as A Scalable Free Lunch for Long Context LLMs", arXiv:2602.05258; the
formula is that of the authors' code, https://github.com/hrlics/CoPE.

The authors clip 20 of 64 pairs of Llama 3 and train on with it; to clip those that make no full turn is a
rule of others, in pull request 1387 of ml-explore/mlx-lm. `cope` is another encoding.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import AtLeast1, Natural, Side
from pe_bench.encodings.rotary.rope import Rotary, rotate_both
from pe_bench.errors import require


@dataclass(eq=False)
class RopeClipped(Rotary):
    """Options:

    train_length: pairs that make no full turn within it are clipped
    clipped: how many of the slowest pairs are clipped; null: those with no full turn
    """

    claims = frozenset({"shift_invariant", "prefix_consistent", "norm_preserving"})

    train_length: AtLeast1
    clipped: Natural | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        frequencies = self.training_frequencies()
        is_turned = frequencies > 0
        turned = int(is_turned.sum())
        slow = is_turned & (frequencies < 2 * math.pi / self.train_length)
        count = int(slow.sum()) if self.clipped is None else self.clipped
        wrong = f"encoding.clipped must be a number of pairs from 0 to {turned}, or null, not {count}"
        require(count <= turned, wrong)
        half_turn = torch.linspace(0, math.pi, count, dtype=torch.float64)
        frequencies[turned - count : turned] *= (1 + half_turn.cos()) / 2
        self.frequencies = nn.Buffer(frequencies, persistent=False)

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        return rotate_both(queries, keys, self.frequencies, self.layout)
