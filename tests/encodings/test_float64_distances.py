"""Effective distances in float64 are exact to its rounding, on every path, at odd lengths and widths."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pe_bench.encodings.distance.dca import DualChunk
from pe_bench.encodings.distance.effective_distance import EffectiveDistance
from pe_bench.encodings.distance.leaky_rerope import LeakyReRoPE
from pe_bench.encodings.distance.lm_infinite import LMInfinite
from pe_bench.encodings.distance.rerope import ReRoPE
from pe_bench.encodings.distance.self_extend import SelfExtend
from pe_bench.encodings.distance.streaming import Streaming
from pe_bench.encodings.distance.string import String
from pe_bench.model.attention import attention, reference_attention

B, H, TRAINED, WINDOW = 2, 3, 16, 8

Distance = Callable[[Tensor, Tensor], Tensor]

# Each encoding with its distances from query indices [T, 1] and key indices [T], written a second time.
ENCODINGS: dict[str, tuple[Callable[[int], EffectiveDistance], Distance]] = {
    "rerope": (lambda width: ReRoPE(width, TRAINED, WINDOW), lambda i, j: (i - j).clamp(max=WINDOW)),
    "leaky_rerope": (
        lambda width: LeakyReRoPE(width, TRAINED, WINDOW, factor=3.0),
        lambda i, j: torch.where(i - j < WINDOW, i - j, WINDOW + (i - j - WINDOW) / 3),
    ),
    "self_extend": (
        lambda width: SelfExtend(width, TRAINED, WINDOW, group_size=4),
        lambda i, j: torch.where(i - j < WINDOW, i - j, i // 4 - j // 4 + WINDOW - WINDOW // 4),
    ),
    "string": (
        lambda width: String(width, TRAINED, shift_from=WINDOW, local_window=3, attention_factor=1.0),
        lambda i, j: torch.where(i - j < WINDOW, i - j, i - j - WINDOW + 3),
    ),
    "dca": (  # chunks of 7 tokens
        lambda width: DualChunk(width, TRAINED, chunk_size=10, local_window=3),
        lambda i, j: (
            torch.where(
                i // 7 == j // 7, i, torch.where(i // 7 == j // 7 + 1, (i % 7 + 7).clamp(max=10), 10 + 0 * i)
            )
            - torch.where(i // 7 == j // 7, j, j % 7)
        ),
    ),
    "lm_infinite": (lambda width: LMInfinite(width, WINDOW, 3), lambda i, j: (i - j).clamp(max=WINDOW)),
    "streaming": (
        lambda width: Streaming(width, WINDOW + 3, 3),
        lambda i, j: torch.where((i - j < WINDOW) | (i < WINDOW + 3), i - j, WINDOW + 2 - j),
    ),
}


def straight_from_the_formula(
    encoding: EffectiveDistance, distance: Distance, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """Return the output with scores Re sum_c q_c conj(k_c) e^(i r theta_c), the pairs as complex numbers."""
    index, width = torch.arange(q.shape[-2], dtype=torch.float64), q.shape[-1]
    i, j = index.unsqueeze(-1), index
    theta = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    of_q, of_k = (torch.complex(*x.chunk(2, -1)) for x in (q, k))
    turns = torch.polar(torch.ones(1, dtype=torch.float64), distance(i, j).unsqueeze(-1) * theta)
    scores = torch.einsum("bhic,bhjc,ijc->bhij", of_q, of_k.conj(), turns).real / math.sqrt(width)
    if isinstance(encoding, ReRoPE):
        scores = scores * ((i + 1).log() / math.log(TRAINED)).clamp(min=1)
    is_visible = j <= i
    if isinstance(encoding, LMInfinite | Streaming):
        is_visible = is_visible & ((i - j < WINDOW) | (j < 3))
    return scores.masked_fill(~is_visible, -math.inf).softmax(-1) @ v


@torch.no_grad()
@pytest.mark.parametrize(("tokens", "width"), [(19, 2), (301, 14)])
@pytest.mark.parametrize("name", ENCODINGS)
def test_all_paths_are_exact_to_the_rounding_of_float64(name: str, tokens: int, width: int) -> None:
    make, distance = ENCODINGS[name]
    encoding, generator = make(width), torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, B, H, tokens, width, generator=generator, dtype=torch.float64)
    x, position = torch.zeros(B, tokens, H * width, dtype=torch.float64), torch.arange(tokens)
    expected = straight_from_the_formula(encoding, distance, q, k, v)
    inputs = (encoding, x, q, k, v, position)
    outputs = [attention(*inputs), *(reference_attention(*inputs, block=block) for block in (1, 7, None))]
    assert all(torch.allclose(output, expected, rtol=0, atol=1e-13) for output in outputs)
