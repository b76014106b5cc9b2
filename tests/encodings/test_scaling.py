"""Scalings of RoPE against the numbers of public code, the cases of their formulas, and plain RoPE.

Heads are 16 wide and the training length is 512, unless a test says otherwise.
"""

import math
from typing import Any

import pytest
import torch
from support.encodings import turned_sides
from support.reference_inputs import near, series
from support.scalings import BASE, LONG, SCALINGS, TRAIN, WIDTH, every_scaling, same, scaling, turned

from pe_bench.encodings.rotary.rope import Layout, RoPE, rope_frequencies
from pe_bench.encodings.scalings.llama3 import Llama3
from pe_bench.encodings.scalings.longrope import LongRoPE
from pe_bench.encodings.scalings.rope_dynamic_ntk import RopeDynamicNTK, dynamic_ntk_frequencies
from pe_bench.encodings.scalings.rope_ntk import RopeNTK
from pe_bench.encodings.scalings.rope_ntk_by_parts import RopeNTKByParts
from pe_bench.encodings.scalings.rope_pi import RopePI
from pe_bench.encodings.scalings.rope_scaling import (
    RopeScaling,
    ntk_frequencies,
    ramp_ends,
)
from pe_bench.encodings.scalings.yarn import YaRN

every_scaling_with_a_factor = pytest.mark.parametrize(
    "name", [name for name in SCALINGS if name != "rope_dynamic_ntk"]
)


# numbers


@pytest.mark.parametrize(
    ("encoding", "attention_factor"),
    [
        (RopePI(WIDTH, TRAIN), 1.0),
        (RopeNTK(WIDTH, TRAIN), 1.0),
        (RopeDynamicNTK(WIDTH, TRAIN), 1.0),
        (RopeDynamicNTK(WIDTH, TRAIN, factor=2.0), 1.0),
        (RopeNTKByParts(WIDTH, TRAIN), 1.0),
        (YaRN(WIDTH, TRAIN), 1.13862944),
        (YaRN(WIDTH, TRAIN, ramp="turns"), 1.13862944),
        (Llama3(WIDTH, TRAIN, factor=8.0), 1.0),
        (LongRoPE(WIDTH, TRAIN, long_factors=LONG), 1.1055416),
    ],
)
def test_scaling_has_the_attention_factor_of_public_code_at_four_times_the_training_length(
    encoding: RopeScaling, attention_factor: float
) -> None:
    scaled = encoding.scaled(4 * TRAIN)
    assert scaled.frequencies.dtype == torch.float64
    assert scaled.attention_factor == pytest.approx(attention_factor, abs=2e-8)


def test_yarn_of_a_wide_head_has_the_ratios_of_the_released_code() -> None:
    assert ramp_ends(128, BASE, 4_096, 32, 1) == (20, 46)
    assert ramp_ends(WIDTH, BASE, TRAIN, 32, 1) == (0, 4)
    ratio = rope_frequencies(128, BASE) / YaRN(128, 4_096, factor=16.0).scaled(1).frequencies
    expected = [1, 1, 1.03741, 1.76271, 10.14634, 16, 16]
    assert near(ratio[[0, 20, 21, 32, 45, 46, 63]], expected, 1e-5)


# at a factor of 1 they are rope


@every_scaling
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_within_the_training_length_it_is_rope(name: str, layout: Layout, dtype: torch.dtype) -> None:
    rope = RoPE(WIDTH, layout=layout)
    for tokens in (1, 31, 32):
        ours = turned(scaling(name, train_length=32, layout=layout), tokens, dtype)
        assert same(ours, turned(rope, tokens, dtype))
    assert not same(turned(scaling(name, train_length=32), 33), turned(RoPE(WIDTH), 33))


@every_scaling_with_a_factor
def test_factor_of_one_is_rope_at_any_length(name: str) -> None:
    options: dict[str, Any] = {"long_factors": [1.0] * 8} if name == "longrope" else {}
    encoding = scaling(name, train_length=8, factor=1.0, **options)
    assert same(turned(encoding, 40), turned(RoPE(WIDTH), 40))


