"""Several encodings as one: an encoding and the modifiers that act on top of it.

Transforms chain, scales multiply, biases add, visibilities are ANDed, embeddings chain. Position ids, scores,
weights and mix cannot be combined: at most one part changes each. A layer without softmax combines with
gates and convolutions alone.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import chain
from typing import Self

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import ADVERSE_FIRST, LayerEncoding, PositionalEncoding, ScoreTerm, Side
from pe_bench.encodings.masks.ranges import intersection
from pe_bench.errors import UserError, require
from pe_bench.values import shown

# Hooks of softmax attention, which a layer with `attend` does not call.
SOFTMAX_HOOKS = (
    *("prepare", "transform", "logit_scale", "scores", "distance_bias", "bias", "adjust", "visible"),
    *("weights", "null_logit", "mix"),
)


class Composition(PositionalEncoding):
    """The encoding of a model: a base and its modifiers.

    The base has one place in the module tree, with or without modifiers, so that its weights load into both.
    """

    def __init__(self, base: PositionalEncoding, modifiers: dict[str, PositionalEncoding], n_layers: int):
        super().__init__()
        self.base = base
        self.modifiers = nn.ModuleDict(modifiers)
        parts = {"the encoding": base, **modifiers}
        self._parts = list(parts.values())
        _refuse_several(_names_of_parts_changing("ids", parts), "replace ids")
        for number in range(n_layers):
            layers = {name: part.layer(number) for name, part in parts.items()}
            for part, layer in zip(parts.values(), layers.values(), strict=True):
                message = f"{type(part).__name__}.layer must return a LayerEncoding, not {shown(layer)}"
                require(isinstance(layer, LayerEncoding), message)
            for hook in ("scores", "weights", "mix"):
                _refuse_several(_names_of_parts_changing(hook, layers), f"replace {hook}")
            # Null logits add up, but only in a softmax, which `weights` replaces.
            one_null_logit = _names_of_parts_changing("null_logit", layers)[:1]
            _refuse_several(
                one_null_logit + _names_of_parts_changing("weights", layers), "change the softmax"
            )
            require_softmax(layers)
        # Plain list: the parts are registered above, and once is enough.
        self._layers = [self._layer_of_parts(number) for number in range(n_layers)]
        self.claims = frozenset.intersection(*(part.claims for part in self._parts))
        past = {part.past_training for part in self._parts}
        self.past_training = next(each for each in ADVERSE_FIRST if each in past)

    def _layer_of_parts(self, number: int) -> LayerEncoding:
        return stack([part.layer(number) for part in self._parts])

    def ids(self, tokens: Tensor, *, train: bool, generator: torch.Generator | None) -> Tensor:
        changing = (part for part in self._parts if part.overrides("ids"))
        owner = next(changing, self.base)
        return owner.ids(tokens, train=train, generator=generator)

    def embed(self, x: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        for part in self._parts:
            x = part.embed(x, ids, tokens)
        return x

    def layer(self, number: int) -> LayerEncoding:
        return self._layers[number]

    def overrides(self, *hooks: str) -> bool:
        return any(part.overrides(*hooks) for part in self._parts)

    @property
    def parts(self) -> Sequence[PositionalEncoding]:
        """Return the base and the modifiers."""
        return self._parts

    def changed(
        self, layers: Mapping[int, LayerEncoding], parts: Sequence[PositionalEncoding] | None = None
    ) -> Self:
        """Return the encoding with the `layers` of these numbers replaced; parameters are shared.

        parts: encodings that make position ids and change the input, in place of base and modifiers.
        """
        other = copy.copy(self)
        other._layers = [layers.get(number, layer) for number, layer in enumerate(self._layers)]
        other._parts = [*(self._parts if parts is None else parts)]
        return other

    def lr_multiples(self, chosen: float | None) -> dict[str, float]:
        """Return the learning rate of each parameter, by name, as a multiple of the model's.

        `chosen` replaces the multiple of the parameter's class.
        """
        multiples = {}
        for prefix, module in self.named_modules():  # the innermost last
            if isinstance(module, LayerEncoding | PositionalEncoding):
                multiples |= {name: module.lr_multiple for name, _ in module.named_parameters(prefix)}
        return {name: chosen or multiples[name] for name, _ in self.named_parameters()}


def require_softmax(parts: Mapping[str, LayerEncoding]) -> None:
    """Raise `UserError` if one part of a layer replaces softmax attention, which another part changes.

    parts: the encodings that act in one layer, by their names in the message.
    """
    without = _names_of_parts_changing("attend", parts)
    if not without:
        return
    _refuse_several(without, "replace softmax attention")
    others = {name: part for name, part in parts.items() if name != without[0]}
    acting = [name for name, part in others.items() if part.overrides(*SOFTMAX_HOOKS)]
    if acting:
        way_out = "give it to layers with softmax alone, such as those of encoding.global"
        raise UserError(
            f"{acting[0]} acts on softmax attention, which layers of {without[0]} lack: {way_out}"
        )


def stack(parts: Sequence[LayerEncoding]) -> LayerEncoding:
    """Return one encoding with the hooks of all parts, except parts of the class `LayerEncoding` itself."""
    leaves = chain.from_iterable(map(leaves_of, parts))
    acting = [leaf for leaf in leaves if type(leaf) is not LayerEncoding]
    for leaf in acting:
        if isinstance(leaf, Wrapper):
            others = [other for other in acting if other is not leaf]
            return leaf.rewrap([*leaf.parts, *others])
    if len(acting) > 1:
        return Stack(acting)
    return acting[0] if acting else LayerEncoding()


def leaves_of(layer: LayerEncoding) -> tuple[LayerEncoding, ...]:
    """Return the encodings that a layer's encoding is stacked from."""
    # A subclass of `Stack` changes how its parts act together, so it is a leaf itself.
    return layer.parts if type(layer) is Stack else (layer,)


