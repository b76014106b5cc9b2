"""Factors of the logits: temperature, ssmax and log-n."""

import torch
from support.fixed_inputs import ROWS, inputs, output
from support.reference_inputs import H, K, near

from pe_bench.encodings.bias.alibi import ALiBi
from pe_bench.encodings.compose import stack
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


def test_ssmax_multiplies_the_logits_by_s_ln_n_of_its_head() -> None:
    encoding = SSMax(H).double()
    with torch.no_grad():
        encoding.strength.copy_(torch.tensor([0.5, 2.0]))
    x, q, k, v = inputs()
    factor = torch.tensor([0.5, 2.0]).double()[:, None] * torch.log(ROWS + 1.0).double()
    expected = reference_attention(NoPE(), x, factor.unsqueeze(-1) * q, k, v, ROWS)
    assert near(output(encoding).detach(), expected, 1e-6)
    assert near(attention(encoding, x, q, k, v, ROWS).detach(), expected, 1e-6)


def test_factors_act_on_scores_and_not_on_what_is_added() -> None:
    """A factor on a bias would scale it too: the order is scores, factor, bias."""
    x, q, k, v = inputs()
    expected = reference_attention(ALiBi(H), x, 3 * q, k, v, ROWS)
    assert near(output(stack([ALiBi(H), Temperature(H, 3.0)])), expected, 1e-6)
