"""Rotary encodings against numbers from papers and code, other forms of themselves, and their limits."""

import math
from collections.abc import Callable

import pytest
import torch
from support.encodings import turned_sides
from support.reference_inputs import H, fill, near, series
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, LengthError, Side
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rotary.hope import HoPE
from pe_bench.encodings.rotary.lerope import LeRoPE
from pe_bench.encodings.rotary.p_rope import PRoPE
from pe_bench.encodings.rotary.partial_rope import PartialRoPE
from pe_bench.encodings.rotary.pope import PoPE
from pe_bench.encodings.rotary.rope import Form, Layout, RoPE, rope_frequencies, rotate, turn_both
from pe_bench.encodings.rotary.xpos import XPos
from pe_bench.encodings.spec import EncodingSpec

LAYOUTS: tuple[Layout, ...] = ("half", "interleaved")
FORMS: tuple[Form, ...] = ("pairs", "complex", "dense")
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


Q8, K8 = (series(wave, step, 2, H, 9, 8) for wave, step in ((torch.sin, 0.7), (torch.cos, 0.9)))


def products(encoding: LayerEncoding) -> Tensor:
    """[2, H, 9, 9], without scale and mask."""
    position = torch.arange(9)
    q, k = turned_sides(encoding.double(), Q8, K8, position, position)
    return (q @ k.mT).detach()


@every_layout
@pytest.mark.parametrize("form", FORMS)
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


def test_pope_phases_are_bounded_and_each_layers_own() -> None:
    inside, outside = PoPE(H, 8), PoPE(H, 8)
    fill(inside.phase, torch.tensor([0.0, -2 * math.pi]).repeat(4).expand(H, 8))
    fill(outside.phase, torch.tensor([0.5, -9.0]).repeat(4).expand(H, 8))
    assert near(products(outside), products(inside), 1e-12)
    config = {"class": "pe_bench.encodings.rotary.pope:PoPE", "n_heads": 2, "d_head": 4}
    assert len(list(EncodingSpec(config).build(n_layers=3).parameters())) == 3


@pytest.mark.parametrize(
    ("dtype", "scale_base", "longest"),
    [(torch.float32, 512.0, 66_875), (torch.bfloat16, 512.0, 66_872), (torch.float16, 512.0, 3_418)],
)
def test_xpos_past_what_its_factors_can_hold_is_an_error_with_the_way_out(
    dtype: torch.dtype, scale_base: float, longest: int
) -> None:
    encoding, x = XPos(8, scale_base=scale_base), torch.ones(1, 1, 2, 8, dtype=dtype)
    held = torch.tensor([0, longest - 1])
    assert all(turned.isfinite().all() for turned in turned_sides(encoding, x, x, held, held))
    with pytest.raises(
        LengthError, match=rf"scale_base=512 .* {longest} positions .* {longest + 2}: .*larger"
    ):
        turned_sides(encoding, x, x, held + torch.tensor([0, 2]), held + torch.tensor([0, 2]))


def test_a_phase_of_pope_is_taken_from_the_angle_between_query_and_key() -> None:
    encoding = PoPE(H, 8).double()
    fill(encoding.phase, -series(torch.cos, 0.4, H, 8).abs())
    distance = torch.arange(9.0)[:, None, None] - torch.arange(9.0)[:, None]
    angle = distance * rope_frequencies(16, 10_000.0) - encoding.phase.detach()[:, None, None]
    q, k = (nn.functional.softplus(x) for x in (Q8, K8))
    assert near(products(encoding), torch.einsum("bhic,bhjc,hijc->bhij", q, k, angle.cos()), 1e-12)


@torch.no_grad()
def test_each_head_of_lerope_per_head_is_lerope_with_its_own_frequencies() -> None:
    per_head = LeRoPE(H, 8, per_head=True).double()
    fill(per_head.alpha, series(torch.sin, 0.4, H, 1, 4))
    for position in (torch.arange(9), torch.stack([torch.arange(9), 3 * torch.arange(9)]).unsqueeze(1)):
        turned = turned_sides(per_head, Q8.double(), K8.double(), position, position)
        for head in range(H):
            one = LeRoPE(H, 8).double()
            fill(one.alpha, per_head.alpha[head, 0])
            alone = turned_sides(one, Q8.double(), K8.double(), position, position)
            for side, expected in zip(turned, alone, strict=True):
                assert near(side[:, head], expected[:, head], 1e-12)


@torch.no_grad()
def test_imaginary_heads_of_rope_pp_are_rope_with_queries_turned_back_by_a_quarter() -> None:
    """RoPE++ scores q sin(p theta) - rot(q) cos(p theta) against k: R(p theta) of R(-90 degrees) q."""
    position, theta = torch.arange(9), rope_frequencies(8, 10_000.0)
    angle = torch.cat([position.double().unsqueeze(-1) * theta] * 2, -1)
    first, second = Q8.double().chunk(2, -1)
    rot = torch.cat([-second, first], -1)
    imaginary = Q8.double() * angle.sin() - rot * angle.cos()
    quarter = torch.cat([second, -first], -1)  # each pair (a, b) turned by -90 degrees is (b, -a)
    turned, keys = turned_sides(RoPE(8).double(), quarter, K8.double(), position, position)
    assert near(imaginary @ keys.mT, turned @ keys.mT, 1e-12)


def test_the_last_queries_are_turned_by_the_last_angles() -> None:
    x = torch.randn(1, 2, 7, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    index = torch.arange(7)
    angles = index[:, None] * torch.tensor([1.0, 0.5, 0.25, 0.125], dtype=torch.float64)
    keys = Side(x, x, index, index, {})
    queries = Side(x[:, :, 4:], x[:, :, 4:], index[4:], index[4:], {})
    turned_q, turned_k = turn_both(queries, keys, angles.cos(), angles.sin())
    torch.testing.assert_close(turned_q, turned_k[:, :, 4:], rtol=0, atol=1e-12)
