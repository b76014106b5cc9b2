"""Encodings that act at the input or on position ids, against their reference numbers and other forms.

Inputs are those of `reference_inputs`, unless a test says otherwise.
"""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from support.reference_inputs import K4, Q4, V4, X4, H, K, T, fill, near, series
from torch import Tensor

from pe_bench.config.compose import compose
from pe_bench.encodings.alibi import ALiBi
from pe_bench.encodings.base import LayerEncoding, LengthError, PositionalEncoding
from pe_bench.encodings.bipe import BiPE
from pe_bench.encodings.cape import CAPE
from pe_bench.encodings.complex import Complex
from pe_bench.encodings.conv import Convolution, causal_convolution
from pe_bench.encodings.learned import Learned, Overflow
from pe_bench.encodings.multiplicative import Multiplicative
from pe_bench.encodings.pose import PoSE
from pe_bench.encodings.recursive import Cell, FlowCell, GatedCell, Recursive, euler_step, rk4_step
from pe_bench.encodings.rope import RoPE
from pe_bench.encodings.shape import SHAPE
from pe_bench.encodings.sinusoidal import Sinusoidal, sinusoids
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError
from pe_bench.model.attention import attention

CELLS: tuple[Cell, ...] = ("gru", "mlp", "ode_rk4", "ode_euler")
VOCABULARY = [*"abcdefghi", ".", "\n"]


def embedded(encoding: PositionalEncoding, x: Tensor, ids: Tensor | None = None) -> Tensor:
    """The embeddings x [B, T, D] with positions; tokens are 0, 1, 2, .. in each sequence."""
    index = torch.arange(x.shape[1])
    return encoding.embed(x, index if ids is None else ids, index.expand(len(x), -1)).detach()


