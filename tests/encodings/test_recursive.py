"""recursive: states of a cell as positions."""

from collections.abc import Callable

import pytest
import torch
from support.embeddings import CELLS, embedded
from support.reference_inputs import near, series
from torch import Tensor

from pe_bench.encodings.inputs.recursive import Cell, FlowCell, GatedCell, Recursive, euler_step, rk4_step

# recursive


@pytest.mark.parametrize(("step", "tolerance"), [(rk4_step, 2e-6), (euler_step, 0.02)])
def test_a_turning_field_is_a_sinusoid(step: Callable[..., Tensor], tolerance: float) -> None:
    """dp/dt = (p_1, -p_0) from (0, 1): sine and cosine are a special case."""
    p = torch.tensor([0.0, 1.0], dtype=torch.float64)
    for k in range(300):
        p = step(lambda p, t: torch.stack([p[1], -p[0]]), p, torch.tensor([0.01 * k]), 0.01)
    assert near(p, [0.141120008, -0.989992497], tolerance)
    assert not near(p, [0.141120008, -0.989992497], 1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_the_state_of_the_id_is_added(cell: Cell) -> None:
    encoding, x = Recursive(8, cell).double(), series(torch.sin, 0.3, 2, 3, 8)
    states = encoding.states(10).detach()
    ids = torch.tensor([[0, 9, 4], [2, 2, 1]])
    assert near(embedded(encoding, x, ids), x + states[ids], 1e-12)
    assert near(embedded(encoding, x[:, :1], torch.tensor([0])), x[:, :1] + states[0], 1e-12)
    between = embedded(encoding, x[:1], torch.tensor([-3.0, 0.25, 8.5]))[0]
    expected = torch.stack([states[0], 0.75 * states[0] + 0.25 * states[1], (states[8] + states[9]) / 2])
    assert near(between, x[0] + expected, 1e-12)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("time_step", [0.01, 1.0])
def test_states_stay_bounded_however_large_the_weights(cell: Cell, time_step: float) -> None:
    encoding = Recursive(8, cell, time_step)
    with torch.no_grad():
        for parameter in encoding.cell.parameters():
            parameter.mul_(30)
    states = encoding.states(2_000).detach()
    assert states.isfinite().all()
    # A row of 8 numbers of rms 1 / sqrt(2) holds none above 2.
    assert states.abs().max() <= (2 if cell == "mlp" else 1 + 1e-5)
    assert states[-100:].abs().max() > 0.1, "nor does it die out"


def test_a_gated_state_is_its_equations() -> None:
    encoding = Recursive(3).double()
    assert isinstance(encoding.cell, GatedCell)
    weight, p = dict(encoding.cell.unit.named_parameters()), encoding.start
    for k in range(1, 6):
        t = torch.tensor([0.01 * k], dtype=torch.float64)
        from_time = (weight["weight_ih_l0"] @ t + weight["bias_ih_l0"]).chunk(3)
        from_state = (weight["weight_hh_l0"] @ p + weight["bias_hh_l0"]).chunk(3)
        reset, update = ((a + b).sigmoid() for a, b in zip(from_time[:2], from_state[:2], strict=True))
        p = update * p + (1 - update) * (from_time[2] + reset * from_state[2]).tanh()
        assert near(encoding.states(6)[k].detach(), p.detach(), 1e-12)


def test_a_flow_follows_its_equation() -> None:
    torch.manual_seed(0)
    encoding = Recursive(3, "ode_euler", 0.1).double()
    cell, p = encoding.cell, encoding.start
    assert isinstance(cell, FlowCell)
    for k in range(5):
        t = torch.tensor([0.1 * k], dtype=torch.float64)
        hidden = (cell.hidden.weight @ torch.cat([p, t]) + cell.hidden.bias).clamp(min=0)
        p = p + 0.1 * ((cell.output.weight @ torch.cat([hidden, t]) + cell.output.bias).tanh() - p)
    assert near(encoding.states(6)[5].detach(), p.detach(), 1e-12)
    better, exact = Recursive(3, "ode_rk4", 0.1).double(), Recursive(3, "ode_rk4", 0.001).double()
    for other in (better, exact):
        other.load_state_dict(encoding.state_dict())
    truth = exact.states(501)[500]
    errors = [float((one.states(6)[5] - truth).detach().abs().max()) for one in (better, encoding)]
    assert errors[0] < errors[1] / 20
