"""Checks of what hooks return, of a class's code, and of an encoding in a whole decoder.

The function of a check, such as `device`, returns what was measured, as text. It raises `FailureError` if the
property does not hold, and `UnclaimedError` if the encoding does not claim it or the check cannot judge it.

Letters: B batch, H query heads, T tokens, Q queries, N keys, K head width, D model width, n distances.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.encodings.base import LayerEncoding, Layers, LengthError, PositionalEncoding
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.load import opened_later
from pe_bench.encodings.nope import NoPE
from pe_bench.inspection.check.case import (
    EXACT_TOLERANCE,
    MIN_VISIBLE_ERROR,
    MODEL,
    SHAPES,
    TRAIN_LENGTH,
    Case,
    FailureError,
    UnclaimedError,
    at_most,
    changed_hooks,
    changes,
    describe,
    distinct_layers,
    expect,
    hidden,
    ids_of,
    largest,
    largest_difference,
    layer_inputs,
    line_of,
    never_called,
    other_tokens,
    parts_of,
    tokens,
)
from pe_bench.inspection.check.layers import CLAMP_DISTANCE, far_errors
from pe_bench.model.attention import reference_attention
from pe_bench.model.attention.native import fault_of_first_keys
from pe_bench.model.attention.reference import make_sides
from pe_bench.model.checks import find_lookahead_in_text
from pe_bench.system.cost import count

TOKENS = 9  # differs from every other size of the model
SIZES = {"B": 2, "H": MODEL.n_heads, "K": MODEL.d_head, "D": MODEL.d_model, "1": 1}
SIZES |= dict.fromkeys("TQNn", TOKENS)
# These hooks may return None.
OPTIONAL = ("logit_scale", "distance_bias", "bias", "first_keys", "null_logit", "gate")
SHARED = "BHQ"  # axes along which one value may stand for all
# The keys that each query of a case sees: where it sees none, scores do not matter.
CAUSAL = torch.ones(TOKENS, TOKENS).tril().bool()


def returns(case: Case) -> str:
    """Each hook returns finite values, in the shape that base.py gives for it.

    Look at: the line named: a missing [:, None]; a logarithm or a power at distance 0, a division by 0,
    or keys hidden by an infinite bias, which is for `visible`.
    """
    results = 0
    encodings = {torch.float32: case.as_built(), torch.float64: case.encoding}
    for dtype, encoding in encodings.items():
        for part in parts_of(encoding):
            for hook, value, seen in _hook_calls(part, encoding, dtype):
                if changes(part, hook):
                    fault = _fault_of_value(hook, value, seen)
                    line = line_of(part, hook)
                    expect(not fault, f"{line}: {hook} {fault}")
                    results += 1
    return f"{results} results of hooks"


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
    model = case.new_model()
    text = tokens(2, TRAIN_LENGTH)
    state = torch.get_rng_state()
    for mode in ("training", "scoring"):
        model.train(mode == "training")
        ids = ids_of(model.encoding, text, train=model.training)
        again = ids_of(model.encoding, text, train=model.training)
        expect(torch.equal(ids, again), f"ids drawn in {mode} with one seed differ")
        error = largest_difference(model.hidden(text, ids), model.hidden(text, ids))
        expect(error == 0, f"two calls in {mode} with the same tokens and ids differ by {error:.1e}")
    expect(torch.equal(state, torch.get_rng_state()), "a call draws from torch's global generator")
    return "two calls are equal"


def _hook_calls(
    part: nn.Module, encoding: Composition, dtype: torch.dtype
) -> Iterator[tuple[str, Any, Tensor | None]]:
    """Yield the name of each hook, its value, and the mask of the values to check; None to check all.

    With `first_keys` comes the mask of visible keys.

    Hooks are called in the order of the decoder, with random inputs of the type `dtype`.
    """
    x, q, k, v = layer_inputs(TOKENS, dtype)
    position = torch.arange(TOKENS)
    if isinstance(part, PositionalEncoding):
        text = tokens(2, TOKENS)
        for train in (True, False):
            generator = torch.Generator().manual_seed(3)
            yield "ids", part.ids(text, train=train, generator=generator), None
        yield "embed", part.embed(x, ids_of(encoding, text), text), None
        return
    assert isinstance(part, LayerEncoding)
    yield from (("convolve", each, None) for each in part.convolve(q, k, v))
    yield "gate", part.gate(x), None
    if part.overrides("attend"):
        yield "attend", part.attend(x, q, k, v), None
        yield "attend", part.attend_chunked(x, q, k, v), None
        return
    values = part.prepare(x)
    yield from (("prepare", value, None) for value in values.values())
    queries, keys = make_sides(part, x, q, k, position)
    yield from (("transform", side.x, None) for side in (queries, keys))
    yield "distance_bias", part.distance_bias(position), None
    visible = part.visible(queries, keys)
    yield "visible", visible, None
    yield "first_keys", part.first_keys(TOKENS), visible
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


def _fault_of_value(hook: str, value: Any, seen: Tensor | None) -> str:
    """Describe a value that its hook must not return: one of another shape, or one that is not finite."""
    if value is None and hook in OPTIONAL:
        return ""
    shapes = [f"[{', '.join(shape)}]" for shape in SHAPES[hook]]
    expected = " or ".join(shapes[:2])  # the others have fewer axes
    if not isinstance(value, Tensor):
        return f"returned {type(value).__name__}, must be a tensor {expected}"
    if hook == "visible" and value.dtype != torch.bool:
        return f"returned {value.dtype}, must be torch.bool: true for the keys that a query may see"
    if not any(_has_shape(value.shape, shape) for shape in SHAPES[hook]):
        return f"returned the shape {list(value.shape)}, must be {expected}"
    if hook == "first_keys":
        assert seen is not None
        return fault_of_first_keys(value, TOKENS) or _fault_of_visible_keys(value, seen)
    bad = ~value.detach().isfinite()
    if seen is not None:
        bad = bad & seen
    wrong = int(bad.sum())
    return f"has {wrong} values of {bad.numel()} that are not finite" if wrong else ""


def _fault_of_visible_keys(first_keys: Tensor, visible: Tensor) -> str:
    """Describe first keys [T] that do not follow from the mask of visible keys, [T, T] or [H, T, T]."""
    index = torch.arange(len(first_keys))
    from_first = (index >= first_keys.unsqueeze(-1)) & (index <= index.unsqueeze(-1))
    is_wrong = (visible != from_first).any(-1).reshape(-1, len(index)).any(0)
    count = int(is_wrong.sum())
    return f"says of {count} of {len(index)} queries that they see other keys than visible" if count else ""


def _has_shape(sizes: torch.Size, shape: str) -> bool:
    """Return whether the sizes of a tensor fit a shape of `SHAPES`, a letter for each axis.

    A `*` in the shape is any number of axes of any size.
    """
    any_axes = len(sizes) - len(shape) + 1
    letters = shape.replace("*", "*" * any_axes)
    if len(letters) != len(sizes):
        return False
    return all(map(_is_size_of_letter, sizes, letters))


def _is_size_of_letter(size: int, letter: str) -> bool:
    """Return whether the size of an axis fits its letter in a shape of `SHAPES`."""
    if letter == "*" or size == SIZES[letter]:
        return True
    return size == 1 and letter in SHARED


# What the code says


@torch.no_grad()
def device(case: Case) -> str:
    """Hooks make tensors on the device of their inputs.

    Look at: torch.arange, tensor, zeros, .. without device=, or a tensor that is no buffer.

    Tensors of the meta device cannot be mixed with tensors of the CPU, and hold no values: for code that
    reads a value, as in `if position.max() > n`, the property counts as not claimed.
    """
    encoding = case.as_built()
    layers = distinct_layers(encoding)  # which reads values, to tell kinds apart
    encoding.to("meta")
    inputs = layer_inputs(TRAIN_LENGTH, torch.float32)
    x, q, k, v = (tensor.to("meta") for tensor in inputs)
    text = tokens(2, TRAIN_LENGTH).to("meta")
    position = torch.arange(TRAIN_LENGTH, device="meta")
    try:
        for layer in layers:
            reference_attention(layer, x, q, k, v, position)
        encoding.embed(x, encoding.ids(text, train=False, generator=None), text)
    except Exception as error:
        if isinstance(error, RuntimeError) and " device" in str(error):
            raise FailureError(describe(error)) from error
        raise UnclaimedError(f"cannot be followed without values: {describe(error)}") from error
    return "no tensor stayed on the CPU"


@torch.no_grad()
def identity(case: Case) -> str:
    """The identity of a run covers every file of the encoding's folder that its code reads.

    Look at: a file that a hook or the constructor opens: open it in the body of the module.

    Files that a module opens while it is imported are covered; a run is named before a hook is called.
    """
    for length in (1, TRAIN_LENGTH):
        text = tokens(2, length)
        model = case.new_model()
        model.hidden(text, ids_of(model.encoding, text, train=True))
    files_opened_late: dict[Path, None] = {}
    for part in parts_of(case.encoding):
        files_opened_late |= dict.fromkeys(opened_later(type(part)))
    names = ", ".join(file.name for file in files_opened_late)
    expect(
        not files_opened_late,
        f"{names}: opened after the import, in a hook or the constructor, and not covered",
    )
    return "no file is opened after the import"


# In a decoder: calls and sequences must not change each other

# Two lists of ids with the same length, ends and sum, and other ids in between.
IDS = torch.tensor([0, 2, 4, 6, 8, 10, 12, 14, 16])
OTHER_IDS = torch.tensor([0, 1, 4, 6, 8, 10, 12, 15, 16])
SPREAD = 7  # times the position ids, so that few segments have far numbers


@torch.no_grad()
def causal(case: Case) -> str:
    """No output depends on the tokens that follow.

    Look at: visible and adjust; ids and embed, where they read tokens.
    """
    text = tokens(2, TRAIN_LENGTH)
    errors = []
    before = hidden(case.model, text)
    for seen in (1, TRAIN_LENGTH // 2, TRAIN_LENGTH - 1):
        other = other_tokens(text[:, seen:])
        after = hidden(case.model, torch.cat([text[:, :seen], other], -1))
        errors.append(largest_difference(before[:, :seen], after[:, :seen]))
    measured = at_most("other tokens behind change an output by", *errors)
    # With a byte for each token, for an encoding that reads a rare token.
    byte_case = replace(case, vocabulary=ByteTokenizer().vocabulary)
    code = Path(__file__).read_bytes()[: 2 * TRAIN_LENGTH]
    texts = torch.tensor(list(code)).view(2, TRAIN_LENGTH)
    problem = find_lookahead_in_text(byte_case.new_model(), texts)
    expect(not problem, problem)
    return measured


@torch.no_grad()
def prefix(case: Case) -> str:
    """A prefix is treated as if nothing followed.

    Look at: what reads the number of keys, k.shape[-2], or the largest position.
    """
    length = TRAIN_LENGTH
    pairs = [(9, 16), (length // 2, length), (length - 1, length)]
    if not case.is_undefined_past_training:
        pairs.append((length, 2 * length))
        pairs.append((2 * length, 3 * length + 5))
    errors = {}
    for short, long in pairs:
        text = tokens(2, long)
        first = hidden(case.model, text)[:, :short]
        alone = hidden(case.model, text[:, :short])
        errors[short, long] = largest_difference(first, alone)
    short, long = max(errors, key=errors.__getitem__)
    label = f"the first {short} of {long} tokens differ from {short} alone by"
    return case.as_claimed("prefix_consistent", label, errors[short, long])


@torch.no_grad()
def shift(case: Case) -> str:
    """Moving all positions changes nothing, where claimed, and something, where not.

    Look at: transform, bias and scores: a position where a difference of two should be; or `claims`.
    """
    length = TRAIN_LENGTH - 5 if case.is_undefined_past_training else 3 * TRAIN_LENGTH
    text = tokens(2, length)
    shifts = (5,) if case.is_undefined_past_training else (5, 403)  # multiples of no group of tokens
    ids = ids_of(case.encoding, text)
    errors = _errors_of_shifts(case, text, ids, shifts)
    holds_here = largest(errors) <= MIN_VISIBLE_ERROR
    if holds_here and not case.claims("shift_invariant") and not case.is_undefined_past_training:
        # Numbers of segments stay small: only positions further apart reach far distances.
        errors += _errors_of_shifts(case, text, SPREAD * ids, shifts)
    label = f"positions + {' or + '.join(map(str, shifts))} change an output by"
    return case.as_claimed("shift_invariant", label, *errors)


def _errors_of_shifts(case: Case, text: Tensor, ids: Tensor, shifts: Sequence[int]) -> list[float]:
    """Return by how much outputs change when each of `shifts` is added to the position ids."""
    unmoved = case.model.hidden(text, ids)
    return [largest_difference(case.model.hidden(text, ids + steps), unmoved) for steps in shifts]


@torch.no_grad()
def batch(case: Case) -> str:
    """Sequences of a batch do not influence each other, nor do their ids.

    Look at: a sum or a maximum over the batch; ids of the first sequence taken for all; a shared cache.
    """
    text = tokens(3, TRAIN_LENGTH)
    alone = hidden(case.model, text[1:2])
    errors = [largest_difference(hidden(case.model, text)[1:2], alone)]
    text = tokens(2, len(IDS))
    for ids, moved in ((IDS, IDS + 3), (OTHER_IDS, IDS + 7)):
        both = case.model.hidden(text, torch.stack([moved, ids]))
        alone = case.model.hidden(text[1:], ids)
        errors.append(largest_difference(both[1:], alone))
    return at_most("alone and in a batch, also of other ids, a sequence differs by", *errors)


@torch.no_grad()
def pure(case: Case) -> str:
    """The same input gives the same output, whatever came before.

    Look at: a cache: its key must hold all that its values depend on, every id among it.
    """
    text = tokens(2, len(IDS))
    longer = tokens(2, TRAIN_LENGTH if case.is_undefined_past_training else 2 * TRAIN_LENGTH)
    between = text.clone()
    between[:, 1:-1] = other_tokens(text[:, 1:-1])
    ids = ids_of(case.encoding, text)
    longer_ids = ids_of(case.encoding, longer)
    model = case.new_model()
    errors = []
    for call in ((longer, longer_ids), (text, ids), (between, ids), (text, IDS), (text, OTHER_IDS)):
        output = model.hidden(*call)
        errors.append(largest_difference(output, case.new_model().hidden(*call)))
    return at_most("after other texts or ids, longer or with the same ends, a text differs by", *errors)


@torch.no_grad()
def effect(case: Case) -> str:
    """The output differs from the output without an encoding.

    Look at: a misspelt hook; a result not returned; parameters that cancel.
    """
    for part in parts_of(case.encoding):
        unheard = never_called(part)
        expect(not unheard, f"{type(part).__name__}.{unheard}")
    # An encoding that acts only past the training length must show an effect there.
    text = tokens(2, TRAIN_LENGTH if case.is_undefined_past_training else 3 * TRAIN_LENGTH)
    nope = Composition(Layers([NoPE()]), {}, case.sizes.n_layers)
    without_encoding = case.model_of(nope)
    error = largest_difference(hidden(case.model, text), hidden(without_encoding, text))
    measured = f"differs from nope by {error:.1e}"
    if not changed_hooks(case.encoding, SHAPES):
        raise UnclaimedError(f"no hook is changed; {measured}")
    expect(error > MIN_VISIBLE_ERROR, measured)
    return measured


@torch.no_grad()
def extrapolation(case: Case) -> str:
    """Past the training length, the encoding does what its class says.

    Look at: past_training, and what is done with positions that no parameter was trained for.
    """
    length = 4 * TRAIN_LENGTH
    stated = case.encoding.past_training
    try:
        output = hidden(case.model, tokens(2, length))
    except LengthError as error:
        expect(case.is_undefined_past_training, f"{stated}, but {error}")
        return f"undefined: {error}"
    expect(not case.is_undefined_past_training, f"undefined, but {length} tokens raise no LengthError")
    is_finite = bool(output.isfinite().all())
    expect(is_finite, f"{stated}, but not finite at {length} tokens")
    if stated == "clamps":
        at_most(f"clamps: beyond distance {CLAMP_DISTANCE} equal tokens differ by", *far_errors(case))
    return f"{stated}: finite at {length} tokens"


@torch.no_grad()
def state(case: Case) -> str:
    """Only parameters are saved, and they are all that is needed.

    Look at: register_buffer(..., persistent=False); random numbers that no parameter holds.

    A table that is saved would keep weights from loading under another encoding without parameters.
    """
    names = {name for name, _ in case.encoding.named_parameters()}
    extra = sorted(set(case.encoding.state_dict()) ^ names)
    expect(not extra, f"saved, and no parameter: {', '.join(extra)}")
    first = case.with_random_parameters()
    second = case.as_built(seed=1)
    second.load_state_dict(first.state_dict())
    text = tokens(2, TRAIN_LENGTH)
    saved = hidden(case.model_of(first), text)
    loaded = hidden(case.model_of(second), text)
    at_most(
        "saved and loaded into one of another seed, its output differs by", largest_difference(saved, loaded)
    )
    return count(len(names), "tensor") if names else "empty, as that of nope"


@torch.no_grad()
def scale(case: Case) -> str:
    """The input keeps its scale at the start.

    Look at: embed and the initial values.

    The input's scale decides curves that would be credited to the encoding.
    """
    text = tokens(2, TRAIN_LENGTH)
    encoding = case.as_built().double()
    x, *_ = layer_inputs(TRAIN_LENGTH)
    embedded = encoding.embed(x, ids_of(encoding, text), text)
    rms = float(embedded.square().mean().sqrt())
    measured = f"inputs of rms 1 leave with rms {rms:.2f}"
    expect(0.5 < rms < 2, measured)
    return measured


# Steps with which slopes are measured, and their relative and absolute error; the second for code in float32.
STEPS = ((1e-6, 1e-3, 1e-6), (1e-3, 1e-2, 1e-3))


def slopes(case: Case) -> str:
    """Gradients are finite, and are the slopes of the output; no parameter is inert.

    Look at: a part that is not used; a detach; a custom backward; a phase or scale of queries and keys
    that cancels.
    """
    largest_gradients: dict[str, float] = {}
    inert_names: list[str] = []
    for part in parts_of(case.encoding):
        inert_names += getattr(part, "inert", ())
    right = set()  # next to a bound, the slope may be another on one of the two sides
    for nudge in (0.0, 0.1, -0.1):
        encoding = case.nudged(nudge)
        inputs = dict(zip("xqkv", layer_inputs(TRAIN_LENGTH), strict=True))
        tensors = {name: tensor.requires_grad_() for name, tensor in inputs.items()}
        tensors |= {name: tensor for name, tensor in encoding.named_parameters() if tensor.requires_grad}
        output = _mix_of_outputs(encoding, inputs)
        gradients = torch.autograd.grad(output, [*tensors.values()], materialize_grads=True)
        for (name, tensor), gradient in zip(tensors.items(), gradients, strict=True):
            expect(bool(gradient.isfinite().all()), f"{name} gets a gradient that is not finite")
            size = float(gradient.abs().max())
            largest_gradients[name] = max(largest_gradients.get(name, 0.0), size)
            if nudge and name not in right and _is_slope(gradient, tensor, encoding, inputs):
                right.add(name)
    for name, gradient in largest_gradients.items():
        is_moved = gradient > EXACT_TOLERANCE or name.endswith(tuple(inert_names))
        expect(is_moved, f"{name} is inert: it changes no output, or gets no gradient")
        expect(name in right, f"along {name} the gradient is not the slope of the output")
    return f"{len(largest_gradients)} gradients are the slopes of the output"


def _mix_of_outputs(encoding: Composition, inputs: dict[str, Tensor]) -> Tensor:
    """Return the input of the first layer and each layer's attention, added with fixed random weights."""
    x, q, k, v = inputs.values()
    text = tokens(2, TRAIN_LENGTH)
    ids = ids_of(encoding, text)
    outputs = [encoding.embed(x, ids, text)]
    for number in range(MODEL.n_layers):
        outputs.append(reference_attention(encoding.layer(number), x, q, k, v, ids))
    output = torch.cat([part.flatten() for part in outputs])
    generator = torch.Generator().manual_seed(7)
    return output @ torch.randn(output.shape, generator=generator, dtype=output.dtype)


@torch.no_grad()
def _is_slope(gradient: Tensor, tensor: Tensor, encoding: Composition, inputs: dict[str, Tensor]) -> bool:
    """Return whether the output changes as the gradient says when `tensor` moves in a random direction."""
    before = tensor.clone()
    generator = torch.Generator().manual_seed(8)
    direction = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    expected = float((gradient * direction).sum())
    for step, relative, absolute in STEPS:
        outputs = []
        for signed_step in (step, -step):
            tensor.copy_(before + signed_step * direction)
            outputs.append(float(_mix_of_outputs(encoding, inputs)))
        tensor.copy_(before)
        ahead, behind = outputs
        slope = (ahead - behind) / (2 * step)
        if math.isclose(slope, expected, rel_tol=relative, abs_tol=absolute):
            return True
    return False
