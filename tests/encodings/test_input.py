"""Encodings that act at the input, against their reference numbers and other forms.

Inputs are those of `reference_inputs`, unless a test says otherwise.
"""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from support.embeddings import CELLS, VOCABULARY, embedded
from support.reference_inputs import near, series

from pe_bench.encodings.base import LengthError, PositionalEncoding
from pe_bench.encodings.ids.bipe import BiPE
from pe_bench.encodings.ids.cape import CAPE
from pe_bench.encodings.ids.pose import PoSE
from pe_bench.encodings.ids.shape import SHAPE
from pe_bench.encodings.inputs.complex import Complex
from pe_bench.encodings.inputs.conv import Convolution, causal_convolution
from pe_bench.encodings.inputs.learned import Learned, Overflow
from pe_bench.encodings.inputs.multiplicative import Multiplicative
from pe_bench.encodings.inputs.recursive import FlowCell, Recursive
from pe_bench.encodings.inputs.sinusoidal import Sinusoidal, sinusoids
from pe_bench.errors import UserError

# sinusoids as beginners' code has them, and as they are


def test_sinusoid_cosines_have_the_exponent_of_their_sines() -> None:
    right = sinusoids(torch.arange(3), 4, 10_000.0, "interleaved")
    assert near(right[1], [0.841471, 0.540302, 0.01, 0.99995])
    assert not near(right[1], [0.841471, 0.995004, 0.01, 1], 0.1)
    assert near(right[:, 0::2].square() + right[:, 1::2].square(), torch.ones(3, 2).double(), 1e-12)


def test_sinusoid_frequencies_are_powers_and_their_exponents_fractions() -> None:
    """`10000 ^ (2 * i // D)` in Python is an exclusive or, of a whole number."""
    angle = torch.atan2(*sinusoids(torch.arange(2), 8, 10_000.0, "interleaved")[1].view(4, 2).unbind(-1))
    assert near(angle, [1, 0.1, 0.01, 0.001], 1e-9)


def test_sinusoid_exponents_are_divided_by_the_width() -> None:
    """Else from the sixth pair on 10000^10 overflows in float32, and columns are constant."""
    table = sinusoids(torch.arange(2_000), 12, 10_000.0, "interleaved")
    assert (table.std(0) > 1e-3).all()
    assert (table.float().std(0) > 1e-3).all()


def test_sinusoid_positions_are_exact_however_large() -> None:
    table = sinusoids(torch.tensor([257, 65_535]), 4, 10_000.0, "interleaved")
    expected = [[f(p * w) for w in (1, 0.01) for f in (math.sin, math.cos)] for p in (257, 65_535)]
    assert near(table, torch.tensor(expected, dtype=torch.float64), 1e-9)


# learned


def test_a_table_that_ends_is_a_value_error_for_whoever_catches_one() -> None:
    with pytest.raises(ValueError, match=r"max_position=6 .* position 6"):
        embedded(Learned(8, 6), torch.zeros(1, 7, 8))


def test_a_table_has_any_width_and_is_a_parameter() -> None:
    encoding = Learned(7, 6)
    assert embedded(encoding, torch.zeros(2, 6, 7)).shape == (2, 6, 7)
    assert set(encoding.state_dict()) == {"table"}


@pytest.mark.parametrize("make", [Learned, Multiplicative])
def test_a_table_has_no_row_before_its_first(make: Callable[..., PositionalEncoding]) -> None:
    """A negative index would read the last row and say nothing."""
    x, ids = torch.ones(1, 3, 8), torch.tensor([-2.5, 0, 1])
    with pytest.raises(LengthError, match=r"max_position=6 .* position -2.5"):
        embedded(make(8, 6), x, ids)
    for overflow in ("clamp", "interpolate"):
        encoding = make(8, 6, overflow=overflow)
        assert torch.equal(embedded(encoding, x, ids)[0, 0], embedded(encoding, x, ids.clamp(min=0))[0, 0])


@pytest.mark.parametrize("make", [Learned, Multiplicative])
@pytest.mark.parametrize(
    ("overflow", "past_training", "consistent"),
    [("error", "undefined", True), ("clamp", "clamps", True), ("interpolate", "defined", False)],
)
def test_overflow_decides_what_a_table_says_of_itself(
    make: Callable[..., PositionalEncoding], overflow: Overflow, past_training: str, consistent: bool
) -> None:
    encoding = make(8, 6, overflow=overflow)
    assert encoding.past_training == past_training
    assert ("prefix_consistent" in encoding.claims) == consistent


def test_interpolation_stretches_each_sequence_by_its_own_length() -> None:
    encoding, x = Learned(8, 4, overflow="interpolate"), torch.zeros(2, 4, 8)
    ids = torch.tensor([[0, 1, 2, 3], [0, 2, 4, 6]])
    both = embedded(encoding, x, ids)
    assert near(both[0], encoding.table.detach().double(), 1e-7)
    assert near(both[1], encoding.table.detach().double(), 1e-7)


