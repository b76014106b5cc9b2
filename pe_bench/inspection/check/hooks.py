"""Checks of what each hook returns for small inputs, and of a class's code.

Letters: B batch, H query heads, T tokens, Q queries, N keys, K head width, D model width, n distances.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, PositionalEncoding, Side
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.signatures import argument_of
from pe_bench.inspection.check.case import (
    MODEL,
    TRAIN_LENGTH,
    Case,
    changes,
    hidden,
    ids_of,
    kind_of,
    layer_inputs,
    layers_of,
    parts_of,
    tokens,
)
from pe_bench.inspection.check.result import FailureError, UnclaimedError, describe, expect, worst
from pe_bench.model.attention import reference_attention
from pe_bench.model.attention.reference import project
from pe_bench.system.signals import INTERRUPTIONS

TOKENS = 9  # no other size of the model is the same
SIZES = {"B": 2, "H": MODEL.n_heads, "K": MODEL.d_head, "D": MODEL.d_model, "1": 1}
SIZES |= dict.fromkeys("TQNn", TOKENS)
A_QUERY = ("BHQ1", "HQ1", "Q1", "1", "")
# The shapes that a hook may return; * is any number of axes.
SHAPES = {
    "ids": ("T", "BT"),
    "embed": ("BTD",),
    "prepare": ("B*T",),
    "transform": ("BHT*",),
    "logit_scale": A_QUERY,
    "scores": ("BHQN",),
    "distance_bias": ("Hn",),
    "bias": ("HQN", "BHQN"),
    "adjust": ("BHQN",),
    "visible": ("QN", "HQN"),
    "weights": ("BHQN",),
    "null_logit": A_QUERY,
    "mix": ("BHQK",),
}
OPTIONAL = ("logit_scale", "distance_bias", "bias", "null_logit")  # may return None
BROADCAST = ("ids", *OPTIONAL)  # whose value may serve all sequences, heads or queries
SHARED = "BHQ"
AXES = {"H": "head", "n": "distance", "T": "token", "Q": "query", "N": "key"}


class Returned(NamedTuple):
    """A value that a hook of one part of an encoding returned."""

    part: nn.Module
    hook: str
    value: Any
    hidden: Tensor | None = None  # true where a value does not matter

    @property
    def place(self) -> str:
        return f"{line_of(self.part, self.hook)}: {self.hook}"


def line_of(part: nn.Module, hook: str) -> str:
    """Return the file and line where a class has a hook."""
    code = inspect.unwrap(getattr(type(part), hook)).__code__
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def shape(case: Case) -> str:
    """Each hook returns the shape that base.py gives for it.

    Look at: the line named; a missing [:, None], or axes in another order.
    """
    count = 0
    for result in _returned(case):
        misfit = _misfit(result.hook, result.value)
        expect(not misfit, f"{result.place} {misfit}")
        count += 1
    return f"{count} results of hooks"


def finite(case: Case) -> str:
    """Each hook returns finite values.

    Look at: the line named: a logarithm or a power at distance 0, a division by 0, or keys hidden by an
    infinite bias, which is for `visible`.
    """
    for result in _returned(case):
        if isinstance(result.value, Tensor) and result.value.is_floating_point():
            bad = ~result.value.detach().isfinite()
            bad = bad if result.hidden is None else bad & ~result.hidden
            if bad.any():
                raise FailureError(f"{result.place} {_describe_bad(result, bad)}")
    return "hooks return finite values"


def runs(case: Case) -> str:
    """A decoder with the encoding runs forwards and backwards.

    Look at: the line named.
    """
    for length in (1, 2, TRAIN_LENGTH):
        text = tokens(2, length)
        output = case.model.hidden(text, ids_of(case.model.encoding, text, train=True))
        output.square().sum().backward()
        case.model.zero_grad()
        is_finite = bool(hidden(case.model, text).isfinite().all())
        expect(is_finite, f"a decoder's output is not finite at {length} tokens")
    return "forwards and backwards"


@torch.no_grad()
def repeatable(case: Case) -> str:
    """The same call gives the same output twice.

    Look at: random numbers or dropout in a hook: draw them in `ids`, from the given generator.
    """
    model, text, state = case.new_model(), tokens(2, 9), torch.get_rng_state()
    for mode in ("training", "scoring"):
        model.train(mode == "training")
        error = worst(hidden(model, text), hidden(model, text))
        expect(error == 0, f"two calls in {mode} with the same tokens and ids differ by {error:.1e}")
    expect(torch.equal(state, torch.get_rng_state()), "a call draws from torch's global generator")
    return "two calls are equal"


def _returned(case: Case) -> Iterator[Returned]:
    """Yield what each hook that the encoding changes returns, in the decoder's order."""
    for encoding, dtype in ((case.as_built(), torch.float32), (case.encoding, torch.float64)):
        for part in parts_of(encoding):
            calls = _calls(part, encoding, dtype)
            yield from (call for call in calls if changes(part, call.hook))


