"""Rotary encodings against numbers from papers and code, other forms of themselves, and their limits.

Inputs are those of `reference_inputs`, unless a test says otherwise. Reference scores are those before
the division by the root of the width.
"""

import math
from collections.abc import Callable

import pytest
import torch
from support.encodings import turned_sides
from support.reference_inputs import K4, Q4, H, K, T, near, row_of_scores
from support.rotary_encodings import (
    K8,
    Q8,
    drawn_pope,
    every_form,
    every_layout,
    products,
)
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rotary.hope import HoPE
from pe_bench.encodings.rotary.p_rope import PRoPE
from pe_bench.encodings.rotary.partial_rope import PartialRoPE
from pe_bench.encodings.rotary.pope import PoPE
from pe_bench.encodings.rotary.rope import Form, Layout, RoPE, rope_frequencies, rotate
from pe_bench.encodings.rotary.xpos import XPos
from pe_bench.errors import UserError

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


def raw_row(encoding: LayerEncoding) -> Tensor:
    """The last query's products with all keys, before the scale."""
    return row_of_scores(encoding).detach() * math.sqrt(K)


# reference numbers


def test_rope_has_its_reference_scores_and_queries() -> None:
    interleaved, half = RoPE(K, layout="interleaved").double(), RoPE(K).double()
    q, k = turned_sides(interleaved, Q4, K4, torch.arange(T), torch.arange(T))
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
        turned_sides(half, Q4, K4, torch.arange(T), torch.arange(T))[0][0, 0, 3],
        [-1.094682, 0.955024, -0.851535, 1.028683],
    )


# mistakes that are often made with rotary encodings


@every_rotary
def test_the_last_row_alone_is_the_last_row_of_all(make: Callable[[], LayerEncoding]) -> None:
    encoding, position = make().double(), torch.arange(9)
    q, k = turned_sides(encoding, Q8, K8, position, position)
    last, again = turned_sides(encoding, Q8[..., 8:, :], K8, position[8:], position)
    assert near(again.detach(), k.detach(), 1e-12)
    assert near(last.detach(), q[..., 8:, :].detach(), 1e-12)
    wrong, _ = turned_sides(encoding, Q8[..., 8:, :], K8, torch.tensor([0]), position)
    assert not near(wrong.detach(), q[..., 8:, :].detach(), 1e-2)


@every_layout
@every_form
def test_heads_are_turned_each_by_itself_with_the_frequencies_of_its_own_width(
    layout: Layout, form: Form
) -> None:
    encoding, position = RoPE(8, layout=layout, form=form).double(), torch.arange(9)
    turned, _ = turned_sides(encoding, Q8, K8, position, position)
    assert turned.shape == Q8.shape
    assert encoding.frequencies.shape == (4,)
    for head in range(H):
        one = slice(head, head + 1)
        alone, _ = turned_sides(encoding, Q8[:, one], K8[:, one], position, position)
        assert near(turned[:, one], alone, 1e-12)


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


def test_partial_rope_leaves_the_features_behind_as_they_are() -> None:
    encoding, position = PartialRoPE(8, fraction=0.5).double(), torch.arange(9)
    q, k = turned_sides(encoding, Q8, K8, position, position)
    assert torch.equal(q[..., 4:], Q8[..., 4:])
    assert near(q[..., :4], rotate(Q8[..., :4], position, rope_frequencies(4, 10_000.0), "half"), 1e-12)
    assert near(k[..., :4], rotate(K8[..., :4], position, rope_frequencies(4, 10_000.0), "half"), 1e-12)


def test_p_rope_leaves_the_slow_pairs_of_the_whole_head_as_they_are() -> None:
    position = torch.arange(9)
    q, k = turned_sides(PRoPE(8, fraction=0.5).double(), Q8, K8, position, position)
    full_q, full_k = turned_sides(RoPE(8).double(), Q8, K8, position, position)
    fast, slow = [0, 1, 4, 5], [2, 3, 6, 7]
    for kept, full, plain in ((q, full_q, Q8), (k, full_k, K8)):
        assert near(kept[..., fast], full[..., fast], 1e-12)
        assert torch.equal(kept[..., slow], plain[..., slow])


# hope


@pytest.mark.parametrize(("train_length", "kept"), [(7, 1), (62, 1), (63, 2), (628, 2), (629, 3), (6_284, 4)])
def test_hope_keeps_what_makes_a_full_turn_within_the_training_length(train_length: int, kept: int) -> None:
    # The wavelengths are 2 pi times 1, 10, 100 and 1,000 tokens.
    frequencies = HoPE(8, train_length).frequencies
    assert near(frequencies, rope_frequencies(8, 10_000.0).where(torch.arange(4) < kept, 0.0), 1e-12)


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
