"""Gradients against differences of the output, in float64, and parameters that change nothing."""

from typing import NamedTuple

import torch
from torch import Tensor

from pe_bench.encodings.compose import Composition
from pe_bench.inspection.check.case import MODEL, TRAIN_LENGTH, Case, ids_of, layer_inputs, tokens
from pe_bench.inspection.check.finding import EXACT, Finding
from pe_bench.model.attention import reference_attention

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
    """Compare gradients of parameters and inputs with central differences; name parameters that are inert."""
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
