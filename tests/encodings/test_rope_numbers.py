"""RoPE against published numbers, and against its other forms."""

import math

import pytest
import torch
from support.encodings import turned_sides
from support.reference_inputs import (
    near,
    series,
)

from pe_bench.encodings.rotary.rope import RoPE, rope_frequencies, rotate

# rope


def test_rope_has_the_published_frequencies_and_angles() -> None:
    assert near(
        rope_frequencies(512, 10_000.0)[:10],
        [1, 0.9647, 0.9306, 0.8977, 0.8660, 0.8354, 0.8058, 0.7774, 0.7499, 0.7234],
        5e-5,
    )
    theta = rope_frequencies(32, 10_000.0)[:8]
    assert near(theta.cos(), [0.5403, 0.8460, 0.9504, 0.9842, 0.9950, 0.9984, 0.9995, 0.9998], 6e-5)
    assert near(theta.sin(), [0.8415, 0.5332, 0.3110, 0.1769, 0.0998, 0.0562, 0.0316, 0.0178], 6e-5)


def test_rope_turns_counterclockwise() -> None:
    x = torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64)
    turned = rotate(x, torch.tensor([1]), rope_frequencies(2, 10_000.0), "half")
    assert near(turned[0, 0, 0], [math.cos(1), math.sin(1)], 1e-12)


@pytest.mark.parametrize(
    ("distance", "expected"), [(0, 128), (1, 124.1874), (16, 79.4033), (64, 61.0401), (256, 41.0497)]
)
def test_rope_of_ones_has_the_published_curve(distance: int, expected: float) -> None:
    ones = torch.ones(1, 1, 1, 128, dtype=torch.float64)
    frequencies = rope_frequencies(128, 10_000.0)
    far = rotate(ones, torch.tensor([distance]), frequencies, "half")
    near_by = rotate(ones, torch.tensor([0]), frequencies, "half")
    assert abs(float((far * near_by).sum()) - expected) < 5e-5


def test_rope_interleaved_is_the_dense_and_the_complex_form() -> None:
    x, position = series(torch.sin, 0.7, 1, 2, 6, 8), torch.arange(6)
    theta = rope_frequencies(8, 10_000.0)
    turned = rotate(x, position, theta, "interleaved")
    angle = position.double().unsqueeze(-1) * theta
    as_complex = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
        torch.ones_like(angle), angle
    )
    assert near(turned, torch.view_as_real(as_complex).flatten(-2), 1e-12)
    for p in range(6):
        blocks = [torch.tensor([[a.cos(), -a.sin()], [a.sin(), a.cos()]]).double() for a in angle[p]]
        assert near(turned[0, :, p], x[0, :, p] @ torch.block_diag(*blocks).T, 1e-6)


def test_rope_half_is_interleaved_with_the_features_reordered() -> None:
    x, position, theta = series(torch.sin, 0.7, 1, 2, 6, 8), torch.arange(6), rope_frequencies(8, 10_000.0)
    order = torch.arange(8).view(2, 4).T.flatten()  # half's pairs (c, c + 4) side by side
    half = rotate(x, position, theta, "half")
    assert near(half[..., order], rotate(x[..., order], position, theta, "interleaved"), 1e-12)
    assert not near(half, rotate(x, position, theta, "interleaved"), 0.1)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rope_keeps_norms_and_depends_on_distance_alone(layout: str) -> None:
    encoding = RoPE(d_head=8, layout="half" if layout == "half" else "interleaved").double()
    q, k = series(torch.sin, 0.7, 1, 2, 6, 8), series(torch.cos, 0.9, 1, 2, 6, 8)
    here, there = torch.arange(6), torch.arange(6) + 7
    q_here, k_here = turned_sides(encoding, q, k, here, here)
    q_there, k_there = turned_sides(encoding, q, k, there, there)
    assert near(q_here.norm(dim=-1), q.norm(dim=-1), 1e-12)
    assert near(q_here @ k_here.mT, q_there @ k_there.mT, 1e-12)
    assert not near(q_here, q, 0.1)
    assert not near(q_here @ k_here.mT, q @ k.mT, 0.1)


def test_rope_of_random_vectors_does_not_decay() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 64, dtype=torch.float64, generator=generator)
    position = torch.arange(200)
    theta = rope_frequencies(64, 10_000.0)
    scores = (rotate(q.expand(1, 1, 200, 64), position, theta, "half") * k).sum(-1).flatten()
    assert (scores.diff() > 0).any()
    assert (scores.diff() < 0).any()
