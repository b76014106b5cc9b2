r"""Two encodings in turn: one in local layers, which may see a window or a chunk, and one in global layers.

Layer l, from 0, is global where l + 1 is a multiple of `every`, and in a model of fewer layers the last one
is; with `first` the first layer of each `every` is, and with `last` the model's last layer is as well. Global
layers have the encoding `global`, the others `local`, and see the last `window` tokens or those of their own
chunk, with the same floor(index / chunk).

$\text{layer } l = \text{global} \text{ where } l + 1 \equiv 0 \;(\text{mod every}), \text{ else local}$

Past the training length: defined, unless one of the two encodings is not; distances stay below `window` or
`chunk` in local layers.

Yang et al. 2025, "Rope to Nope and Back Again: A New Hybrid Attention Strategy", arXiv:2501.18795; the
schedules of open models are YAML files with the models' numbers.

Each part is any other encoding with its options, and modifiers of its own, as in `encoding.global={name:
p_rope, fraction: 0.25}` and `encoding.local={name: rope, modifiers: {sink: {}}}`. A part that reads the
number of layers, such as `repo`, gets the number of layers that have it. Position ids and embeddings are
shared by all layers, and so neither can have them. After training each part may change as it could alone:
`pe-bench eval RUN --with 'local_global global={name: yarn, factor: 8}'` scales the global layers of `rope`.
"""

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import (
    ADVERSE_FIRST,
    AtLeast1,
    LayerEncoding,
    NestedEncoding,
    PositionalEncoding,
    Side,
)
from pe_bench.encodings.compose import stack
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.errors import require

SHARED_HOOKS = {"ids": "position ids", "embed": "embeddings"}


class Chunks(LayerEncoding):
    """A query sees the keys of its own chunk."""

    def __init__(self, chunk: int):
        super().__init__()
        self.chunk = chunk

    def visible(self, queries: Side, keys: Side) -> Tensor:
        query_index = queries.index.unsqueeze(-1)
        query_chunk = query_index.div(self.chunk, rounding_mode="floor")
        key_chunk = keys.index.div(self.chunk, rounding_mode="floor")
        return (query_chunk == key_chunk) & (keys.index <= query_index)

    def ranges(self, start: int, stop: int) -> list[range]:
        return [range(start // self.chunk * self.chunk, stop)]

    def first_keys(self, tokens: int) -> Tensor:
        index = torch.arange(tokens)
        return index - index % self.chunk


class LocalGlobal(PositionalEncoding):
    """Options:

    local: the encoding of local layers, a mapping with a name and options
    global: the encoding of global layers
    window: tokens that layers with `local` see; null: all
    every: the last layer of each group of this size has `global`, and sees everything
    first: true: the first layer of each group has `global`, not the last
    last: true: the model's last layer has `global` too
    chunk: tokens that layers with `local` see together; null: all
    """

    def __init__(
        self,
        n_layers: int,
        local: NestedEncoding,
        global_: NestedEncoding,
        window: AtLeast1 | None,
        every: AtLeast1 = 4,
        first: bool = False,
        last: bool = False,
        chunk: AtLeast1 | None = None,
    ):
        super().__init__()
        if first:
            are_global = [number % every == 0 for number in range(n_layers)]
        else:
            group = min(every, n_layers)
            are_global = [(number + 1) % group == 0 for number in range(n_layers)]
        are_global[-1] |= last
        masks: list[LayerEncoding] = [] if window is None else [SlidingWindow(window)]
        masks += [] if chunk is None else [Chunks(chunk)]
        part_by_kind: dict[bool, PositionalEncoding] = {}
        for is_global, build in ((False, local), (True, global_)):
            if is_global in are_global:
                part_by_kind[is_global] = build(are_global.count(is_global))
        for is_global, part in part_by_kind.items():
            for hook, what in SHARED_HOOKS.items():
                option = "encoding.global" if is_global else "encoding.local"
                message = f"changes {what}, which all layers share: choose one that acts in attention"
                require(not part.overrides(hook), f"{option} {message}")
        local_layers = part_by_kind[False].layer(0) if False in part_by_kind else None
        if local_layers is not None and local_layers.overrides("attend"):
            message = "limit softmax attention, which layers of encoding.local lack: set both to null"
            require(not masks, f"encoding.window and encoding.chunk {message}")
        self.holders = nn.ModuleList(part_by_kind.values())  # the modules that hold the parameters
        self._layers: list[LayerEncoding] = []
        for number, is_global in enumerate(are_global):
            layer = part_by_kind[is_global].layer(are_global[:number].count(is_global))
            self._layers.append(layer if is_global else stack([layer, *masks]))
        acting = [*part_by_kind.values(), *(masks if False in part_by_kind else [])]
        self.claims = frozenset.intersection(*(part.claims for part in acting))
        past = {part.past_training for part in part_by_kind.values()}
        self.past_training = next(each for each in ADVERSE_FIRST if each in past)

    def layer(self, number: int) -> LayerEncoding:
        return self._layers[number]
