"""pope: its formula, and its phases."""

import math

import torch
from support.reference_inputs import H, fill, near
from support.rotary_encodings import (
    K8,
    Q8,
    drawn_pope,
    products,
)

from pe_bench.encodings.spec import EncodingSpec

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


def test_pope_phases_are_bounded_and_each_layers_own() -> None:
    inside, outside = drawn_pope(), drawn_pope()
    fill(inside.phase, torch.tensor([0.0, -2 * math.pi]).repeat(4).expand(H, 8))
    fill(outside.phase, torch.tensor([0.5, -9.0]).repeat(4).expand(H, 8))
    assert near(products(outside), products(inside), 1e-12)
    config = {"class": "pe_bench.encodings.rotary.pope:PoPE", "n_heads": 2, "d_head": 4}
    assert len(list(EncodingSpec(config).build(n_layers=3).parameters())) == 3
