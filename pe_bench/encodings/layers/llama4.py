"""The layers of Llama 4: iRoPE with its base and its pairs.

It is `irope`, which has the equations, with other defaults: a base of 500,000 and interleaved pairs. `irope`
has the base and pairs of `rope` here.

Past the training length: defined, as for `irope`.

Meta 2025, "The Llama 4 herd", https://ai.meta.com/blog/llama-4-multimodal-intelligence/; numbers of
transformers' `llama4`: every 4th, chunks and steps of 8,192, temperature 0.1, base 500,000, interleaved
pairs.

Chunks of half the training length and steps of all of it are ours; the norms of queries and keys are left
out.
"""

from pe_bench.encodings.layers.irope import irope_layers
from pe_bench.encodings.layers.schedule import Schedule
from pe_bench.encodings.rotary.rope import Layout


class Llama4(Schedule):
    """Options:

    every: the last layer of each group of this size sees everything, without positions
    chunk: tokens that the other layers see together
    temperature: of global layers: how much logits grow with the logarithm of steps
    temperature_step: tokens of one step
    base: of the geometric frequencies
    """

    paper = "https://ai.meta.com/blog/llama-4-multimodal-intelligence/"

    def __init__(
        self,
        d_head: int,
        n_layers: int,
        chunk: int,
        temperature_step: int,
        every: int = 4,
        temperature: float = 0.1,
        base: float = 500_000.0,
        layout: Layout = "interleaved",
    ):
        super().__init__(
            irope_layers(d_head, n_layers, chunk, temperature_step, every, temperature, base, layout)
        )
