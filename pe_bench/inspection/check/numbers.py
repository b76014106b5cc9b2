"""Checks of an encoding's arithmetic: in half precision, far out, and gradients against differences."""

from typing import NamedTuple

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, LengthError
from pe_bench.encodings.compose import Composition
from pe_bench.inspection.check.case import (
    EXACT,
    MODEL,
    TRAIN_LENGTH,
    Case,
    Finding,
    Inputs,
    as_type,
    at_most,
    both_precisions,
    ids_of,
    largest,
    layer_inputs,
    tokens,
    worst,
)
from pe_bench.model.attention import attention, logits, project, reference_attention, slice_tokens

FAR = 4_096  # bfloat16 counts to 256
LONG = 65_536  # tokens
LONG_ROWS = 16
LONG_ERROR = 3e-4  # float32 against float64 at that length; an angle in float32 is off by 0.004


def half_precision_keeps_positions(case: Case) -> Finding:
    """Half-precision queries and keys keep exact positions.

    Look at: positions, angles or sums that were cast to the type of q.

    Compare bfloat16 inputs at positions from 4,096 on with float64 of the same numbers.
    """
    try:
        return _half_precision(case, torch.arange(300) + FAR)
    except LengthError:
        return _half_precision(case, torch.arange(TRAIN_LENGTH))


@torch.no_grad()
def _half_precision(case: Case, position: Tensor) -> Finding:
    inputs, errors = layer_inputs(len(position), torch.bfloat16), []
    for exact, rounded in both_precisions(case):
        truth = reference_attention(exact, *as_type(inputs, torch.float64), position)
        for path in (attention, reference_attention):
            errors.append(float((path(rounded, *inputs, position).double() - truth).abs().mean()))
    text, x = tokens(2, len(position)), inputs[0]
    truth = case.encoding.embed(x.double(), position, text)
    embedded = case.with_random_parameters().embed(x, position, text)
    errors.append(float((embedded.double() - truth).abs().mean()))
    # bfloat16 has eight bits: values near 1 are off by 0.002 on average, whatever the encoding.
    return at_most(largest(errors), 0.01, "on average bfloat16 is off by")


def finite_at_65536_tokens(case: Case) -> Finding:
    """The last of 65,536 tokens are finite and exact.

    Look at: angles and cumulative sums in float32; exponents that overflow.

    Compare the input, logits and outputs of the last of 65,536 tokens in float32 with float64.
    """
    try:
        return _at_65536_tokens(case)
    except LengthError as error:
        return Finding("not claimed" if case.past_training == "undefined" else "fails", str(error))


@torch.no_grad()
def _at_65536_tokens(case: Case) -> Finding:
    single = layer_inputs(LONG, torch.float32, batch=1, drawn_as=torch.float32)
    double, text = as_type(single, torch.float64), tokens(1, LONG)
    position, rows = torch.arange(LONG), LONG - LONG_ROWS
    embedded = case.with_random_parameters().embed(single[0], position, text)
    if not embedded.isfinite().all():
        return Finding("fails", "the input is not finite")
    errors = [worst(embedded, case.encoding.embed(double[0], position, text))]
    for exact, rounded in both_precisions(case):
        ours = reference_attention(rounded, *single, position, rows=range(rows, LONG))
        if not ours.isfinite().all():
            return Finding("fails", f"{int((~ours.isfinite()).sum())} outputs are not finite")
        truth = reference_attention(exact, *double, position, rows=range(rows, LONG))
        off, rounding = _logit_error(exact, double, rounded, single)
        # In an output, a mean over so many values, errors of the logits average out.
        errors += [worst(ours, truth) / max(1.0, rounding / LONG_ERROR), off]
    return at_most(largest(errors), LONG_ERROR, "finite; float32 and float64 differ by")


