"""Biases of the scores against numbers from their papers or the authors' code, and against other forms.

Inputs are those of `reference_inputs`, unless a test says otherwise.
"""

import math
from collections.abc import Callable

import pytest
import torch
from support.biases import with_steps
from support.cases import find_case
from support.reference_inputs import K4, Q4, V4, X4, H, K, T, fill, near, output
from torch import Tensor
from torch.nn import functional

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.bias.alibi import ALiBi, alibi_slopes
from pe_bench.encodings.bias.bam import BAM
from pe_bench.encodings.bias.fire import FIRE
from pe_bench.encodings.bias.kerple_log import KerpleLog
from pe_bench.encodings.bias.kerple_power import KerplePower
from pe_bench.encodings.bias.sandwich import Sandwich
from pe_bench.encodings.content.dape import DAPE
from pe_bench.encodings.nope import NoPE
from pe_bench.errors import UserError
from pe_bench.inspection.check.case import layers_of
from pe_bench.model.attention import attention, project

FALLING = torch.tensor([4, 3, 2, 1, 0])


def bias_of(encoding: LayerEncoding, length: int, shift: int = 0) -> Tensor:
    """The bias [H, T, T] of tokens at positions from `shift` on."""
    x = torch.zeros(1, H, length, K, dtype=torch.float64)
    queries, keys = project(encoding, x, x, x, torch.arange(length) + shift)
    bias = encoding.bias(queries, keys)
    assert bias is not None
    return bias


# alibi


def test_alibi_is_equal_as_a_bias_as_columns_and_as_a_term_of_the_key_alone() -> None:
    slopes = torch.tensor(alibi_slopes(H), dtype=torch.float64)[:, None, None]
    position = torch.arange(T, dtype=torch.float64)[:, None]
    ones, scale = torch.ones(1, H, T, 1, dtype=torch.float64), 1 / math.sqrt(K)
    # Query columns [1, i] and key columns [m j, -m]: the softmax takes the original scale.
    wide_q = torch.cat([Q4, ones, ones * position], -1)
    wide_k = torch.cat([K4, ones * slopes * position / scale, -ones * slopes / scale], -1)
    as_columns = functional.scaled_dot_product_attention(wide_q, wide_k, V4, is_causal=True, scale=scale)
    by_key = (scale * Q4 @ K4.mT + slopes * position.T).masked_fill(
        ~torch.ones(T, T).tril().bool(), -torch.inf
    )
    assert near(output(ALiBi(H)), as_columns, 1e-12)
    assert near(output(ALiBi(H)), by_key.softmax(-1) @ V4, 1e-12)
    assert near(output(ALiBi(H)), attention(ALiBi(H).double(), X4, Q4, K4, V4, torch.arange(T)), 1e-12)


def test_alibi_with_slope_scale_0_is_no_encoding_and_claims_no_decay() -> None:
    flat = ALiBi(H, slope_scale=0.0)
    assert torch.equal(output(flat), output(NoPE()))
    assert ALiBi(H).claims - flat.claims == {"decaying"}


@pytest.mark.parametrize("slope_scale", [-1.0, math.inf, math.nan])
def test_alibi_refuses_a_slope_scale_that_is_no_penalty(slope_scale: float) -> None:
    with pytest.raises(UserError, match=rf"slope_scale must be 0 or more, not {slope_scale}"):
        ALiBi(H, slope_scale)


# kerple


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


# sandwich


@pytest.mark.parametrize("width", [0, -2, 15])
def test_sandwich_refuses_a_width_that_has_no_pairs(width: int) -> None:
    with pytest.raises(UserError, match=f"width must be even and positive, not {width}"):
        Sandwich(H, width)


# fire


def test_fire_is_its_formula_query_by_query() -> None:
    encoding, length = with_steps(FIRE(H, threshold=20)), 9
    weights = {name: parameter.detach() for name, parameter in encoding.named_parameters()}
    c, m = (abs(weights[name].item()) for name in "cm")
    w1, b1 = weights["hidden.weight"][:, 0], weights["hidden.bias"]
    w2, b2 = weights["output.weight"], weights["output.bias"]
    expected = torch.zeros(H, length, length, dtype=torch.float64)
    for i in range(length):
        for j in range(i + 1):
            fraction = math.log(c * (i - j) + 1) / (math.log(c * max(20 * m, i) + 1) + 1e-6)
            expected[:, i, j] = w2 @ (w1 * fraction + b1).clamp(min=0) + b2
    lower = torch.ones(length, length).tril()
    assert near(bias_of(encoding, length).detach() * lower, expected, 1e-12)


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


# bam


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


# all of them


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
