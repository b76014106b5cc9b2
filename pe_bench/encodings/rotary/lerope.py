r"""LeRoPE: RoPE with learned frequencies, theta_c e^{alpha_c}; alpha is 0 at first and shared by all layers.

$x_c \mapsto x_c\, e^{\mathrm{i} p \theta_c e^{\alpha_c}}, \quad \theta_c = \text{base}^{-2c / K}$

Past the training length: defined, out of distribution as for RoPE, but training can make a slow pair slower
still.

Karypis et al. 2026, "LeRoPE: Learnable RoPE Frequencies Improve Language Modeling", arXiv:2607.10134; the
form is that of Mistral Large 4 in transformers 5.23.0 (`mistral_large4`).

There the frequencies are those of YaRN, over the rotary part of a head and in three of four layers; here
those of `rope` in all. How alpha was trained is not in that code, which only loads it. With `per_head` each
head has its own alpha: this is GRAPE-M with frequencies that do not read the content (Zhang et al. 2025,
arXiv:2512.07805), except that in GRAPE-M each layer has its own frequencies.
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import Base, Side
from pe_bench.encodings.rotary.rope import Layout, RoPE, rotate_both


class LeRoPE(RoPE):
    """Options:

    base: of the geometric frequencies at first
    per_head: true: each head learns its own frequencies
    """

    def __init__(
        self,
        n_heads: int,
        d_head: int,
        base: Base = 10_000.0,
        layout: Layout = "half",
        per_head: bool = False,
    ):
        super().__init__(d_head, base, layout)
        pairs = d_head // 2
        shape = (n_heads, 1, pairs) if per_head else (pairs,)
        self.alpha = nn.Parameter(torch.zeros(shape))

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        frequencies = self.frequencies.double() * self.alpha.double().exp()
        return rotate_both(queries, keys, frequencies, self.layout)
