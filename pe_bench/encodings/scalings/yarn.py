r"""YaRN: the frequencies of rope_ntk_by_parts, and the queries and the keys both times a = 0.1 ln s + 1.

So the logits are multiplied by a^2, and attention over more keys is as sharp as it was: the temperature t
of the paper is 1 / a^2.

$\theta'_c = (1 - g_c) \frac{\theta_c}{s} + g_c\, \theta_c, \quad q \mapsto a q, \; k \mapsto a k, \; a = 0.1
\ln s + 1$

Past the training length: defined; up to s times it the slow pairs have no angle that is new, and the fast
ones have made all of them.

Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models", arXiv:2309.00071,
section 3.3.

The ramp is linear in the index of the pair, as in the authors' code, https://github.com/jquesnelle/yarn;
`ramp: turns` is the paper's, and `ramp: exact` that of GPT-OSS, whose ends are no whole indices. Without a
given factor it is what the authors call dynamic YaRN. A given `attention_factor` replaces a at every length;
other rules for it, as in later models, are not offered.
"""

import math
from dataclasses import dataclass

from pe_bench.encodings.base import Positive
from pe_bench.encodings.scalings.rope_ntk_by_parts import RopeNTKByParts
from pe_bench.encodings.scalings.rope_scaling import ScaledRotation


@dataclass(eq=False)
class YaRN(RopeNTKByParts):
    """Options:

    attention_factor: multiplies queries and keys; null: 0.1 ln(factor) + 1; or a number, at every length
    """

    attention_factor: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        is_default_one = self.attention_factor is None and self.factor == 1
        if self.attention_factor != 1 and not is_default_one:
            self.claims = self.claims - {"norm_preserving"}

    def scaled(self, window: int) -> ScaledRotation:
        by_formula = 0.1 * math.log(self.factor_at(window)) + 1
        factor = by_formula if self.attention_factor is None else self.attention_factor
        return ScaledRotation(super().scaled(window).frequencies, factor)
