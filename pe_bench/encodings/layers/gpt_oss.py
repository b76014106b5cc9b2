"""The layers of GPT-OSS: YaRN and a sink in all, and a window in every other one, the first among them.

Layer l, from 0, is global where l + 1 is a multiple of `every`; in a model of fewer layers the last one is.
The others see the last `window` tokens. All have the frequencies and the factor of `yarn`, and each head of
each layer learns the logit of its `sink`.

Past the training length: defined; distances stay below `window` in local layers, and up to `factor` times the
training length the slow pairs of global ones have no angle that is new.

OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", arXiv:2508.10925; numbers of transformers' `gpt_oss`:
every 2nd, a window of 128, base 150,000, YaRN with a factor of 32, 32 and 1 turns, and ends of its ramp that
are no whole indices.

The released models have YaRN, and so have ours in training already; whether theirs had it from the start is
unverified. A window of a quarter of the training length is ours, so that training sees its edge.
"""

from pe_bench.encodings.compose import stack
from pe_bench.encodings.layers.schedule import Schedule, are_global
from pe_bench.encodings.logits.sink import Sink
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.rotary.rope import Layout
from pe_bench.encodings.scalings.yarn import YaRN


class GptOss(Schedule):
    """Options:

    every: the last layer of each group of this size sees everything
    window: tokens that the other layers see
    train_length: the length that YaRN extends
    factor: by which YaRN extends it, from the start of training
    beta_fast: pairs with more turns within train_length are kept
    beta_slow: pairs with fewer are interpolated
    base: of the geometric frequencies
    """

    paper = "arXiv:2508.10925"

    def __init__(
        self,
        d_head: int,
        n_heads: int,
        n_layers: int,
        train_length: int,
        window: int,
        every: int = 2,
        factor: float = 32.0,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        base: float = 150_000.0,
        layout: Layout = "half",
    ):
        yarn = YaRN(d_head, train_length, factor, base, layout, "exact", beta_fast, beta_slow)
        seen = SlidingWindow(window)
        super().__init__(
            [
                stack([yarn, Sink(n_heads)] if chosen else [yarn, seen, Sink(n_heads)])
                for chosen in are_global(n_layers, every)
            ]
        )
