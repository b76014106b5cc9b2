"""The optimizer of a run, AdamW or Muon, and the schedule of its learning rate.

Muon trains the matrices of the decoder's blocks; AdamW trains all other parameters, at the same rate. A step
of Muon is the momentum with its singular values brought near 1 (Jordan et al. 2024, "Muon: an optimizer for
hidden layers in neural networks"). PyTorch's Muon computes in bfloat16, matrix by matrix: its results depend
on the processor, and without bfloat16 instructions it takes ten times as long as the rest of a small model's
step. This Muon computes in the type of the parameters, with all matrices of one shape together. Only for
models trained in bfloat16, on a device that multiplies bfloat16 faster, does it iterate in bfloat16, as its
authors do; momenta and weights stay float32.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.adamw import adamw

from pe_bench.config.schema import TrainConfig
from pe_bench.model.accelerate import is_native
from pe_bench.model.attention import native_bfloat16_is_faster
from pe_bench.model.decoder import Decoder
from pe_bench.native.layers import iterate_muon_in_bfloat16, muon_polynomials
from pe_bench.training.sharding import gathered, is_sharded, own_part, own_rows

MUON_MOMENTUM = 0.95
# The factors of the polynomial a x + b x^3 + c x^5 that brings singular values in (0, 1] near 1, and the
# number of its applications (Jordan et al. 2024).
MUON_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
MUON_ITERATIONS = 5
MIN_NORM = 1e-7  # the least norm that divides a matrix, as in PyTorch's Muon: smaller matrices are damped
# The root mean square of an update over the learning rate; about the same for AdamW, so both can share a rate
# (Liu et al. 2025, arXiv:2502.16982, section 2.2).
MUON_UPDATE_RMS = 0.2


@dataclass
class ParameterGroup:
    """Parameters with one learning rate, weight decay and kind of step, AdamW's or Muon's."""

    weight_decay: float = 0.0
    betas: tuple[float, float] | None = None  # the betas of AdamW; None for Muon
    lr_multiple: float = 1.0  # the group's learning rate over the model's
    lr: float = 0.0  # the learning rate of the next step
    parameters: list[Parameter] = field(default_factory=list)


class Optimizer:
    """AdamW and Muon for groups of parameters, with the state of each parameter.

    The optimizers of `torch.optim` would import PyTorch's compiler: a third of the time until the first step.
    """

    def __init__(self, groups: Iterable[ParameterGroup], muon_dtype: torch.dtype | None = None) -> None:
        self.groups = [*groups]
        self.muon_dtype = muon_dtype
        self.state: defaultdict[Parameter, dict[str, Any]] = defaultdict(dict)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next step; each group multiplies it by its `lr_multiple`."""
        for group in self.groups:
            group.lr = rate * group.lr_multiple

    @torch.no_grad()
    def step(self) -> None:
        """Take one step with every parameter that has a gradient."""
        for group in self.groups:
            parameters = [parameter for parameter in group.parameters if parameter.grad is not None]
            step = self._step_muon if group.betas is None else self._step_adamw
            step(parameters, group)

    def zero_grad(self) -> None:
        for group in self.groups:
            for parameter in group.parameters:
                parameter.grad = None

    def _step_adamw(self, parameters: Sequence[Parameter], group: ParameterGroup) -> None:
        """Move parameters as AdamW does (Loshchilov and Hutter 2019, algorithm 2)."""
        assert group.betas is not None
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if not state:
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
                state["step"] = torch.zeros((), device=parameter.device)
        means = [state["exp_avg"] for state in states]
        squares = [state["exp_avg_sq"] for state in states]
        steps = [state["step"] for state in states]
        gradients: list[Any] = [parameter.grad for parameter in parameters]
        rates = {"lr": group.lr, "beta1": group.betas[0], "beta2": group.betas[1], "eps": 1e-8}
        settings = {**rates, "weight_decay": group.weight_decay, "amsgrad": False, "maximize": False}
        adamw([*parameters], gradients, means, squares, [], steps, fused=True, **settings)

    def _step_muon(self, parameters: Sequence[Parameter], group: ParameterGroup) -> None:
        """Move matrices by their orthogonalised Nesterov momentum; weight decay is decoupled, as in AdamW."""
        matrices_by_shape: dict[tuple[int, ...], list[Parameter]] = {}
        for index, parameter in enumerate(parameters):
            # Sharded matrices are gathered one at a time.
            key = (*parameter.shape, index if is_sharded(parameter) else 0)
            matrices_by_shape.setdefault(key, []).append(parameter)
        for (*shape, _), matrices in matrices_by_shape.items():
            own_momenta = self._momenta(matrices)
            momenta = [gathered(own, matrix) for own, matrix in zip(own_momenta, matrices, strict=True)]
            moved = self._orthogonalised(momenta)
            updates = [update[own_rows(matrix)] for matrix, update in zip(matrices, moved, strict=True)]
            weights = [own_part(matrix) for matrix in matrices]
            torch._foreach_mul_(weights, 1 - group.lr * group.weight_decay)  # pyright: ignore[reportPrivateImportUsage]
            size = MUON_UPDATE_RMS * math.sqrt(max(shape))
            torch._foreach_add_(weights, updates, alpha=-group.lr * size)  # pyright: ignore[reportPrivateImportUsage]

    def _orthogonalised(self, momenta: Sequence[Tensor]) -> Tensor:
        """Return the orthogonalised momenta of matrices of one shape, [B, M, N]."""
        stacked = torch.stack([*momenta])
        if self.muon_dtype == torch.bfloat16:
            return orthogonalise_in_bfloat16(stacked)
        return orthogonalise(stacked)

    def _momenta(self, parameters: Sequence[Parameter]) -> Sequence[Tensor]:
        """Add gradients to the momenta of parameters, and return the Nesterov momenta."""
        gradients = []
        momenta = []
        for parameter in parameters:
            assert parameter.grad is not None
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter.grad)
            gradients.append(own_part(parameter.grad))
            momenta.append(own_part(state["momentum_buffer"]))
        torch._foreach_lerp_(momenta, gradients, 1 - MUON_MOMENTUM)  # pyright: ignore[reportPrivateImportUsage]
        return torch._foreach_lerp(gradients, momenta, MUON_MOMENTUM)  # pyright: ignore[reportPrivateImportUsage]


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return matrices (B, M, N) with the same singular vectors, and with singular values near 1.

    In a matrix with a norm above `MIN_NORM`, a singular value above 0.02 of the norm ends between 0.67 and
    1.15. The result for a smaller matrix is arbitrary, because squares of its numbers have lost their digits.

    An odd polynomial of a matrix X is P X, with P a polynomial of X Xᵀ, so all iterations work on the square
    matrix of the shorter side.
    """
    if matrices.size(-2) > matrices.size(-1):
        return orthogonalise(matrices.mT).mT
    linear, cubic, quintic = MUON_COEFFICIENTS
    norms = torch.linalg.matrix_norm(matrices, keepdim=True).clamp_min(MIN_NORM)
    scaled = matrices / norms
    square = scaled @ scaled.mT
    if is_native(square):
        return muon_polynomials(square, MUON_COEFFICIENTS, MUON_ITERATIONS) @ scaled
    identity = torch.eye(square.size(-1), dtype=square.dtype, device=square.device)
    total = identity
    for iteration in range(MUON_ITERATIONS):
        factor = torch.baddbmm(square, square, square, beta=cubic, alpha=quintic) + linear * identity
        total = factor if iteration == 0 else factor @ total
        if iteration < MUON_ITERATIONS - 1:
            square = factor @ square @ factor
    return total @ scaled


def orthogonalise_in_bfloat16(matrices: Tensor) -> Tensor:
    """Return the result of `orthogonalise`, computed in bfloat16, for float32 matrices (B, M, N).

    Each iteration computes X Xᵀ anew, as the authors of Muon do: updating it from iteration to iteration, as
    in `orthogonalise`, would accumulate the errors of eight bits.
    """
    is_plain = matrices.dtype == torch.float32 and matrices.is_contiguous()
    if is_plain and native_bfloat16_is_faster(matrices.device):
        return iterate_muon_in_bfloat16(matrices, MIN_NORM, MUON_COEFFICIENTS, MUON_ITERATIONS)
    if matrices.size(-2) > matrices.size(-1):
        return orthogonalise_in_bfloat16(matrices.mT).mT
    linear, cubic, quintic = MUON_COEFFICIENTS
    norms = torch.linalg.matrix_norm(matrices, keepdim=True).clamp_min(MIN_NORM)
    moved = (matrices / norms).to(torch.bfloat16)
    for _ in range(MUON_ITERATIONS):
        square = moved @ moved.mT
        factor = torch.baddbmm(square, square, square, beta=cubic, alpha=quintic)
        moved = torch.baddbmm(moved, factor, moved, beta=linear)
    return moved.to(matrices.dtype)


def make_optimizer(model: Decoder, train: TrainConfig, muon_dtype: torch.dtype | None = None) -> Optimizer:
    """Return the optimizer of a model; Muon iterates in `muon_dtype`, or in the type of the parameters.

    Only the decoder's matrices decay: no norm, embedding or parameter of an encoding. The learning rate of an
    encoding's parameters is multiplied by `encoding_lr`, by default by the number that its class declares.
    Parameters that do not learn, because this number is 0 or `train.only` names another part, need no
    gradient (`requires_grad` is false): their gradients would count in the norm that is clipped.
    """
    betas = (train.betas[0], train.betas[1])
    matrices = ParameterGroup(train.weight_decay, betas if train.optimizer == "adamw" else None)
    head = ParameterGroup(train.weight_decay, betas)
    groups_by_multiple: dict[tuple[float, bool], ParameterGroup] = {}
    multiples = model.encoding.lr_multiples(train.encoding_lr)
    for name, parameter in model.named_parameters():
        part, _, own_name = name.partition(".")
        if parameter.dim() == 2 and part not in ("encoding", "embedding"):
            group = head if part == "head" else matrices
        else:
            multiple = multiples[own_name] if part == "encoding" else 1.0
            parameter.requires_grad_(multiple > 0)
            # PyTorch cannot step sharded and other tensors in one group; an encoding's are never sharded.
            key = multiple, part == "encoding"
            group = groups_by_multiple.setdefault(key, ParameterGroup(betas=betas, lr_multiple=multiple))
        if train.only and part != train.only:
            parameter.requires_grad = False
        group.parameters.append(parameter)
    groups = [group for group in (matrices, head, *groups_by_multiple.values()) if group.parameters]
    return Optimizer(groups, muon_dtype)


def learning_rate(step: int, train: TrainConfig) -> float:
    """Return the learning rate of a step: linear warm-up to `lr`, then a cosine down to `final_lr` * `lr`."""
    if step < train.warmup_steps:
        return train.lr * (step + 1) / train.warmup_steps
    decay_steps = max(1, train.total_steps - 1 - train.warmup_steps)
    past = min(1.0, (step - train.warmup_steps) / decay_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * past))
    share = train.final_lr + (1 - train.final_lr) * cosine
    return train.lr * share
