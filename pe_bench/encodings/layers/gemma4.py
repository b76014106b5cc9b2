"""The layers of Gemma 4: rotary ones with a window, and global ones that turn a quarter of the pairs.

Layer l, from 0, is global where l + 1 is a multiple of `every`, and the last layer always is. Global layers
see everything and keep the `fraction` of highest frequencies of the base `base`, as `p_rope`; the others have
`local_base` and see the last `window` tokens.

Past the training length: defined; distances stay below `window` in local layers, and three quarters of the
pairs of global ones know no position.

transformers' `gemma4`: every 6th, a window of 512, bases 10,000 and 1,000,000, `proportional` with 0.25;
p-RoPE is of Barbero et al. 2025, arXiv:2410.06205. No report of Gemma 4 was found.

A window of a quarter of the training length is ours, so that training sees its edge. Heads of global layers
are as wide as all others here, and share no keys with their values.
"""

from pe_bench.encodings.compose import stack
from pe_bench.encodings.layers.schedule import Schedule, are_global
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.rotary.p_rope import PRoPE
from pe_bench.encodings.rotary.rope import Layout, RoPE


class Gemma4(Schedule):
    """Options:

    every: the last layer of each group of this size sees everything; so does the model's last
    window: tokens that the other layers see
    fraction: of the frequencies, the highest, which layers that see everything keep
    local_base: of the geometric frequencies in layers with a window
    base: in layers that see everything
    """

    paper = "arXiv:2410.06205"

    def __init__(
        self,
        d_head: int,
        n_layers: int,
        window: int,
        every: int = 6,
        fraction: float = 0.25,
        local_base: float = 10_000.0,
        base: float = 1_000_000.0,
        layout: Layout = "half",
    ):
        local = stack([RoPE(d_head, local_base, layout), SlidingWindow(window)])
        everything = PRoPE(d_head, fraction, base, layout)
        chosen = [*are_global(n_layers, every)[:-1], True]
        super().__init__([everything if is_global else local for is_global in chosen])
