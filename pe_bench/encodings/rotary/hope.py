r"""HoPE: RoPE with those frequencies alone that make a full turn within the training length.

theta_c = base^(-2c/K) where that is at least 2 pi / train_length, and theta_c = 0 elsewhere: the pairs
of features of the slow frequencies are left alone, and compare content whatever the distance.

$x_c \mapsto x_c\, e^{\mathrm{i} p \theta_c}, \quad \theta_c = \text{base}^{-2c / K}
\text{ where that is at least } 2 \pi / L, \text{ else } 0, \quad L = \text{train\_length}$

Past the training length: defined; no pair of features meets an angle that training has not shown.

Chen et al. 2025, "HoPE: A Novel Positional Encoding Without Long-Term Decay for Enhanced Context
Awareness and Extrapolation", ACL, arXiv:2410.21216.

No code of the authors was found, and of the paper only the abstract was read: slow components give way to
position-independent components. According to appendix A.2 of arXiv:2609.34556 (`darope`), Chen et al. call a
component slow if theta_c < 2 pi / train_length; a reimplementation,
https://github.com/0-5788719150923125/praxis, has the same criterion.
"""

import math

from pe_bench.encodings.base import AtLeast1, Base
from pe_bench.encodings.rotary.rope import Layout, RoPE
from pe_bench.errors import require


class HoPE(RoPE):
    """Options:

    train_length: frequencies that make no full turn within it are left out
    base: of the geometric frequencies
    """

    def __init__(self, d_head: int, train_length: AtLeast1, base: Base = 10_000.0, layout: Layout = "half"):
        super().__init__(d_head, base, layout)
        makes_turn = train_length >= 2 * math.pi
        require(makes_turn, f"no pair makes a full turn within encoding.train_length={train_length} tokens")
        slowest = 2 * math.pi / train_length
        self.frequencies[self.frequencies < slowest] = 0
