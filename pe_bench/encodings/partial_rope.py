"""Partial RoPE: the first features of queries and keys are turned as in RoPE, the others are left alone.

d = 2 floor(fraction K / 2) features are turned, with frequencies spread anew over them,
theta_c = base^(-2c/d), c = 0..d/2-1; the layout pairs features within these d.

Past the training length: defined, out of distribution where it turns; the other features do not
know the position.

Black et al. 2022, "GPT-NeoX-20B", arXiv:2204.06745, whose default fraction of 0.25 is ours; the formula
is that of the authors' code (`rotary_pct`).

Their code takes int(fraction K) features, which must be even; here the fraction is rounded down to pairs.
"""

import torch
from torch import Tensor

from pe_bench.encodings.rope import Layout, RoPE, pairs_within


class PartialRoPE(RoPE):
    paper = "arXiv:2204.06745"

    def __init__(self, d_head: int, fraction: float = 0.25, base: float = 10_000.0, layout: Layout = "half"):
        rotated = 2 * pairs_within(d_head, fraction)
        super().__init__(rotated, base, layout)
        self.rotated = rotated

    def transform(
        self, q: Tensor, k: Tensor, q_position: Tensor, k_position: Tensor
    ) -> tuple[Tensor, Tensor]:
        (turn_q, keep_q), (turn_k, keep_k) = (x.tensor_split([self.rotated], -1) for x in (q, k))
        turn_q, turn_k = super().transform(turn_q, turn_k, q_position, k_position)
        return torch.cat([turn_q, keep_q], -1), torch.cat([turn_k, keep_k], -1)
