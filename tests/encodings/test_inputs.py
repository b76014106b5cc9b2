"""Encodings at the input: tables, cells and waves against their formulas, and their limits."""

import math
from functools import partial

import pytest
import torch
from support.reference_inputs import fill, near, series
from torch import Tensor

from pe_bench.encodings.base import LengthError, PositionalEncoding
from pe_bench.encodings.ids.bipe import BiPE
from pe_bench.encodings.inputs.complex import Complex
from pe_bench.encodings.inputs.conv import Convolution
from pe_bench.encodings.inputs.learned import Learned
from pe_bench.encodings.inputs.multiplicative import Multiplicative
from pe_bench.encodings.inputs.recursive import Cell, FlowCell, Recursive
from pe_bench.errors import UserError

CELLS: tuple[Cell, ...] = ("gru", "mlp", "ode_rk4", "ode_euler")
VOCABULARY = [*"abcdefghi", ".", "\n"]
every_table = pytest.mark.parametrize("make", [Learned, Multiplicative])


def embedded(encoding: PositionalEncoding, x: Tensor, ids: Tensor | None = None) -> Tensor:
    """The embeddings x [B, T, D] with positions; tokens are 0, 1, 2, .. in each sequence."""
    index = torch.arange(x.shape[1])
    return encoding.embed(x, index if ids is None else ids, index.expand(len(x), -1)).detach()


@every_table
def test_a_table_has_no_row_before_its_first(make) -> None:
    """A negative index would read the last row and say nothing."""
    x, ids = torch.ones(1, 3, 8), torch.tensor([-2.5, 0, 1])
    with pytest.raises(LengthError, match=r"max_position=6 .* position -2.5"):
        embedded(make(8, 6), x, ids)
    for overflow in ("clamp", "interpolate"):
        encoding = make(8, 6, overflow=overflow)
        assert torch.equal(embedded(encoding, x, ids)[0, 0], embedded(encoding, x, ids.clamp(min=0))[0, 0])


@every_table
def test_past_its_last_row_a_table_names_the_position_and_the_way_out_or_does_as_overflow_says(make) -> None:
    x, ids = torch.ones(1, 9, 8), torch.arange(9)
    with pytest.raises(LengthError, match=r"max_position=6 rows has none for position 8: set .*=clamp or "):
        embedded(make(8, 6), x, ids)
    torch.manual_seed(0)
    clamped = make(8, 6, overflow="clamp")
    assert torch.equal(embedded(clamped, x, ids), embedded(clamped, x, ids.clamp(max=5)))
    stretched = make(8, 6, overflow="interpolate")
    between = torch.linspace(0, 5, 9, dtype=torch.float64)  # first on first and last on last
    assert near(embedded(stretched, x, ids), embedded(stretched, x, between).double(), 1e-6)


@every_table
def test_overflow_decides_what_a_table_says_of_itself(make) -> None:
    said = [make(8, 6, overflow=overflow) for overflow in ("error", "clamp", "interpolate")]
    assert [encoding.past_training for encoding in said] == ["undefined", "clamps", "defined"]
    assert ["prefix_consistent" in encoding.claims for encoding in said] == [True, True, False]


@pytest.mark.parametrize("make", [*(partial(Recursive, 8, cell) for cell in CELLS), partial(Complex, 8)])
def test_autocast_and_a_narrow_type_lose_no_positions_at_the_input(make) -> None:
    """bfloat16 cannot represent the integer 257."""
    torch.manual_seed(0)
    encoding = make()
    encoding.read_vocabulary(VOCABULARY)
    x, ids = series(torch.sin, 0.3, 1, 9, 8).float(), torch.arange(9) + 513
    exact = embedded(encoding, x, ids)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(embedded(encoding, x, ids), exact)
    assert near(embedded(encoding, x.bfloat16(), ids), exact.double(), 0.02)


def test_what_reads_the_texts_of_tokens_says_that_it_has_none() -> None:
    tokens = torch.zeros(1, 3, dtype=torch.long)
    for read in (
        lambda: embedded(Complex(8), torch.zeros(1, 3, 8)),
        lambda: BiPE(8, 4).ids(tokens, train=False, generator=None),
    ):
        with pytest.raises(UserError, match="built without a vocabulary: call read_vocabulary with the text"):
            read()


def test_initial_values_are_the_documented_ones() -> None:
    torch.manual_seed(0)
    factors = embedded(Multiplicative(64, 200, alpha=0.25), torch.ones(1, 200, 64))
    tables = [Recursive(4_000).start, Convolution(2_000).weight, BiPE(64, 200).table, factors]
    assert all(abs(table.std().item() - 0.02) < 1e-3 for table in tables)
    assert abs(factors.mean().item() - 1) < 1e-3
    flow = Recursive(64, "ode_rk4").cell
    assert isinstance(flow, FlowCell)
    assert abs(flow.hidden.weight.std().item() - math.sqrt(2 / (64 + 65))) < 5e-3
    assert not flow.hidden.bias.any() and not flow.output.bias.any()


def test_multiplicative_is_a_product_with_each_feature() -> None:
    encoding, x = Multiplicative(4, 6, alpha=0.5).double(), series(torch.sin, 0.3, 1, 2, 4)
    assert encoding.table is not None
    rows = series(torch.cos, 0.7, 6, 4)
    fill(encoding.table, rows)
    expected = x * (1 + 0.5 * rows[[3, 1]])
    assert near(embedded(encoding, x, torch.tensor([3, 1])), expected, 1e-12)
    waves = Multiplicative(4, 6, "sinusoidal", alpha=0.5)
    pe = torch.tensor([[0, 1, 0, 1], [0.841471, 0.540302, 0.01, 0.99995]])
    assert near(embedded(waves, x), x * (1 + 0.5 * pe), 2e-6)


def test_complex_shift_is_a_turn_and_norms_do_not_depend_on_position() -> None:
    encoding = Complex(6)
    encoding.read_vocabulary(VOCABULARY)
    encoding.double()
    assert encoding.multiples is not None
    fill(encoding.multiples, series(torch.sin, 0.7, len(VOCABULARY), 3))
    x, ids = series(torch.cos, 0.9, 1, 5, 6), torch.arange(5)
    here, there = (torch.complex(*embedded(encoding, x, p).chunk(2, -1)) for p in (ids, ids + 7))
    omega = encoding.multiples[:5].detach() * 10_000.0 ** -(torch.arange(3) / 3).double()
    turned = here * torch.polar(torch.ones_like(omega), 7 * omega)
    assert near(torch.view_as_real(there), torch.view_as_real(turned), 1e-7)
    assert near(there.abs(), torch.complex(*x.chunk(2, -1)).abs(), 1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_the_state_of_the_id_is_added(cell) -> None:
    encoding, x = Recursive(8, cell).double(), series(torch.sin, 0.3, 2, 3, 8)
    states = encoding.states(10).detach()
    ids = torch.tensor([[0, 9, 4], [2, 2, 1]])
    assert near(embedded(encoding, x, ids), x + states[ids], 1e-12)
    between = embedded(encoding, x[:1], torch.tensor([-3.0, 0.25, 8.5]))[0]
    expected = torch.stack([states[0], 0.75 * states[0] + 0.25 * states[1], (states[8] + states[9]) / 2])
    assert near(between, x[0] + expected, 1e-12)


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
