"""FSDP2: each process keeps a share of each weight's rows, of their gradients and of their moments.

The parameters of an encoding stay whole in every process: they are small, and may be a single number. Only a
sharded run imports PyTorch's distributed tensors, which takes a second.
"""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pe_bench.model.decoder import Decoder


def shard(module: nn.Module, model: Decoder, device: torch.device, dtype: torch.dtype) -> None:
    """Shard a model over all processes.

    module: the module that contains and calls the model. dtype: the type of matrix products.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    # Here no wrapper changes the output of a block.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    policy = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,  # position ids keep their digits
    )
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": True}
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(module, **options, ignored_params=set(model.encoding.parameters()))


def average_replicated(model: Decoder) -> None:
    """Average the gradients of the encoding's parameters, which are not sharded, over all processes.

    If the encoding's computation depends on tokens, a parameter may have a gradient in some processes only. A
    parameter without a gradient in all processes stays without.
    """
    parameters = [parameter for parameter in model.encoding.parameters() if parameter.requires_grad]
    if not parameters:
        return
    flags = torch.tensor([float(parameter.grad is not None) for parameter in parameters])
    flags = flags.to(parameters[0].device)
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    for parameter, flag in zip(parameters, flags.tolist(), strict=True):
        if flag:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "device_mesh")


def own_part(tensor: Any) -> Tensor:
    """Return the rows of a tensor that this process keeps: all rows unless the tensor is sharded."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def gathered(part: Tensor, like: Tensor) -> Tensor:
    """Return the whole tensor of which `part` has this process's rows; `part` if `like` is not sharded.

    like: a tensor that is sharded as the whole tensor is.
    """
    sharded: Any = distributed(part, like)
    return sharded.full_tensor() if is_sharded(like) else sharded


def distributed(part: Tensor, like: Any) -> Tensor:
    """Return a tensor that is sharded as `like`, from the part of this process."""
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor

    mesh, placements = like.device_mesh, like.placements
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=like.shape, stride=like.stride())


def own_rows(like: Any) -> slice:
    """Return the slice of the rows of a tensor that this process keeps."""
    if not is_sharded(like):
        return slice(0, len(like) if like.dim() else 0)
    rows = -(-len(like) // like.device_mesh.size())
    first = min(len(like), rows * like.device_mesh.get_local_rank())
    return slice(first, min(len(like), first + rows))
