"""Observe a model's layers during a pass: the logits and weights of its targets' queries, block by block."""

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


class QueryBlock(NamedTuple):
    """A block of queries of one layer, and the keys up to the last query."""

    layer: LayerEncoding
    logits: Tensor  # before the mask, [B, H, Q, N]
    visible: Tensor  # [Q, N] or [H, Q, N]
    queries: Side
    keys: Side
    # The queries at positions that are `Observer.shift` later; None for a shift of 0.
    far_queries: Side | None
    tokens: int  # the number of tokens of the whole window, with those after the block

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.queries.raw.shape[-1])

    @property
    def masked(self) -> Tensor:
        """Return the logits [B, H, Q, N], minus infinity for keys that are not visible."""
        return self.logits.masked_fill(~self.visible, float("-inf"))

    @property
    def weights(self) -> Tensor:
        """Return the weights [B, H, Q, N], which sum to less than 1 in a layer with a null logit."""
        return attention_weights(self.layer, self.logits, self.visible, self.queries)


class Observer:
    """Receives the logits or the state of each layer in each pass.

    queries: the indices of the observed queries. shift: the number of positions by which
    `QueryBlock.far_queries` are further from the keys.
    """

    def __init__(self, queries: range, shift: int = 0) -> None:
        self.queries, self.shift = queries, shift

    def see_softmax(self, number: int, blocks: Iterator[QueryBlock]) -> None:
        """Receive the logits of layer `number`.

        blocks: blocks of queries in rising order, with all their keys.
        """

    def see_recurrent(self, number: int, state: State) -> None:
        """Receive the state that a pass leaves in layer `number`, a layer without softmax."""


class ObservedLayer(Wrapper):
    """A layer with unchanged output that also passes its logits, or its state, to an `Observer`."""

    def __init__(self, parts: Sequence[LayerEncoding], number: int, observer: Observer) -> None:
        super().__init__(parts)
        self.number, self.observer = number, observer

    def rewrap(self, parts: Sequence[LayerEncoding]) -> Self:
        return type(self)(parts, self.number, self.observer)

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        turned_q, turned_k = super().transform(queries, keys)
        far = None
        if self.observer.shift:
            moved = queries._replace(position=queries.position + self.observer.shift)
            far_q, _ = super().transform(moved, keys)
            far = moved._replace(x=far_q)
        blocks = self._observed_blocks(queries._replace(x=turned_q), keys._replace(x=turned_k), far)
        self.observer.see_softmax(self.number, blocks)
        return turned_q, turned_k

    def _observed_blocks(self, queries: Side, keys: Side, far: Side | None) -> Iterator[QueryBlock]:
        """Yield the observed queries in blocks, each with the keys up to its last query."""
        layer = stack(self.parts)
        before = len(keys.index) - len(queries.index)  # tokens without a query
        scale = 1 / math.sqrt(queries.raw.shape[-1])
        batch, heads = queries.x.shape[:2]
        size = max(1, REFERENCE_ELEMENTS // (batch * heads * len(keys.index)))
        for start in range(self.observer.queries.start, self.observer.queries.stop, size):
            stop = min(start + size, self.observer.queries.stop)
            rows = range(start - before, stop - before)
            asking = select_tokens(queries, rows)
            seen = select_tokens(keys, range(stop))
            scores, visible = logits(layer, asking, seen, scale)
            shape = (*scores.shape[:-2], len(rows), stop)
            moved = None if far is None else select_tokens(far, rows)
            yield QueryBlock(layer, scores.expand(shape), visible, asking, seen, moved, len(keys.index))

    def attend_chunked(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        layer = self._part_that_changes("attend")
        if isinstance(layer, Recurrent):
            self.observer.see_recurrent(self.number, layer.state_after(x, q, k, v))
        return super().attend_chunked(x, q, k, v)

    def overrides(self, *hooks: str) -> bool:
        return "transform" in hooks or super().overrides(*hooks)


def target_queries(plan: Plan) -> range:
    """Return the indices of the queries that predict targets, the same in each window of the plan."""
    window = plan.windows[0]
    return range(window.first, window.first + window.targets)


def observed_model(model: LanguageModel, observer: Observer) -> LanguageModel:
    """Return a model with the same outputs whose layers show their logits or states to an observer."""
    layers: dict[int, LayerEncoding] = {}
    for number in range(model.n_layers):
        layers[number] = ObservedLayer(leaves_of(model.layer(number)), number, observer)
    return model.changed(layers, {})


def entropies(logits: Tensor, factor: float = 1.0, null: Tensor | None = None) -> Tensor:
    """Return the entropy [B, H, Q] of the softmax of logits [B, H, Q, N] times a factor.

    null: the logit [.., Q, 1] of one more key, which the factor does not multiply.
    """
    scaled = logits * factor
    if null is not None:
        null = null.expand(*scaled.shape[:-1], 1)
        scaled = torch.cat([scaled, null], -1)
    logs = scaled.log_softmax(-1)
    finite = logs.masked_fill(logs == float("-inf"), 0)
    return -(logs.exp() * finite).sum(-1)
