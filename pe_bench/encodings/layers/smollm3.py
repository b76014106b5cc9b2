"""The layers of SmolLM3: RoPE, and every fourth layer without positions; all see everything.

Layer l, from 0, has no positions where l + 1 is a multiple of `every`; in a model of fewer layers the last
one has none.

Past the training length: defined; distances are new in rotary layers.

Bakouch et al. 2025, "SmolLM3: smol, multilingual, long-context reasoner",
https://huggingface.co/blog/smollm3; numbers of transformers' `smollm3`: every 4th, base 2,000,000. It follows
Yang et al. 2025, arXiv:2501.18795.

The released model's base is 5,000,000, after its training on longer texts.
"""

from pe_bench.encodings.layers.schedule import Schedule, are_global
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rotary.rope import Layout, RoPE


class SmolLM3(Schedule):
    """Options:

    every: the last layer of each group of this size has no positions
    base: of the geometric frequencies
    """

    paper = "https://huggingface.co/blog/smollm3"

    def __init__(
        self,
        d_head: int,
        n_layers: int,
        every: int = 4,
        base: float = 2_000_000.0,
        layout: Layout = "half",
    ):
        rotary = RoPE(d_head, base, layout)
        super().__init__([NoPE() if chosen else rotary for chosen in are_global(n_layers, every)])