def _calls(part: nn.Module, encoding: Composition, dtype: torch.dtype) -> Iterator[Returned]:
    returned = partial(Returned, part)
    (x, q, k, v), position = layer_inputs(TOKENS, dtype), torch.arange(TOKENS)
    if isinstance(part, PositionalEncoding):
        text = tokens(2, TOKENS)
        for train in (True, False):
            generator = torch.Generator().manual_seed(3)
            yield returned("ids", part.ids(text, train=train, generator=generator))
        yield returned("embed", part.embed(x, ids_of(encoding, text), text))
    if not isinstance(part, LayerEncoding):
        return
    values = part.prepare(x)
    yield from (returned("prepare", value) for value in values.values())
    turned = tuple(side.x for side in project(part, x, q, k, position))
    yield from (returned("transform", value) for value in turned)
    queries, keys = (Side(x, raw, position, position, values) for x, raw in zip(turned, (q, k), strict=True))
    yield returned("distance_bias", part.distance_bias(position))
    visible = part.visible(queries, keys)
    yield returned("visible", visible)
    yield returned("logit_scale", part.logit_scale(queries))
    yield returned("bias", part.bias(queries, keys))
    scores = part.scores(queries, keys, MODEL.d_head**-0.5)
    yield returned("scores", scores, ~torch.ones(TOKENS, TOKENS).tril().bool())
    scores = part.adjust(scores, visible, queries, keys)
    yield returned("adjust", scores, ~visible)
    weights = part.weights(scores, visible)
    yield returned("weights", weights)
    yield returned("null_logit", part.null_logit(queries))
    yield returned("mix", part.mix(weights, v, queries, keys))


def _misfit(hook: str, value: Any) -> str:
    """Describe how a value differs from what its hook must return; empty if it does not."""
    if value is None and hook in OPTIONAL:
        return ""
    shapes = SHAPES[hook]
    expected = " or ".join(f"[{', '.join(shape)}]" for shape in shapes[:2])  # further ones have fewer axes
    if not isinstance(value, Tensor):
        return f"returned {type(value).__name__}, must be a tensor {expected}"
    if hook == "visible" and value.dtype != torch.bool:
        return f"returned {value.dtype}, must be torch.bool: true for the keys that a query may see"
    if any(_fits(value.shape, shape, hook in BROADCAST) for shape in shapes):
        return ""
    sizes = [f"[{', '.join(str(SIZES.get(letter, letter)) for letter in shape)}]" for shape in shapes[:2]]
    return f"returned the shape {list(value.shape)}, must be {expected}, here {' or '.join(sizes)}"


def _fits(sizes: torch.Size, shape: str, may_broadcast: bool) -> bool:
    letters = _spelled(shape, len(sizes))
    return len(sizes) == len(letters) and all(
        letter == "*" or size == SIZES[letter] or (size == 1 and letter in SHARED and may_broadcast)
        for size, letter in zip(sizes, letters, strict=True)
    )


def _spelled(shape: str, axes: int) -> str:
    """Return the shape with as many stars as give each of `axes` axes a letter."""
    return shape.replace("*", "*" * (axes - len(shape) + 1))