def drawn(encoding: PositionalEncoding, tokens: int, seed: int = 0, batch: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return encoding.ids(torch.zeros(batch, tokens, dtype=torch.long), train=True, generator=generator)


def scored(encoding: PositionalEncoding, tokens: int) -> Tensor:
    return encoding.ids(torch.zeros(3, tokens, dtype=torch.long), train=False, generator=None)


def with_vocabulary(encoding: PositionalEncoding, texts: list[str] = VOCABULARY) -> PositionalEncoding:
    encoding.read_vocabulary(texts)
    return encoding.double()


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


# recursive


@pytest.mark.parametrize(("step", "tolerance"), [(rk4_step, 2e-6), (euler_step, 0.02)])
def test_a_turning_field_is_a_sinusoid(step: Callable[..., Tensor], tolerance: float) -> None:
    """dp/dt = (p_1, -p_0) from (0, 1): sine and cosine are a special case."""
    p = torch.tensor([0.0, 1.0], dtype=torch.float64)
    for k in range(300):
        p = step(lambda p, t: torch.stack([p[1], -p[0]]), p, torch.tensor([0.01 * k]), 0.01)
    assert near(p, [0.141120008, -0.989992497], tolerance)
    assert not near(p, [0.141120008, -0.989992497], 1e-12)


def test_a_solver_reads_the_time_within_its_step() -> None:
    """dp/dt = 3 t^2 from 0 to 2: exact for the fourth order, and behind for Euler."""
    ends = {}
    for step in (rk4_step, euler_step):
        p = torch.zeros(1, dtype=torch.float64)
        for k in range(4):
            p = step(lambda p, t: 3 * t.square(), p, torch.tensor([0.5 * k], dtype=torch.float64), 0.5)
        ends[step] = float(p)
    assert ends[rk4_step] == pytest.approx(8, abs=1e-12)
    assert ends[euler_step] == pytest.approx(3 * 0.5 * (0.25 + 1 + 2.25), abs=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_states_do_not_depend_on_how_many_are_computed(cell: Cell) -> None:
    encoding = Recursive(8, cell).double()
    assert near(encoding.states(40)[:17].detach(), encoding.states(17).detach(), 1e-12)


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


@pytest.mark.parametrize("cell", CELLS)
def test_every_weight_of_a_cell_gets_a_gradient(cell: Cell) -> None:
    encoding = Recursive(8, cell)
    encoding.states(20)[7:, 2].sum().backward()
    for name, parameter in encoding.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


# multiplicative


def test_multiplicative_of_ones_is_no_encoding_and_zero_stays_zero() -> None:
    encoding, x = Multiplicative(8, 6), series(torch.sin, 0.3, 1, 6, 8).float()
    assert near(embedded(encoding, torch.zeros(1, 6, 8)), torch.zeros(1, 6, 8), 1e-12)
    assert not torch.equal(embedded(encoding, x), x)
    assert encoding.table is not None
    fill(encoding.table, torch.zeros(6, 8))
    assert torch.equal(embedded(encoding, x), x)


def test_multiplicative_is_a_product_with_each_feature() -> None:
    encoding, x = Multiplicative(4, 6, alpha=0.5).double(), series(torch.sin, 0.3, 1, 2, 4)
    assert encoding.table is not None
    fill(encoding.table, series(torch.cos, 0.7, 6, 4))
    rows = series(torch.cos, 0.7, 6, 4)[[3, 1]]
    assert near(embedded(encoding, x, torch.tensor([3, 1])), x * (1 + 0.5 * rows), 1e-12)
    waves = Multiplicative(4, 6, "sinusoidal", alpha=0.5)
    pe = torch.tensor([[0, 1, 0, 1], [0.841471, 0.540302, 0.01, 0.99995]])
    assert near(embedded(waves, x), x * (1 + 0.5 * pe), 2e-6)


def test_multiplicative_sinusoids_have_no_table_and_no_end() -> None:
    encoding = Multiplicative(8, 6, "sinusoidal")
    assert not list(encoding.parameters())
    assert encoding.past_training == "defined"
    x = torch.ones(1, 500, 8)
    assert embedded(encoding, x).isfinite().all()
    assert 0.8 < float(embedded(encoding, x).square().mean().sqrt()) < 1.2
    with pytest.raises(LengthError, match="max_position=6"):
        embedded(Multiplicative(8, 6), x)


# complex


def complex_overrides() -> tuple[Complex, Tensor]:
    """One token with r = (.5, 2), theta = (.3, -.2) and omega = (1, .01), at all positions [1, n, 4]."""
    encoding = with_vocabulary(Complex(4))
    r, theta = torch.tensor([0.5, 2.0]).double(), torch.tensor([0.3, -0.2]).double()
    assert isinstance(encoding, Complex)
    return encoding, torch.cat([r * theta.cos(), r * theta.sin()]).expand(1, 1, 4)


def test_complex_has_its_reference_values() -> None:
    encoding, x = complex_overrides()
    at_four = embedded(encoding, x, torch.tensor([4]))[0, 0]
    assert near(at_four, [-0.2004, 1.974455, -0.458083, -0.318636])


def test_complex_shift_is_a_turn_and_norms_do_not_depend_on_position() -> None:
    encoding = with_vocabulary(Complex(6))
    assert isinstance(encoding, Complex) and encoding.multiples is not None
    fill(encoding.multiples, series(torch.sin, 0.7, len(VOCABULARY), 3))
    x, ids = series(torch.cos, 0.9, 1, 5, 6), torch.arange(5)
    here, there = (torch.complex(*embedded(encoding, x, p).chunk(2, -1)) for p in (ids, ids + 7))
    omega = encoding.multiples[:5].detach() * 10_000.0 ** -(torch.arange(3) / 3).double()
    turned = here * torch.polar(torch.ones_like(omega), 7 * omega)
    assert near(there.real, turned.real, 1e-7)
    assert near(there.imag, turned.imag, 1e-7)
    assert near(there.abs(), torch.complex(*x.chunk(2, -1)).abs(), 1e-12)


def test_complex_tokens_turn_at_first_as_sinusoids_and_each_by_its_own_frequency() -> None:
    encoding = with_vocabulary(Complex(4))
    assert isinstance(encoding, Complex) and encoding.multiples is not None
    assert encoding.multiples.shape == (len(VOCABULARY), 2)
    x, ids = torch.tensor([1.0, 1, 0, 0]).double().expand(1, 2, 4), torch.tensor([5, 5])
    first = embedded(encoding, x, ids)[0]
    assert near(first[0], [math.cos(5), math.cos(0.05), math.sin(5), math.sin(0.05)], 1e-6)
    assert torch.equal(first[0], first[1])
    fill(encoding.multiples[1], torch.zeros(2))
    second = embedded(encoding, x, ids)[0]
    assert torch.equal(second[0], first[0])
    assert near(second[1], x[0, 1], 1e-12)


def test_complex_frequencies_of_every_pair_take_steps_of_their_own_size() -> None:
    """A step of one size for all would make the slow pairs as fast as the fast ones."""
    encoding = with_vocabulary(Complex(8))
    assert isinstance(encoding, Complex) and encoding.multiples is not None
    before = encoding.multiples * encoding.base_frequencies
    after = (encoding.multiples + 0.01) * encoding.base_frequencies
    assert near(((after - before) / before).detach(), torch.full_like(before, 0.01), 1e-6)


@pytest.mark.parametrize("make", [Complex, lambda d_model: BiPE(d_model, 4)])
def test_an_unknown_vocabulary_is_told_when_it_is_needed(make: Callable[[int], PositionalEncoding]) -> None:
    encoding = make(8)
    encoding.read_vocabulary(())
    with pytest.raises(UserError, match="without a*.* vocabulary|vocabulary and was built without"):
        embedded(encoding, torch.zeros(1, 3, 8))


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


# position ids


IDS = (PoSE(64), SHAPE(40), CAPE())


@pytest.mark.parametrize("encoding", IDS)
def test_ids_are_redefined_in_training_only_and_follow_the_generator(encoding: PositionalEncoding) -> None:
    assert torch.equal(scored(encoding, 16), torch.arange(16))
    assert drawn(encoding, 16).shape == (3, 16)
    assert torch.equal(drawn(encoding, 16, 1), drawn(encoding, 16, 1))
    assert not torch.equal(drawn(encoding, 16, 1), drawn(encoding, 16, 2))
    state = torch.random.get_rng_state()
    drawn(encoding, 16)
    assert torch.equal(state, torch.random.get_rng_state())
    many = drawn(encoding, 16, batch=200).double()
    assert len(many.unique(dim=0)) > 30, "each sequence has a draw of its own"


def test_pose_starts_at_zero_rises_and_has_one_gap_at_most() -> None:
    many = drawn(PoSE(64), 16, batch=3_000)
    steps = many.diff(dim=-1)
    assert (many[:, 0] == 0).all()
    assert (steps >= 1).all()
    assert ((steps > 1).sum(-1) <= 1).all()
    assert many.max() == 63, "the largest distance is seen, and none larger"
    # The first chunk has 1 .. 8 of 16 tokens, the gap is 0 .. 48.
    gaps = steps[(steps > 1).any(-1)]
    assert set((gaps > 1).long().argmax(-1).tolist()) == set(range(8))
    assert set((steps.sum(-1) - 15).tolist()) == set(range(49))


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_pose_numbers_short_windows(tokens: int) -> None:
    many = drawn(PoSE(5), tokens, batch=100)
    assert (many[:, 0] == 0).all()
    assert many.max() == (0 if tokens == 1 else 4)


def test_pose_below_its_window_is_an_error_that_names_both() -> None:
    with pytest.raises(LengthError, match=r"9 tokens below max_position=8.*at least 9"):
        drawn(PoSE(8), 9)
    assert len(scored(PoSE(8), 9)) == 9


def test_shape_shifts_all_tokens_of_a_sequence_alike() -> None:
    many = drawn(SHAPE(40), 16, batch=3_000)
    assert (many.diff(dim=-1) == 1).all()
    assert set(many[:, 0].tolist()) == set(range(41))


def test_cape_augments_within_its_bounds() -> None:
    many = drawn(CAPE(), 16, batch=4_000).double()
    assert many.dtype == torch.float64 and drawn(CAPE(), 16).dtype == torch.float32
    assert (many.diff(dim=-1) >= 0).all(), "tokens keep their order"
    assert many[:, 0].abs().max() <= 5.5 * 1.03 + 1e-5
    assert many[:, 0].min() < -4.5 and many[:, 0].max() > 4.5
    shifted = drawn(CAPE(5.0, 0.0, 1.0), 16, batch=4_000).double() - torch.arange(16)
    assert (shifted.amax(-1) - shifted.amin(-1)).max() < 1e-5, "one shift a sequence"
    assert abs(float(shifted[:, 0].std()) - 5 / math.sqrt(3)) < 0.1
    local = drawn(CAPE(0.0, 0.5, 1.0), 16, batch=4_000).double() - torch.arange(16)
    assert (local.std(-1) > 0.05).all(), "each token has a shift of its own"
    assert local.abs().max() <= 0.5 and abs(float(local.std()) - 0.5 / math.sqrt(3)) < 0.01
    scale = drawn(CAPE(0.0, 0.0, 2.0), 16, batch=4_000).double()[:, 15] / 15
    assert scale.min() >= 0.5 - 1e-6 and scale.max() <= 2 + 1e-6
    assert abs(float(scale.log().mean())) < 0.03
    assert abs(float(scale.log().std()) - math.log(2) / math.sqrt(3)) < 0.02


def test_cape_outside_training_is_the_sinusoid_exactly() -> None:
    x = series(torch.sin, 0.3, 1, 16, 8)
    expected = x + sinusoids(torch.arange(16), 8, 10_000.0, "interleaved")
    assert torch.equal(embedded(Sinusoidal(8), x, scored(CAPE(), 16)), expected)


@pytest.mark.parametrize("encoding", [PoSE(16), SHAPE(0), CAPE(0.0, 0.0, 1.0)])
def test_ids_at_the_end_of_their_range_are_those_of_the_inner_encoding(encoding: PositionalEncoding) -> None:
    assert torch.equal(drawn(encoding, 16), torch.arange(16).expand(3, 16).to(drawn(encoding, 16).dtype))


@pytest.mark.parametrize("inner", [RoPE(d_head=K), ALiBi(H)])
def test_shape_changes_nothing_where_differences_are_all_that_is_read(inner: LayerEncoding) -> None:
    shifted, poses = drawn(SHAPE(500), T, batch=1), drawn(PoSE(500), T, batch=1)
    assert shifted[0, 0] > 0 and poses[0, -1] >= T
    plain, moved, spread = (
        attention(inner.double(), X4, Q4, K4, V4, ids) for ids in (torch.arange(T), shifted, poses)
    )
    assert near(moved, plain, 1e-9)
    assert not near(spread, plain, 1e-3)
    x = torch.zeros(1, T, 8).double()
    assert not near(embedded(Sinusoidal(8), x, shifted), embedded(Sinusoidal(8), x), 1e-3)


# bipe


def bipe_of(max_position: int, separators: list[str], vocabulary: dict[int, str]) -> BiPE:
    encoding = BiPE(6, max_position, separators)
    encoding.read_vocabulary([vocabulary.get(token, "a") for token in range(900)])
    return encoding.double()


def places(encoding: BiPE, tokens: Tensor) -> Tensor:
    """The rows that are added, read off a table whose row m is all m."""
    fill(encoding.table, torch.arange(len(encoding.table)).unsqueeze(-1).expand_as(encoding.table))
    added = encoding.embed(torch.zeros(*tokens.shape, 6).double(), tokens, tokens)
    return added[..., 0].detach().long()


def numbers(encoding: BiPE, tokens: Tensor) -> Tensor:
    return encoding.ids(tokens, train=False, generator=None)


TEXT = torch.tensor([[5, 6, 869, 7, 8, 9, 13, 13, 4]])


def test_bipe_has_its_reference_ids() -> None:
    encoding = bipe_of(4, [".", "\n"], {869: ".", 13: "\n"})
    assert places(encoding, TEXT).tolist() == [[0, 1, 2, 0, 1, 2, 3, 0, 0]]
    assert numbers(encoding, TEXT).tolist() == [[0, 0, 0, 1, 1, 1, 1, 2, 3]]
    both = torch.cat([TEXT, TEXT.roll(2, -1)])
    assert torch.equal(places(encoding, both)[:1], places(encoding, TEXT))
    assert torch.equal(numbers(encoding, both)[:1], numbers(encoding, TEXT))


def test_bipe_reads_no_token_behind() -> None:
    encoding = bipe_of(4, [".", "\n"], {869: ".", 13: "\n"})
    for n in range(1, 10):
        assert torch.equal(places(encoding, TEXT[:, :n]), places(encoding, TEXT)[:, :n])
        assert torch.equal(numbers(encoding, TEXT[:, :n]), numbers(encoding, TEXT)[:, :n])


def test_bipe_places_are_clamped_to_the_last_row() -> None:
    encoding = bipe_of(2, ["."], {869: "."})
    assert places(encoding, TEXT).tolist() == [[0, 1, 1, 0, 1, 1, 1, 1, 1]]


def test_bipe_without_separators_is_one_segment() -> None:
    encoding = bipe_of(4, [], {869: "."})
    assert places(encoding, TEXT).tolist() == [[0, 1, 2, 3, 3, 3, 3, 3, 3]]
    assert not numbers(encoding, TEXT).any()


def test_bipe_separators_are_the_ends_of_tokens_text() -> None:
    encoding = bipe_of(4, [".", "END"], {1: "a.", 2: ". ", 3: ".a", 4: "\n", 5: "THE END", 6: "."})
    assert encoding.is_separator is not None
    assert encoding.is_separator.nonzero().flatten().tolist() == [1, 5, 6]
    with pytest.raises(UserError, match=r"none of 3 tokens .*separators=\['!'\]"):
        BiPE(6, 4, ["!"]).read_vocabulary(["a", "b", "c"])


@pytest.mark.parametrize("base", ["rope", "alibi"])
def test_bipe_gives_segment_numbers_to_the_encoding_under_it(base: str) -> None:
    overrides = ["model.d_model=8", "model.n_heads=2", "train.length=16"]
    config = compose([f"encoding={base}", "modifier=[bipe]", *overrides])["encoding"]
    torch.manual_seed(0)
    encoding = EncodingSpec(config).build(n_layers=2, vocabulary=VOCABULARY)
    tokens = torch.tensor([[0, 9, 3, 3]])  # a . d d
    ids = encoding.ids(tokens, train=True, generator=None)
    assert ids.tolist() == [[0, 0, 1, 1]]
    [table] = encoding.parameters()
    assert torch.equal(encoding.embed(torch.zeros(1, 4, 8), ids, tokens)[0], table[[0, 1, 0, 1]])
    layer = encoding.layer(0).double()
    assert near(
        attention(layer, X4, Q4, K4, V4, ids), attention(layer, X4, Q4, K4, V4, torch.tensor([0, 0, 1, 1]))
    )
    assert not near(
        attention(layer, X4, Q4, K4, V4, ids), attention(layer, X4, Q4, K4, V4, torch.arange(T)), 1e-3
    )


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