def test_dynamic_ntk_factor_is_the_published_formula() -> None:
    for f in (0.5, 1.0, 2.0, 8.0):
        for window in (TRAIN // 2, TRAIN, 700, 4 * TRAIN):
            s = max(1.0, f * window / TRAIN - (f - 1))
            ours = dynamic_ntk_frequencies(WIDTH, BASE, TRAIN, window, f)
            assert near(ours, ntk_frequencies(WIDTH, BASE, s), 1e-12)


# attention factors


@pytest.mark.parametrize(
    ("encoding", "factor"),
    [
        (YaRN(WIDTH, 8), 0.1 * math.log(4) + 1),
        (YaRN(WIDTH, 8, attention_factor=1.5), 1.5),
        (LongRoPE(WIDTH, 8, long_factors=LONG), math.sqrt(1 + math.log(4) / math.log(8))),
    ],
)
def test_attention_factor_multiplies_queries_and_keys(encoding: RopeScaling, factor: float) -> None:
    for x, plain in zip(turned(encoding, 32), turned(RoPE(WIDTH), 32), strict=True):
        assert near(x.norm(dim=-1), factor * plain.norm(dim=-1), 1e-12)


def test_queries_of_half_precision_are_rounded_once() -> None:
    encoding = YaRN(WIDTH, 8)
    q, position = torch.randn(1, 2, 32, WIDTH, generator=torch.Generator().manual_seed(0)), torch.arange(32)
    rounded = q.bfloat16()
    single, _ = turned_sides(encoding, rounded.float(), rounded.float(), position, position)
    half, _ = turned_sides(encoding, rounded, rounded, position, position)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, single.bfloat16())


# factors and windows


@every_scaling
def test_factor_that_is_not_given_is_that_of_the_window(name: str) -> None:
    encoding = scaling(name)
    short, trained, double, fourfold = (encoding.scaled(n) for n in (1, TRAIN, 2 * TRAIN, 4 * TRAIN))
    assert torch.equal(short.frequencies, trained.frequencies)
    assert short.attention_factor == trained.attention_factor == 1
    assert not torch.equal(trained.frequencies, double.frequencies)
    different = [not torch.equal(double.frequencies, fourfold.frequencies)]
    different.append(double.attention_factor != fourfold.attention_factor)
    assert any(different)
    assert "prefix_consistent" not in encoding.claims


@every_scaling
def test_window_is_the_number_of_keys_wherever_they_stand(name: str) -> None:
    """A query alone, among all keys, and positions far out, that are those of no longer window."""
    encoding, tokens = scaling(name, train_length=8), 24
    q, k, far = (
        series(torch.sin, 0.7, 1, 2, tokens, WIDTH),
        series(torch.cos, 0.9, 1, 2, tokens, WIDTH),
        1_000,
    )
    position = torch.arange(tokens)
    whole, keys = turned_sides(encoding, q, k, position, position)
    last, same_keys = turned_sides(encoding, q[..., -1:, :], k, position[-1:], position)
    assert torch.equal(last, whole[..., -1:, :]) and torch.equal(same_keys, keys)
    moved_q, moved_k = turned_sides(encoding, q, k, position + far, position + far)
    assert near(moved_q @ moved_k.mT, whole @ keys.mT, 1e-10)


@every_scaling
def test_tensors_are_made_where_the_queries_are(name: str) -> None:
    x, position = torch.zeros(1, 2, 24, WIDTH, device="meta"), torch.arange(24, device="meta")
    encoding = scaling(name, train_length=8).to("meta")
    assert {one.device.type for one in turned_sides(encoding, x, x, position, position)} == {"meta"}


@pytest.mark.parametrize(
    ("encoding", "claims"),
    [
        (RopePI(WIDTH, TRAIN), {"norm_preserving"}),
        (RopePI(WIDTH, TRAIN, factor=2.0), {"norm_preserving", "prefix_consistent"}),
        (RopeDynamicNTK(WIDTH, TRAIN, factor=2.0), {"norm_preserving"}),
        (YaRN(WIDTH, TRAIN), set()),
        (YaRN(WIDTH, TRAIN, factor=2.0), {"prefix_consistent"}),
        (YaRN(WIDTH, TRAIN, factor=1.0), {"norm_preserving", "prefix_consistent"}),
        (YaRN(WIDTH, TRAIN, attention_factor=1.0), {"norm_preserving"}),
        (YaRN(WIDTH, TRAIN, factor=1.0, attention_factor=2.0), {"prefix_consistent"}),
        (LongRoPE(WIDTH, TRAIN, long_factors=LONG), set()),
        (LongRoPE(WIDTH, TRAIN, factor=2.0, long_factors=LONG), set()),
        (LongRoPE(WIDTH, TRAIN, factor=2.0, long_factors=LONG, short_factors=LONG), {"prefix_consistent"}),
        (LongRoPE(WIDTH, TRAIN, factor=1.0, long_factors=LONG), {"norm_preserving"}),
    ],
)
def test_claims_follow_from_the_options(encoding: RopeScaling, claims: set[str]) -> None:
    assert encoding.claims == claims | {"shift_invariant"}
