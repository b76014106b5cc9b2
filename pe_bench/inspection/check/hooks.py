"""The values that each hook of an encoding returns for small inputs, and the shapes that they may have.

Letters: B batch, H query heads, T tokens, Q queries, N keys, K head width, D model width, n distances.
"""

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, PositionalEncoding, Side
from pe_bench.encodings.compose import Composition, Stack
from pe_bench.inspection.check.case import MODEL, Case, ids_of, layer_inputs, layers_of, tokens
from pe_bench.model.attention import project

TOKENS = 9  # no other size of the model is the same
SIZES = {"B": 2, "H": MODEL.n_heads, "T": TOKENS, "Q": TOKENS, "N": TOKENS, "K": MODEL.d_head}
SIZES |= {"D": MODEL.d_model, "n": TOKENS, "1": 1}
SHARED = "BHQ"  # one value may serve all sequences, heads or queries
HOOKS = (
    "ids",
    "embed",
    "prepare",
    "transform",
    "logit_scale",
    "scores",
    "distance_bias",
    "bias",
    "adjust",
    "visible",
    "weights",
    "null_logit",
    "mix",
)


class Returned(NamedTuple):
    """A value that a hook returned, and the letters of the shapes that it may have; `...` is any axes."""

    part: nn.Module
    hook: str
    value: Any
    shapes: tuple[str, ...]
    exact: bool = True  # no axis may have length 1 because all share the value
    hidden: Tensor | None = None  # true where a value does not matter

    @property
    def place(self) -> str:
        return f"{line_of(self.part, self.hook)}: {self.hook}"


def line_of(part: nn.Module, hook: str) -> str:
    """Return the file and line where a class has a hook."""
    code = inspect.unwrap(getattr(type(part), hook)).__code__
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def parts_of(encoding: Composition) -> list[nn.Module]:
    """Return the encoding and its modifiers without their wrappers, and what acts in the layers."""
    of_model = [encoding.base, *encoding.modifiers.children()]
    layers = layers_of(encoding)
    of_layers = [part for layer in layers for part in (layer.parts if isinstance(layer, Stack) else (layer,))]
    return [*of_model, *dict.fromkeys(of_layers)]


def overridden(encoding: Composition, hooks: Sequence[str]) -> list[tuple[nn.Module, str]]:
    """Return each part of the encoding with each of these hooks that it changes."""
    return [(part, hook) for part in parts_of(encoding) for hook in hooks if _changes(part, hook)]


def returned(case: Case, encoding: Composition, dtype: torch.dtype) -> Iterator[Returned]:
    """Yield what each hook that the encoding changes returns, in the decoder's order."""
    for part in parts_of(encoding):
        found = (
            _of_layer(part, dtype) if isinstance(part, LayerEncoding) else _of_model(part, encoding, dtype)
        )
        yield from (item for item in found if _changes(part, item.hook))


def _of_model(part: nn.Module, encoding: Composition, dtype: torch.dtype) -> Iterator[Returned]:
    assert isinstance(part, PositionalEncoding)
    text, (x, _, _, _) = tokens(2, TOKENS), layer_inputs(TOKENS, dtype)
    for train in (True, False):
        generator = torch.Generator().manual_seed(3)
        yield Returned(
            part, "ids", part.ids(text, train=train, generator=generator), ("T", "BT"), exact=False
        )
    yield Returned(part, "embed", part.embed(x, ids_of(encoding, text), text), ("BTD",))


def _of_layer(part: LayerEncoding, dtype: torch.dtype) -> Iterator[Returned]:
    (x, q, k, v), position, scale = layer_inputs(TOKENS, dtype), torch.arange(TOKENS), MODEL.d_head**-0.5
    values = part.prepare(x)
    for value in values.values():
        yield Returned(part, "prepare", value, ("B...T",))
    turned = tuple(side.x for side in project(part, x, q, k, position))
    for value in turned:
        yield Returned(part, "transform", value, ("BHT...",))
    queries, keys = (
        Side(moved, raw, position, position, values) for moved, raw in zip(turned, (q, k), strict=True)
    )
    yield Returned(part, "distance_bias", part.distance_bias(position), ("Hn",), exact=False)
    yield Returned(part, "visible", part.visible(queries, keys), ("QN", "HQN"))
    later = ~torch.ones(TOKENS, TOKENS).tril().bool()
    yield Returned(
        part, "logit_scale", part.logit_scale(queries), ("BHQ1", "HQ1", "Q1", "1", ""), exact=False
    )
    yield Returned(part, "bias", part.bias(queries, keys), ("HQN", "BHQN"), exact=False)
    scores = part.scores(queries, keys, scale)
    yield Returned(part, "scores", scores, ("BHQN",), hidden=later)
    hidden = ~part.visible(queries, keys)
    scores = part.adjust(scores, ~hidden, queries, keys)
    yield Returned(part, "adjust", scores, ("BHQN",), hidden=hidden)
    weights = part.weights(scores, ~hidden)
    yield Returned(part, "weights", weights, ("BHQN",))
    yield Returned(part, "null_logit", part.null_logit(queries), ("BHQ1", "HQ1", "Q1", "1", ""), exact=False)
    yield Returned(part, "mix", part.mix(weights, v, queries, keys), ("BHQK",))


def _changes(part: nn.Module, hook: str) -> bool:
    base = LayerEncoding if isinstance(part, LayerEncoding) else PositionalEncoding
    return hasattr(base, hook) and getattr(type(part), hook) is not getattr(base, hook)
