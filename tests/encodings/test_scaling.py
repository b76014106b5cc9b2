"""Scalings of RoPE against the numbers of public code, the cases of their formulas, and plain RoPE."""

import math
from typing import Any

import pytest
import torch
from support.encodings import turned_sides
from support.reference_inputs import near, series
from support.scalings import BASE, LONG, TRAIN, WIDTH, every_scaling, same, scaling, turned
from torch import Tensor

from pe_bench.encodings.rotary.p_rope import PRoPE
from pe_bench.encodings.rotary.partial_rope import PartialRoPE
from pe_bench.encodings.rotary.rope import RoPE, rope_frequencies
from pe_bench.encodings.scalings.llama3 import Llama3
from pe_bench.encodings.scalings.longrope import LongRoPE
from pe_bench.encodings.scalings.rope_dynamic_ntk import RopeDynamicNTK
from pe_bench.encodings.scalings.rope_ntk_by_parts import Ramp, RopeNTKByParts
from pe_bench.encodings.scalings.rope_pi import RopePI
from pe_bench.encodings.scalings.rope_scaling import RopeScaling, ntk_frequencies
from pe_bench.encodings.scalings.yarn import YaRN


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


SHORT = [1.0, 1.0, 1.2, 1.2, 1.2, 1.3, 1.3, 1.3]


def test_longrope_takes_the_long_factors_beyond_the_training_length_and_the_short_ones_up_to_it() -> None:
    encoding, plain = LongRoPE(WIDTH, TRAIN, long_factors=LONG), rope_frequencies(WIDTH, BASE)
    assert torch.equal(encoding.scaled(TRAIN).frequencies, plain)
    assert near(
        encoding.scaled(TRAIN + 1).frequencies, plain / torch.tensor(LONG, dtype=torch.float64), 1e-15
    )
    both = LongRoPE(WIDTH, TRAIN, long_factors=LONG, short_factors=SHORT)
    assert near(both.scaled(TRAIN).frequencies, plain / torch.tensor(SHORT, dtype=torch.float64), 1e-15)
    assert torch.equal(both.scaled(TRAIN + 1).frequencies, encoding.scaled(TRAIN + 1).frequencies)


@every_scaling
def test_within_the_training_length_it_is_rope(name: str) -> None:
    for layout in ("half", "interleaved"):
        rope = RoPE(WIDTH, layout=layout)
        for tokens, dtype in ((1, torch.float64), (31, torch.float32), (32, torch.bfloat16)):
            ours = turned(scaling(name, train_length=32, layout=layout), tokens, dtype)
            assert same(ours, turned(rope, tokens, dtype))
    assert not same(turned(scaling(name, train_length=32), 33), turned(RoPE(WIDTH), 33))


@every_scaling
def test_a_fraction_is_that_of_partial_rope_or_of_p_rope(name: str) -> None:
    for fraction_of, trained in (("features", PartialRoPE(WIDTH, 0.5)), ("frequencies", PRoPE(WIDTH, 0.5))):
        options: dict[str, Any] = {"fraction": 0.5, "fraction_of": fraction_of, "train_length": 32}
        if name == "longrope" and fraction_of == "features":
            options["long_factors"] = LONG[:4]
        q, k = turned(scaling(name, **options), 32)
        expected_q, expected_k = turned(trained, 32)
        assert near(q, expected_q, 1e-12) and near(k, expected_k, 1e-12)


def test_dynamic_ntk_factor_is_the_published_formula() -> None:
    for f in (0.5, 1.0, 2.0, 8.0):
        for window in (TRAIN // 2, TRAIN, 700, 4 * TRAIN):
            ours = RopeDynamicNTK(WIDTH, TRAIN, f).scaled(window).frequencies
            s = max(1.0, f * window / TRAIN - (f - 1))
            assert near(ours, ntk_frequencies(WIDTH, BASE, s), 1e-12)


def by_parts(
    width: int, base: float, train: int, ramp: Ramp = "index", fast: float = 32.0, slow: float = 1.0
) -> Tensor:
    return RopeNTKByParts(width, train, 4.0, ramp, fast, slow, base=base).scaled(1).frequencies


def released_yarn(
    width: int, base: float, train: int, s: float, fast: float = 32, slow: float = 1
) -> list[float]:
    """Pair by pair: interpolated, and as much of it kept as the ramp in the index says."""
    low, high = (
        width * math.log(train / (2 * math.pi * turns)) / (2 * math.log(base)) for turns in (fast, slow)
    )
    low, high = max(math.floor(low), 0), min(math.ceil(high), width - 1)
    frequencies = []
    for c in range(width // 2):
        theta, ramp = base ** (-2 * c / width), min(max((c - low) / (high - low), 0), 1)
        frequencies.append(ramp * theta / s + (1 - ramp) * theta)
    return frequencies


@pytest.mark.parametrize(
    ("width", "base", "train"),
    [(16, 1e4, 512), (64, 1e4, 2_048), (128, 5e5, 8_192), (32, 1e4, 128), (8, 1e4, 32), (16, 10.0, 512)],
)
def test_ramp_in_the_index_is_the_released_one(width: int, base: float, train: int) -> None:
    assert near(by_parts(width, base, train), released_yarn(width, base, train, 4.0), 1e-14)
    other = by_parts(width, base, train, fast=8.0, slow=0.25)
    assert near(other, released_yarn(width, base, train, 4.0, 8, 0.25), 1e-14)


def test_ramp_in_the_turns_is_the_papers_and_llama_3_has_it_between_its_wavelengths() -> None:
    for train in (128, 512, 4_096):
        for theta, ours in zip(rope_frequencies(64, BASE), by_parts(64, BASE, train, "turns"), strict=True):
            gamma = min(max((train * theta.item() / (2 * math.pi) - 1) / 31, 0), 1)
            expected = (1 - gamma) * theta.item() / 4 + gamma * theta.item()
            assert ours.item() == pytest.approx(expected, rel=1e-12)
    width, base, train, s = 128, 500_000.0, 8_192, 8.0
    for low, high in ((1.0, 4.0), (0.5, 9.0)):
        llama3 = Llama3(width, train, s, low, high, base=base).scaled(1).frequencies
        for theta, ours in zip(rope_frequencies(width, base).tolist(), llama3.tolist(), strict=True):
            wavelength = 2 * math.pi / theta
            smooth = min(max((train / wavelength - low) / (high - low), 0), 1)
            assert ours == pytest.approx((1 - smooth) * theta / s + smooth * theta, rel=1e-12)


def test_ramp_is_a_step_where_its_ends_meet_or_have_changed_places() -> None:
    plain = rope_frequencies(WIDTH, BASE)
    too_short = by_parts(WIDTH, BASE, 4)  # the fastest pair makes no full turn
    assert torch.equal(too_short, torch.cat([plain[:1], plain[1:] / 4]))
    never_slow = by_parts(WIDTH, 10.0, 65_536)  # the slowest makes more than 32
    assert torch.equal(never_slow, rope_frequencies(WIDTH, 10.0))
