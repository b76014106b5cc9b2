"""Content encodings against their double loops, and what encodings become at the ends of their ranges."""

import math

import torch
from support.reference_inputs import (
    D,
    H,
    fill,
    near,
    output,
    series,
)

from pe_bench.encodings.bias.alibi import ALiBi, alibi_slopes
from pe_bench.encodings.bias.kerple_log import KerpleLog
from pe_bench.encodings.bias.t5 import T5
from pe_bench.encodings.content.cope import CoPE
from pe_bench.encodings.content.fox import FoX
from pe_bench.encodings.content.stick_breaking import StickBreaking
from pe_bench.encodings.inputs.learned import Learned
from pe_bench.encodings.relative.shaw import Shaw


def test_stick_breaking_in_logarithms_is_the_product_and_stays_finite() -> None:
    scores, visible = series(torch.sin, 0.8, 7, 7) * 4, torch.ones(7, 7).tril(-1).bool()
    weights, broken = StickBreaking().weights(scores, visible), scores.sigmoid()
    for i in range(7):
        for j in range(7):
            left = math.prod(1 - float(broken[i, between]) for between in range(j + 1, i))
            assert abs(float(weights[i, j]) - (float(broken[i, j]) * left if j < i else 0)) < 1e-12
    extreme = StickBreaking().weights(200 * scores.float(), visible)
    assert extreme.isfinite().all()
    assert (extreme.sum(-1) <= 1 + 1e-5).all()


def test_fox_with_a_constant_gate_is_alibi() -> None:
    encoding = FoX(d_model=D, n_heads=H).double()
    slopes = torch.tensor(alibi_slopes(H), dtype=torch.float64)
    fill(encoding.weight, torch.zeros(H, D))
    fill(encoding.intercept, -torch.log(torch.expm1(slopes)))  # sigmoid of it is exp(-slope)
    assert near(output(encoding).detach(), output(ALiBi(H)), 1e-12)


def test_initial_values_are_the_documented_ones() -> None:
    torch.manual_seed(0)
    assert abs(Learned(64, 512).table.std().item() - 0.02) < 1e-3
    assert abs(T5(d_model=64, n_heads=64).table.std().item() - 1 / 8) < 0.01
    assert abs(Shaw(d_head=64, max_distance=200).keys.std().item() - 0.02) < 1e-3
    assert abs(Shaw(d_head=64, max_distance=200).values.std().item() - 0.02) < 1e-3
    assert abs(FoX(d_model=256, n_heads=64).weight.std().item() - 1 / 16) < 2e-3
    kerple = KerpleLog(4_096)
    assert abs(kerple.p.mean().item() - 1) < 0.05
    assert 1.99 < kerple.p.max().item() <= 2
    assert abs(kerple.a.mean().item() - 0.5) < 0.03
    assert 0.99 < kerple.a.max().item() <= 1
    assert not CoPE(d_head=64).table.any()
    assert not FoX(8, 2).intercept.any()
