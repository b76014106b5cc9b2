"""Ramps of scaled rotary encodings: which pairs are kept, and which are interpolated."""

import math

import pytest
import torch
from support.reference_inputs import near
from support.scalings import BASE, TRAIN, WIDTH

from pe_bench.encodings.rotary.rope import rope_frequencies
from pe_bench.encodings.scalings.llama3 import llama3_frequencies
from pe_bench.encodings.scalings.rope_scaling import (
    by_parts_frequencies,
)

# ramps


def released_yarn(
    width: int, base: float, train: int, s: float, fast: float = 32, slow: float = 1
) -> list[float]:
    """Pair by pair: interpolated, and as much of it kept as the ramp in the index says."""
    low, high = (
        width * math.log(train / (2 * math.pi * turns)) / (2 * math.log(base)) for turns in (fast, slow)
    )
    low, high = max(math.floor(low), 0), min(math.ceil(high), width - 1)
    found = []
    for c in range(width // 2):
        theta, ramp = base ** (-2 * c / width), min(max((c - low) / (high - low), 0), 1)
        found.append(ramp * theta / s + (1 - ramp) * theta)
    return found


@pytest.mark.parametrize(
    ("width", "base", "train"),
    [(16, 1e4, 512), (64, 1e4, 2_048), (128, 5e5, 8_192), (32, 1e4, 128), (8, 1e4, 32), (16, 10.0, 512)],
)
def test_ramp_in_the_index_is_the_released_one(width: int, base: float, train: int) -> None:
    ours = by_parts_frequencies(width, base, train, 4.0)
    assert near(ours, released_yarn(width, base, train, 4.0), 1e-14)
    other = by_parts_frequencies(width, base, train, 4.0, beta_fast=8.0, beta_slow=0.25)
    assert near(other, released_yarn(width, base, train, 4.0, 8, 0.25), 1e-14)


@pytest.mark.parametrize("train", [128, 512, 4_096])
def test_ramp_in_the_turns_is_the_papers(train: int) -> None:
    for theta, ours in zip(
        rope_frequencies(64, BASE), by_parts_frequencies(64, BASE, train, 4.0, "turns"), strict=True
    ):
        gamma = min(max((train * theta.item() / (2 * math.pi) - 1) / 31, 0), 1)
        assert ours.item() == pytest.approx((1 - gamma) * theta.item() / 4 + gamma * theta.item(), rel=1e-12)


def test_the_two_ramps_differ_by_half() -> None:
    by_index, by_turns = (by_parts_frequencies(WIDTH, BASE, TRAIN, 4.0, ramp) for ramp in ("index", "turns"))  # type: ignore[arg-type]
    assert (by_index / by_turns).max().item() == pytest.approx(1.5183, abs=1e-3)


def test_ramp_is_a_step_where_its_ends_meet_or_have_changed_places() -> None:
    plain = rope_frequencies(WIDTH, BASE)
    too_short = by_parts_frequencies(WIDTH, BASE, 4, 4.0)  # the fastest pair makes no full turn
    assert torch.equal(too_short, torch.cat([plain[:1], plain[1:] / 4]))
    never_slow = by_parts_frequencies(WIDTH, 10.0, 65_536, 4.0)  # the slowest makes more than 32
    assert torch.equal(never_slow, rope_frequencies(WIDTH, 10.0))


def test_llama3_keeps_short_wavelengths_and_stretches_long_ones() -> None:
    width, base, train, s = 128, 500_000.0, 8_192, 8.0
    for low, high in ((1.0, 4.0), (0.5, 9.0)):
        ours = llama3_frequencies(width, base, train, s, low, high)
        cases = set()
        for theta, found in zip(rope_frequencies(width, base).tolist(), ours.tolist(), strict=True):
            wavelength = 2 * math.pi / theta
            if wavelength < train / high:
                case, expected = "kept", theta
            elif wavelength > train / low:
                case, expected = "stretched", theta / s
            else:
                smooth = (train / wavelength - low) / (high - low)
                case, expected = "between", (1 - smooth) * theta / s + smooth * theta
            cases.add(case)
            assert found == pytest.approx(expected, rel=1e-12)
        assert len(cases) == 3
