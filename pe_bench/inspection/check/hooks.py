"""What each hook returns for small inputs, and the basic properties: the first that fails ends the check.

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
from pe_bench.inspection.check.case import (
    MODEL,
    TRAIN_LENGTH,
    Case,
    Finding,
    hidden,
    ids_of,
    layer_inputs,
    layers_of,
    tokens,
    worst,
)
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


OPTIONAL = ("logit_scale", "distance_bias", "bias", "null_logit")  # may return None
ANY = "*"  # an axis of any length
AXES = {"H": "head", "T": "token", "n": "distance", "Q": "query", "N": "key"}


def shapes_fit(case: Case) -> Finding:
    """Each hook returns the shape that base.py gives for it.

    Look at: the line named; a missing [:, None], or axes in another order.

    Check that each hook returns a tensor of the shape that base.py gives for it.
    """
    count = 0
    for item in _all_returned(case):
        count += 1
        wrong = _misfit(item)
        if wrong:
            return Finding("fails", f"{item.place} {wrong}")
    return Finding("holds", f"{count} results of hooks")


def values_are_finite(case: Case) -> Finding:
    """Each hook returns finite values.

    Look at: the line named: a logarithm or a power at distance 0, a division by 0, or keys hidden by an
    infinite bias, which is for `visible`.

    Check that no hook returns an infinite value or nan, with initial and other parameters.
    """
    for item in _all_returned(case):
        if isinstance(item.value, Tensor) and item.value.is_floating_point():
            bad = ~item.value.detach().isfinite()
            if item.hidden is not None:
                bad &= ~item.hidden
            if bad.any():
                return Finding("fails", f"{item.place} {_first_bad(item, bad)}")
    return Finding("holds", "hooks return finite values")


def code_runs(case: Case) -> Finding:
    """A decoder with the encoding runs forwards and backwards.

    Look at: the line named.

    Run a decoder forwards and backwards, with the ids of training and of scoring.
    """
    for length in (1, 2, TRAIN_LENGTH):
        text = tokens(2, length)
        output = case.model.hidden(text, ids_of(case.model.encoding, text, train=True))
        output.square().sum().backward()
        case.model.zero_grad()
        with torch.no_grad():
            if not hidden(case.model, text).isfinite().all():
                return Finding("fails", f"a decoder's output is not finite at {length} tokens")
    return Finding("holds", "forwards and backwards")


@torch.no_grad()
def is_repeatable(case: Case) -> Finding:
    """The same call gives the same output twice.

    Look at: random numbers or dropout in a hook: draw them in `ids`, from the given generator.

    Run the same tokens twice, as in training and as in scoring: dropout and noise show.
    """
    model, text, state = case.model_of(case.with_random_parameters()), tokens(2, 9), torch.get_rng_state()
    for mode, training in (("training", True), ("scoring", False)):
        model.train(training)
        error = worst(hidden(model, text), hidden(model, text))
        if error > 0:
            return Finding("fails", f"two calls in {mode} with the same tokens and ids differ by {error:.1e}")
    if not torch.equal(state, torch.get_rng_state()):
        return Finding("fails", "a call draws from torch's global generator")
    return Finding("holds", "two calls are equal")


def _all_returned(case: Case) -> Iterator[Returned]:
    yield from returned(case, case.as_built(), torch.float32)
    yield from returned(case, case.encoding, torch.float64)


def _misfit(item: Returned) -> str:
    """Describe how a result differs from what its hook must return; empty if it does not."""
    if item.value is None and item.hook in OPTIONAL:
        return ""
    shapes = item.shapes[:2]  # further ones have fewer axes
    wanted = " or ".join(_in_letters(shape) for shape in shapes)
    if not isinstance(item.value, Tensor):
        return f"returned {type(item.value).__name__}, must be a tensor {wanted}"
    if item.hook == "visible" and item.value.dtype != torch.bool:
        return f"returned {item.value.dtype}, must be torch.bool: true for the keys that a query may see"
    if any(_fits(item.value.shape, shape, item.exact) for shape in item.shapes):
        return ""
    found, sizes = list(item.value.shape), " or ".join(_in_numbers(shape) for shape in shapes)
    return f"returned the shape {found}, must be {wanted}, here {sizes}"


def _fits(found: torch.Size, shape: str, exact: bool) -> bool:
    letters = _spelled(shape, len(found))
    return len(found) == len(letters) and all(
        letter == ANY or size == SIZES[letter] or (size == 1 and letter in SHARED and not exact)
        for size, letter in zip(found, letters, strict=True)
    )


def _spelled(shape: str, axes: int) -> str:
    """Return the shape with `...` spelled out, so that each of `axes` axes has a letter."""
    return shape.replace("...", ANY * (axes - len(shape.replace("...", ""))))


def _in_letters(shape: str) -> str:
    return f"[{', '.join(shape.replace('...', ANY))}]"


def _in_numbers(shape: str) -> str:
    return f"[{', '.join(str(SIZES.get(letter, letter)) for letter in shape.replace('...', ANY))}]"


def _first_bad(item: Returned, bad: Tensor) -> str:
    """Describe the first value that is not finite: what it is, at which distance or token, in which head."""
    index = [int(number) for number in bad.nonzero()[0]]
    letters = next((shape for shape in item.shapes if len(_spelled(shape, len(index))) == len(index)), "")
    axes = zip(_spelled(letters, len(index)), index, strict=True)
    at = {AXES[letter]: number for letter, number in axes if letter in AXES}
    if "query" in at and "key" in at:
        distance = at.pop("query") - at.pop("key")
        place = f"distance {distance}" if distance >= 0 else "a key after its query"
    else:
        place = next((f"{axis} {at[axis]}" for axis in ("distance", "token", "query") if axis in at), "")
    head = f"head {at['head']}" if "head" in at else ""
    where = " in ".join(filter(None, (place, head)))
    value = item.value[tuple(index)].item()
    return f"is {value} at {where}; {int(bad.sum())} of its {bad.numel()} values are not finite"
