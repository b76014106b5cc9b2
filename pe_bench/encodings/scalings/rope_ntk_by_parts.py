r"""NTK-by-parts: slow pairs of RoPE are interpolated, fast ones kept, theta' = (1 - g) theta / s + g theta.

g_c is 1 for pairs that make more than `beta_fast` turns within the training length L, 0 for those with fewer
than `beta_slow`, and between them a ramp, linear in the index c of the pair or in its turns L theta_c / 2 pi.
The ramp in the index runs between floor(c(beta_fast)) and ceil(c(beta_slow)),
c(n) = K ln(L / (2 pi n)) / (2 ln b), within 0 and K - 1.

$\theta'_c = (1 - g_c) \frac{\theta_c}{s} + g_c\, \theta_c, \quad g_c = \text{clip} \left( \frac{\lceil
c(\beta_{\text{slow}}) \rceil - c}{\lceil c(\beta_{\text{slow}}) \rceil - \lfloor c(\beta_{\text{fast}})
\rfloor},\, 0,\, 1 \right), \quad c(n) = \frac{K \ln(L / (2 \pi n))}{2 \ln b}$

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

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pe_bench.encodings.base import Positive
from pe_bench.encodings.rotary.rope import rope_frequencies
from pe_bench.encodings.scalings.rope_scaling import RopeScaling, ScaledRotation
from pe_bench.errors import require

Ramp = Literal["index", "exact", "turns"]


@dataclass(eq=False)
class RopeNTKByParts(RopeScaling):
    """Options:

    ramp: from kept to interpolated pairs, linear in: index, exact (index, not rounded) or turns
    beta_fast: pairs with more turns within train_length are kept
    beta_slow: pairs with fewer are interpolated
    """

    ramp: Ramp = "index"
    beta_fast: float = 32.0
    beta_slow: Positive = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        fast, slow = self.beta_fast, self.beta_slow
        require(fast > slow, f"encoding.beta_fast={fast} must exceed encoding.beta_slow={slow}")

    def scaled(self, window: int) -> ScaledRotation:
        factor = self.factor_at(window)
        return ScaledRotation(by_parts_frequencies(self, factor, self.ramp, self.beta_fast, self.beta_slow))


def by_parts_frequencies(
    scaling: RopeScaling, factor: float, ramp: Ramp, beta_fast: float, beta_slow: float
) -> Tensor:
    """Return the interpolated frequencies theta' [width / 2] in float64."""
    frequencies = rope_frequencies(scaling.width, scaling.base)
    if ramp == "turns":
        turns = scaling.train_length * frequencies / (2 * math.pi)
        kept = (turns - beta_slow) / (beta_fast - beta_slow)
    else:
        sizes = (scaling.width, scaling.base, scaling.train_length)
        first, last = ramp_ends(*sizes, beta_fast, beta_slow, is_exact=ramp == "exact")
        index = torch.arange(len(frequencies), dtype=torch.float64)
        length = max(last - first, 0.001)
        kept = 1 - (index - first) / length
    return torch.lerp(frequencies / factor, frequencies, kept.clamp(0, 1))


def ramp_ends(
    width: int, base: float, train_length: int, beta_fast: float, beta_slow: float, is_exact: bool = False
) -> tuple[float, float]:
    """Return the index of the last pair that is kept, and of the first pair that is fully interpolated.

    Indices are rounded outwards to whole pairs, unless `is_exact`.
    """

    def index_with_turns(turns: float) -> float:
        tokens_per_radian = train_length / (2 * math.pi * turns)
        return width * math.log(tokens_per_radian) / (2 * math.log(base))

    first, last = index_with_turns(beta_fast), index_with_turns(beta_slow)
    if not is_exact:
        first, last = math.floor(first), math.ceil(last)
    return max(first, 0), min(last, width - 1)
