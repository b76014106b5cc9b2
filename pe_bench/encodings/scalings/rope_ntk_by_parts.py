"""NTK-by-parts: slow pairs of RoPE are interpolated, fast ones kept, theta' = (1 - g) theta / s + g theta.

g_c is 1 for pairs that make more than `beta_fast` turns within the training length L, 0 for those with fewer
than `beta_slow`, and between them a ramp, linear in the index c of the pair or in its turns L theta_c / 2 pi.
The ramp in the index runs between floor(c(beta_fast)) and ceil(c(beta_slow)),
c(n) = K ln(L / (2 pi n)) / (2 ln b), within 0 and K - 1.

Past the training length: defined; up to s times it the slow pairs have no angle that is new, and the fast
ones have made all of them.

Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models", arXiv:2309.00071,
section 3.2. Its ramp is that in the turns; the default here is that in the index, as the authors' code
of YaRN has it, and the frequencies of the two differ by half.

The first code of this name, https://github.com/jquesnelle/yarn, `LlamaPartNTKScaledRotaryEmbedding`, is
another method: it goes from base over NTK-aware scaling to interpolation, with ramps of 16 to 2 and of
1.25 to 0.75 turns. Where the ramp's two ends fall on one pair or have changed places, as at very short or
very long training lengths, it is a step here.
"""

from pe_bench.encodings.rotary.rope import FractionOf, Layout
from pe_bench.encodings.scalings.rope_scaling import (
    Ramp,
    RopeScaling,
    Scaled,
    by_parts_frequencies,
    require_ramp,
)


class RopeNTKByParts(RopeScaling):
    """Options:

    base: of the geometric frequencies
    fraction: of the head, which is turned: less after partial_rope or p_rope
    train_length: up to here the factor of the window is 1
    factor: null: of the window, max(1, window / train_length); or a number, at every length
    ramp: from kept to interpolated pairs, linear in: index, exact (index, not rounded) or turns
    beta_fast: pairs with more turns within train_length are kept
    beta_slow: pairs with fewer are interpolated
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
        fraction: float = 1.0,
        fraction_of: FractionOf = "features",
    ):
        super().__init__(d_head, train_length, factor, base, layout, fraction, fraction_of)
        require_ramp(beta_fast, beta_slow)
        self.ramp: Ramp = ramp
        self.beta_fast = beta_fast
        self.beta_slow = beta_slow

    def scaled(self, window: int) -> Scaled:
        frequencies = by_parts_frequencies(
            self.width,
            self.base,
            self.train_length,
            self.factor_at(window),
            self.ramp,
            self.beta_fast,
            self.beta_slow,
        )
        return Scaled(frequencies)
