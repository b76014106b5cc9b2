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

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.rope import Layout, pairs_within, rope_frequencies, rotate
from pe_bench.errors import require


class PartialRoPE(LayerEncoding):
    family = "rotary"
    paper = "arXiv:2204.06745"
    claims = frozenset({"shift_invariant", "prefix_consistent", "norm_preserving"})

    frequencies: Tensor

    def __init__(self, d_head: int, fraction: float = 0.25, base: float = 10_000.0, layout: Layout = "half"):
        super().__init__()
        require(base > 0, f"encoding.base must be positive, not {base}")
        self.rotated = 2 * pairs_within(d_head, fraction)
        self.layout: Layout = layout
        self.register_buffer("frequencies", rope_frequencies(self.rotated, base), persistent=False)

    def transform(
        self, q: Tensor, k: Tensor, q_position: Tensor, k_position: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self._rotate_first(q, q_position), self._rotate_first(k, k_position)

    def _rotate_first(self, x: Tensor, position: Tensor) -> Tensor:
        turned = rotate(x[..., : self.rotated], position, self.frequencies, self.layout)
        return torch.cat([turned, x[..., self.rotated :]], -1)
