"""Tensors of which each process holds a share (FSDP2's), to files and back; others pass as they are."""

from typing import Any

from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor as a plain one; all processes have to ask."""
    sharded: Any = tensor
    return sharded.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def sharded_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A tensor that is equal in all processes, sharded as `parameter` is; a single number stays whole."""
    if not hasattr(parameter, "full_tensor") or tensor.dim() == 0:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    model: Any = parameter
    return distribute_tensor(tensor, model.device_mesh, model.placements)
