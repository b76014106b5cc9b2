"""Llama 3.1's scaling of RoPE: wavelengths beyond L / low are stretched by s, those below L / high are kept.

L is the training length, `low` and `high` are the options `low_frequency_factor` and
`high_frequency_factor`. Between the two, with m = (L theta / 2 pi - low) / (high - low),
theta' = (1 - m) theta / s + m theta, which is rope_ntk_by_parts with a ramp in the turns.

Past the training length: defined; up to s times it, pairs that made no full turn in training have no angle
that is new.

Grattafiori et al. 2024, "The Llama 3 Herd of Models", arXiv:2407.21783, is the model's paper; the formula
is that of its code, https://github.com/meta-llama/llama-models, `apply_scaling`, with values from a grid
search.

There s = 8 at a training length of 8,192. Here s is the window's where it is not given, as in every
scaling, and the training length is that of the run.
"""

from torch import Tensor

from pe_bench.encodings.rotary.rope import FractionOf, Layout
from pe_bench.encodings.scalings.rope_scaling import RopeScaling, Scaled, by_parts_frequencies
from pe_bench.errors import require


def llama3_frequencies(
    width: int, base: float, train_length: int, factor: float, low: float = 1.0, high: float = 4.0
) -> Tensor:
    """Return theta' [width / 2] in float64."""
    return by_parts_frequencies(
        width, base, train_length, factor, ramp="turns", beta_fast=high, beta_slow=low
    )


class Llama3(RopeScaling):
    """Options:

    base: of the geometric frequencies
    fraction: of the head, which is turned: less after partial_rope or p_rope
    train_length: up to here the factor of the window is 1
    factor: null: of the window, max(1, window / train_length); or a number, such as 8 in Llama 3.1
    low_frequency_factor: pairs with fewer turns within train_length are interpolated
    high_frequency_factor: pairs with more are kept
    """

    paper = "arXiv:2407.21783"

    def __init__(
        self,
        d_head: int,
        train_length: int,
        factor: float | None = None,
        base: float = 10_000.0,
        layout: Layout = "half",
        low_frequency_factor: float = 1.0,
        high_frequency_factor: float = 4.0,
        fraction: float = 1.0,
        fraction_of: FractionOf = "features",
    ):
        super().__init__(d_head, train_length, factor, base, layout, fraction, fraction_of)
        require(
            high_frequency_factor > low_frequency_factor > 0,
            f"encoding.high_frequency_factor={high_frequency_factor} must exceed "
            f"encoding.low_frequency_factor={low_frequency_factor}, and that 0: they are turns within the "
            "training length",
        )
        self.low = low_frequency_factor
        self.high = high_frequency_factor

    def scaled(self, window: int) -> Scaled:
        factor = self.factor_at(window)
        return Scaled(
            llama3_frequencies(self.width, self.base, self.train_length, factor, self.low, self.high)
        )
