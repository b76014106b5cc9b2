"""Arithmetic that autocast must leave alone."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Turn autocast off where `x` is: not every device has it."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()
