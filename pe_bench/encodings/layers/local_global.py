"""Two encodings in turn: one in local layers, which may see a window or a chunk, and one in global layers.

Layer l, from 0, is global where l + 1 is a multiple of `every`, and in a model of fewer layers the last one
is; with `first` the first layer of each `every` is. Global layers have the encoding `global`, the others
`local` and see the last `window` tokens, or with `chunked` those of their own chunk of `window` tokens.

Past the training length: defined, unless one of the two encodings is not; distances stay below `window` in
local layers.

Yang et al. 2025, "Rope to Nope and Back Again: A New Hybrid Attention Strategy", arXiv:2501.18795; the
schedules of open models are `gemma3`, `gemma4`, `olmo3`, `cohere2`, `smollm3`, `gpt_oss`, `llama4` and
`swan`.

Each part is any other encoding with its options, and modifiers of its own, as in `encoding.global={name:
p_rope, fraction: 0.25}` and `encoding.local={name: rope, modifiers: {sink: {}}}`. Position ids and embeddings
are shared by all layers, and so neither can have them. After training each part may change as it could alone:
`pe-bench eval RUN --with 'local_global global={name: yarn, factor: 8}'` scales the global layers of `rope`.
"""

from pe_bench.encodings.base import NestedEncoding, PositionalEncoding
from pe_bench.encodings.compose import stack
from pe_bench.encodings.layers.irope import Chunks
from pe_bench.encodings.layers.schedule import Schedule, are_global
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.errors import UserError, require

SHARED = {"ids": "position ids", "embed": "embeddings"}


class LocalGlobal(Schedule):
    """Options:

    window: tokens that layers with `local` see; null: all
    every: the last layer of each group of this size has `global`, and sees everything
    first: true: the first layer of each group has it, not the last
    chunked: true: `window` is the size of chunks, whose tokens see each other alone
    """

    paper = "arXiv:2501.18795"

    def __init__(
        self,
        n_layers: int,
        local: NestedEncoding,
        global_: NestedEncoding,
        window: int | None,
        every: int = 4,
        first: bool = False,
        chunked: bool = False,
    ):
        chosen = are_global(n_layers, every)
        if first:
            chosen = [number % every == 0 for number in range(n_layers)]
        require(
            not chunked or window is not None, "encoding.chunked needs encoding.window: tokens in a chunk"
        )
        counts = {"local": chosen.count(False), "global": chosen.count(True)}
        makers = {"local": local, "global": global_}
        made = {option: makers[option](count) for option, count in counts.items() if count}
        for option, encoding in made.items():
            _refuse_shared(option, encoding)
        hidden = [] if window is None else [Chunks(window) if chunked else SlidingWindow(window)]
        found = {option: iter(range(count)) for option, count in counts.items()}
        layers = [
            stack([made["global"].layer(next(found["global"]))])
            if is_global
            else stack([made["local"].layer(next(found["local"])), *hidden])
            for is_global in chosen
        ]
        super().__init__(layers, list(made.values()))


def _refuse_shared(option: str, encoding: PositionalEncoding) -> None:
    for hook, what in SHARED.items():
        if encoding.overrides(hook):
            raise UserError(
                f"encoding.{option} changes {what}, which all layers share: choose one that acts in attention"
            )
