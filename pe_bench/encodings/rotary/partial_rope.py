r"""Partial RoPE: the first features of queries and keys are turned as in RoPE, the others are left alone.

d = 2 floor(fraction K / 2) features are turned, with frequencies spread anew over them,
theta_c = base^(-2c/d), c = 0..d/2-1; the layout pairs features within these d.

$x_c \mapsto x_c\, e^{\mathrm{i} p \theta_c} \text{ for } c < d / 2, \quad \theta_c = \text{base}^{-2c / d},
\quad d = 2 \lfloor \text{fraction} \cdot K / 2 \rfloor$

Past the training length: defined, out of distribution where it turns; the other features do not
know the position.

Black et al. 2022, "GPT-NeoX-20B", arXiv:2204.06745, whose default fraction of 0.25 is ours; the formula
is that of the authors' code (`rotary_pct`).

Their code takes int(fraction K) features, which must be even; here the fraction is rounded down to pairs.
"""

from pe_bench.encodings.base import Base, Share
from pe_bench.encodings.rotary.rope import Layout, RoPE, pairs_within


class PartialRoPE(RoPE):
    """Options:

    fraction: share of the features, the first, that is turned
    base: of the geometric frequencies, spread over the features that are turned
    """

    def __init__(self, d_head: int, fraction: Share = 0.25, base: Base = 10_000.0, layout: Layout = "half"):
        super().__init__(2 * pairs_within(d_head, fraction), base, layout)