class Stack(LayerEncoding):
    """Several encodings in one layer, combined hook by hook as the module's docstring says."""

    def __init__(self, parts: Sequence[LayerEncoding]):
        super().__init__()
        self.parts = tuple(parts)
        self._transforming = sorted(self.parts, key=lambda part: not part.transforms_first)

    def convolve(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        for part in self.parts:
            q, k, v = part.convolve(q, k, v)
        return q, k, v

    def prepare(self, x: Tensor) -> dict[str, Tensor]:
        prepared: dict[str, Tensor] = {}
        for part in self.parts:
            values = part.prepare(x)
            assert values.keys().isdisjoint(prepared), "two encodings prepare values under one name"
            prepared |= values
        return prepared

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        for part in self._transforming:
            q, k = part.transform(queries, keys)
            queries, keys = queries._replace(x=q), keys._replace(x=k)
        return queries.x, keys.x

    def logit_scale(self, queries: Side) -> Tensor | None:
        return _combine_values(torch.mul, [part.logit_scale(queries) for part in self.parts])

    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        return self._part_that_changes("scores").scores(queries, keys, scale)

    def terms(self, queries: Side, keys: Side) -> list[ScoreTerm]:
        return self._part_that_changes("scores").terms(queries, keys)

    def distance_bias(self, distance: Tensor) -> Tensor | None:
        return _combine_values(torch.add, [part.distance_bias(distance) for part in self.parts])

    def bias(self, queries: Side, keys: Side) -> Tensor | None:
        return _combine_values(torch.add, [part.bias(queries, keys) for part in self.parts])

    def columns(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        columns = [part.columns(queries, keys) for part in self._parts_with_bias()]
        query_columns, key_columns = zip(*columns, strict=True)
        return torch.cat(query_columns, -1), torch.cat(key_columns, -1)

    def has_columns(self) -> bool:
        # A part with a bias but no columns would be left out of the sum.
        biased = self._parts_with_bias()
        return bool(biased) and all(part.has_columns() for part in biased)

    def _parts_with_bias(self) -> list[LayerEncoding]:
        return [part for part in self.parts if part.overrides("bias", "distance_bias", "columns")]

    def adjust(self, scores: Tensor, visible: Tensor, queries: Side, keys: Side) -> Tensor:
        for part in self.parts:
            scores = part.adjust(scores, visible, queries, keys)
        return scores

    def visible(self, queries: Side, keys: Side) -> Tensor:
        return reduce(torch.logical_and, [part.visible(queries, keys) for part in self.parts])

    def ranges(self, start: int, stop: int) -> list[range]:
        return reduce(intersection, [part.ranges(start, stop) for part in self.parts])

    def first_keys(self, tokens: int) -> Tensor | None:
        hiding = [part for part in self.parts if part.overrides("visible")]
        # A part without first keys first: another part may search a mask for its own.
        if not all(part.overrides("first_keys") for part in hiding):
            return None
        first_keys = torch.zeros(tokens, dtype=torch.int64)
        for part in hiding:
            own_keys = part.first_keys(tokens)
            if own_keys is None:
                return None
            first_keys = torch.maximum(first_keys, own_keys)
        return first_keys

    def weights(self, scores: Tensor, visible: Tensor) -> Tensor:
        return self._part_that_changes("weights").weights(scores, visible)

    def null_logit(self, queries: Side) -> Tensor | None:
        return _combine_values(torch.logaddexp, [part.null_logit(queries) for part in self.parts])

    def mix(self, weights: Tensor, v: Tensor, queries: Side, keys: Side) -> Tensor:
        return self._part_that_changes("mix").mix(weights, v, queries, keys)

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._part_that_changes("attend").attend(x, q, k, v)

    def attend_chunked(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._part_that_changes("attend").attend_chunked(x, q, k, v)

    def gate(self, x: Tensor) -> Tensor | None:
        return _combine_values(torch.mul, [part.gate(x) for part in self.parts])

    def overrides(self, *hooks: str) -> bool:
        return any(part.overrides(*hooks) for part in self.parts)

    def _part_that_changes(self, hook: str) -> LayerEncoding:
        changing = (part for part in self.parts if part.overrides(hook))
        return next(changing, self.parts[0])


class Wrapper(Stack, ABC):
    """A stack that acts around all other encodings of its layer: `stack` puts it outermost."""

    @abstractmethod
    def rewrap(self, parts: Sequence[LayerEncoding]) -> Self:
        """Return the same wrapper around these parts."""


def _combine_values(
    combine: Callable[[Tensor, Tensor], Tensor], values: Sequence[Tensor | None]
) -> Tensor | None:
    """Combine the values of several parts pairwise, without None values; None if all are None."""
    given = [value for value in values if value is not None]
    return reduce(combine, given) if given else None


def _names_of_parts_changing(
    hook: str, parts: Mapping[str, PositionalEncoding] | Mapping[str, LayerEncoding]
) -> list[str]:
    """Return the names of the parts that change a hook."""
    return [name for name, part in parts.items() if part.overrides(hook)]


def _refuse_several(names: list[str], action: str) -> None:
    """Raise `UserError` if several parts, by their names in the message, do the same `action`."""
    if len(names) > 1:
        raise UserError(f"{' and '.join(names)} both {action}, and only one can: leave one of them out")
