"""Watch a model's layers during a pass: the logits and weights of its targets' queries, block by block."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.compose import Wrapper, leaves_of, stack
from pe_bench.encodings.recurrent.recurrence import Recurrent, State
from pe_bench.model.attention.reference import REFERENCE_ELEMENTS, attention_weights, logits, select_tokens
from pe_bench.model.decoder import LanguageModel
from pe_bench.scoring.protocols import Plan


class Seen(NamedTuple):
    """A block of queries of one layer, and the keys up to the last query.

    logits: before the mask, [B, H, Q, N]. visible: [Q, N] or [H, Q, N]. far_queries: the same queries at
    positions that are `Watch.shift` later, if they can be moved.
    """

    layer: LayerEncoding
    logits: Tensor
    visible: Tensor
    queries: Side
    keys: Side
    far_queries: Side | None

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.queries.raw.shape[-1])

    @property
    def masked(self) -> Tensor:
        """Return the logits [B, H, Q, N], minus infinity for keys that are not visible."""
        return self.logits.masked_fill(~self.visible, float("-inf"))

    @property
    def weights(self) -> Tensor:
        """Return the weights [B, H, Q, N], which sum to less than 1 where there is a null logit."""
        return attention_weights(self.layer, self.logits, self.visible, self.queries)


class Watch:
    """What is to be done with each layer in each pass.

    queries: the indices of the watched queries. shift: by how many positions queries are moved away from the
    keys for `Seen.far_queries`.
    """

    def __init__(self, queries: range, shift: int = 0) -> None:
        self.queries, self.shift = queries, shift

    def softmax(self, number: int, blocks: Iterator[Seen]) -> None:
        """Get the logits of layer `number`, as blocks of queries in rising order, each with all its keys."""

    def recurrent(self, number: int, state: State) -> None:
        """Get the states that a pass leaves in layer `number`, a layer without softmax."""


class Observed(Wrapper):
    """A layer with unchanged output that also passes its logits, or its states, to a `Watch`."""

    def __init__(self, parts: Sequence[LayerEncoding], number: int, watch: Watch) -> None:
        super().__init__(parts)
        self.number, self.watch = number, watch

    def rewrap(self, parts: Sequence[LayerEncoding]) -> Self:
        return type(self)(parts, self.number, self.watch)

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        turned_q, turned_k = super().transform(queries, keys)
        far = None
        if self.watch.shift:
            moved = queries._replace(position=queries.position + self.watch.shift)
            far = moved._replace(x=super().transform(moved, keys)[0])
        self.watch.softmax(
            self.number, self._blocks(queries._replace(x=turned_q), keys._replace(x=turned_k), far)
        )
        return turned_q, turned_k

    def _blocks(self, queries: Side, keys: Side, far: Side | None) -> Iterator[Seen]:
        layer = stack(self.parts)
        before = len(keys.index) - len(queries.index)  # tokens without a query
        scale = 1 / math.sqrt(queries.raw.shape[-1])
        size = max(1, REFERENCE_ELEMENTS // (queries.x.shape[0] * queries.x.shape[1] * len(keys.index)))
        for start in range(self.watch.queries.start, self.watch.queries.stop, size):
            stop = min(start + size, self.watch.queries.stop)
            rows = range(start - before, stop - before)
            asking = select_tokens(queries, rows)
            seen = select_tokens(keys, range(stop))
            scores, visible = logits(layer, asking, seen, scale)
            shape = (*scores.shape[:-2], len(rows), stop)
            moved = None if far is None else select_tokens(far, rows)
            yield Seen(layer, scores.expand(shape), visible, asking, seen, moved)

    def attend_chunked(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        layer = self._owner("attend")
        if isinstance(layer, Recurrent):
            self.watch.recurrent(self.number, layer.state_after(x, q, k, v))
        return super().attend_chunked(x, q, k, v)

    def overrides(self, *hooks: str) -> bool:
        return "transform" in hooks or super().overrides(*hooks)


def queries_of(plan: Plan) -> range:
    """Return the indices of the queries whose next token is a target, in each window of a plan."""
    window = plan.windows[0]
    return range(window.first, window.first + window.targets)


def watched(model: LanguageModel, watch: Watch, numbers: Sequence[int] | None = None) -> LanguageModel:
    """Return the model with layers that show themselves to `watch`. numbers: of the layers; None: all."""
    chosen = range(model.n_layers) if numbers is None else numbers
    layers: dict[int, LayerEncoding] = {}
    for number in chosen:
        layers[number] = Observed(leaves_of(model.layer(number)), number, watch)
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
