r"""NTK-aware scaling: RoPE with a larger base, b' = b s^(K / (K - 2)).

The fastest frequency stays, the slowest is divided by s as in position interpolation, and those between
by powers of s that grow evenly.

$\theta'_c = (\text{base} \cdot s^{K / (K - 2)})^{-2c / K}$

Past the training length: defined; at s times it the slowest pair is back within the angles of training, and
those between it and the fastest still go beyond.

bloc97 2023, "NTK-Aware Scaled RoPE", https://www.reddit.com/r/LocalLLaMA/comments/14lz7j5;
Peng et al. 2023, "YaRN", arXiv:2309.00071, section 3.1.

No differences are known.
"""

from dataclasses import dataclass

from pe_bench.encodings.scalings.rope_scaling import RopeScaling, ScaledRotation, ntk_frequencies


@dataclass(eq=False)
class RopeNTK(RopeScaling):
    paper = "arXiv:2309.00071"
    smallest_width = 4  # the only pair of width 2 turns at the same speed whatever the base

    def scaled(self, window: int) -> ScaledRotation:
        return ScaledRotation(ntk_frequencies(self.width, self.base, self.factor_at(window)))
