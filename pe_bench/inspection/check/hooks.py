"""Checks of what each hook returns for small inputs, and of a class's code.

Letters: B batch, H query heads, T tokens, Q queries, N keys, K head width, D model width, n distances.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, PositionalEncoding
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.signatures import argument_of
from pe_bench.inspection.check.case import (
    MODEL,
    TRAIN_LENGTH,
    Case,
    FailureError,
    UnclaimedError,
    changes,
    describe,
    expect,
    hidden,
    ids_of,
    kind_of,
    layer_inputs,
    layers_of,
    parts_of,
    tokens,
    worst,
)
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
SHARED = "BHQ"  # axes along which one value may serve all
AXES = {"H": "head", "n": "distance", "T": "token", "Q": "query", "N": "key"}
# The keys that each query of a case sees: where it sees none, scores do not matter.
CAUSAL = torch.ones(TOKENS, TOKENS).tril().bool()


def returns(case: Case) -> str:
    """Each hook returns finite values, in the shape that base.py gives for it.

    Look at: the line named: a missing [:, None]; a logarithm or a power at distance 0, a division by 0,
    or keys hidden by an infinite bias, which is for `visible`.
    """
    count = 0
    for encoding, dtype in ((case.as_built(), torch.float32), (case.encoding, torch.float64)):
        for part in parts_of(encoding):
            for hook, value, seen in _calls(part, encoding, dtype):
                if changes(part, hook):
                    fault = _fault(hook, value, seen)
                    expect(not fault, f"{line_of(part, hook)}: {hook} {fault}")
                    count += 1
    return f"{count} results of hooks"


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
    """The same call gives the same output twice, and ids follow the given generator.

    Look at: random numbers or dropout in a hook: draw them in `ids`, from the given generator.
    """
    model, text, state = case.new_model(), tokens(2, TRAIN_LENGTH), torch.get_rng_state()
    for mode in ("training", "scoring"):
        model.train(mode == "training")
        ids, again = (ids_of(model.encoding, text, train=model.training) for _ in range(2))
        expect(torch.equal(ids, again), f"ids drawn in {mode} with one seed differ")
        error = worst(model.hidden(text, ids), model.hidden(text, ids))
        expect(error == 0, f"two calls in {mode} with the same tokens and ids differ by {error:.1e}")
    expect(torch.equal(state, torch.get_rng_state()), "a call draws from torch's global generator")
    return "two calls are equal"


def line_of(part: nn.Module, hook: str) -> str:
    """Return the file and line where a class has a hook."""
    code = inspect.unwrap(getattr(type(part), hook)).__code__
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def _calls(
    part: nn.Module, encoding: Composition, dtype: torch.dtype
) -> Iterator[tuple[str, Any, Tensor | None]]:
    """Yield what each hook returns, in the decoder's order, with the places where its values matter."""
    (x, q, k, v), position = layer_inputs(TOKENS, dtype), torch.arange(TOKENS)
    if isinstance(part, PositionalEncoding):
        text = tokens(2, TOKENS)
        for train in (True, False):
            yield "ids", part.ids(text, train=train, generator=torch.Generator().manual_seed(3)), None
        yield "embed", part.embed(x, ids_of(encoding, text), text), None
        return
    assert isinstance(part, LayerEncoding)
    values = part.prepare(x)
    yield from (("prepare", value, None) for value in values.values())
    queries, keys = project(part, x, q, k, position)
    yield from (("transform", side.x, None) for side in (queries, keys))
    yield "distance_bias", part.distance_bias(position), None
    visible = part.visible(queries, keys)
    yield "visible", visible, None
    yield "logit_scale", part.logit_scale(queries), None
    yield "bias", part.bias(queries, keys), None
    scores = part.scores(queries, keys, MODEL.d_head**-0.5)
    yield "scores", scores, CAUSAL
    scores = part.adjust(scores, visible, queries, keys)
    yield "adjust", scores, visible
    weights = part.weights(scores, visible)
    yield "weights", weights, None
    yield "null_logit", part.null_logit(queries), None
    yield "mix", part.mix(weights, v, queries, keys), None


def _fault(hook: str, value: Any, seen: Tensor | None) -> str:
    """Describe a value that its hook must not return: one of another shape, or one that is not finite."""
    if value is None and hook in OPTIONAL:
        return ""
    expected = " or ".join(f"[{', '.join(shape)}]" for shape in SHAPES[hook][:2])  # others have fewer axes
    if not isinstance(value, Tensor):
        return f"returned {type(value).__name__}, must be a tensor {expected}"
    if hook == "visible" and value.dtype != torch.bool:
        return f"returned {value.dtype}, must be torch.bool: true for the keys that a query may see"
    axes = next((axes for shape in SHAPES[hook] if (axes := _axes(value.shape, shape)) is not None), None)
    if axes is None:
        return f"returned the shape {list(value.shape)}, must be {expected}"
    bad = ~value.detach().isfinite() & (True if seen is None else seen)
    if not bad.any():
        return ""
    index = tuple(bad.nonzero()[0].tolist())
    where = ", ".join(
        f"{AXES[axis]} {number}" for axis, number in zip(axes, index, strict=True) if axis in AXES
    )
    return f"is {value[index].item()} at {where}; {int(bad.sum())} of its {bad.numel()} values are not finite"


def _axes(sizes: torch.Size, shape: str) -> list[str] | None:
    """Return the letter of each axis, if the sizes are those of a shape; None otherwise."""
    letters = shape.replace("*", "*" * (len(sizes) - len(shape) + 1))
    fits = len(letters) == len(sizes) and all(
        letter == "*" or size == SIZES[letter] or (size == 1 and letter in SHARED)
        for size, letter in zip(sizes, letters, strict=True)
    )
    return list(letters) if fits else None


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
    """Return whether a class reads the option or its attribute, other than to keep it under its name."""
    kinds = [kind for kind in encoding_class.__mro__ if not kind.__module__.startswith(("torch", "builtins"))]
    nodes = list(ast.walk(ast.parse("\n".join(textwrap.dedent(inspect.getsource(kind)) for kind in kinds))))
    reads = [node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Load)]
    names = [getattr(node, "attr", getattr(node, "id", "")) for node in reads]
    assignments = [ast.unparse(node) for node in nodes if isinstance(node, ast.Assign)]
    return names.count(option) > assignments.count(f"self.{option} = {option}")


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