def _describe_bad(result: Returned, bad: Tensor) -> str:
    """Describe the first value that is not finite: what it is, and at which head, distance or token."""
    index = [int(number) for number in bad.nonzero()[0]]
    letters = next(shape for shape in SHAPES[result.hook] if len(_spelled(shape, bad.dim())) == bad.dim())
    axes = zip(_spelled(letters, bad.dim()), index, strict=True)
    where = ", ".join(f"{AXES[letter]} {number}" for letter, number in axes if letter in AXES)
    value = result.value[tuple(index)].item()
    return f"is {value} at {where}; {int(bad.sum())} of its {bad.numel()} values are not finite"


# What the code says


@torch.no_grad()
def device(case: Case) -> str:
    """Hooks make tensors on the device of their inputs.

    Look at: torch.arange, tensor, zeros, .. without device=, or a tensor that is no buffer.

    Tensors of the meta device, which cannot be mixed with those of the CPU, hold no values: code that reads
    one, as in `if position.max() > n`, cannot be followed.
    """
    encoding = case.as_built()
    layers = layers_of(encoding)  # which reads values, to tell kinds apart
    encoding.to("meta")
    x, q, k, v = (tensor.to("meta") for tensor in layer_inputs(TRAIN_LENGTH, torch.float32))
    text = tokens(2, TRAIN_LENGTH).to("meta")
    try:
        for layer in layers:
            reference_attention(layer, x, q, k, v, torch.arange(TRAIN_LENGTH, device="meta"))
        encoding.embed(x, encoding.ids(text, train=False, generator=None), text)
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        if isinstance(error, RuntimeError) and " device" in str(error):
            raise FailureError(describe(error)) from error
        raise UnclaimedError(f"cannot be followed without values: {describe(error)}") from error
    return "no tensor stayed on the CPU"


def options(case: Case) -> str:
    """Every option of the constructor is read.

    Look at: __init__: a misspelt or forgotten name.
    """
    named = [(part, option) for part in case.spec.parts for option in part.options]
    for part, option in named:
        is_read = _is_read(part.encoding_class, argument_of(option))
        expect(is_read, f"{part.key}.{option} is taken by the constructor, and nothing reads it")
    return f"{len(named)} options are read" if named else "no options"


def _is_read(encoding_class: type, option: str) -> bool:
    """Return whether the constructor uses an option, or any method the attribute that it is stored in."""
    nodes = [node for kind in encoding_class.__mro__ for node in _nodes(kind)]
    constructors = (node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    constructor = next((node for node in constructors if option in _parameters(node)), None)
    if constructor is None:  # no source, or one that collects its arguments
        return True
    inside = list(ast.walk(constructor))
    uses = [node for node in inside if isinstance(node, ast.Name) and node.id == option]
    stores = [node for node in inside if isinstance(node, ast.Assign) and node.value in uses]
    targets = [node.targets[0] for node in stores]  # of `self.NAME = OPTION`
    kept = {target.attr for target in targets if isinstance(target, ast.Attribute)}
    reads = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))
    return len(uses) > len(kept) or any(node.attr in kept for node in reads)


def _nodes(kind: type) -> Iterator[ast.AST]:
    """Yield all nodes of the source of a class, as far as there is any."""
    if not kind.__module__.startswith(("torch.", "builtins")):
        with suppress(OSError, TypeError, SyntaxError):
            yield from ast.walk(ast.parse(textwrap.dedent(inspect.getsource(kind))))


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]


def never_called(part: nn.Module) -> str:
    """Return a method that would never be called: a hook of the other kind of class, or a misspelt one."""
    kind = kind_of(part)
    other = PositionalEncoding if kind is LayerEncoding else LayerEncoding
    foreign = [name for name in _methods(other) if not hasattr(kind, name)]
    for name in _methods(type(part)):
        if name in foreign:
            return f"{name} is never called: it is a hook of {other.__name__}"
        close = get_close_matches(name, [*_methods(kind), *foreign], 1, 0.8)
        if close and not hasattr(kind, name):
            return f"{name} is never called: is it {close[0]}?"
    return ""


def _methods(kind: type[nn.Module]) -> list[str]:
    names = [name for name, _ in inspect.getmembers(kind, inspect.isfunction)]
    return [name for name in names if not name.startswith("_") and not hasattr(nn.Module, name)]
