"""The layers of OLMo 3: RoPE in all, with a window in three of four, and a scaling in the others alone.

Layer l, from 0, is global where l + 1 is a multiple of `every`; in a model of fewer layers the last one is.
The others see the last `window` tokens. Global layers have the frequencies and the factor of `yarn`, with
`factor` for s: 1 leaves them as in training, and null is that of each window, max(1, tokens / train_length).

Past the training length: defined; distances stay below `window` in local layers, which need no scaling.

OLMo Team 2025, "Olmo 3", arXiv:2512.13961; numbers of transformers' `olmo3`: every 4th, a window of 4,096,
base 500,000 in all layers. YaRN is in the global layers alone, as in the report's section on longer texts.

`factor` may change after training: `pe-bench eval RUN --with olmo3 factor=8`. A window of half the training
length is that of the models, which began with texts of 8,192 tokens.
"""

from pe_bench.encodings.compose import stack
from pe_bench.encodings.layers.schedule import Schedule, are_global
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.rotary.rope import Layout, RoPE
from pe_bench.encodings.scalings.yarn import YaRN


class OLMo3(Schedule):
    """Options:

    every: the last layer of each group of this size sees everything
    window: tokens that the other layers see
    train_length: up to here the factor of the window is 1
    factor: of yarn in layers that see everything; null: that of the window
    base: of the geometric frequencies
    """

    paper = "arXiv:2512.13961"
    changeable_after_training = frozenset({"factor"})

    def __init__(
        self,
        d_head: int,
        n_layers: int,
        train_length: int,
        window: int,
        every: int = 4,
        factor: float | None = 1.0,
        base: float = 500_000.0,
        layout: Layout = "half",
    ):
        local = stack([RoPE(d_head, base, layout), SlidingWindow(window)])
        everything = YaRN(d_head, train_length, factor, base, layout)
        super().__init__([everything if chosen else local for chosen in are_global(n_layers, every)])
