"""Clipped RoPE: RoPE whose slowest frequencies fade to 0, theta'_c = theta_c m_c.

Of the n pairs that make no full turn within the training length, 2 pi / theta_c > train_length, the i-th has
m = (1 + cos(pi i / (n - 1))) / 2: the first keeps its frequency and the slowest knows no position. All others
have m = 1. `clipped` gives n; one pair alone is left as it is.

Past the training length: defined; the pairs whose angles would be new turn less, or not at all.

Li et al. 2026, "CoPE: Clipped RoPE as A Scalable Free Lunch for Long Context LLMs", arXiv:2602.05258; the
formula is that of the authors' code, https://github.com/hrlics/CoPE.

The authors clip 20 of 64 pairs of Llama 3 and train on with it; to clip those that make no full turn is a
rule of others, in pull request 1387 of ml-explore/mlx-lm. `cope` is another encoding.
"""

import math

import torch

from pe_bench.encodings.families import ROTARY
from pe_bench.encodings.rotary.rope import FractionOf, Layout, RoPE, turned_frequencies
from pe_bench.errors import require


class RopeClipped(RoPE):
    """Options:

    base: of the geometric frequencies
    fraction: of the head, which is turned: less after partial_rope or p_rope
    train_length: pairs that make no full turn within it are clipped
    clipped: how many of the slowest pairs are clipped; null: those with no full turn
    """

    paper = "arXiv:2602.05258"
    compatible_with = ROTARY

    def __init__(
        self,
        d_head: int,
        train_length: int,
        base: float = 10_000.0,
        layout: Layout = "half",
        clipped: int | None = None,
        fraction: float = 1.0,
        fraction_of: FractionOf = "features",
    ):
        super().__init__(d_head, base, layout)
        frequencies = turned_frequencies(d_head, base, fraction, fraction_of)
        turned = int((frequencies > 0).sum())
        slow = (frequencies > 0) & (frequencies < 2 * math.pi / train_length)
        count = int(slow.sum()) if clipped is None else clipped
        require(
            0 <= count <= turned,
            f"encoding.clipped must be a number of pairs from 0 to {turned}, or null, not {clipped}",
        )
        fading = (1 + torch.linspace(0, math.pi, count, dtype=torch.float64).cos()) / 2
        frequencies[turned - count : turned] *= fading
        self.frequencies = frequencies
