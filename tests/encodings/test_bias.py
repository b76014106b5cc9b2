"""Biases and gates of scores: other forms of themselves, bounds, and initial values."""

import math
from fractions import Fraction

import pytest
import torch
from support.cases import find_case
from support.reference_inputs import H, K, fill, near
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.bias.fire import FIRE
from pe_bench.encodings.bias.kerple_log import KerpleLog
from pe_bench.encodings.bias.kerple_power import KerplePower
from pe_bench.encodings.bias.t5 import T5, t5_buckets
from pe_bench.encodings.content.cope import CoPE
from pe_bench.encodings.content.dape import DAPE
from pe_bench.encodings.content.fox import FoX
from pe_bench.encodings.content.grape_ap import GrapeAP
from pe_bench.encodings.content.tapa import TAPA
from pe_bench.encodings.inputs.learned import Learned
from pe_bench.encodings.logits.asentmax import ASEntmax
from pe_bench.encodings.relative.shaw import Shaw
from pe_bench.errors import UserError
from pe_bench.model.attention.reference import make_sides

FALLING = torch.tensor([4, 3, 2, 1, 0])


@pytest.mark.parametrize(
    ("make", "outside", "held"),
    [
        (KerpleLog, (-3.0, 0.5), (0.01, 0.5)),
        (KerpleLog, (5.0, -1.0), (5.0, 0.01)),
        (KerplePower, (-3.0, 0.5), (0.01, 0.5)),
        (KerplePower, (5.0, -1.0), (2.0, 0.01)),
    ],
)
def test_kerple_bounds_hold_the_values_but_not_the_gradients(make, outside, held) -> None:
    biases, gradients = [], []
    for p, a in (outside, held):
        encoding = make(1).double()
        fill(encoding.p, torch.tensor([p]))
        fill(encoding.a, torch.tensor([a]))
        bias = encoding.distance_bias(FALLING)
        biases.append(bias.detach())
        gradients.append(torch.cat(torch.autograd.grad(bias.sum(), [encoding.p, encoding.a])))
        assert encoding.p.item() == pytest.approx(p), "parameters are not written by a forward pass"
    assert near(*biases, 1e-12) and near(*gradients, 1e-12) and gradients[0].all()


@pytest.mark.parametrize(("buckets", "largest"), [(32, 128), (64, 512), (8, 64), (20, 1000)])
def test_t5_buckets_are_exact_at_every_edge(buckets: int, largest: int) -> None:
    exact = buckets // 2
    for distance, bucket in enumerate(t5_buckets(torch.arange(2 * largest), buckets, largest).tolist()):
        # floor(ln(r/e) / ln(M/e) * (n - e)) >= s exactly when (r/e)^(n - e) >= (M/e)^s.
        power = Fraction(distance, exact) ** (buckets - exact)
        steps = [s for s in range(buckets - exact) if power >= Fraction(largest, exact) ** s]
        assert bucket == (distance if distance < exact else exact + max(steps)), distance


def test_initial_values_are_the_documented_ones() -> None:
    torch.manual_seed(0)
    shaw, kerple, fire = Shaw(d_head=64, max_distance=200), KerpleLog(4_096), FIRE(64, 512, d_hidden=1_024)
    networks = (fire, DAPE(64, train_length=4096, d_hidden=1_024))
    layers = [layer for network in networks for layer in (network.hidden, network.output)]
    for parameter, expected in (
        *((Learned(64, 512).table, 0.02), (T5(d_model=64, n_heads=64).table, 1 / 8)),
        *((shaw.keys, 0.02), (shaw.values, 0.02), (FoX(d_model=256, n_heads=64).weight, 1 / 16)),
        *((layer.weight, 1 / math.sqrt(3 * layer.in_features)) for layer in layers),
    ):
        assert parameter.std().item() == pytest.approx(expected, rel=0.05)
    assert abs(kerple.p.mean().item() - 1) < 0.05 and 1.99 < kerple.p.max().item() <= 2
    assert abs(kerple.a.mean().item() - 0.5) < 0.03 and 0.99 < kerple.a.max().item() <= 1
    assert not CoPE(d_head=64).table.any() and not FoX(8, 2).intercept.any()
    assert fire.c.item() == pytest.approx(0.1) and fire.threshold * fire.m.item() == 512
    heads, count = 4, 4
    of_each_layer = find_case("fire").as_built().parameters()
    assert sum(map(Tensor.numel, of_each_layer)) == count * (66 + 33 * heads)


