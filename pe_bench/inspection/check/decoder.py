"""Checks of an encoding in a whole decoder, and of calls and sequences that must not change each other."""

import math

import torch
from torch import Tensor

from pe_bench.encodings.base import Layers, LengthError
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.nope import NoPE
from pe_bench.inspection.check.case import (
    EXACT,
    MODEL,
    SHOWS,
    TRAIN_LENGTH,
    Case,
    UnclaimedError,
    at_most,
    changed_hooks,
    expect,
    hidden,
    ids_of,
    layer_inputs,
    other_tokens,
    parts_of,
    tokens,
    worst,
)
from pe_bench.inspection.check.hooks import SHAPES, never_called
from pe_bench.inspection.check.layers import CLAMPED, far_errors
from pe_bench.model.attention import reference_attention

# Two lists of ids with the same length, ends and sum, and other ids in between.
IDS = torch.tensor([0, 2, 4, 6, 8, 10, 12, 14, 16])
OTHER_IDS = torch.tensor([0, 1, 4, 6, 8, 10, 12, 15, 16])


@torch.no_grad()
def causal(case: Case) -> str:
    """No output depends on the tokens that follow.

    Look at: visible and adjust; ids and embed, where they read tokens.
    """
    text, errors = tokens(2, TRAIN_LENGTH), []
    before = hidden(case.model, text)
    for seen in (1, TRAIN_LENGTH // 2, TRAIN_LENGTH - 1):
        changed = torch.cat([text[:, :seen], other_tokens(text[:, seen:])], -1)
        errors.append(worst(before[:, :seen], hidden(case.model, changed)[:, :seen]))
    return at_most("other tokens behind change an output by", *errors)


@torch.no_grad()
def prefix(case: Case) -> str:
    """A prefix is treated as if nothing followed.

    Look at: what reads the number of keys, k.shape[-2], or the largest position.
    """
    pairs = [(9, 16), (TRAIN_LENGTH // 2, TRAIN_LENGTH)]
    if not case.ends:
        pairs += [(TRAIN_LENGTH, 2 * TRAIN_LENGTH), (2 * TRAIN_LENGTH, 3 * TRAIN_LENGTH + 5)]
    errors = {}
    for short, long in pairs:
        text = tokens(2, long)
        errors[short, long] = worst(hidden(case.model, text)[:, :short], hidden(case.model, text[:, :short]))
    short, long = max(errors, key=lambda pair: errors[pair])
    label = f"the first {short} of {long} tokens differ from {short} alone by"
    return case.as_claimed("prefix_consistent", label, errors[short, long])


@torch.no_grad()
def shift(case: Case) -> str:
    """Moving all positions changes nothing, where claimed, and something, where not.

    Look at: transform, bias and scores: a position where a difference of two should be; or `claims`.
    """
    text, errors = tokens(2, TRAIN_LENGTH - 5 if case.ends else 3 * TRAIN_LENGTH), {}
    for steps in (5, 403):  # multiples of no group of tokens
        try:
            errors[steps] = worst(hidden(case.model, text, steps), hidden(case.model, text))
        except LengthError:
            if case.claims("shift_invariant") or not errors:
                raise
    label = f"positions + {' or + '.join(map(str, errors))} change an output by"
    return case.as_claimed("shift_invariant", label, *errors.values())


@torch.no_grad()
def batch(case: Case) -> str:
    """Sequences of a batch do not influence each other, nor do their ids.

    Look at: a sum or a maximum over the batch; ids of the first sequence taken for all; a shared cache.
    """
    text = tokens(3, TRAIN_LENGTH)
    errors = [worst(hidden(case.model, text)[1:2], hidden(case.model, text[1:2]))]
    text = tokens(2, len(IDS))
    for ids, moved in ((IDS, IDS + 3), (OTHER_IDS, IDS + 7)):
        both = case.model.hidden(text, torch.stack([moved, ids]))
        errors.append(worst(both[1:], case.model.hidden(text[1:], ids)))
    return at_most("alone and in a batch, also of other ids, a sequence differs by", *errors)


@torch.no_grad()
def pure(case: Case) -> str:
    """The same input gives the same output, whatever came before.

    Look at: a cache: its key must hold all that its values depend on, every id among it.
    """
    text, longer = tokens(2, len(IDS)), tokens(2, TRAIN_LENGTH if case.ends else 2 * TRAIN_LENGTH)
    between = torch.cat([text[:, :1], other_tokens(text[:, 1:-1]), text[:, -1:]], -1)
    ids, model = ids_of(case.encoding, text), case.new_model()
    calls = [(longer, ids_of(case.encoding, longer)), (text, ids), (between, ids)]
    calls += [(text, IDS), (text, OTHER_IDS)]
    errors = [worst(model.hidden(*call), case.new_model().hidden(*call)) for call in calls]
    return at_most("after other texts or ids, longer or with the same ends, a text differs by", *errors)


@torch.no_grad()
def effect(case: Case) -> str:
    """The output differs from that of no encoding.

    Look at: a misspelt hook; a result not returned; parameters that cancel.
    """
    for part in parts_of(case.encoding):
        unheard = never_called(part)
        expect(not unheard, f"{type(part).__name__}.{unheard}")
    # An encoding that acts only past the training length must show an effect there.
    text = tokens(2, TRAIN_LENGTH if case.ends else 3 * TRAIN_LENGTH)
    nope = case.model_of(Composition(Layers([NoPE()]), {}, case.sizes.n_layers))
    error = worst(hidden(case.model, text), hidden(nope, text))
    measured = f"differs from no encoding by {error:.1e}"
    if not changed_hooks(case.encoding, SHAPES):
        raise UnclaimedError(f"no hook is changed; {measured}")
    expect(error > SHOWS, measured)
    return measured


@torch.no_grad()
def extrapolation(case: Case) -> str:
    """Past the training length it does what it says.

    Look at: past_training, and what is done with positions that no parameter was trained for.
    """
    length, stated = 4 * TRAIN_LENGTH, case.encoding.past_training
    try:
        output = hidden(case.model, tokens(2, length))
    except LengthError as error:
        expect(case.ends, f"{stated}, but {error}")
        return f"undefined: {error}"
    expect(not case.ends, f"undefined, but {length} tokens raise no LengthError")
    expect(bool(output.isfinite().all()), f"{stated}, but not finite at {length} tokens")
    if stated == "clamps":
        at_most(f"clamps: beyond distance {CLAMPED} equal tokens differ by", *far_errors(case))
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
    first, second, text = case.as_built(seed=0), case.as_built(seed=1), tokens(2, TRAIN_LENGTH)
    second.load_state_dict(first.state_dict())
    error = worst(hidden(case.model_of(first), text), hidden(case.model_of(second), text))
    at_most("saved and loaded into one of another seed, its output differs by", error)
    return f"{len(names)} tensors" if names else "empty, as that of nope"


@torch.no_grad()
def scale(case: Case) -> str:
    """The input keeps its scale at the start.

    Look at: embed and the initial values.

    The input's scale decides curves that would be credited to the encoding.
    """
    text, encoding = tokens(2, TRAIN_LENGTH), case.as_built().double()
    x, *_ = layer_inputs(TRAIN_LENGTH)
    rms = float(encoding.embed(x, ids_of(encoding, text), text).square().mean().sqrt())
    expect(0.5 < rms < 2, f"inputs of rms 1 leave with rms {rms:.2f}")
    return f"inputs of rms 1 leave with rms {rms:.2f}"


# Steps with which slopes are measured, and their relative and absolute error; the second for code in float32.
STEPS = ((1e-6, 1e-3, 1e-6), (1e-3, 1e-2, 1e-3))


def slopes(case: Case) -> str:
    """Gradients are finite, and are the slopes of the output; no parameter is inert.

    Look at: a part that is not used; a detach, a backward of its own; a phase or scale of queries and keys
    that cancels.
    """
    largest: dict[str, float] = {}
    inert = tuple(name for part in parts_of(case.encoding) for name in getattr(part, "inert", ()))
    right = set()  # beyond a bound a gradient may lead back, on one of the two sides
    for nudge in (0.0, 0.1, -0.1):
        encoding, inputs = _nudged(case, nudge), dict(zip("xqkv", layer_inputs(TRAIN_LENGTH), strict=True))
        tensors = {name: tensor.requires_grad_() for name, tensor in inputs.items()}
        tensors |= {name: tensor for name, tensor in encoding.named_parameters() if tensor.requires_grad}
        output = _mixed(encoding, inputs)
        gradients = torch.autograd.grad(output, [*tensors.values()], materialize_grads=True)
        for (name, tensor), gradient in zip(tensors.items(), gradients, strict=True):
            expect(bool(gradient.isfinite().all()), f"{name} gets a gradient that is not finite")
            largest[name] = max(largest.get(name, 0.0), float(gradient.abs().max()))
            if nudge and name not in right and _is_slope(gradient, tensor, encoding, inputs):
                right.add(name)
    for name, gradient in largest.items():
        is_moved = gradient > EXACT or name.endswith(inert)
        expect(is_moved, f"{name} is inert: it changes no output, or gets no gradient")
        expect(name in right, f"along {name} the gradient is not the slope of the output")
    return f"{len(largest)} gradients are the slopes of the output"


def _nudged(case: Case, nudge: float) -> Composition:
    """Build the encoding with parameters that are off their initial values, at which some cancel."""
    encoding, generator = case.as_built(), torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.add_(nudge * (0.1 + torch.rand(parameter.shape, generator=generator)))
    return encoding.double()


def _mixed(encoding: Composition, inputs: dict[str, Tensor]) -> Tensor:
    """Return the input of the first layer and each layer's attention, added with fixed random weights."""
    x, q, k, v = inputs.values()
    text = tokens(2, TRAIN_LENGTH)
    ids = ids_of(encoding, text)
    layers = (encoding.layer(number) for number in range(MODEL.n_layers))
    outputs = [encoding.embed(x, ids, text), *(reference_attention(each, x, q, k, v, ids) for each in layers)]
    output = torch.cat([one.flatten() for one in outputs])
    return output @ torch.randn(output.shape, generator=torch.Generator().manual_seed(7), dtype=output.dtype)


@torch.no_grad()
def _is_slope(gradient: Tensor, tensor: Tensor, encoding: Composition, inputs: dict[str, Tensor]) -> bool:
    """Return whether the gradient is how fast the output changes where `tensor` moves in some direction."""
    generator, before = torch.Generator().manual_seed(8), tensor.clone()
    direction = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    expected = float((gradient * direction).sum())
    for step, relative, absolute in STEPS:
        outputs = []
        for moved in (before + step * direction, before - step * direction):
            tensor.copy_(moved)
            outputs.append(float(_mixed(encoding, inputs)))
        tensor.copy_(before)
        slope = (outputs[0] - outputs[1]) / (2 * step)
        if math.isclose(slope, expected, rel_tol=relative, abs_tol=absolute):
            return True
    return False
