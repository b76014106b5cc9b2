"""Several encodings as one: an encoding and the modifiers that act on top of it.

Transforms chain, scales multiply, biases add, visibilities are ANDed, embeddings chain. What
cannot be shared (position ids, scores, weights, mix) may be owned by one part only. A layer without softmax
shares its layer with gates and convolutions alone.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
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
OF_SOFTMAX = (
    *("prepare", "transform", "logit_scale", "scores", "distance_bias", "bias", "adjust", "visible"),
    *("weights", "null_logit", "mix"),
)


class Composition(PositionalEncoding):
    """The encoding of a model.

    The base keeps its place in the module tree whether there are modifiers or not, so that
    weights load the same with and without them.
    """

    def __init__(self, base: PositionalEncoding, modifiers: dict[str, PositionalEncoding], n_layers: int):
        super().__init__()
        self.base = base
        self.modifiers = nn.ModuleDict(modifiers)
        parts = {"the encoding": base, **modifiers}
        self._parts = list(parts.values())
        _refuse_several([name for name, part in parts.items() if part.overrides("ids")], "replace ids")
        for number in range(n_layers):
            layers = {name: part.layer(number) for name, part in parts.items()}
            for part, layer in zip(parts.values(), layers.values(), strict=True):
                message = f"{type(part).__name__}.layer must return a LayerEncoding, not {shown(layer)}"
                require(isinstance(layer, LayerEncoding), message)
            for hook in ("scores", "weights", "mix"):
                _refuse_several([name for name in layers if layers[name].overrides(hook)], f"replace {hook}")
            # A null logit is one of the softmax, which `weights` replaces.
            changing = [name for name in layers if layers[name].overrides("null_logit")][:1]
            changing += [name for name in layers if layers[name].overrides("weights")]
            _refuse_several(changing, "change the softmax")
            require_softmax(layers)
        # Plain list: the parts are registered above, and once is enough.
        self._layers = [self._layer_of_parts(number) for number in range(n_layers)]
        self.claims = frozenset.intersection(*(part.claims for part in self._parts))
        past = {part.past_training for part in self._parts}
        self.past_training = next(each for each in ADVERSE_FIRST if each in past)

    def _layer_of_parts(self, number: int) -> LayerEncoding:
        return stack([part.layer(number) for part in self._parts])

    def ids(self, tokens: Tensor, *, train: bool, generator: torch.Generator | None) -> Tensor:
        owner = next((part for part in self._parts if part.overrides("ids")), self.base)
        return owner.ids(tokens, train=train, generator=generator)

    def embed(self, x: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        return reduce(lambda embedded, part: part.embed(embedded, ids, tokens), self._parts, x)

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
        """Return the same encoding with some layers replaced, by number; parameters are shared.

        parts: these make position ids and change the input, in place of the base and the modifiers.
        """
        other = copy.copy(self)
        other._layers = [layers.get(number, layer) for number, layer in enumerate(self._layers)]
        other._parts = [*(self._parts if parts is None else parts)]
        return other

    def lr_multiples(self, chosen: float | None) -> dict[str, float]:
        """Return each parameter's rate over the model's, by its name: `chosen`, or its class's own."""
        multiples = {}
        for prefix, module in self.named_modules():  # the innermost last
            if isinstance(module, LayerEncoding | PositionalEncoding):
                multiples |= {name: module.lr_multiple for name, _ in module.named_parameters(prefix)}
        return {name: chosen or multiples[name] for name, _ in self.named_parameters()}


def require_softmax(parts: Mapping[str, LayerEncoding]) -> None:
    """Raise `UserError` where one part of a layer replaces softmax attention and another one acts on it.

    parts: what acts in one layer, by names for the message.
    """
    without = [name for name, part in parts.items() if part.overrides("attend")]
    if not without:
        return
    acting = [name for name, part in parts.items() if name != without[0] and part.overrides(*OF_SOFTMAX)]
    if len(without) > 1:
        _refuse_several(without, "replace softmax attention")
    if acting:
        way_out = "give it to layers with softmax alone, such as those of encoding.global"
        raise UserError(
            f"{acting[0]} acts on softmax attention, which layers of {without[0]} lack: {way_out}"
        )


