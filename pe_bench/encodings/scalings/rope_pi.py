"""Position interpolation: RoPE with all its frequencies divided by the factor, theta'_c = theta_c / s.

Which is RoPE at the positions p / s: a window of s times the training length has the positions of training,
s to one, and neighbours are s times harder to tell apart.

Past the training length: defined; up to s times it no angle is new.

Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation",
arXiv:2306.15595, section 2.3; kaiokendev 2023, "SuperHOT", independently.

Both fine-tune the model with it; here it may also be used without.
"""

from torch import Tensor

from pe_bench.encodings.rotary.rope import rope_frequencies
from pe_bench.encodings.scalings.rope_scaling import RopeScaling, Scaled


def pi_frequencies(width: int, base: float, factor: float) -> Tensor:
    """Return theta' [width / 2] in float64."""
    return rope_frequencies(width, base) / factor


class RopePI(RopeScaling):
    paper = "arXiv:2306.15595"

    def scaled(self, window: int) -> Scaled:
        return Scaled(pi_frequencies(self.width, self.base, self.factor_at(window)))
