"""Muon, an optimizer of matrices: each step is the momentum with its singular values brought near 1.

Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks". PyTorch's Muon computes in
bfloat16, matrix by matrix: its digits depend on the processor, and without bfloat16 instructions it takes
ten times as long as the rest of a small model's step. This one computes in the type of the parameters, and
all matrices of one shape together.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

MOMENTUM = 0.95
# The factors of the polynomial a x + b x^3 + c x^5 that brings singular values in (0, 1] near 1, and how
# often it is applied (Jordan et al. 2024).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
EPSILON = 1e-7  # the least norm that a matrix is scaled by, as in PyTorch's Muon: smaller ones are damped
# The root mean square of an update is about this multiple of the learning rate, as AdamW's is, so that both
# can share a rate (Liu et al. 2025, arXiv:2502.16982, section 2.2).
UPDATE_SIZE = 0.2


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, for matrices; the weight decay is decoupled, as in AdamW."""

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step with every parameter that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(tuple(parameter.shape), []).append(parameter)
            for shape, parameters in by_shape.items():
                updates = orthogonalise(torch.stack([self._momentum(parameter) for parameter in parameters]))
                size = UPDATE_SIZE * math.sqrt(max(shape))
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update, alpha=-group["lr"] * size)

    def _momentum(self, parameter: Parameter) -> Tensor:
        """Add the gradient to a parameter's momentum; return where that leads after one more such step."""
        gradient = parameter.grad
        assert gradient is not None
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum = state["momentum_buffer"].lerp_(gradient, 1 - MOMENTUM)
        return gradient.lerp(momentum, MOMENTUM)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return matrices (B, M, N) with their singular vectors and with singular values near 1.

    A value above 0.02 of its matrix's norm ends between 0.67 and 1.15, where that norm is above `EPSILON`.
    Squares of smaller numbers have lost their digits, and the polynomial would make anything of them.

    An odd polynomial of a matrix X is P X, with P a polynomial of X Xᵀ, so all iterations work on that square
    of the shorter side.
    """
    if matrices.size(-2) > matrices.size(-1):
        return orthogonalise(matrices.mT).mT
    linear, cubic, quintic = COEFFICIENTS
    norms = torch.linalg.matrix_norm(matrices, keepdim=True).clamp_min(EPSILON)
    scaled = matrices / norms
    square = scaled @ scaled.mT
    identity = torch.eye(square.size(-1), dtype=square.dtype, device=square.device)
    total = identity
    for iteration in range(ITERATIONS):
        factor = torch.baddbmm(square, square, square, beta=cubic, alpha=quintic) + linear * identity
        total = factor if iteration == 0 else factor @ total
        if iteration < ITERATIONS - 1:
            square = factor @ square @ factor
    return total @ scaled
