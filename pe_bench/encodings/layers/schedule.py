"""Encodings that differ from layer to layer: some layers see everything, the others a part of the text."""

from collections.abc import Sequence

from torch import nn

from pe_bench.encodings.base import LayerEncoding, PositionalEncoding, most_adverse
from pe_bench.encodings.compose import Stack
from pe_bench.errors import require


class Schedule(PositionalEncoding):
    """The encodings of the layers, in turn: after the last of `layers` the first follows again.

    `holders` own the parameters, where these are not the layers' alone.
    """

    family = "schedule"

    def __init__(self, layers: Sequence[LayerEncoding], holders: Sequence[nn.Module] = ()):
        super().__init__()
        leaves = [part for layer in layers for part in (layer.parts if isinstance(layer, Stack) else [layer])]
        self.holders = nn.ModuleList(holders or dict.fromkeys(leaves))
        self._layers = list(layers)
        self.claims = frozenset.intersection(*(leaf.claims for leaf in leaves))
        self.past_training = most_adverse(leaf.past_training for leaf in leaves)

    def layer(self, number: int) -> LayerEncoding:
        return self._layers[number % len(self._layers)]


def are_global(n_layers: int, every: int) -> list[bool]:
    """Return for each layer whether it is global: the last of `every`, and in a model of fewer the last."""
    require(every > 0, f"encoding.every must be at least 1 layer, not {every}")
    every = min(every, n_layers)
    return [(number + 1) % every == 0 for number in range(n_layers)]
