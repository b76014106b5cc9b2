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
from pe_bench.encodings.inputs.conv import Convolution
from pe_bench.encodings.inputs.learned import Learned, Overflow
from pe_bench.encodings.inputs.multiplicative import Multiplicative
from pe_bench.encodings.inputs.recursive import FlowCell, Recursive
from pe_bench.encodings.inputs.sinusoidal import Sinusoidal, sinusoids
from pe_bench.errors import UserError

# sinusoids as beginners' code has them, and as they are


def test_sinusoid_positions_are_exact_however_large() -> None:
    table = sinusoids(torch.tensor([257, 65_535]), 4, 10_000.0, "interleaved")
    expected = [[f(p * w) for w in (1, 0.01) for f in (math.sin, math.cos)] for p in (257, 65_535)]
    assert near(table, torch.tensor(expected, dtype=torch.float64), 1e-9)


# learned


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


# convolution


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
