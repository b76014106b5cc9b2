"""Rotary encodings against numbers from papers and code, other forms of themselves, and their limits.

Inputs are those of `reference_inputs`, unless a test says otherwise. Reference scores are those before
the division by the root of the width.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.cases import find_case
from support.reference_inputs import K4, Q4, V4, X4, H, K, T, fill, near, output, row_of_scores, series
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pe_bench.encodings.base import LayerEncoding, LengthError
from pe_bench.encodings.hope import HoPE
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.p_rope import PRoPE
from pe_bench.encodings.partial_rope import PartialRoPE
from pe_bench.encodings.pope import PoPE
from pe_bench.encodings.rope import Form, Layout, RoPE, rope_frequencies, rotate
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.encodings.xpos import XPos
from pe_bench.errors import UserError
from pe_bench.inspection.check.suite import PROPERTIES, Property, check
from pe_bench.model.attention import attention, reference_attention

LAYOUTS: tuple[Layout, ...] = ("half", "interleaved")
FORMS: tuple[Form, ...] = ("pairs", "complex", "dense")

every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_form = pytest.mark.parametrize("form", FORMS)


def drawn_pope() -> PoPE:
    encoding = PoPE(n_heads=H, d_head=8)
    fill(encoding.phase, -2 - series(torch.sin, 0.7, H, 8))
    return encoding.double()


EVERY_ROTARY: list[Callable[[], LayerEncoding]] = [
    lambda: RoPE(8),
    lambda: RoPE(8, layout="interleaved", form="complex"),
    lambda: RoPE(8, form="dense"),
    lambda: PartialRoPE(8, fraction=0.5),
    lambda: PRoPE(8),
    lambda: HoPE(8, train_length=100),
    lambda: XPos(8, scale_base=4.0),
    drawn_pope,
]
every_rotary = pytest.mark.parametrize("make", EVERY_ROTARY)

Q8, K8, V8 = (
    series(wave, step, 2, H, 9, 8) for wave, step in ((torch.sin, 0.7), (torch.cos, 0.9), (torch.sin, 0.3))
)
X8 = torch.zeros(2, 9, 2 * 8, dtype=torch.float64)


def raw_row(encoding: LayerEncoding) -> Tensor:
    """The last query's products with all keys, before the scale."""
    return row_of_scores(encoding).detach() * math.sqrt(K)


def products(encoding: LayerEncoding, shift: int = 0) -> Tensor:
    """[2, H, 9, 9], without scale and mask."""
    position = torch.arange(9) + shift
    q, k = encoding.double().transform(Q8, K8, position, position)
    return (q @ k.mT).detach()


# reference numbers


def test_rope_has_its_reference_scores_and_queries() -> None:
    interleaved, half = RoPE(K, layout="interleaved").double(), RoPE(K).double()
    q, k = interleaved.transform(Q4, K4, torch.arange(T), torch.arange(T))
    expected = [
        [0.796044, 0.167528, -0.420624, -0.424467],
        [1.470783, 0.552187, -1.0334, -0.991815],
        [0.645801, 0.372103, -1.739905, -2.589699],
        [-0.329434, -0.395568, -1.814383, -3.739557],
    ]
    assert near((q @ k.mT)[0, 0], torch.tensor(expected).double())
    assert near(q[0, 0, 3], [-1.092982, -0.83961, 0.967063, 1.029044])
    assert near(raw_row(half), [-0.179338, -0.308338, -1.872132, -3.739557])
    assert near(
        half.transform(Q4, K4, torch.arange(T), torch.arange(T))[0][0, 0, 3],
        [-1.094682, 0.955024, -0.851535, 1.028683],
    )


def test_partial_rope_spreads_its_frequencies_over_what_it_turns() -> None:
    expected = [1, 0.21544347, 0.04641589, 0.01, 0.00215443, 0.00046416]
    assert near(PartialRoPE(16, fraction=0.75).frequencies, expected, 6e-9)


