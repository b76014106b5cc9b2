"""Checks of an encoding's arithmetic: in half precision, far out, and gradients against differences."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, LengthError
from pe_bench.encodings.compose import Composition, leaves_of
from pe_bench.inspection.check.case import (
    MODEL,
    TRAIN_LENGTH,
    Case,
    Inputs,
    as_type,
    ids_of,
    layer_inputs,
    tokens,
)
from pe_bench.inspection.check.result import EXACT, UnclaimedError, at_most, expect, worst
from pe_bench.model.attention import attention, reference_attention
from pe_bench.model.attention.reference import logits, project, slice_tokens

FAR = 4_096  # bfloat16 counts to 256
LONG = 65_536  # tokens
LONG_ROWS = 16
LONG_ERROR = 3e-4  # float32 against float64 at that length; an angle in float32 is off by 0.004


def half_precision(case: Case) -> str:
    """Half-precision queries and keys keep exact positions.

    Look at: positions, angles or sums that were cast to the type of q.
    """
    try:
        errors = _half_precision_errors(case, torch.arange(300) + FAR)
    except LengthError:
        errors = _half_precision_errors(case, torch.arange(TRAIN_LENGTH))
    # bfloat16 has eight bits: values near 1 are off by 0.002 on average, whatever the encoding.
    return at_most("on average bfloat16 is off by", *errors, limit=0.01)


@torch.no_grad()
def _half_precision_errors(case: Case, position: Tensor) -> list[float]:
    inputs, pairs = layer_inputs(len(position), torch.bfloat16), []
    for exact, rounded in case.both_precisions():
        truth = reference_attention(exact, *as_type(inputs, torch.float64), position)
        pairs += [(path(rounded, *inputs, position), truth) for path in (attention, reference_attention)]
    text, x = tokens(2, len(position)), inputs[0]
    truth = case.encoding.embed(x.double(), position, text)
    pairs.append((case.with_random_parameters().embed(x, position, text), truth))
    return [float((output.double() - truth).abs().mean()) for output, truth in pairs]


def long_context(case: Case) -> str:
    """The last of 65,536 tokens are finite and exact.

    Look at: angles and cumulative sums in float32; exponents that overflow.
    """
    try:
        errors = list(_long_errors(case))
    except LengthError as error:
        expect(case.ends, str(error))
        raise UnclaimedError(str(error)) from error
    return at_most("finite; float32 and float64 differ by", *errors, limit=LONG_ERROR)


@torch.no_grad()
def _long_errors(case: Case) -> Iterator[float]:
    """Yield errors of the input, and of logits and outputs of the last tokens, against float64."""
    single = layer_inputs(LONG, torch.float32, batch=1, drawn_as=torch.float32)
    double, text = as_type(single, torch.float64), tokens(1, LONG)
    position, rows = torch.arange(LONG), range(LONG - LONG_ROWS, LONG)
    embedded = case.with_random_parameters().embed(single[0], position, text)
    expect(bool(embedded.isfinite().all()), "the input is not finite")
    yield worst(embedded, case.encoding.embed(double[0], position, text))
    for exact, rounded in case.both_precisions():
        output = reference_attention(rounded, *single, position, rows=rows)
        expect(bool(output.isfinite().all()), f"{int((~output.isfinite()).sum())} outputs are not finite")
        truth = reference_attention(exact, *double, position, rows=rows)
        off, rounding = _logit_error(exact, double, rounded, single)
        # In an output, a mean over so many values, errors of the logits average out.
        yield worst(output, truth) / max(1.0, rounding / LONG_ERROR)
        yield off


def _logit_error(
    exact: LayerEncoding, double: Inputs, rounded: LayerEncoding, single: Inputs
) -> tuple[float, float]:
    """Return the largest error in the last four rows, and what rounding these logits does to an output.

    The error is relative where a logit is larger than 1. A softmax turns an absolute error of the logits that
    weigh most, the largest of a row, into about twice that in an output.
    """
    truth, visible = _last_logits(exact, double)
    output, _ = _last_logits(rounded, single)
    off = (output.double() - truth).abs() / truth.abs().clamp(min=1)
    largest_logit = float(truth.masked_fill(~visible, -torch.inf).amax(-1).abs().max())
    rounding = 2 * largest_logit * torch.finfo(torch.float32).eps
    return float(off.masked_fill((output == truth) | ~visible, 0.0).nan_to_num(torch.inf).max()), rounding


def _last_logits(layer: LayerEncoding, inputs: Inputs) -> tuple[Tensor, Tensor]:
    x, q, k, _ = inputs
    queries, keys = project(layer, x, q, k, torch.arange(LONG))
    return logits(layer, slice_tokens(queries, LONG - 4, LONG), keys, MODEL.d_head**-0.5)


# A step, and how far slopes may lie apart, relative and absolute. The second is for code in float32.
STEPS = ((1e-6, 1e-3, 1e-6), (1e-3, 1e-2, 1e-3))
ELEMENTS = 32  # of a parameter, with the largest gradients, and as many others: looked at one by one
SMALL = 16  # elements of a parameter that are moved one by one
MOVE = 0.1  # of a parameter, which must change some output


def slopes(case: Case) -> str:
    """Gradients are the slopes of the output, and no parameter is inert.

    Look at: a detach, a backward of its own; a phase or scale of queries and keys that cancels.
    """
    inputs = [tensor.requires_grad_() for tensor in layer_inputs(TRAIN_LENGTH)]
    moved, initial = _Moved(case.with_random_parameters(), inputs), _Moved(case.as_built(), inputs)
    parameters = {name: tensor for name, tensor in moved.encoding.named_parameters() if tensor.requires_grad}
    named = parameters | dict(zip("xqkv", inputs, strict=True))
    generator, tensors = torch.Generator().manual_seed(6), [*moved.encoding.parameters(), *inputs]
    drawn = [torch.randn(tensor.shape, generator=generator, dtype=torch.float64) for tensor in tensors]
    directions = dict(zip(tensors, drawn, strict=True))
    for name, tensor in parameters.items():
        as_built, step = initial.encoding.get_parameter(name), MOVE * directions[tensor]
        is_inert = max(moved.change(tensor, step), initial.change(as_built, step)) <= EXACT
        says_so = tensor in _named_inert(moved.encoding)
        expect(says_so or not is_inert, f"{name} is inert: moving it by {MOVE} changes no output")
        expect(is_inert or not says_so, f"inert names {name}, and moving it by {MOVE} changes an output")
        still = "" if is_inert else initial.still_element(as_built)
        expect(not still, f"{still} of {name} as built is inert: moving it by {MOVE} changes no output")
    weighed = _weighed(moved.outputs())
    gradients = torch.autograd.grad(weighed, list(named.values()), materialize_grads=True)
    for (name, tensor), gradient in zip(named.items(), gradients, strict=True):
        wrong = moved.wrong_slope(tensor, gradient, directions[tensor])
        expect(not wrong, f"the slope of the output along {name} is by its gradient {wrong}")
    return f"{len(named)} gradients agree with differences of outputs"


def _named_inert(encoding: Composition) -> set[Tensor]:
    """Return the parameters that the parts of an encoding name in `inert`."""
    leaves = [leaf for number in range(MODEL.n_layers) for leaf in leaves_of(encoding.layer(number))]
    parts = [encoding.base, *encoding.modifiers.children(), *leaves]
    return {tensor for part in parts for name, tensor in part.named_parameters() if name in part.inert}


def _weighed(outputs: Sequence[Tensor]) -> Tensor:
    """Return the sum of all outputs with fixed random weights."""
    generator = torch.Generator().manual_seed(7)
    weights = [torch.randn(output.shape, generator=generator, dtype=torch.float64) for output in outputs]
    return torch.stack(
        [(output * weight).sum() for output, weight in zip(outputs, weights, strict=True)]
    ).sum()


class _Moved:
    """The outputs of an encoding in float64, and how they change where one of its tensors is moved."""

    def __init__(self, encoding: Composition, inputs: Sequence[Tensor]):
        self.encoding, self.inputs = encoding.double(), inputs

    def outputs(self) -> list[Tensor]:
        """Return the input of the first layer, and the output of each layer's attention."""
        x, q, k, v = self.inputs
        text = tokens(2, TRAIN_LENGTH)
        ids = ids_of(self.encoding, text)
        layers = (self.encoding.layer(number) for number in range(MODEL.n_layers))
        attended = [reference_attention(layer, x, q, k, v, ids) for layer in layers]
        return [self.encoding.embed(x, ids, text), *attended]

    @torch.no_grad()
    def after(self, tensor: Tensor, step: Tensor) -> list[Tensor]:
        """Return copies of the outputs where one of the tensors that they depend on is moved by a step."""
        before = tensor.clone()
        tensor.add_(step)
        outputs = [output.clone() for output in self.outputs()]
        tensor.copy_(before)
        return outputs

    def change(self, tensor: Tensor, step: Tensor) -> float:
        """Return by how much the outputs change at most."""
        with torch.no_grad():
            pairs = zip(self.after(tensor, step), self.outputs(), strict=True)
            return max(float((after - before).abs().max()) for after, before in pairs)

    def still_element(self, tensor: Tensor) -> str:
        """Return the value of an element of a small parameter that changes no output; empty if none is so."""
        for element, step in _units(tensor, range(tensor.numel() if tensor.numel() <= SMALL else 0)):
            if max(self.change(tensor, sign * MOVE * step) for sign in (1, -1)) <= EXACT:
                return f"{tensor.flatten()[element].item():.3g}"
        return ""

    def wrong_slope(self, tensor: Tensor, gradient: Tensor, direction: Tensor) -> str:
        """Return the slopes along an element for which gradient and differences disagree; empty if all agree.

        A parameter at a bound may have a gradient that leads it back: elements of which the output does not
        depend at all pass.
        """
        if self._disagreement(tensor, gradient, direction) is None:
            return ""
        count = min(ELEMENTS, gradient.numel())
        largest = gradient.flatten().abs().topk(count).indices.tolist()
        spread = torch.linspace(0, gradient.numel() - 1, count).long().tolist()
        for _, step in _units(gradient, dict.fromkeys([*largest, *spread])):
            wrong = self._disagreement(tensor, gradient, step)
            if wrong and wrong[1]:
                return f"{wrong[0]:.5g}, and differences of outputs say {wrong[1]:.5g}"
        return ""

    def _disagreement(
        self, tensor: Tensor, gradient: Tensor, direction: Tensor
    ) -> tuple[float, float] | None:
        """Return the slope along a direction by its gradient and by a difference, if no step agrees."""
        by_gradient, by_difference = float((gradient * direction).sum()), []
        for step, relative, absolute in STEPS:
            above, below = (float(_weighed(self.after(tensor, s * step * direction))) for s in (1, -1))
            slope = (above - below) / (2 * step)
            if abs(by_gradient - slope) <= relative * max(abs(by_gradient), abs(slope)) + absolute:
                return None
            by_difference.append(slope)
        return by_gradient, by_difference[0]


def _units(tensor: Tensor, elements: Iterable[int]) -> Iterator[tuple[int, Tensor]]:
    """Yield each element with a step along it alone."""
    for element in elements:
        step = torch.zeros(tensor.numel(), dtype=tensor.dtype)
        step[element] = 1.0
        yield element, step.view_as(tensor)