@pytest.mark.parametrize("encoding", [FIRE(H, threshold=512), DAPE(H, train_length=4096)])
def test_networks_are_not_evaluated_in_half_precision(encoding: LayerEncoding) -> None:
    q, k = torch.randn(2, 1, H, 300, K, generator=torch.Generator().manual_seed(0))
    queries, keys = make_sides(encoding, q[:, 0], q, k, torch.arange(300) + 4_096)
    scores, visible = encoding.scores(queries, keys, 0.5), encoding.visible(queries, keys)

    def biased() -> Tensor:
        bias = encoding.bias(queries, keys)
        return encoding.adjust(scores if bias is None else scores + bias, visible, queries, keys)

    exact = biased()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(biased(), exact)


def test_entmax_has_sparse_weights_that_add_up_to_1_and_the_slopes_of_its_formula() -> None:
    torch.manual_seed(0)
    visible = torch.ones(7, 9).tril(2).bool()
    scores = (4 * torch.randn(2, 3, 7, 9, dtype=torch.float64)).requires_grad_()
    entmax = ASEntmax(d_model=8, n_heads=3)
    weights = entmax.weights(scores, visible)
    assert near(weights.sum(-1), torch.ones(2, 3, 7), 1e-12)
    assert (weights[..., ~visible] == 0).all() and 0.3 < float((weights == 0).double().mean()) < 0.95
    # w = (z / 2 - tau)^2 where that is positive: keys with weight have one tau, and the others are below it.
    tau = (scores / 2 - weights.sqrt()).detach()
    of_weighted = tau.masked_fill(weights == 0, -math.inf).amax(-1, keepdim=True)
    assert (tau - of_weighted)[weights > 0].abs().max() < 1e-9
    assert ((scores / 2 <= of_weighted + 1e-12) | (weights > 0) | ~visible).all()
    assert torch.autograd.gradcheck(lambda z: entmax.weights(z, visible), (scores,))


def test_a_query_that_sees_no_key_has_no_weight_and_no_gradient_that_is_not_a_number() -> None:
    scores = torch.randn(1, 1, 2, 3, requires_grad=True)
    weights = ASEntmax(d_model=8, n_heads=1).weights(scores, torch.tensor([[False] * 3, [True] * 3]))
    (gradient,) = torch.autograd.grad(weights.square().sum(), scores)
    assert weights[0, 0, 0].tolist() == [0, 0, 0] and gradient.isfinite().all()


def test_silent_heads_leave_the_slopes_of_a_smaller_alibi_to_the_others() -> None:
    assert ALiBi(4, silent=0.5).slopes.tolist() == [*ALiBi(2).slopes.tolist(), 0.0, 0.0]
    assert "decaying" not in ALiBi(4, silent=0.5).claims
    assert ALiBi(4, silent=1.0).slopes.tolist() == [0.0] * 4


@torch.no_grad()
def test_grape_ap_without_content_is_alibi_times_ln_2_from_block_to_block_of_keys() -> None:
    tokens = 1_200  # more than two blocks of a running sum
    q = torch.randn(1, H, tokens, K, dtype=torch.float64)
    sides = {}
    for encoding in (GrapeAP(8, H).double(), ALiBi(H).double()):
        x = torch.zeros(1, tokens, 8, dtype=torch.float64)
        queries, keys = make_sides(encoding, x, q[:, :, -3:], q, torch.arange(tokens))
        sides[type(encoding)] = encoding.bias(queries, keys).expand(1, H, 3, tokens).tril(tokens - 3)
    assert near(sides[GrapeAP], math.log(2) * sides[ALiBi])


@torch.no_grad()
def test_scores_of_tapa_at_distance_0_are_products_of_its_amplitudes() -> None:
    q, k = torch.randn(2, 1, H, 6, 8, dtype=torch.float64)
    here = torch.full((6,), 3)
    queries, keys = make_sides(TAPA(8, amplitude=0.25), torch.zeros(1, 6, 1), q, k, here)
    scores = TAPA(8, amplitude=0.25).scores(queries, keys, 8**-0.5)
    assert near(scores, q[..., :2] @ k[..., :2].mT / math.sqrt(2))


@pytest.mark.parametrize(
    ("amplitude", "message"),
    [
        (0.1, "amplitude=0.1 leaves no feature of .*=8 to the amplitude: give at least 0.125"),
        (1.0, "amplitude=1.0 leaves no feature of .*=8 to the phase: give at most 0.875"),
    ],
)
def test_tapa_without_an_amplitude_or_a_phase_is_refused(amplitude: float, message: str) -> None:
    with pytest.raises(UserError, match=message):
        TAPA(8, amplitude=amplitude)
