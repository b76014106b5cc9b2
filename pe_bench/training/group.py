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
    """One process of several that train together, by default one alone.

    All of them have to call what adds up or agrees, equally often.
    """

    def __init__(
        self,
        rank: int = 0,
        count: int = 1,
        device: torch.device | None = None,
        stop_requested: Callable[[], bool] | None = None,
    ):
        """`stop_requested` returns whether the process that started this one was asked to end."""
        self.rank, self.count = rank, count
        self.device = device or torch.device("cpu")  # on which the processes exchange numbers
        self.stop_requested = stop_requested

    @property
    def is_first(self) -> bool:
        """Return whether this process is the one that writes and reports."""
        return self.rank == 0

    def share(self, rows: Tensor) -> Tensor:
        """Return this process's rows of a batch, in order; the first row where there are too few for all."""
        if self.count == 1:
            return rows
        return rows.tensor_split(self.count)[self.rank] if self.rank < len(rows) else rows[:1]

    def sum(self, *values: float) -> list[float]:
        """Return each value, added up over the processes."""
        return self._reduced(list(values), "SUM")

    def any(self, fact: bool) -> bool:
        """Return whether it holds in one of the processes."""
        return self._reduced([float(fact)], "MAX") != [0.0]

    def mean(self, values: Tensor) -> float:
        """Return the mean of the values of all processes together."""
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
        has_gradient = self._reduced([float(p.grad is not None) for p in parameters], "MAX")
        parameters = [p for p, is_found in zip(parameters, has_gradient, strict=True) if is_found]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        together.all_reduce(flat)
        parts = flat.split([p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    @contextmanager
    def finish_step_on_signal(self) -> Iterator[Callable[[], bool]]:
        """Do as `signals.finish_step_on_signal` does; every process stops after the same step."""
        if self.stop_requested is None:
            with finish_step_on_signal() as stop_requested:
                yield stop_requested
        else:
            stop_requested = self.stop_requested
            yield lambda: self.any(stop_requested())

    def _reduced(self, values: list[float], operation: str) -> list[float]:
        if self.count == 1:
            return values
        reduced = torch.tensor(values, dtype=torch.float64, device=self.device)
        together.all_reduce(reduced, getattr(together.ReduceOp, operation))
        return reduced.tolist()