def test_p_rope_keeps_the_highest_of_all_frequencies() -> None:
    expected = [1, 0.31622776, 0.1, 0.03162278, 0.01, 0.00316228, 0, 0]
    assert near(PRoPE(16, fraction=0.75).frequencies, expected, 2e-8)


def test_xpos_has_its_reference_scores() -> None:
    assert near(raw_row(XPos(K)), [-0.319861, -0.393207, -1.812045, -3.739557])
    assert near(raw_row(XPos(K, scale_base=8.0)), [0.130675, -0.266801, -1.672299, -3.739557])


def test_pope_has_its_reference_scores() -> None:
    assert near(raw_row(PoPE(n_heads=H, d_head=K)), [2.91251, 2.517969, 2.156322, 1.710267])


# rope: four ways to turn a pair, one rotation


@every_layout
@every_form
@pytest.mark.parametrize("position", [torch.arange(6), 1_000 * torch.arange(12.0).view(2, 1, 6) + 0.5])
def test_every_form_of_rope_turns_each_pair_by_its_angle(
    layout: Layout, form: Form, position: Tensor
) -> None:
    x, theta = series(torch.sin, 0.7, 2, H, 6, 8), rope_frequencies(8, 10_000.0)
    turned = rotate(x, position, theta, layout, form)
    for c in range(4):
        a, b = (c, c + 4) if layout == "half" else (2 * c, 2 * c + 1)
        angle = position.double() * theta[c]
        assert near(turned[..., a], x[..., a] * angle.cos() - x[..., b] * angle.sin(), 1e-12)
        assert near(turned[..., b], x[..., a] * angle.sin() + x[..., b] * angle.cos(), 1e-12)


@every_layout
@every_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_form_of_rope_has_exact_angles_in_every_type(
    layout: Layout, form: Form, dtype: torch.dtype
) -> None:
    x, position = series(torch.sin, 0.7, 1, H, 64, 8).to(dtype), torch.arange(64) + 65_000
    theta = rope_frequencies(8, 10_000.0)
    turned = rotate(x, position, theta, layout, form)
    assert turned.dtype == dtype
    rounding = 4 * torch.finfo(dtype).eps
    assert near(turned, rotate(x.double(), position, theta, layout), rounding)


@every_layout
@pytest.mark.parametrize("form", ["complex", "dense"])
def test_every_form_of_rope_has_the_same_gradient(layout: Layout, form: Form) -> None:
    x, position, theta = Q8.clone().requires_grad_(), torch.arange(9), rope_frequencies(8, 10_000.0)
    gradients = [
        torch.autograd.grad((rotate(x, position, theta, layout, one) * K8).sum(), x)[0]
        for one in ("pairs", form)
    ]
    assert near(gradients[0], gradients[1], 1e-12)


def test_layout_reaches_the_rotation() -> None:
    assert not near(products(RoPE(8)), products(RoPE(8, layout="interleaved")), 0.1)


