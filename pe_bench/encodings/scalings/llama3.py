r"""Llama 3.1's scaling of RoPE: wavelengths beyond L / low are stretched by s, those below L / high are kept.

L is the training length, `low` and `high` are the options `low_frequency_factor` and
`high_frequency_factor`. Between the two, with m = (L theta / 2 pi - low) / (high - low),
theta' = (1 - m) theta / s + m theta, which is rope_ntk_by_parts with a ramp in the turns.

$\theta'_c = (1 - m_c) \frac{\theta_c}{s} + m_c\, \theta_c, \quad m_c = \text{clip} \left( \frac{L \theta_c /
2 \pi - \text{low}}{\text{high} - \text{low}},\, 0,\, 1 \right)$

Past the training length: defined; up to s times it, pairs that made no full turn in training have no angle
that is new.

Grattafiori et al. 2024, "The Llama 3 Herd of Models", arXiv:2407.21783, is the model's paper; the formula
is that of its code, https://github.com/meta-llama/llama-models, `apply_scaling`, with values from a grid
search.

There s = 8 at a training length of 8,192. Here s is the window's where it is not given, as in every
scaling, and the training length is that of the run.
"""

from dataclasses import dataclass

from pe_bench.encodings.base import Positive
from pe_bench.encodings.scalings.rope_ntk_by_parts import by_parts_frequencies
from pe_bench.encodings.scalings.rope_scaling import RopeScaling, ScaledRotation
from pe_bench.errors import require


@dataclass(eq=False)
class Llama3(RopeScaling):
    """Options:

    factor: null: of the window, max(1, window / train_length); or a number, such as 8 in Llama 3.1
    low_frequency_factor: pairs with fewer turns within train_length are interpolated
    high_frequency_factor: pairs with more are kept
    """

    low_frequency_factor: Positive = 1.0
    high_frequency_factor: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.low_frequency_factor, self.high_frequency_factor
        require(high > low, f"encoding.high_frequency_factor={high} must exceed low_frequency_factor={low}")

    def scaled(self, window: int) -> ScaledRotation:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        return ScaledRotation(by_parts_frequencies(self, self.factor_at(window), "turns", high, low))
