"""The optimizer of a run, AdamW or Muon, and the schedule of its learning rate.

Muon (Jordan et al. 2024; PyTorch's own) orthogonalises the momentum of a matrix. It is for the decoder's
matrices alone: AdamW trains the rest beside it, at the same rate, to which PyTorch adjusts the size of Muon's
updates (Liu et al. 2025, arXiv:2502.16982, section 2.2).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from pe_bench.config.schema import TrainConfig
from pe_bench.model.decoder import Decoder

MULTIPLE = "lr_multiple"  # of a group of parameters: its rate over the rate of the step


class Optimizers:
    """The optimizers of one model, each of its own parameters, that take every step together."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for part in self.parts for group in part.param_groups]

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        for group in self.param_groups:
            group["lr"] = rate * group[MULTIPLE]

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state(self, parameter: Parameter) -> dict[str, Any]:
        """Return what is kept for a parameter, to read or to fill; empty before its first gradient."""
        return self._part_of(parameter).state[parameter]

    def state_shapes(self, parameter: Parameter) -> dict[str, torch.Size]:
        """Return the names and shapes of the tensors kept for a parameter after its first step."""
        if isinstance(self._part_of(parameter), torch.optim.Muon):
            return {"momentum_buffer": parameter.shape}
        return {"exp_avg": parameter.shape, "exp_avg_sq": parameter.shape, "step": torch.Size()}

    def state_device(self, parameter: Parameter, value: Tensor) -> torch.device:
        """Return where a tensor of the state belongs: AdamW counts steps on the CPU unless it is fused."""
        beside = value.dim() > 0 or bool(self._part_of(parameter).defaults.get("fused"))
        return parameter.device if beside else torch.device("cpu")

    def _part_of(self, parameter: Parameter) -> torch.optim.Optimizer:
        return next(part for part in self.parts if any(parameter is found for found in _parameters(part)))


def make_optimizer(model: Decoder, train: TrainConfig, device: torch.device) -> Optimizers:
    """Return the optimizers of a model.

    Only the decoder's matrices decay: no norm, embedding or parameter of an encoding. Those of an encoding
    learn at `encoding_lr` times the rate, by default at the multiple that its class declares.
    """
    matrices: list[Parameter] = []
    others: dict[float, list[Parameter]] = {1.0: []}
    multiples = model.encoding.lr_multiples(train.encoding_lr)
    for name, parameter in model.named_parameters():
        part, _, own_name = name.partition(".")
        if parameter.dim() == 2 and part not in ("encoding", "embedding"):
            matrices.append(parameter)
        else:
            multiple = multiples[own_name] if part == "encoding" else 1.0
            others.setdefault(multiple, []).append(parameter)
    groups = [
        {"params": found, "weight_decay": 0.0, MULTIPLE: multiple}
        for multiple, found in others.items()
        if found
    ]
    fused = device.type in ("cpu", "cuda")
    decaying = {"params": matrices, "weight_decay": train.weight_decay, MULTIPLE: 1.0}
    if train.optimizer == "adamw":
        return Optimizers(
            [torch.optim.AdamW([decaying, *groups], lr=train.lr, betas=train.betas, fused=fused)]
        )
    return Optimizers(
        [
            torch.optim.Muon([decaying], lr=train.lr, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(groups, lr=train.lr, betas=train.betas, fused=fused),
        ]
    )


def learning_rate(step: int, train: TrainConfig) -> float:
    """Return the rate of a step: a linear warm-up, then a cosine down to `final_lr` times `lr`."""
    if step < train.warmup_steps:
        return train.lr * (step + 1) / train.warmup_steps
    past = (step - train.warmup_steps) / max(1, train.total_steps - 1 - train.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, past)))
    return train.lr * (train.final_lr + (1 - train.final_lr) * cosine)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Parameter]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
