"""Rotary scores at other distances, what is read from indices or positions, and factors of logits."""

import math

import torch
from support.fixed_inputs import JUMPING, ROWS, inputs, output
from support.reference_inputs import H, K, near
from torch import Tensor

from pe_bench.encodings.compose import stack
from pe_bench.encodings.distance.lm_infinite import LMInfinite
from pe_bench.encodings.distance.rerope import ReRoPE
from pe_bench.encodings.distance.self_extend import SelfExtend
from pe_bench.encodings.distance.streaming import Streaming
from pe_bench.encodings.logits.temperature import Temperature
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.model.attention import reference_attention
from pe_bench.model.attention.reference import project


def rotary_score(q: Tensor, k: Tensor, distance: float, base: float = 10_000.0) -> float:
    """q . R(-distance) k / sqrt(K), the pairs as complex numbers."""
    theta = torch.tensor([base ** (-2 * c / K) for c in range(K // 2)], dtype=torch.float64)
    a, b = (torch.complex(x[: K // 2], x[K // 2 :]) for x in (q, k))
    return float(
        (a * b.conj() * torch.polar(torch.ones_like(theta), distance * theta)).real.sum()
    ) / math.sqrt(K)


def test_window_of_distances_is_one_of_positions_where_ids_jump() -> None:
    """From the last token, whose id is 8, the fourth is 3 tokens away, and 5 positions."""
    ids = torch.tensor([0, 1, 2, 3, 6, 7, 8])
    x, q, k, _ = inputs(7)
    for encoding, far in (
        (ReRoPE(K, 3, 4), 4.0),
        (LMInfinite(K, 4, 7), 4.0),
        (SelfExtend(K, 3, 4, 2), None),
    ):
        queries, keys = project(encoding, x, q, k, ids)
        row = encoding.scores(queries, keys, 1 / math.sqrt(K))[0, 0, 6]
        for j, p in enumerate(ids.tolist()):
            grouped = 8 // 2 - p // 2 + 2
            distance = 8 - p if 8 - p < 4 else (grouped if far is None else far)
            assert abs(float(row[j]) - rotary_score(q[0, 0, 6], k[0, 0, j], distance)) < 1e-12


def test_what_is_seen_is_a_matter_of_indices() -> None:
    x, q, k, _ = inputs()
    for encoding in (LMInfinite(K, 4, 2), Streaming(K, 6, 2)):
        seen = [
            encoding.visible(*project(encoding, x, q, k, position))
            for position in (ROWS, JUMPING, JUMPING + 9)
        ]
        assert torch.equal(seen[0], seen[1])
        assert torch.equal(seen[0], seen[2])


def test_temperature_of_one_is_the_inner_encoding_and_another_multiplies_logits() -> None:
    for inner in (NoPE(), RoPE(K)):
        assert near(output(stack([inner, Temperature(H, 1.0)])), output(inner), 1e-12)
    x, q, k, v = inputs()
    hotter = reference_attention(NoPE(), x, 1.2 * q, k, v, ROWS)
    assert near(output(Temperature(H)), hotter, 1e-12)
    assert not near(output(Temperature(H)), output(NoPE()), 1e-3)
