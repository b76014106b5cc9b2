"""AdamW with weight decay on matrices only, and the schedule of its learning rate."""

import math

import torch

from pe_bench.config.schema import TrainConfig
from pe_bench.model.decoder import Decoder


def make_optimizer(model: Decoder, train: TrainConfig, device: torch.device) -> torch.optim.AdamW:
    """Return AdamW; only the decoder's matrices decay: no norm, embedding or parameter of an encoding."""
    decaying, other = [], []
    for name, parameter in model.named_parameters():
        matrix = parameter.dim() == 2 and not name.startswith(("encoding.", "embedding."))
        (decaying if matrix else other).append(parameter)
    groups = [
        {"params": decaying, "weight_decay": train.weight_decay},
        {"params": other, "weight_decay": 0.0},
    ]
    fused = device.type in ("cpu", "cuda")
    return torch.optim.AdamW(groups, lr=train.lr, betas=train.betas, fused=fused)


def learning_rate(step: int, train: TrainConfig) -> float:
    """Return the rate of a step: a linear warm-up, then a cosine down to `final_lr` times `lr`."""
    if step < train.warmup_steps:
        return train.lr * (step + 1) / train.warmup_steps
    past = (step - train.warmup_steps) / max(1, train.total_steps - 1 - train.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, past)))
    return train.lr * (train.final_lr + (1 - train.final_lr) * cosine)
