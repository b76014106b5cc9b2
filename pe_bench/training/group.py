"""The processes that train one model together, each on its share of every batch.

Every process holds the whole model, or a share of every parameter where they are sharded (FSDP2). A step
is the one that a single process would take, but for the order in which numbers are added.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as together
from torch import Tensor, nn

from pe_bench.model.decoder import Decoder
from pe_bench.system.signals import steps_finished


class Group:
    """One process alone, unless it is told its place among several.

    What is added up or agreed on has to be called by all of them, equally often.
    """

    def __init__(
        self,
        rank: int = 0,
        count: int = 1,
        device: torch.device | None = None,
        was_asked: Callable[[], bool] | None = None,
        *,
        is_sharded: bool = False,
    ):
        """`was_asked` tells of the process that started this one whether it was asked to end."""
        self.rank, self.count, self.is_sharded = rank, count, is_sharded
        self.device = device or torch.device("cpu")  # on which the processes exchange numbers
        self.was_asked = was_asked
        self._root: nn.Module | None = None

    @property
    def is_first(self) -> bool:
        """The first process writes and tells; the others only take part."""
        return self.rank == 0

    def share(self, rows: Tensor) -> Tensor:
        """This process's rows of a batch, in order; the first where there are too few for all to have one."""
        if self.count == 1:
            return rows
        return rows.tensor_split(self.count)[self.rank] if self.rank < len(rows) else rows[:1]

    def sum(self, *values: float) -> list[float]:
        """Each value, added up over the processes."""
        return self._reduced(list(values), "SUM")

    def any(self, fact: bool) -> bool:
        """Whether it holds in one of the processes."""
        return self._reduced([float(fact)], "MAX") != [0.0]

    def mean(self, values: Tensor) -> float:
        """Of the values of all processes together."""
        if self.count == 1:
            return float(values.double().mean())
        total, number = self.sum(float(values.double().sum()), values.numel())
        return total / number

    def told(self, text: str) -> str:
        """What the first process says, to all of them."""
        if self.count == 1:
            return text
        box = [text]
        together.broadcast_object_list(box, device=self.device)
        return box[0]

    def sum_gradients(self, model: nn.Module) -> None:
        """Give every process the sum of all gradients; those of sharded parameters are summed already."""
        if self.count == 1 or self.is_sharded:
            return
        parameters = list(model.parameters())
        # What has a gradient nowhere stays without one, and the optimizer leaves it alone.
        found = self._reduced([float(one.grad is not None) for one in parameters], "MAX")
        parameters = [one for one, is_found in zip(parameters, found, strict=True) if is_found]
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        together.all_reduce(flat)
        parts = flat.split([one.numel() for one in parameters])
        for one, part in zip(parameters, parts, strict=True):
            one.grad = part.view_as(one)

    def shard(self, model: Decoder) -> None:
        """Leave this process its share of every parameter of `model`, where that was asked for."""
        if not self.is_sharded:
            return
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        mesh = init_device_mesh(self.device.type, (self.count,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        root = _Called(model)
        fully_shard(root, mesh=mesh)  # in place
        self._root = root
        for module in root.modules():
            if isinstance(module, FSDPModule):
                # The sum, not the mean: each share of the loss is divided by the whole batch.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    def call(self, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """`function` of the arguments, while the model's parameters are whole."""
        return function(*arguments) if self._root is None else self._root(function, *arguments)

    @contextmanager
    def steps_finished(self) -> Iterator[Callable[[], bool]]:
        """As that of `signals`; all processes hear of it after the same step."""
        if self.was_asked is None:
            with steps_finished() as is_asked:
                yield is_asked
        else:
            was_asked = self.was_asked
            yield lambda: self.any(was_asked())

    def _reduced(self, values: list[float], operation: str) -> list[float]:
        if self.count == 1:
            return values
        reduced = torch.tensor(values, dtype=torch.float64, device=self.device)
        together.all_reduce(reduced, getattr(together.ReduceOp, operation))
        return reduced.tolist()


class _Called(nn.Module):
    """FSDP makes parameters whole around a module's `forward`; this one's is whatever it is given."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
        return function(*arguments)