def _logit_error(
    exact: LayerEncoding, double: Inputs, rounded: LayerEncoding, single: Inputs
) -> tuple[float, float]:
    """Return the largest error in the last four rows, and what rounding these logits does to an output.

    The error is relative where a logit is larger than 1. A softmax turns an absolute error of the logits that
    weigh most, the largest of a row, into about twice that in an output.
    """
    truth, visible = _last_logits(exact, double)
    ours, _ = _last_logits(rounded, single)
    off = (ours.double() - truth).abs() / truth.abs().clamp(min=1)
    largest_logit = float(truth.masked_fill(~visible, -torch.inf).amax(-1).abs().max())
    rounding = 2 * largest_logit * torch.finfo(torch.float32).eps
    return float(off.masked_fill((ours == truth) | ~visible, 0.0).nan_to_num(torch.inf).max()), rounding


def _last_logits(layer: LayerEncoding, inputs: Inputs) -> tuple[Tensor, Tensor]:
    x, q, k, _ = inputs
    queries, keys = project(layer, x, q, k, torch.arange(LONG))
    return logits(layer, slice_tokens(queries, LONG - 4, LONG), keys, MODEL.d_head**-0.5)


# A step, and how far slopes may lie apart, relative and absolute. The second is for code in float32.
STEPS = ((1e-6, 1e-3, 1e-6), (1e-3, 1e-2, 1e-3))
ELEMENTS = 32  # of a parameter, with the largest gradients, and as many others: looked at one by one
SMALL = 16  # elements of a parameter that are moved one by one
MOVE = 0.1  # of a parameter, which must change some output


class Slope(NamedTuple):
    """The slope of the output along a direction: by its gradient, and by differences."""

    gradient: float
    difference: float

    def agrees(self, relative: float, absolute: float) -> bool:
        largest = max(abs(self.gradient), abs(self.difference))
        return abs(self.gradient - self.difference) <= relative * largest + absolute


def gradients_are_slopes(case: Case) -> Finding:
    """Gradients are the slopes of the output, and no parameter is inert.

    Look at: a detach, a backward of its own; a phase or scale of queries and keys that cancels.

    Compare gradients of parameters and inputs with central differences; name parameters that are inert.
    """
    encoding, as_built = case.with_random_parameters().double(), case.as_built().double()
    inputs = [tensor.requires_grad_() for tensor in layer_inputs(TRAIN_LENGTH)]
    generator = torch.Generator().manual_seed(6)
    direction_of = {
        tensor: torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        for tensor in (*encoding.parameters(), *inputs)
    }
    parameters = {name: tensor for name, tensor in encoding.named_parameters() if tensor.requires_grad}
    named_inert, initial = _named_inert(encoding), dict(as_built.named_parameters())
    for name, tensor in parameters.items():
        moves = _moves(encoding, inputs, tensor, direction_of[tensor])
        moves = max(moves, _moves(as_built, inputs, initial[name], direction_of[tensor]))
        is_inert = moves <= EXACT
        if is_inert and tensor not in named_inert:
            return Finding("fails", f"{name} is inert: moving it by {MOVE} changes no output")
        if not is_inert and tensor in named_inert:
            return Finding("fails", f"inert names {name}, and moving it by {MOVE} changes an output")
        still = _still_element(as_built, inputs, initial[name])
        if still and not is_inert:
            return Finding(
                "fails", f"{still} of {name} as built is inert: moving it by {MOVE} changes no output"
            )
    named = parameters | dict(zip(("x", "q", "k", "v"), inputs, strict=True))
    wanted = list(named.values())
    outputs = _outputs(encoding, inputs)
    found = torch.autograd.grad(_weighed(outputs), wanted, allow_unused=True)
    for (name, tensor), gradient in zip(named.items(), found, strict=True):
        gradient = torch.zeros_like(tensor) if gradient is None else gradient
        wrong = _first_wrong(encoding, inputs, tensor, gradient, direction_of[tensor])
        if wrong:
            measured = f"{wrong.gradient:.5g}, and differences of outputs say {wrong.difference:.5g}"
            return Finding("fails", f"the slope of the output along {name} is by its gradient {measured}")
    return Finding("holds", f"{len(named)} gradients agree with differences of outputs")