class Operations(TorchDispatchMode):
    """Collects the names of the operations that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@every_layout
def test_forms_of_rope_are_calculated_each_in_its_way(layout: Layout) -> None:
    used = {}
    for form in FORMS:
        with Operations() as operations:
            RoPE(8, layout=layout, form=form).double().transform(Q8, K8, torch.arange(9), torch.arange(9))
        used[form] = operations.names & {"complex", "bmm"}
    assert used == {"pairs": set(), "complex": {"complex"}, "dense": {"bmm"}}


@every_layout
@pytest.mark.parametrize("form", ["complex", "dense"])
@pytest.mark.parametrize(
    "wanted",
    [
        one
        for one in PROPERTIES
        if one.name in ("causal", "blocks", "fused", "half_precision", "norm", "shift")
    ],
    ids=lambda one: one.name,
)
def test_every_form_of_rope_keeps_what_encodings_promise(
    layout: Layout, form: Form, wanted: Property
) -> None:
    finding = check(find_case("rope", (f"encoding.layout={layout}", f"encoding.form={form}")), wanted)
    assert finding.state == "holds", finding.measured


# mistakes that are often made with rotary encodings


def shift_error(encoding: LayerEncoding) -> float:
    return float((products(encoding, 7) - products(encoding)).abs().max())


@every_layout
@every_form
def test_sines_are_repeated_as_the_layout_pairs_features(layout: Layout, form: Form) -> None:
    # Sines of one layout with the pairs of the other keep neither norms nor distances.
    encoding = RoPE(8, layout=layout, form=form)
    q, k = encoding.double().transform(Q8, K8, torch.arange(9), torch.arange(9))
    assert near(q.norm(dim=-1), Q8.norm(dim=-1), 1e-12)
    assert near(k.norm(dim=-1), K8.norm(dim=-1), 1e-12)
    assert shift_error(encoding) < 1e-12


@every_layout
@every_form
def test_queries_and_keys_turn_in_the_same_sense_counterclockwise(layout: Layout, form: Form) -> None:
    encoding = RoPE(2, layout=layout, form=form).double()
    unit = torch.tensor([1.0, 0.0], dtype=torch.float64).view(1, 1, 1, 2)
    for turned in encoding.transform(unit, unit, torch.tensor([1]), torch.tensor([1])):
        assert near(turned.flatten(), [math.cos(1), math.sin(1)], 1e-12)


@every_rotary
def test_rotated_queries_and_keys_are_the_ones_that_are_used(make: Callable[[], LayerEncoding]) -> None:
    position = torch.arange(9)
    ours = attention(make().double(), X8, Q8, K8, V8, position)
    assert not near(ours.detach(), attention(NoPE(), X8, Q8, K8, V8, position), 1e-3)


@every_rotary
def test_frequencies_are_no_parameters_and_move_with_the_module(make: Callable[[], LayerEncoding]) -> None:
    encoding = make()
    assert set(encoding.state_dict()) == {name for name, _ in encoding.named_parameters()}
    assert isinstance(encoding, PoPE) or not encoding.state_dict()
    assert "frequencies" in dict(encoding.named_buffers())
    assert all(tensor.is_meta for tensor in (*encoding.to("meta").buffers(), *encoding.parameters()))


@every_rotary
def test_the_last_row_alone_is_the_last_row_of_all(make: Callable[[], LayerEncoding]) -> None:
    encoding, position = make().double(), torch.arange(9)
    q, k = encoding.transform(Q8, K8, position, position)
    last, again = encoding.transform(Q8[..., 8:, :], K8, position[8:], position)
    assert near(again.detach(), k.detach(), 1e-12)
    assert near(last.detach(), q[..., 8:, :].detach(), 1e-12)
    wrong, _ = encoding.transform(Q8[..., 8:, :], K8, torch.tensor([0]), position)
    assert not near(wrong.detach(), q[..., 8:, :].detach(), 1e-2)


@every_layout
@every_form
def test_heads_are_turned_each_by_itself_with_the_frequencies_of_its_own_width(
    layout: Layout, form: Form
) -> None:
    encoding, position = RoPE(8, layout=layout, form=form).double(), torch.arange(9)
    turned, _ = encoding.transform(Q8, K8, position, position)
    assert turned.shape == Q8.shape
    assert encoding.frequencies.shape == (4,)
    for head in range(H):
        one = slice(head, head + 1)
        alone, _ = encoding.transform(Q8[:, one], K8[:, one], position, position)
        assert near(turned[:, one], alone, 1e-12)


@pytest.mark.parametrize(
    ("distance", "expected"), [(0, 32.5), (1, 31.5382), (16, 15.775), (64, 10.0899), (256, 6.5431)]
)
def test_rope_has_the_papers_curve_of_the_distance(distance: int, expected: float) -> None:
    # The mean over j = 1..K/2 of |sum_{c < j} e^(i r theta_c)|: of the distance, not of the index c.
    units = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(64).view(1, 1, 1, 128)
    turned = rotate(units, torch.tensor([distance]), rope_frequencies(128, 10_000.0), "interleaved")
    partial_sums = turned.view(64, 2).cumsum(0)
    assert abs(partial_sums.norm(dim=-1).mean().item() - expected) < 6e-5


def test_frequencies_that_fall_with_the_index_are_no_decay_with_distance() -> None:
    theta = rope_frequencies(128, 10_000.0)
    assert (theta.diff() < 0).all()
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 4_000, 1, 1, 128, dtype=torch.float64, generator=generator)
    spread = [
        (rotate(q, torch.tensor([r]), theta, "half") * k).sum(-1).std().item() for r in (0, 16, 256, 4_096)
    ]
    # Of independent normal features the products are as large at every distance.
    assert max(spread) / min(spread) < 1.1


# what an encoding becomes at the end of its range


@every_layout
@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (lambda layout: PRoPE(8, fraction=1.0, layout=layout), "rope"),
        (lambda layout: PRoPE(8, fraction=0.0, layout=layout), "nope"),
        (lambda layout: PartialRoPE(8, fraction=1.0, layout=layout), "rope"),
        (lambda layout: PartialRoPE(8, fraction=0.0, layout=layout), "nope"),
        (lambda layout: HoPE(8, train_length=10_000, layout=layout), "rope"),
        (lambda layout: XPos(8, scale_base=1e15, layout=layout), "rope"),
    ],
)
def test_rotary_encoding_at_the_end_of_its_range_is_another(
    layout: Layout, make: Callable[[Layout], LayerEncoding], limit: str
) -> None:
    other = RoPE(8, layout=layout) if limit == "rope" else NoPE()
    assert near(products(make(layout)), products(other), 1e-12)


@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.75])
def test_partial_rope_is_not_p_rope_of_the_same_fraction(fraction: float) -> None:
    assert not near(products(PartialRoPE(8, fraction)), products(PRoPE(8, fraction)), 1e-2)


def test_partial_rope_leaves_the_features_behind_as_they_are() -> None:
    encoding, position = PartialRoPE(8, fraction=0.5).double(), torch.arange(9)
    q, k = encoding.transform(Q8, K8, position, position)
    assert torch.equal(q[..., 4:], Q8[..., 4:])
    assert near(q[..., :4], rotate(Q8[..., :4], position, rope_frequencies(4, 10_000.0), "half"), 1e-12)
    assert near(k[..., :4], rotate(K8[..., :4], position, rope_frequencies(4, 10_000.0), "half"), 1e-12)


def test_p_rope_leaves_the_slow_pairs_of_the_whole_head_as_they_are() -> None:
    position = torch.arange(9)
    q, k = PRoPE(8, fraction=0.5).double().transform(Q8, K8, position, position)
    full_q, full_k = RoPE(8).double().transform(Q8, K8, position, position)
    fast, slow = [0, 1, 4, 5], [2, 3, 6, 7]
    for kept, full, plain in ((q, full_q, Q8), (k, full_k, K8)):
        assert near(kept[..., fast], full[..., fast], 1e-12)
        assert torch.equal(kept[..., slow], plain[..., slow])


@pytest.mark.parametrize(
    ("d_head", "fraction", "pairs"),
    [(200, 0.29, 29), (16, 0.75, 6), (20, 0.25, 2), (8, 0.9, 3), (8, 0.25, 1)],
)
def test_a_fraction_is_rounded_down_to_pairs(d_head: int, fraction: float, pairs: int) -> None:
    assert PRoPE(d_head, fraction).frequencies.count_nonzero() == pairs
    assert len(PartialRoPE(d_head, fraction).frequencies) == pairs


# hope


@pytest.mark.parametrize(("train_length", "kept"), [(7, 1), (62, 1), (63, 2), (628, 2), (629, 3), (6_284, 4)])
def test_hope_keeps_what_makes_a_full_turn_within_the_training_length(train_length: int, kept: int) -> None:
    # The wavelengths are 2 pi times 1, 10, 100 and 1,000 tokens.
    frequencies = HoPE(8, train_length).frequencies
    assert near(frequencies, rope_frequencies(8, 10_000.0).where(torch.arange(4) < kept, 0.0), 1e-12)


def test_hope_is_p_rope_with_a_fraction_that_follows_from_the_training_length() -> None:
    assert near(products(HoPE(8, train_length=100)), products(PRoPE(8, fraction=0.5)), 1e-12)


@pytest.mark.parametrize(
    ("plain", "changed"),
    [
        (RoPE(8), RoPE(8, base=500.0)),
        (PartialRoPE(8, 0.5), PartialRoPE(8, 0.5, base=500.0)),
        (PartialRoPE(8, 0.5), PartialRoPE(8, 0.5, layout="interleaved")),
        (PRoPE(8), PRoPE(8, base=500.0)),
        (PRoPE(8), PRoPE(8, layout="interleaved")),
        (HoPE(8, 100), HoPE(8, 100, base=500.0)),
        (HoPE(8, 100), HoPE(8, 100, layout="interleaved")),
        (XPos(8), XPos(8, base=500.0)),
        (XPos(8), XPos(8, layout="half")),
        (PoPE(H, 8), PoPE(H, 8, base=500.0)),
    ],
)
def test_base_and_layout_are_obeyed(plain: LayerEncoding, changed: LayerEncoding) -> None:
    assert not near(products(changed), products(plain), 1e-2)


# xpos


def xpos_pair_by_pair(q: Tensor, k: Tensor, distance: int, scale_base: float) -> float:
    """sum_c Re(q_c conj(k_c) e^(i r theta_c)) zeta_c^(r / scale_base) of interleaved pairs."""
    total = 0.0
    for c in range(4):
        a, b = complex(q[2 * c], q[2 * c + 1]), complex(k[2 * c], k[2 * c + 1])
        angle = distance * 10_000.0 ** (-2 * c / 8)
        turned = (a * b.conjugate() * complex(math.cos(angle), math.sin(angle))).real
        total += turned * ((2 * c / 8 + 0.4) / 1.4) ** (distance / scale_base)
    return total


def test_xpos_is_its_formula_pair_by_pair() -> None:
    found = products(XPos(8, scale_base=4.0), shift=30)
    for i in range(9):
        for j in range(i + 1):
            expected = xpos_pair_by_pair(Q8[1, 1, i], K8[1, 1, j], i - j, 4.0)
            assert abs(float(found[1, 1, i, j]) - expected) < 1e-10


def test_xpos_envelope_falls_with_distance_for_every_pair() -> None:
    encoding, position = XPos(8).double(), torch.arange(2_000)
    ones = torch.ones(1, 1, 2_000, 8, dtype=torch.float64)
    q, k = encoding.transform(ones, ones, position, position)
    # |q_c| |k_c| of each pair, for the first key.
    envelope = (q.view(2_000, 4, 2).norm(dim=-1) * k.view(2_000, 4, 2).norm(dim=-1)[0]) / 2
    assert (envelope.diff(dim=0) < 0).all()
    assert near(envelope[512], (torch.arange(0, 8, 2).double() / 8 + 0.4) / 1.4, 1e-12)


def test_xpos_keeps_no_norms() -> None:
    q, _ = XPos(8).double().transform(Q8, K8, 100 * torch.arange(9), 100 * torch.arange(9))
    assert not near(q.norm(dim=-1), Q8.norm(dim=-1), 0.1)
    assert "norm_preserving" not in XPos(8).claims


@pytest.mark.parametrize("shift", [1, 10_000, 1_000_000])
def test_xpos_counts_from_its_keys_and_so_does_not_grow_with_the_position(shift: int) -> None:
    encoding = XPos(8, scale_base=4.0)
    assert near(products(encoding, shift), products(encoding), 1e-7)
    in_single = encoding.float().transform(
        Q8.float(), K8.float(), torch.arange(9) + shift, torch.arange(9) + shift
    )
    assert near(in_single[0] @ in_single[1].mT, products(encoding.double()), 1e-4)


def test_xpos_counts_from_the_keys_of_each_sequence() -> None:
    encoding, here = XPos(8, scale_base=4.0).double(), torch.arange(9)
    position = torch.stack([here, 5 * here + 1_000_000])
    both = attention(encoding, X8, Q8, K8, V8, position)
    for row in (0, 1):
        one = slice(row, row + 1)
        alone = attention(encoding, X8[one], Q8[one], K8[one], V8[one], position[row])
        assert near(both[one], alone, 1e-10)


def test_xpos_is_finite_and_exact_at_65536_tokens_on_both_paths() -> None:
    tokens, generator = 65_536, torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, tokens, 4, generator=generator)
    x, position, encoding = torch.zeros(1, tokens, 4), torch.arange(tokens), XPos(4)
    with torch.no_grad():
        fused = attention(encoding, x, q, k, v, position)
        assert fused.isfinite().all()
        for rows in (range(16), range(tokens - 16, tokens)):
            reference = reference_attention(encoding, x, q, k, v, position, rows=rows)
            exact = reference_attention(
                encoding, x.double(), q.double(), k.double(), v.double(), position, rows=rows
            )
            assert near(reference, exact, 1e-5)
            assert near(fused[:, :, rows.start : rows.stop], exact, 1e-5)


@pytest.mark.parametrize(
    ("dtype", "scale_base", "longest"),
    [(torch.float32, 512.0, 66_875), (torch.bfloat16, 512.0, 66_872), (torch.float16, 512.0, 3_418)],
)
def test_xpos_past_what_its_factors_can_hold_is_an_error_with_the_way_out(
    dtype: torch.dtype, scale_base: float, longest: int
) -> None:
    encoding, x = XPos(8, scale_base=scale_base), torch.ones(1, 1, 2, 8, dtype=dtype)
    held = torch.tensor([0, longest - 1])
    assert all(turned.isfinite().all() for turned in encoding.transform(x, x, held, held))
    with pytest.raises(
        LengthError, match=rf"scale_base=512 .* {longest} positions .* {longest + 2}: .*larger"
    ):
        encoding.transform(x, x, held + torch.tensor([0, 2]), held + torch.tensor([0, 2]))


def test_xpos_with_a_larger_scale_base_reaches_further() -> None:
    encoding, x = XPos(8, scale_base=2_048.0), torch.ones(1, 1, 2, 8)
    q, k = encoding.transform(x, x, torch.tensor([0, 250_000]), torch.tensor([0, 250_000]))
    assert q.isfinite().all()
    assert k.isfinite().all()


# pope


def test_pope_is_its_formula_feature_by_feature() -> None:
    encoding = drawn_pope()
    found, phase = products(encoding, shift=30), encoding.phase.detach()
    theta = 10_000.0 ** (-torch.arange(8).double() / 8)
    magnitude_q, magnitude_k = Q8.exp().log1p(), K8.exp().log1p()
    for i in range(9):
        for j in range(9):
            cosines = ((i - j) * theta - phase).cos()  # [H, 8]
            assert near(
                found[:, :, i, j], (magnitude_q[:, :, i] * magnitude_k[:, :, j] * cosines).sum(-1), 1e-11
            )


def test_pope_is_twice_as_wide_and_scaled_by_the_models_own_width() -> None:
    encoding, position = PoPE(n_heads=H, d_head=8).double(), torch.arange(9)
    q, k = encoding.transform(Q8, K8, position, position)
    assert q.shape == k.shape == (2, H, 9, 16)
    visible = torch.ones(9, 9).tril().bool()
    weights = (q @ k.mT / math.sqrt(8)).masked_fill(~visible, -math.inf).softmax(-1)
    assert near(attention(encoding, X8, Q8, K8, V8, position).detach(), (weights @ V8).detach(), 1e-12)


def test_pope_angle_does_not_depend_on_the_content() -> None:
    # RoPE's does: with other signs of the features the best distance is another.
    encoding, position = PoPE(n_heads=1, d_head=2).double(), torch.arange(9)
    for q in (torch.tensor([1.0, -2.0]), torch.tensor([-3.0, 0.5])):
        rows = q.double().expand(1, 1, 9, 2)
        turned, _ = encoding.transform(rows, rows, position, position)
        real, imaginary = turned[0, 0].detach().chunk(2, -1)
        angle = torch.atan2(imaginary, real)
        expected = position.double().unsqueeze(-1) * torch.tensor([1.0, 0.01]).double()
        assert near((angle - expected).cos(), torch.ones(9, 2), 1e-12)


def test_pope_phases_are_bounded_and_each_layers_own() -> None:
    inside, outside = drawn_pope(), drawn_pope()
    fill(inside.phase, torch.tensor([0.0, -2 * math.pi]).repeat(4).expand(H, 8))
    fill(outside.phase, torch.tensor([0.5, -9.0]).repeat(4).expand(H, 8))
    assert near(products(outside), products(inside), 1e-12)
    config = {"class": "pe_bench.encodings.pope:PoPE", "n_heads": 2, "d_head": 4}
    assert len(list(EncodingSpec(config).build(n_layers=3).parameters())) == 3


@pytest.mark.parametrize("value", [0.0, 0.5, -2 * math.pi, -9.0, -1.0])
def test_pope_phase_gets_the_gradient_of_its_bounded_value(value: float) -> None:
    encoding = PoPE(n_heads=H, d_head=K).double()
    fill(encoding.phase, torch.full((H, K), value))
    output(encoding).sum().backward()
    bounded = min(max(value, -2 * math.pi), 0)
    delta = 1e-6
    ends = []
    for moved in (bounded - delta, bounded + delta):
        phase = torch.full((H, K), bounded, dtype=torch.float64)
        phase[1, 2] = moved
        ends.append(output_with_phase(phase))
    assert encoding.phase.grad is not None
    assert encoding.phase.grad.all()
    assert abs(encoding.phase.grad[1, 2].item() - (ends[1] - ends[0]) / (2 * delta)) < 1e-7


def output_with_phase(phase: Tensor) -> float:
    """The sum of the outputs for any phase [H, K], bounded or not, by the formula."""
    theta = 10_000.0 ** (-torch.arange(K).double() / K)
    distance = torch.arange(T).unsqueeze(-1) - torch.arange(T)
    cosines = (distance[..., None] * theta - phase[:, None, None]).cos()  # [H, T, T, K]
    magnitudes = Q4.exp().log1p().unsqueeze(-2) * K4.exp().log1p().unsqueeze(-3)
    scores = (magnitudes * cosines).sum(-1) / math.sqrt(K)
    weights = scores.masked_fill(distance < 0, -math.inf).softmax(-1)
    return (weights @ V4).sum().item()


def test_pope_starts_without_phases_and_does_not_write_into_them() -> None:
    encoding = PoPE(n_heads=H, d_head=K)
    assert not encoding.phase.any()
    fill(encoding.phase, torch.full((H, K), 0.5))
    attention(encoding.double(), X4, Q4, K4, V4, torch.arange(T)).sum().backward()
    assert (encoding.phase == 0.5).all()


# mistakes


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: PartialRoPE(7), "model.d_head=7"),
        (lambda: PartialRoPE(8, fraction=1.5), "fraction .* 1.5"),
        (lambda: PartialRoPE(8, fraction=0.2), "fraction=0.2 .* at least 0.25"),
        (lambda: PartialRoPE(8, base=0.0), "base .* 0"),
        (lambda: PRoPE(7), "model.d_head=7"),
        (lambda: PRoPE(8, fraction=-0.5), "fraction .* -0.5"),
        (lambda: PRoPE(8, base=1.0), "base .* 1"),
        (lambda: HoPE(7, train_length=100), "model.d_head=7"),
        (lambda: HoPE(8, train_length=6), "train_length=6"),
        (lambda: HoPE(8, train_length=100, base=0.5), "base .* 0.5"),
        (lambda: XPos(7), "model.d_head=7"),
        (lambda: XPos(8, scale_base=0.0), "scale_base .* 0"),
        (lambda: XPos(8, base=-1.0), "base .* -1"),
        (lambda: PoPE(n_heads=H, d_head=8, base=0.0), "base .* 0"),
    ],
)
def test_option_that_cannot_work_is_told_to_the_user(make: Callable[[], object], text: str) -> None:
    with pytest.raises(UserError, match=text):
        make()
