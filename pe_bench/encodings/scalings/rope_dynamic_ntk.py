"""Dynamic NTK scaling: NTK-aware scaling whose s grows with the window, s = max(1, 1 + f (L' / L - 1)).

L' is the window's length, L that of training, and f the option `factor`. At f = 1 it is rope_ntk
without a given factor; a larger f stretches more.

Past the training length: defined; another model at each length, and up to the training length rope.

emozilla 2023, "Dynamically Scaled RoPE",
https://www.reddit.com/r/LocalLLaMA/comments/14mrgpr; described in Peng et al. 2023, "YaRN",
arXiv:2309.00071.

Released code keeps the frequencies of the longest text that it has seen, and with a cache of keys mixes
those of several lengths; here they depend on the window alone, and on all of it.
"""

from torch import Tensor

from pe_bench.encodings.rotary.rope import FractionOf, Layout
from pe_bench.encodings.scalings.rope_scaling import RopeScaling, Scaled, ntk_frequencies
from pe_bench.errors import require


def dynamic_ntk_frequencies(width: int, base: float, train_length: int, window: int, factor: float) -> Tensor:
    """Return theta' [width / 2] in float64, for widths from 4 on."""
    return ntk_frequencies(width, base, max(1.0, 1 + factor * (window / train_length - 1)))


class RopeDynamicNTK(RopeScaling):
    """Options:

    base: of the geometric frequencies
    fraction: of the head, which is turned: less after partial_rope or p_rope
    train_length: up to here it is rope
    factor: how fast s grows with the window: 1 as its length over train_length
    """

    paper = "arXiv:2309.00071"
    window_factor = None  # its factor sets how fast s grows
    smallest_width = 4  # the only pair of width 2 turns at the same speed whatever the base

    def __init__(
        self,
        d_head: int,
        train_length: int,
        factor: float = 1.0,
        base: float = 10_000.0,
        layout: Layout = "half",
        fraction: float = 1.0,
        fraction_of: FractionOf = "features",
    ):
        super().__init__(d_head, train_length, None, base, layout, fraction, fraction_of)
        require(factor > 0, f"encoding.factor must be positive, not {factor}: 1 grows as the window does")
        self.growth = factor

    def scaled(self, window: int) -> Scaled:
        frequencies = dynamic_ntk_frequencies(self.width, self.base, self.train_length, window, self.growth)
        return Scaled(frequencies)
