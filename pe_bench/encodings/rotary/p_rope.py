r"""p-RoPE: RoPE without its lowest frequencies.

theta_c = base^(-2c/K) for the floor(fraction K/2) highest, c = 0, 1, .., and theta_c = 0 for the others,
whose pairs of features are left alone. With a fraction of 1 it is RoPE, with 0 no encoding.

$x_c \mapsto x_c\, e^{\mathrm{i} p \theta_c}, \quad \theta_c = \text{base}^{-2c / K} \text{ for } c < \lfloor
\text{fraction} \cdot K / 2 \rfloor, \text{ else } 0$

Past the training length: defined, out of distribution only for the slow frequencies that are kept.

Barbero et al. 2025, "Round and Round We Go! What makes Rotary Positional Encodings useful?", ICLR,
arXiv:2410.06205; 0.75 is the best of the fractions in its table 2.

The frequencies are those of RoPE over the whole head, as in the code of Gemma; partial RoPE with the same
fraction spreads its frequencies anew.
"""

from collections.abc import Mapping
from typing import Any

from pe_bench.encodings.base import Base, Share
from pe_bench.encodings.rotary.rope import Layout, RoPE, pairs_within


class PRoPE(RoPE):
    """Options:

    fraction: share of the frequencies, the highest, that is kept
    base: of the geometric frequencies
    """

    def __init__(self, d_head: int, fraction: Share = 0.75, base: Base = 10_000.0, layout: Layout = "half"):
        super().__init__(d_head, base, layout)
        self.frequencies[pairs_within(d_head, fraction) :] = 0

    @classmethod
    def implied(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"fraction_of": "frequencies"} if options["fraction"] < 1 else {}
