"""Scalings of RoPE against the numbers of public code, the cases of their formulas, and plain RoPE."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.encodings import turned_sides
from support.reference_inputs import near, series
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.rotary.p_rope import PRoPE
from pe_bench.encodings.rotary.partial_rope import PartialRoPE
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.encodings.scalings.llama3 import Llama3
from pe_bench.encodings.scalings.longrope import LongRoPE
from pe_bench.encodings.scalings.rope_dynamic_ntk import RopeDynamicNTK
from pe_bench.encodings.scalings.rope_ntk import RopeNTK
from pe_bench.encodings.scalings.rope_ntk_by_parts import RopeNTKByParts
from pe_bench.encodings.scalings.rope_pi import RopePI
from pe_bench.encodings.scalings.rope_scaling import RopeScaling
from pe_bench.encodings.scalings.yarn import YaRN

WIDTH, TRAIN = 16, 512
LONG = [1.0, 1.1, 1.5, 2.0, 3.0, 4.0, 4.0, 4.0]
SCALINGS: dict[str, Callable[..., RopeScaling]] = {
    "rope_pi": RopePI,
    "rope_ntk": RopeNTK,
    "rope_dynamic_ntk": RopeDynamicNTK,
    "rope_ntk_by_parts": RopeNTKByParts,
    "yarn": YaRN,
    "llama3": Llama3,
    "longrope": LongRoPE,
}
every_scaling = pytest.mark.parametrize("name", SCALINGS)


def scaling(name: str, train_length: int, **options: Any) -> RopeScaling:
    """A scaling by its name, longrope with factors other than 1."""
    given = {"long_factors": LONG} if name == "longrope" else {}
    return SCALINGS[name](WIDTH, train_length, **{**given, **options})


def turned(encoding: LayerEncoding, tokens: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Queries and keys [1, 2, tokens, WIDTH] at the positions 0, 1, 2, .."""
    q, k = (series(wave, 0.7, 1, 2, tokens, WIDTH).to(dtype) for wave in (torch.sin, torch.cos))
    position = torch.arange(tokens)
    return turned_sides(encoding, q, k, position, position)


@pytest.mark.parametrize(
    ("encoding", "claims"),
    [
        (RopeDynamicNTK(WIDTH, TRAIN, factor=2.0), {"norm_preserving"}),
        (YaRN(WIDTH, TRAIN), set()),
        (YaRN(WIDTH, TRAIN, factor=1.0), {"norm_preserving", "prefix_consistent"}),
        (YaRN(WIDTH, TRAIN, factor=1.0, attention_factor=2.0), {"prefix_consistent"}),
        (LongRoPE(WIDTH, TRAIN, factor=2.0, long_factors=LONG), set()),
        (LongRoPE(WIDTH, TRAIN, factor=2.0, long_factors=LONG, short_factors=LONG), {"prefix_consistent"}),
    ],
)
def test_claims_follow_from_the_options(encoding: RopeScaling, claims: set[str]) -> None:
    assert encoding.claims == claims | {"shift_invariant"}


@every_scaling
def test_within_the_training_length_it_is_rope(name: str) -> None:
    for layout in ("half", "interleaved"):
        rope = RoPE(WIDTH, layout=layout)
        for tokens, dtype in ((1, torch.float64), (31, torch.float32), (32, torch.bfloat16)):
            ours = turned(scaling(name, 32, layout=layout), tokens, dtype)
            assert all(map(torch.equal, ours, turned(rope, tokens, dtype)))
    assert not torch.equal(turned(scaling(name, 32), 33)[0], turned(RoPE(WIDTH), 33)[0])


@every_scaling
def test_a_fraction_is_that_of_partial_rope_or_of_p_rope(name: str) -> None:
    for fraction_of, trained in (("features", PartialRoPE(WIDTH, 0.5)), ("frequencies", PRoPE(WIDTH, 0.5))):
        options: dict[str, Any] = {"fraction": 0.5, "fraction_of": fraction_of}
        if name == "longrope" and fraction_of == "features":
            options["long_factors"] = LONG[:4]
        q, k = turned(scaling(name, 32, **options), 32)
        expected_q, expected_k = turned(trained, 32)
        assert near(q, expected_q, 1e-12) and near(k, expected_k, 1e-12)


def released_yarn(width: int, base: float, train: int, fast: float, slow: float) -> list[float]:
    """Pair by pair, for a factor of 4: as much is kept as the ramp in the index says."""
    low, high = (
        width * math.log(train / (2 * math.pi * turns)) / (2 * math.log(base)) for turns in (fast, slow)
    )
    low, high = max(math.floor(low), 0), min(math.ceil(high), width - 1)
    ramps = [min(max((c - low) / (high - low), 0), 1) for c in range(width // 2)]
    return [base ** (-2 * c / width) * (ramp / 4 + 1 - ramp) for c, ramp in enumerate(ramps)]


@pytest.mark.parametrize(
    ("width", "base", "train"), [(16, 1e4, 512), (128, 5e5, 8_192), (8, 1e4, 32), (16, 10.0, 512)]
)
@pytest.mark.parametrize(("fast", "slow"), [(32.0, 1.0), (8.0, 0.25)])
def test_ramp_in_the_index_is_the_released_one(width, base, train, fast, slow) -> None:
    ours = RopeNTKByParts(width, train, 4.0, "index", fast, slow, base=base).scaled(1).frequencies
    assert near(ours, released_yarn(width, base, train, fast, slow), 1e-14)
