r"""Dynamic NTK scaling: NTK-aware scaling whose s grows with the window, s = max(1, 1 + f (L' / L - 1)).

L' is the window's length, L that of training, and f the option `factor`. At f = 1 it is rope_ntk
without a given factor; a larger f stretches more.

$\theta'_c = (\text{base} \cdot s^{K / (K - 2)})^{-2c / K}, \quad s = \max(1,\, 1 + f\, (L' / L - 1))$

Past the training length: defined; another model at each length, and up to the training length rope.

emozilla 2023, "Dynamically Scaled RoPE",
https://www.reddit.com/r/LocalLLaMA/comments/14mrgpr; described in Peng et al. 2023, "YaRN",
arXiv:2309.00071.

Released code keeps the frequencies of the longest text that it has seen, and with a cache of keys mixes
those of several lengths; here they depend on the window alone, and on all of it.
"""

from dataclasses import dataclass

from pe_bench.encodings.base import Positive
from pe_bench.encodings.scalings.rope_scaling import RopeScaling, ScaledRotation, ntk_frequencies


@dataclass(eq=False)
class RopeDynamicNTK(RopeScaling):
    """Options:

    train_length: windows of up to this length have rope
    factor: f in the scale max(1, 1 + f (window / train_length - 1)) of NTK-aware scaling
    """

    paper = "arXiv:2309.00071"
    window_factor = None  # its factor sets how fast s grows
    smallest_width = 4  # the only pair of width 2 turns at the same speed whatever the base

    factor: Positive | None = 1.0

    def __post_init__(self) -> None:
        self.growth, self.factor = self.factor or 1.0, None
        super().__post_init__()

    def scaled(self, window: int) -> ScaledRotation:
        beyond = window / self.train_length - 1
        factor = max(1.0, 1 + self.growth * beyond)
        return ScaledRotation(ntk_frequencies(self.width, self.base, factor))
