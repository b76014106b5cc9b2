r"""Recursive positions: x_k + p_k, with p_0 learned and p_{k+1} = cell(p_k, t_{k+1}), t_k = time_step k.

p_0 is drawn from N(0, 0.02^2). The states of `mlp` have an rms of 0.71 from p_1 on, so that there the first
token is marked by the size of its state, until p_0 has learned another. The cells, whose weights all
positions share:

    gru        a gated recurrent unit that reads t
    mlp        p_{k+1} = (p_k + g(p_k, t_{k+1})) / rms / sqrt(2), g = a hidden layer of D with ReLU
    ode_rk4    dp/dt = tanh(h(p, t)) - p, a step of Runge and Kutta's fourth order for each position;
               h = linear, ReLU, linear, with t appended to the input of both
    ode_euler  the same with Euler's method

Each keeps the state bounded, or a recursion that is stable over the training length may overflow at 16
times it. A gated unit takes means of the old state and a tanh, so |p| <= 1; the network's state is
divided by its rms, and so has the size of a sinusoid; the flow is drawn to a tanh, and with a step of
at most 1 both methods, too, take means of what lies in [-1, 1].

All states up to the largest position are computed anew in every forward pass. A position between two
has a state between theirs, one before 0 has p_0.

$x_k \mapsto x_k + p_k, \quad p_{k+1} = \text{cell}(p_k, t_{k+1}), \quad t_k = \text{time\_step} \cdot k$

Past the training length: defined: the recursion goes on, with times that were not seen in training.

Liu et al. 2020, "Learning to Encode Position for Transformer with Continuous Dynamical Model", ICML,
arXiv:2003.09229.

The authors (FLOATER) add states to queries, keys and values of every layer; ours are added once, at the
input. There dp/dt = h, which has no bound, and texts end at 255 tokens; each position takes five steps,
and states are computed anew every 400 updates only. The recurrent unit is their baseline, with one layer
here and two there; the cell `mlp` is ours.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import Fraction, PositionalEncoding, full_precision
from pe_bench.encodings.inputs.learned import rows_between

Cell = Literal["gru", "mlp", "ode_rk4", "ode_euler"]
Field = Callable[[Tensor, Tensor], Tensor]  # dp/dt from p and t


def euler_step(field: Field, p: Tensor, t: Tensor, step: float) -> Tensor:
    return p + step * field(p, t)


def rk4_step(field: Field, p: Tensor, t: Tensor, step: float) -> Tensor:
    """Return p at t + step, by the classical method of Runge and Kutta."""
    half = t + step / 2
    first = field(p, t)
    second = field(p + step / 2 * first, half)
    third = field(p + step / 2 * second, half)
    fourth = field(p + step * third, t + step)
    total = first + 2 * second + 2 * third + fourth
    return p + step / 6 * total


class Recursive(PositionalEncoding):
    """Options:

    cell: from one position's state to the next: gru, mlp, ode_rk4 or ode_euler
    time_step: by which t grows from one position to the next, at most 1
    """

    def __init__(self, d_model: int, cell: Cell = "gru", time_step: Fraction = 0.01):
        super().__init__()
        self.time_step = time_step
        self.start = nn.Parameter(0.02 * torch.randn(d_model))
        cell_builders: dict[Cell, Callable[[], nn.Module]] = {
            "gru": lambda: GatedCell(d_model),
            "mlp": lambda: NetworkCell(d_model),
            "ode_rk4": lambda: FlowCell(d_model, rk4_step),
            "ode_euler": lambda: FlowCell(d_model, euler_step),
        }
        self.cell = cell_builders[cell]()

    def embed(self, x: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        # A step repeated thousands of times is never in half precision, not even in an autocast model.
        with full_precision(x):
            last = max(1, int(ids.max().ceil()))
            states = self.states(last + 1)
        added = rows_between(states, ids.clamp(min=0))
        return x + added.to(x.dtype)

    def states(self, count: int) -> Tensor:
        """Return the states p_0 to p_{count-1}, [count, D], for a count of at least 2."""
        index = torch.arange(count, dtype=self.start.dtype, device=self.start.device)
        return self.cell(self.start, self.time_step * index, self.time_step)


class GatedCell(nn.Module):
    """The cell `gru`: computes the states [n, D] at n times; the first state is `start` [D]."""

    def __init__(self, d_model: int):
        super().__init__()
        self.unit = nn.GRU(1, d_model)

    def forward(self, start: Tensor, times: Tensor, step: float) -> Tensor:
        first = start.unsqueeze(0)
        later, _ = self.unit(times[1:].unsqueeze(-1), first)
        return torch.cat([first, later])


class NetworkCell(nn.Module):
    """The cell `mlp`: computes the states [n, D] at n times; the first state is `start` [D]."""

    def __init__(self, d_model: int):
        super().__init__()
        hidden = nn.Linear(d_model + 1, d_model)
        self.layers = nn.Sequential(hidden, nn.ReLU(), nn.Linear(d_model, d_model))

    def forward(self, start: Tensor, times: Tensor, step: float) -> Tensor:
        states = [start]
        for t in times[1:].split(1):
            change = self.layers(torch.cat([states[-1], t]))
            moved = states[-1] + change
            normed = nn.functional.rms_norm(moved, moved.shape)
            states.append(normed * 0.5**0.5)
        return torch.stack(states)


class FlowCell(nn.Module):
    """The cells `ode_rk4` and `ode_euler`: compute the states [n, D] at n times; the first is `start` [D].

    step: the time from one state to the next.
    """

    def __init__(self, d_model: int, solver: Callable[[Field, Tensor, Tensor, float], Tensor]):
        super().__init__()
        self.solver = solver
        self.hidden = nn.Linear(d_model + 1, d_model)
        self.output = nn.Linear(d_model + 1, d_model)
        for layer in (self.hidden, self.output):  # as in the authors' code
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, start: Tensor, times: Tensor, step: float) -> Tensor:
        states = [start]
        for t in times[:-1].split(1):
            states.append(self.solver(self.field, states[-1], t, step))
        return torch.stack(states)

    def field(self, p: Tensor, t: Tensor) -> Tensor:
        """Return dp/dt of a state p [D] at a time t."""
        hidden = self.hidden(torch.cat([p, t])).relu()
        return self.output(torch.cat([hidden, t])).tanh() - p
