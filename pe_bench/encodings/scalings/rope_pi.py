r"""Position interpolation: RoPE with all its frequencies divided by the factor, theta'_c = theta_c / s.

This is RoPE at the positions p / s: a window of s times the training length has the positions of training,
s to one, and neighbours are s times harder to tell apart.

$\theta'_c = \frac{\theta_c}{s}$

Past the training length: defined; up to s times it no angle is new.

Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation",
arXiv:2306.15595, section 2.3; kaiokendev 2023, "SuperHOT", independently.

Both fine-tune the model with it; here it may also be used without.
"""

from dataclasses import dataclass

from pe_bench.encodings.rotary.rope import rope_frequencies
from pe_bench.encodings.scalings.rope_scaling import RopeScaling, ScaledRotation


@dataclass(eq=False)
class RopePI(RopeScaling):
    def scaled(self, window: int) -> ScaledRotation:
        return ScaledRotation(rope_frequencies(self.width, self.base) / self.factor_at(window))
