"""iRoPE: rotary layers that see chunks of the text, and between them others, without positions, that see all.

Layer l, from 0, is global where l + 1 is a multiple of `every`; in a model of fewer layers the last one is. A
global layer multiplies the logits of a query at position p by 1 + temperature ln(1 + floor((p + 1) /
temperature_step)). In the others a query sees the keys of its own chunk, with the same floor(index / chunk).

Past the training length: defined; distances stay below `chunk` in rotary layers, and the temperature of the
global ones rises in steps.

Meta 2025, "The Llama 4 herd", https://ai.meta.com/blog/llama-4-multimodal-intelligence/; every 4th layer,
chunks of 8,192, temperature 0.1 in steps of 8,192 as in transformers' `llama4`.

Llama 4 norms queries and keys in its rotary layers, has a base of 500,000 and the interleaved layout;
`llama4` here has these two. Ours is the decoder of every other encoding. Chunks of half the training length
are ours too, so that training sees their edges; steps are of the training length, so that training sees no
temperature but at its last token.
"""

from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.compose import stack
from pe_bench.encodings.layers.schedule import Schedule, are_global
from pe_bench.encodings.logits.log_steps import LogSteps
from pe_bench.encodings.rotary.rope import Layout, RoPE
from pe_bench.errors import require


class Chunks(LayerEncoding):
    """A query sees the keys of its own chunk."""

    def __init__(self, chunk: int):
        super().__init__()
        require(chunk > 0, f"encoding.chunk must hold at least 1 token, not {chunk}")
        self.chunk = chunk

    def visible(self, queries: Side, keys: Side) -> Tensor:
        of_query, of_key = (
            side.index.div(self.chunk, rounding_mode="floor").long() for side in (queries, keys)
        )
        return (of_query.unsqueeze(-1) == of_key) & (keys.index <= queries.index.unsqueeze(-1))

    def ranges(self, start: int, stop: int) -> list[range]:
        return [range(start // self.chunk * self.chunk, stop)]


class IRoPE(Schedule):
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
        base: float = 10_000.0,
        layout: Layout = "half",
    ):
        super().__init__(
            irope_layers(d_head, n_layers, chunk, temperature_step, every, temperature, base, layout)
        )


def irope_layers(
    d_head: int,
    n_layers: int,
    chunk: int,
    temperature_step: int,
    every: int,
    temperature: float,
    base: float,
    layout: Layout,
) -> list[LayerEncoding]:
    """Return what acts in each layer."""
    require(temperature >= 0, f"encoding.temperature must not be negative, as {temperature} is")
    require(
        temperature_step > 0, f"encoding.temperature_step must be at least 1 token, not {temperature_step}"
    )
    local = stack([RoPE(d_head=d_head, base=base, layout=layout), Chunks(chunk)])
    sharpened = LogSteps(temperature_step, temperature, counts_itself=True)
    return [sharpened if is_global else local for is_global in are_global(n_layers, every)]