def _named_inert(encoding: Composition) -> set[Tensor]:
    """Return the parameters that the parts of an encoding name in `inert`."""
    layers = (encoding.layer(number) for number in range(MODEL.n_layers))
    of_layers = [part for layer in layers for part in getattr(layer, "parts", (layer,))]
    parts = [encoding.base, *encoding.modifiers.children(), *of_layers]
    return {tensor for part in parts for name, tensor in part.named_parameters() if name in part.inert}


def _outputs(encoding: Composition, inputs: list[Tensor]) -> list[Tensor]:
    """Return the input of the first layer, and the output of each layer's attention."""
    x, q, k, v = inputs
    text = tokens(2, TRAIN_LENGTH)
    ids = ids_of(encoding, text)
    embedded = encoding.embed(x, ids, text)
    layers = (encoding.layer(number) for number in range(MODEL.n_layers))
    return [embedded, *(reference_attention(layer, x, q, k, v, ids) for layer in layers)]


def _weighed(outputs: list[Tensor]) -> Tensor:
    """Return the sum of all outputs with fixed random weights."""
    generator = torch.Generator().manual_seed(7)
    weights = (torch.randn(output.shape, generator=generator, dtype=torch.float64) for output in outputs)
    return torch.stack(
        [(output * weight).sum() for output, weight in zip(outputs, weights, strict=True)]
    ).sum()


@torch.no_grad()
def _moved_by(encoding: Composition, inputs: list[Tensor], tensor: Tensor, step: Tensor) -> list[Tensor]:
    """Return copies of the outputs where one of the tensors that they depend on is moved."""
    before = tensor.clone()
    tensor.add_(step)
    found = [output.clone() for output in _outputs(encoding, inputs)]
    tensor.copy_(before)
    return found


@torch.no_grad()
def _moves(encoding: Composition, inputs: list[Tensor], tensor: Tensor, direction: Tensor) -> float:
    """Return by how much the outputs change, at most, where the tensor moves along a direction."""
    before, after = _outputs(encoding, inputs), _moved_by(encoding, inputs, tensor, MOVE * direction)
    return max(float((a - b).abs().max()) for a, b in zip(after, before, strict=True))


def _still_element(encoding: Composition, inputs: list[Tensor], tensor: Tensor) -> str:
    """Return the value of an element of a small parameter that changes no output; empty if there is none."""
    for element in range(tensor.numel() if tensor.numel() <= SMALL else 0):
        alone = torch.zeros(tensor.numel(), dtype=tensor.dtype)
        alone[element] = 1.0
        step = alone.view_as(tensor)
        if max(_moves(encoding, inputs, tensor, step), _moves(encoding, inputs, tensor, -step)) <= EXACT:
            return f"{tensor.flatten()[element].item():.3g}"
    return ""


def _first_wrong(
    encoding: Composition, inputs: list[Tensor], tensor: Tensor, gradient: Tensor, direction: Tensor
) -> Slope | None:
    """Return the slope along one element for which gradient and differences disagree, if some direction does.

    A parameter at a bound may have a gradient that leads it back: elements of which the output does not
    depend at all pass.
    """
    if _disagreement(encoding, inputs, tensor, gradient, direction) is None:
        return None
    count, size = min(ELEMENTS, gradient.numel()), gradient.numel()
    largest = gradient.flatten().abs().topk(count).indices.tolist()
    spread = torch.linspace(0, size - 1, count).long().tolist()
    for element in dict.fromkeys([*largest, *spread]):
        alone = torch.zeros(size, dtype=gradient.dtype)
        alone[element] = 1.0
        wrong = _disagreement(encoding, inputs, tensor, gradient, alone.view_as(gradient))
        if wrong and wrong.difference:
            return wrong
    return None


def _disagreement(
    encoding: Composition, inputs: list[Tensor], tensor: Tensor, gradient: Tensor, direction: Tensor
) -> Slope | None:
    found = []
    for step, relative, absolute in STEPS:
        above, below = (
            float(_weighed(_moved_by(encoding, inputs, tensor, sign * step * direction))) for sign in (1, -1)
        )
        found.append(Slope(float((gradient * direction).sum()), (above - below) / (2 * step)))
        if found[-1].agrees(relative, absolute):
            return None
    return found[0]