# convolution


def test_convolution_has_its_reference_values() -> None:
    weight = torch.tensor([[0.5, -1, 2]]).double()
    convolved = causal_convolution(torch.ones(1, 8, 1).double(), weight)
    assert near(convolved.flatten(), [2, 1, *[1.5] * 6], 1e-12)


@pytest.mark.parametrize("kernel", [2, 3, 5])
def test_convolution_is_pytorchs_padded_on_the_left(kernel: int) -> None:
    encoding, x = Convolution(6, kernel).double(), series(torch.sin, 0.3, 2, 9, 6)
    padded = torch.nn.functional.pad(x.mT, (kernel - 1, 0))
    expected = torch.nn.functional.conv1d(padded, encoding.weight.unsqueeze(1), groups=6).mT
    assert near(embedded(encoding, x), x + expected.detach(), 1e-12)


def test_convolution_tells_the_first_tokens_where_they_are_and_no_other() -> None:
    encoding = Convolution(6, 4).double()
    output = embedded(encoding, torch.ones(1, 9, 6).double())[0]
    assert near(output[3:], output[3].expand(6, 6), 1e-12)
    assert len({tuple(row) for row in output[:4].tolist()}) == 4


# half precision


@pytest.mark.parametrize(
    ("make", "first"),
    [
        *((partial(Recursive, 8, cell), 513) for cell in CELLS),  # which goes through all positions before
        (lambda: Multiplicative(8, 4_200), 4_097),
        (lambda: Multiplicative(8, 1, "sinusoidal"), 4_097),
        (lambda: Complex(8), 4_097),
        (lambda: Convolution(8), 4_097),
        (lambda: Learned(8, 4_200), 4_097),
        (lambda: Sinusoidal(8), 4_097),
        (lambda: BiPE(8, 4_200), 4_097),
    ],
)
def test_half_precision_at_the_input_loses_no_positions(
    make: Callable[[], PositionalEncoding], first: int
) -> None:
    """In bfloat16 the integer 257 is none, and neither autocast nor a narrow x may bring that in."""
    torch.manual_seed(0)
    encoding = make()
    encoding.read_vocabulary(VOCABULARY)
    x, ids = series(torch.sin, 0.3, 1, 9, 8).float(), torch.arange(9) + first
    exact = embedded(encoding, x, ids)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(embedded(encoding, x, ids), exact)
    narrow = embedded(encoding, x.bfloat16(), ids)
    assert narrow.dtype == torch.bfloat16
    assert near(narrow, exact.double(), 0.02)


# initial values and mistakes


def test_initial_values_are_the_documented_ones() -> None:
    torch.manual_seed(0)
    tables = [Recursive(4_000).start, Convolution(2_000).weight, BiPE(64, 200).table]
    assert all(abs(table.std().item() - 0.02) < 1e-3 for table in tables)
    for alpha in (0.25, 1.0):
        factors = embedded(Multiplicative(64, 200, alpha=alpha), torch.ones(1, 200, 64))
        assert abs(factors.mean().item() - 1) < 1e-3
        assert abs(factors.std().item() - 0.02) < 1e-3
    flow = Recursive(64, "ode_rk4").cell
    assert isinstance(flow, FlowCell)
    assert abs(flow.hidden.weight.std().item() - math.sqrt(2 / (64 + 65))) < 5e-3
    assert not flow.hidden.bias.any() and not flow.output.bias.any()


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Recursive(8, time_step=0.0), "time_step .* not be 0"),
        (lambda: Recursive(8, time_step=1.5), "time_step .* not be 1.5"),
        (
            lambda: Multiplicative(8, 4, "sinusoidal", overflow="clamp"),
            "overflow=clamp .*positions=sinusoidal",
        ),
        (lambda: Multiplicative(8, 0), "max_position .* not 0"),
        (lambda: Multiplicative(8, 4, alpha=0.0), "alpha .* not 0"),
        (lambda: Complex(7), "d_model=7 is odd"),
        (lambda: Complex(8, base=0.0), "base .* not 0"),
        (lambda: Convolution(8, kernel=1), "kernel .* not 1"),
        (lambda: PoSE(0), "max_position .* not 0"),
        (lambda: SHAPE(-1), "max_offset .* -1"),
        (lambda: CAPE(max_global_shift=-1.0), "max_global_shift .* -1"),
        (lambda: CAPE(max_local_shift=0.6), "max_local_shift=0.6 "),
        (lambda: CAPE(max_scale=0.9), "max_scale .* not 0.9"),
        (lambda: BiPE(8, 0), "max_position .* not 0"),
        (lambda: BiPE(8, 4, [""]), "separator .* at least 1"),
    ],
)
def test_option_that_cannot_work_is_told_to_the_user(make: Callable[[], object], named: str) -> None:
    with pytest.raises(UserError, match=named):
        make()
