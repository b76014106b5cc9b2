"""Biases and gates of scores against numbers of papers and authors' code, other forms, and initial values."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from support.cases import find_case
from support.reference_inputs import (
    K4,
    Q4,
    X4,
    D,
    H,
    K,
    T,
    fill,
    near,
    output,
    series,
)
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.bias.alibi import ALiBi, alibi_slopes
from pe_bench.encodings.bias.bam import BAM
from pe_bench.encodings.bias.fire import FIRE
from pe_bench.encodings.bias.kerple_log import KerpleLog
from pe_bench.encodings.bias.kerple_power import KerplePower
from pe_bench.encodings.bias.t5 import T5, t5_buckets
from pe_bench.encodings.content.cope import CoPE
from pe_bench.encodings.content.dape import DAPE, Inner
from pe_bench.encodings.content.fox import FoX
from pe_bench.encodings.content.stick_breaking import StickBreaking
from pe_bench.encodings.inputs.learned import Learned
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.relative.shaw import Shaw
from pe_bench.inspection.check.case import layers_of
from pe_bench.model.attention.reference import project

FALLING = torch.tensor([4, 3, 2, 1, 0])


def test_alibi_with_slope_scale_0_is_no_encoding_and_claims_no_decay() -> None:
    flat = ALiBi(H, slope_scale=0.0)
    assert torch.equal(output(flat), output(NoPE()))
    assert ALiBi(H).claims - flat.claims == {"decaying"}


Kerple = KerpleLog | KerplePower


def kerple(make: type[Kerple], p: list[float], a: list[float]) -> Kerple:
    encoding = make(len(p)).double()
    fill(encoding.p, torch.tensor(p))
    fill(encoding.a, torch.tensor(a))
    return encoding


@pytest.mark.parametrize(
    ("make", "p", "a", "held_p", "held_a"),
    [
        (KerpleLog, -3.0, 0.5, 0.01, 0.5),
        (KerpleLog, 5.0, -1.0, 5.0, 0.01),
        (KerplePower, -3.0, 0.5, 0.01, 0.5),
        (KerplePower, 5.0, -1.0, 2.0, 0.01),
    ],
)
def test_kerple_bounds_hold_the_values_but_not_the_gradients(
    make: type[Kerple], p: float, a: float, held_p: float, held_a: float
) -> None:
    outside, held = kerple(make, [p], [a]), kerple(make, [held_p], [held_a])
    for encoding in (outside, held):
        encoding.distance_bias(FALLING).sum().backward()
    assert near(outside.distance_bias(FALLING).detach(), held.distance_bias(FALLING).detach(), 1e-12)
    assert outside.p.item() == p, "parameters are not written by a forward pass"
    for name, parameter in outside.named_parameters():
        expected = held.get_parameter(name).grad
        assert parameter.grad is not None and expected is not None
        assert parameter.grad.item() != 0
        assert near(parameter.grad, expected, 1e-12)


def test_fire_starts_with_the_documented_values_in_every_layer() -> None:
    encoding = FIRE(H, threshold=512)
    assert encoding.c.item() == pytest.approx(0.1)
    assert encoding.threshold * encoding.m.item() == 512
    torch.manual_seed(0)
    for network in (FIRE(64, threshold=512, d_hidden=1_024), DAPE(64, train_length=4096, d_hidden=1_024)):
        for layer in (network.hidden, network.output):
            assert layer.weight.std().item() == pytest.approx(1 / math.sqrt(3 * layer.in_features), rel=0.05)
    model = find_case("fire").as_built()
    heads, layers = 4, 4
    assert sum(map(Tensor.numel, model.parameters())) == layers * (66 + 33 * heads)


def test_bam_is_its_formula() -> None:
    encoding = BAM(H).double()
    shape, scale, location = [0.7, 1.3], [-0.4, 0.2], [0.3, -0.6]
    for parameter, values in zip(encoding.parameters(), (shape, scale, location), strict=True):
        fill(parameter, torch.tensor(values))
    for head in range(H):
        centre = math.exp(location[head]) - math.exp(-location[head])
        # j - i is minus the distance.
        expected = [
            -((abs(-r - centre) + 1e-5) ** shape[head]) * math.exp(scale[head]) for r in FALLING.tolist()
        ]
        assert near(encoding.distance_bias(FALLING)[head].detach(), expected)


@pytest.mark.parametrize(
    "make",
    [lambda: FIRE(H, threshold=512), lambda: DAPE(H, train_length=4096), lambda: DAPE(H, 4096, "fire")],
)
def test_networks_are_not_evaluated_in_half_precision(make: Callable[[], LayerEncoding]) -> None:
    encoding, length = make(), 300
    q, k = torch.randn(2, 1, H, length, K, generator=torch.Generator().manual_seed(0))
    queries, keys = project(encoding, q[:, 0], q, k, torch.arange(length) + 4_096)
    scores, visible = encoding.scores(queries, keys, 0.5), encoding.visible(queries, keys)

    def biased() -> Tensor:
        bias = encoding.bias(queries, keys)
        return encoding.adjust(scores if bias is None else scores + bias, visible, queries, keys)

    exact = biased()
    assert not near(exact.detach(), scores.double(), 1e-3)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(biased(), exact)


@pytest.mark.parametrize("name", ["kerple_log", "kerple_power", "bam"])
def test_one_set_of_parameters_serves_all_layers(name: str) -> None:
    model = find_case(name).as_built()
    assert len(layers_of(model)) == 1
    assert model.layer(0) is model.layer(3)


@pytest.mark.parametrize(("buckets", "largest"), [(32, 128), (64, 512), (32, 2048), (8, 64), (20, 1000)])
def test_t5_buckets_are_exact_at_every_edge(buckets: int, largest: int) -> None:
    exact = buckets // 2
    for distance, bucket in enumerate(t5_buckets(torch.arange(2 * largest), buckets, largest).tolist()):
        # floor(ln(r/e) / ln(M/e) * (n - e)) >= s exactly when (r/e)^(n - e) >= (M/e)^s.
        power = Fraction(distance, exact) ** (buckets - exact)
        steps = [s for s in range(buckets - exact) if power >= Fraction(largest, exact) ** s]
        assert bucket == (distance if distance < exact else exact + max(steps)), distance


def test_t5_bias_reads_the_row_of_the_head_and_is_not_scaled() -> None:
    encoding = T5(d_model=8, n_heads=2)
    fill(encoding.table, torch.arange(64.0).view(2, 32))
    assert encoding.distance_bias(torch.tensor([0, 18, 500])).tolist() == [[0, 16, 31], [32, 48, 63]]
    queries, keys = project(encoding, X4, Q4, K4, torch.arange(T))
    bias = encoding.bias(queries, keys)
    assert bias is not None
    assert bias[1, 3].tolist() == [35, 34, 33, 32]


@pytest.mark.parametrize("inner", ["alibi", "kerple_log", "fire"])
def test_dape_with_a_network_of_zeros_is_its_inner_encoding(inner: Inner) -> None:
    encoding = DAPE(H, 4096, inner).double()
    assert not near(output(encoding).detach(), output(encoding.inner).detach(), 1e-3)
    for parameter in (*encoding.hidden.parameters(), *encoding.output.parameters()):
        fill(parameter, torch.zeros_like(parameter))
    assert near(output(encoding).detach(), output(encoding.inner).detach(), 1e-12)


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
