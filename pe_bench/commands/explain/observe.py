"""Watch a model's layers during a pass: their logits and weights, block by block."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.compose import Stack, leaves_of
from pe_bench.model.decoder import LanguageModel

WATCHED = ("adjust", "weights", "mix")


class Seen(NamedTuple):
    """A block of queries of one layer, and the keys up to the last query.

    logits: before a cap, [B, H, Q, N]. visible: [Q, N] or [H, Q, N]. weights: [B, H, Q, N], which sum to less
    than 1 where there is a null logit.
    """

    layer: LayerEncoding
    logits: Tensor
    visible: Tensor
    weights: Tensor
    queries: Side
    keys: Side

    def of(self, rows: Tensor) -> "Seen":
        """Return the block with only the queries in `rows`."""
        return self._replace(
            logits=self.logits[:, :, rows],
            visible=self.visible[..., rows, :],
            weights=self.weights[:, :, rows],
            queries=self.queries._replace(
                x=self.queries.x[:, :, rows],
                raw=self.queries.raw[:, :, rows],
                position=self.queries.position[..., rows],
                index=self.queries.index[rows],
                values={name: value[..., rows] for name, value in self.queries.values.items()},
            ),
        )

    @property
    def masked(self) -> Tensor:
        """Return the logits [B, H, Q, N], minus infinity for keys that are not visible."""
        return self.logits.masked_fill(~self.visible, float("-inf"))


# Called with the number of a layer and each block of its queries, the last blocks first.
Watcher = Callable[[int, Seen], None]


class Observed(Stack):
    """A layer that computes on the reference path, and shows its logits and weights to `watch`."""

    def __init__(self, layer: LayerEncoding, number: int, watch: Watcher) -> None:
        super().__init__(leaves_of(layer))
        self.layer, self.number, self.watch = layer, number, watch
        self._before: tuple[Tensor, Tensor] | None = None

    def adjust(self, scores: Tensor, visible: Tensor, queries: Side, keys: Side) -> Tensor:
        logits = super().adjust(scores, visible, queries, keys)
        self._before = logits, visible
        return logits

    def mix(self, weights: Tensor, v: Tensor, queries: Side, keys: Side) -> Tensor:
        assert self._before is not None, "logits come before weights"
        logits, visible = self._before
        shape = weights.shape
        self.watch(self.number, Seen(self.layer, logits.expand(shape), visible, weights, queries, keys))
        return super().mix(weights, v, queries, keys)

    def overrides(self, *hooks: str) -> bool:
        return any(hook in WATCHED for hook in hooks) or super().overrides(*hooks)


def watched(model: LanguageModel, watch: Watcher, numbers: Sequence[int] | None = None) -> LanguageModel:
    """Return the model with softmax layers that call `watch`. numbers: of the layers; None: all."""
    layers: dict[int, LayerEncoding] = {}
    for number in range(model.n_layers) if numbers is None else numbers:
        layer = model.layer(number)
        if not layer.overrides("attend"):
            layers[number] = Observed(layer, number, watch)
    return model.changed(layers, {})


def entropies(logits: Tensor, factor: float = 1.0, null: Tensor | None = None) -> Tensor:
    """Return the entropy [B, H, Q] of the softmax of logits [B, H, Q, N] times a factor.

    null: the logit [.., Q, 1] of one more key, which the factor does not multiply.
    """
    scaled = logits * factor
    if null is not None:
        scaled = torch.cat([scaled, null.expand(*scaled.shape[:-1], 1)], -1)
    logs = scaled.log_softmax(-1)
    return -(logs.exp() * logs.masked_fill(logs == float("-inf"), 0)).sum(-1)
