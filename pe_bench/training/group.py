"""The processes that train one model together, each on its share of every batch.

Every process holds the whole model. A step is the one that a single process would take, but for the order in
which numbers are added.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as together
from torch import Tensor, nn

from pe_bench.system.signals import finish_step_on_signal


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
    ):
        """`was_asked` tells of the process that started this one whether it was asked to end."""
        self.rank, self.count = rank, count
        self.device = device or torch.device("cpu")  # on which the processes exchange numbers
        self.was_asked = was_asked

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

    def broadcast(self, text: str) -> str:
        """Return the first process's text, in all of them."""
        if self.count == 1:
            return text
        box = [text]
        together.broadcast_object_list(box, device=self.device)
        return box[0]

    def sum_gradients(self, model: nn.Module) -> None:
        """Give every process the sum of all gradients."""
        if self.count == 1:
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

    @contextmanager
    def finish_step_on_signal(self) -> Iterator[Callable[[], bool]]:
        """As that of `signals`; all processes hear of it after the same step."""
        if self.was_asked is None:
            with finish_step_on_signal() as is_asked:
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
