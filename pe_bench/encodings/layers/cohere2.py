"""The layers of Command R7B and Command A: rotary ones with a window, and every fourth without positions.

Layer l, from 0, is global where l + 1 is a multiple of `every`; in a model of fewer layers the last one is. A
global layer sees everything and has no positions; the others turn queries and keys and see the last `window`
tokens.

Past the training length: defined; distances stay below `window` in rotary layers.

Yang et al. 2025, "Rope to Nope and Back Again: A New Hybrid Attention Strategy", arXiv:2501.18795; numbers of
transformers' `cohere2`: every 4th, a window of 4,096, base 10,000, interleaved pairs. EXAONE 4 has the same
order.

Half the training length is ours for the window. The model's blocks compute attention and feedforward side by
side; ours do so in turn.
"""

from pe_bench.encodings.compose import stack
from pe_bench.encodings.layers.schedule import Schedule, are_global
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rotary.rope import Layout, RoPE


class Cohere2(Schedule):
    """Options:

    every: the last layer of each group of this size sees everything, without positions
    window: tokens that the other layers see
    base: of the geometric frequencies
    """

    paper = "arXiv:2501.18795"

    def __init__(
        self,
        d_head: int,
        n_layers: int,
        window: int,
        every: int = 4,
        base: float = 10_000.0,
        layout: Layout = "interleaved",
    ):
        local = stack([RoPE(d_head, base, layout), SlidingWindow(window)])
        super().__init__([NoPE() if chosen else local for chosen in are_global(n_layers, every)])
