"""irope and swan: which layers see everything, and what the others see."""

import math

import torch
from support.fixed_inputs import TOKENS, factors, inputs, output
from support.reference_inputs import K, near

from pe_bench.encodings.base import PositionalEncoding
from pe_bench.encodings.layers.irope import IRoPE
from pe_bench.encodings.layers.swan import SWAN
from pe_bench.encodings.logits.log_steps import LogSteps
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.model.attention import reference_attention

# schedules


def layer_kinds(encoding: PositionalEncoding, layers: int) -> list[bool]:
    """Which layers turn queries and keys."""
    return [encoding.layer(number).overrides("transform") for number in range(layers)]


def test_irope_is_global_in_every_fourth_layer_and_swan_from_the_first() -> None:
    irope, swan = IRoPE(K, 8, 4, 8), SWAN(K, 8, 4)
    assert layer_kinds(irope, 8) == [True, True, True, False] * 2
    assert layer_kinds(swan, 8) == [False, True, True, True] * 2
    assert layer_kinds(IRoPE(K, 2, 4, 8), 2) == [True, False]
    assert layer_kinds(IRoPE(K, 8, 4, 8, every=2), 4) == [True, False] * 2
    assert layer_kinds(SWAN(K, 8, 4, every=2), 4) == [False, True] * 2


def test_irope_in_chunks_is_rope_on_each_chunk() -> None:
    x, q, k, v = inputs()
    result = output(IRoPE(K, 4, chunk=5, temperature_step=8).layer(0))
    for start in range(0, TOKENS, 5):
        here = slice(start, start + 5)
        chunk = x[:, here], q[:, :, here], k[:, :, here], v[:, :, here]
        alone = reference_attention(RoPE(K), *chunk, torch.arange(chunk[0].shape[1]))
        assert near(result[:, :, here], alone, 1e-12)


def test_irope_has_the_temperatures_of_llama_4() -> None:
    position = torch.tensor([-20_000, 0, 8190, 8191, 16383])
    assert near(
        factors(LogSteps(8192, 0.1, counts_itself=True), position).flatten(), [1, 1, 1, 1.069315, 1.109861]
    )


def test_swan_scales_global_layers_by_log_n_or_by_the_papers_function() -> None:
    position = torch.tensor([0, 1, 7, 8, 63])
    assert near(factors(SWAN(K, 8, 4).layer(0), position).flatten(), [1, 1, 1, math.log(9) / math.log(8), 2])
    fitted = factors(SWAN(K, 8, 4, scale_base=8.0).layer(0), torch.tensor([-9, 0, 56, 504])).flatten()
    assert near(fitted, [1, 1, 2, 3])
    assert SWAN(K, 8, 4, scale_base=8.0).layer(1).logit_scale(None) is None  # pyright: ignore[reportArgumentType]
