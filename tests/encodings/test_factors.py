"""Factors of the logits: temperature, ssmax and log-n."""

import math

import torch
from support.fixed_inputs import JUMPING, ROWS, TOKENS, factors, inputs, output
from support.reference_inputs import H, K, near

from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.compose import stack
from pe_bench.encodings.logits.logn import LogN
from pe_bench.encodings.logits.ssmax import SSMax
from pe_bench.encodings.logits.temperature import Temperature
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.model.attention import attention, reference_attention

# factors


def test_temperature_of_one_is_the_inner_encoding_and_another_multiplies_logits() -> None:
    for inner in (NoPE(), RoPE(K)):
        assert near(output(stack([inner, Temperature(H, 1.0)])), output(inner), 1e-12)
    x, q, k, v = inputs()
    hotter = reference_attention(NoPE(), x, 1.2 * q, k, v, ROWS)
    assert near(output(Temperature(H)), hotter, 1e-12)
    assert not near(output(Temperature(H)), output(NoPE()), 1e-3)


def test_temperature_is_one_number_or_one_of_each_head() -> None:
    result, plain = output(Temperature(H, [1.0, 3.0])), output(NoPE())
    assert near(result[:, 0], plain[:, 0], 1e-12)
    assert near(result[:, 1], output(Temperature(H, 3.0))[:, 1], 1e-12)
    assert not near(result[:, 1], plain[:, 1], 1e-3)


def test_ssmax_starts_at_one_over_the_mean_of_ln_n() -> None:
    mean = math.lgamma(1_025) / 1_024  # ln 1024! / 1024
    assert abs(1 / mean - 0.168471) < 1e-6
    strength = SSMax(H).strength
    assert strength.shape == (H,)
    assert (strength - 0.168).abs().max() < 1e-6


def test_ssmax_multiplies_the_logits_by_s_ln_n_of_its_head() -> None:
    encoding = SSMax(H).double()
    with torch.no_grad():
        encoding.strength.copy_(torch.tensor([0.5, 2.0]))
    x, q, k, v = inputs()
    factor = torch.tensor([0.5, 2.0]).double()[:, None] * torch.log(ROWS + 1.0).double()
    expected = reference_attention(NoPE(), x, factor.unsqueeze(-1) * q, k, v, ROWS)
    assert near(output(encoding).detach(), expected, 1e-6)
    assert near(attention(encoding, x, q, k, v, ROWS).detach(), expected, 1e-6)


def test_ssmax_counts_keys_and_not_positions() -> None:
    expected = [0.168 * math.log(n) for n in range(1, TOKENS + 1)]
    assert near(factors(SSMax(H), JUMPING)[0].flatten(), expected)
    expected = [0.168 * math.log(min(n, 4)) for n in range(1, TOKENS + 1)]
    assert near(factors(SSMax(H, window=4), JUMPING + 5)[1].flatten(), expected)


def test_ssmax_leaves_the_first_token_to_itself_and_is_no_addition() -> None:
    _, _, _, v = inputs()
    assert near(output(SSMax(H)).detach()[:, :, 0], v[:, :, 0], 1e-12)
    assert not near(output(SSMax(H)).detach(), output(NoPE()), 1e-3)


def test_factors_act_on_scores_and_not_on_what_is_added() -> None:
    """A factor on a bias would scale it too: the order is scores, factor, bias."""
    x, q, k, v = inputs()
    expected = reference_attention(ALiBi(H), x, 3 * q, k, v, ROWS)
    assert near(output(stack([ALiBi(H), Temperature(H, 3.0)])), expected, 1e-6)


def test_logn_of_the_modifier_reads_positions() -> None:
    assert near(factors(LogN(8), torch.tensor([0, 63])).flatten(), [1, 2])
