"""YaRN: the frequencies of rope_ntk_by_parts, and the queries and the keys both times a = 0.1 ln s + 1.

So the logits are multiplied by a^2, and attention over more keys is as sharp as it was: the temperature t
of the paper is 1 / a^2.

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

from pe_bench.encodings.rotary.rope import FractionOf, Layout
from pe_bench.encodings.scalings.rope_scaling import (
    Ramp,
    RopeScaling,
    Scaled,
    by_parts_frequencies,
    require_ramp,
)
from pe_bench.errors import require


def yarn_attention_factor(factor: float) -> float:
    return 0.1 * math.log(factor) + 1


class YaRN(RopeScaling):
    """Options:

    base: of the geometric frequencies
    fraction: of the head, which is turned: less after partial_rope or p_rope
    train_length: up to here the factor of the window is 1
    factor: null: of the window, max(1, window / train_length); or a number, at every length
    ramp: from kept to interpolated pairs, linear in: index, exact (index, not rounded) or turns
    beta_fast: pairs with more turns within train_length are kept
    beta_slow: pairs with fewer are interpolated
    attention_factor: of queries and keys; null: 0.1 ln(factor) + 1; or a number, at every length
    """

    paper = "arXiv:2309.00071"

    def __init__(
        self,
        d_head: int,
        train_length: int,
        factor: float | None = None,
        base: float = 10_000.0,
        layout: Layout = "half",
        ramp: Ramp = "index",
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        attention_factor: float | None = None,
        fraction: float = 1.0,
        fraction_of: FractionOf = "features",
    ):
        super().__init__(d_head, train_length, factor, base, layout, fraction, fraction_of)
        require_ramp(beta_fast, beta_slow)
        require(
            attention_factor is None or attention_factor > 0,
            f"encoding.attention_factor must be positive, or null for 0.1 ln s + 1, not {attention_factor}",
        )
        self.ramp: Ramp = ramp
        self.beta_fast = beta_fast
        self.beta_slow = beta_slow
        self.attention_factor = attention_factor
        if attention_factor != 1 and (attention_factor is not None or factor != 1):
            self.claims = self.claims - {"norm_preserving"}

    def scaled(self, window: int) -> Scaled:
        factor = self.factor_at(window)
        frequencies = by_parts_frequencies(
            self.width, self.base, self.train_length, factor, self.ramp, self.beta_fast, self.beta_slow
        )
        given = self.attention_factor
        return Scaled(frequencies, yarn_attention_factor(factor) if given is None else given)
