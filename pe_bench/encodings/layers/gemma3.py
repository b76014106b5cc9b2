"""The layers of Gemma 3: rotary ones with a window, and after every five of them one with slower frequencies.

Layer l, from 0, is global where l + 1 is a multiple of `every`; in a model of fewer layers the last one is.
Its frequencies have the base `base` and it sees everything; the others have `local_base` and see the last
`window` tokens.

Past the training length: defined; distances stay below `window` in local layers, and are new in global ones.

Gemma Team 2025, "Gemma 3 Technical Report", arXiv:2503.19786, section 2; bases and order of transformers'
`gemma3` (10,000 and 1,000,000, every 6th).

The report's window is 1,024 tokens, 4,096 in the defaults of transformers; a quarter of the training length
is ours, so that training sees its edge. The larger models divide the positions of global layers by 8 after
their training; Gemma's norms of queries and keys are no part of it here.
"""

from pe_bench.encodings.compose import stack
from pe_bench.encodings.layers.schedule import Schedule, are_global
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.rotary.rope import Layout, RoPE


class Gemma3(Schedule):
    """Options:

    every: the last layer of each group of this size sees everything
    window: tokens that the other layers see
    local_base: of the geometric frequencies in layers with a window
    base: in layers that see everything
    """

    paper = "arXiv:2503.19786"

    def __init__(
        self,
        d_head: int,
        n_layers: int,
        window: int,
        every: int = 6,
        local_base: float = 10_000.0,
        base: float = 1_000_000.0,
        layout: Layout = "half",
    ):
        local = stack([RoPE(d_head, local_base, layout), SlidingWindow(window)])
        everything = RoPE(d_head, base, layout)
        super().__init__([everything if chosen else local for chosen in are_global(n_layers, every)])
