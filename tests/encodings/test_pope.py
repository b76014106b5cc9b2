"""pope: its formula, and its phases."""

import math

import pytest
import torch
from support.reference_inputs import K4, Q4, V4, X4, H, K, T, fill, near, output
from support.rotary_encodings import (
    K8,
    Q8,
    V8,
    X8,
    drawn_pope,
    products,
)
from torch import Tensor

from pe_bench.encodings.rotary.pope import PoPE
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.model.attention import attention

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
    config = {"class": "pe_bench.encodings.rotary.pope:PoPE", "n_heads": 2, "d_head": 4}
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