def stack(parts: Sequence[LayerEncoding]) -> LayerEncoding:
    """Return one encoding with the hooks of all parts; a part that changes nothing is left out."""
    leaves = chain.from_iterable(map(leaves_of, parts))
    acting = [leaf for leaf in leaves if type(leaf) is not LayerEncoding]
    for leaf in acting:
        if isinstance(leaf, Around):
            others = [other for other in acting if other is not leaf]
            return leaf.rewrap([*leaf.parts, *others])
    if len(acting) > 1:
        return Stack(acting)
    return acting[0] if acting else LayerEncoding()


def leaves_of(layer: LayerEncoding) -> tuple[LayerEncoding, ...]:
    """Return the encodings that act in a layer."""
    # A subclass of `Stack` changes how its parts act together, so it is a leaf itself.
    return layer.parts if type(layer) is Stack else (layer,)


class Stack(LayerEncoding):
    """The layer encodings of one layer, hook by hook."""

    def __init__(self, parts: Sequence[LayerEncoding]):
        super().__init__()
        self.parts = tuple(parts)

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
        for part in self.parts:
            q, k = part.transform(queries, keys)
            queries, keys = queries._replace(x=q), keys._replace(x=k)
        return queries.x, keys.x

    def logit_scale(self, queries: Side) -> Tensor | None:
        factors = [factor for part in self.parts if (factor := part.logit_scale(queries)) is not None]
        return reduce(torch.mul, factors) if factors else None

    def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
        return self._owner("scores").scores(queries, keys, scale)

    def terms(self, queries: Side, keys: Side) -> list[ScoreTerm]:
        return self._owner("scores").terms(queries, keys)

    def distance_bias(self, distance: Tensor) -> Tensor | None:
        biases = [bias for part in self.parts if (bias := part.distance_bias(distance)) is not None]
        return reduce(torch.add, biases) if biases else None

    def bias(self, queries: Side, keys: Side) -> Tensor | None:
        biases = [bias for part in self.parts if (bias := part.bias(queries, keys)) is not None]
        return reduce(torch.add, biases) if biases else None

    def columns(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        columns = [part.columns(queries, keys) for part in self._biased()]
        return torch.cat([query for query, _ in columns], -1), torch.cat([key for _, key in columns], -1)

    def has_columns(self) -> bool:
        # A part with a bias but no columns would be left out of the sum.
        biased = self._biased()
        return bool(biased) and all(part.has_columns() for part in biased)

    def _biased(self) -> list[LayerEncoding]:
        return [part for part in self.parts if part.overrides("bias", "distance_bias", "columns")]

    def adjust(self, scores: Tensor, visible: Tensor, queries: Side, keys: Side) -> Tensor:
        return reduce(lambda s, part: part.adjust(s, visible, queries, keys), self.parts, scores)

    def visible(self, queries: Side, keys: Side) -> Tensor:
        return reduce(torch.logical_and, [part.visible(queries, keys) for part in self.parts])

    def ranges(self, start: int, stop: int) -> list[range]:
        return reduce(intersection, [part.ranges(start, stop) for part in self.parts])

    def weights(self, scores: Tensor, visible: Tensor) -> Tensor:
        return self._owner("weights").weights(scores, visible)

    def null_logit(self, queries: Side) -> Tensor | None:
        nulls = [null for part in self.parts if (null := part.null_logit(queries)) is not None]
        return reduce(torch.logaddexp, nulls) if nulls else None

    def mix(self, weights: Tensor, v: Tensor, queries: Side, keys: Side) -> Tensor:
        return self._owner("mix").mix(weights, v, queries, keys)

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._owner("attend").attend(x, q, k, v)

    def attend_chunked(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._owner("attend").attend_chunked(x, q, k, v)

    def gate(self, x: Tensor) -> Tensor | None:
        gates = [gate for part in self.parts if (gate := part.gate(x)) is not None]
        return reduce(torch.mul, gates) if gates else None

    def overrides(self, *hooks: str) -> bool:
        return any(part.overrides(*hooks) for part in self.parts)

    def _owner(self, hook: str) -> LayerEncoding:
        return next((part for part in self.parts if part.overrides(hook)), self.parts[0])


class Around(Stack, ABC):
    """A stack that stays the outermost one: `stack` gives it the other parts of its layer too."""

    @abstractmethod
    def rewrap(self, parts: Sequence[LayerEncoding]) -> Self:
        """Return the same wrapper around these parts."""


def _refuse_several(owners: list[str], what: str) -> None:
    if len(owners) > 1:
        raise UserError(f"{' and '.join(owners)} both {what}, and only one can: leave one of them out")
