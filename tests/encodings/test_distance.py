"""Rotary scores at other distances, windows and caches, and options that cannot work.

Against rows of distances from the authors' code, and against the same thing pair by pair.
"""

import math
from collections.abc import Callable

import pytest
import torch
from support.fixed_inputs import JUMPING, ROWS, TOKENS, inputs, output
from support.reference_inputs import B, D, H, K, near
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.distance.leaky_rerope import LeakyReRoPE
from pe_bench.encodings.distance.lm_infinite import LMInfinite
from pe_bench.encodings.distance.rerope import ReRoPE
from pe_bench.encodings.distance.self_extend import SelfExtend
from pe_bench.encodings.distance.streaming import Streaming
from pe_bench.encodings.layers.local_global import Chunks
from pe_bench.encodings.logits.log_steps import LogSteps
from pe_bench.encodings.logits.logn import LogN
from pe_bench.encodings.logits.ssmax import SSMax
from pe_bench.encodings.logits.temperature import Temperature
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.errors import UserError
from pe_bench.model.attention import project, reference_attention

Distance = Callable[[int, int], float]


def rotary_score(q: Tensor, k: Tensor, distance: float, base: float = 10_000.0) -> float:
    """q . R(-distance) k / sqrt(K), the pairs as complex numbers."""
    theta = torch.tensor([base ** (-2 * c / K) for c in range(K // 2)], dtype=torch.float64)
    a, b = (torch.complex(x[: K // 2], x[K // 2 :]) for x in (q, k))
    return float(
        (a * b.conj() * torch.polar(torch.ones_like(theta), distance * theta)).real.sum()
    ) / math.sqrt(K)


def pair_by_pair(distance: Distance, rows: list[list[int]], factor: Callable[[int], float]) -> Tensor:
    """Attention whose scores are rotary at a distance that is a function of two indices."""
    _, q, k, v = inputs(len(rows))
    mixed = torch.zeros_like(v)
    for batch in range(B):
        for head in range(H):
            for i, row in enumerate(rows):
                one_q, one_k = q[batch, head, i], k[batch, head]
                z = [factor(i) * rotary_score(one_q, one_k[j], distance(i, j)) for j in row]
                weights = torch.tensor(z, dtype=torch.float64).softmax(-1)
                mixed[batch, head, i] = weights @ v[batch, head, row]
    return mixed


def distances(encoding: LayerEncoding, query: int) -> list[float]:
    """The distance of each key that a query sees, read off its scores.

    Features of one slow pair: the score is the cosine of the distance times the lowest frequency.
    """
    tokens, lowest = query + 1, 10_000.0 ** (-(K - 2) / K)
    one = torch.zeros(1, H, tokens, K, dtype=torch.float64)
    one[..., K // 2 - 1] = 1
    queries, keys = project(encoding.double(), torch.zeros(1, tokens, D), one, one, torch.arange(tokens))
    cosines = encoding.scores(queries, keys, 1.0)[0, 0, query][encoding.visible(queries, keys)[query]]
    return [round(float(cosine.clamp(-1, 1).arccos()) / lowest, 3) for cosine in cosines]


# distances


@pytest.mark.parametrize("make", [ReRoPE, LeakyReRoPE, lambda *sizes: SelfExtend(*sizes, group_size=2)])
def test_a_text_within_the_training_length_has_all_its_distances(make: Callable[..., LayerEncoding]) -> None:
    within, beyond = make(K, TOKENS, 2), make(K, TOKENS - 1, 2)
    assert near(output(within), output(RoPE(K)), 1e-12)
    assert not near(output(beyond), output(RoPE(K)), 1e-3)


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        (ReRoPE(K, 3, window=4), [4, 4, 4, 4, 4, 4, 3, 2, 1, 0]),
        (
            LeakyReRoPE(K, 3, window=4, factor=8.0),
            [4.625, 4.5, 4.375, 4.25, 4.125, 4, 3, 2, 1, 0],
        ),
        (SelfExtend(K, 3, window=4, group_size=2), [6, 6, 5, 5, 4, 4, 3, 2, 1, 0]),
        (LMInfinite(K, window=4, global_tokens=2), [4, 4, 3, 2, 1, 0]),
        (Streaming(K, cache=6, sinks=2), [5, 4, 3, 2, 1, 0]),
    ],
)
def test_row_of_distances_is_that_of_the_authors_code(encoding: LayerEncoding, expected: list[float]) -> None:
    assert distances(encoding, 9) == expected


@pytest.mark.parametrize(
    ("encoding", "distance", "seen"),
    [
        (ReRoPE(K, 3, 5), lambda i, j: min(i - j, 5), lambda i, j: True),
        (
            LeakyReRoPE(K, 3, 5, 3.0),
            lambda i, j: i - j if i - j < 5 else 5 + (i - j - 5) / 3,
            lambda i, j: True,
        ),
        (
            SelfExtend(K, 3, 6, 3),
            lambda i, j: i - j if i - j < 6 else i // 3 - j // 3 + 4,
            lambda i, j: True,
        ),
        (LMInfinite(K, 5, 3), lambda i, j: min(i - j, 5), lambda i, j: i - j < 5 or j < 3),
        (Streaming(K, 7, 2), lambda i, j: min(i, 6) - j if j < 2 else i - j, lambda i, j: i - j < 5 or j < 2),
    ],
)
def test_effective_distance_is_itself_pair_by_pair(
    encoding: LayerEncoding, distance: Distance, seen: Callable[[int, int], bool]
) -> None:
    rows = [[j for j in range(i + 1) if seen(i, j)] for i in range(TOKENS)]
    sharpens = isinstance(encoding, (ReRoPE, LeakyReRoPE))
    expected = pair_by_pair(
        distance, rows, lambda i: max(1, math.log(i + 1) / math.log(3)) if sharpens else 1
    )
    # The factors of log-n are float32.
    tolerance = 1e-6 if sharpens else 1e-12
    assert near(output(encoding), expected, tolerance)
    assert near(output(encoding, block=3), expected, tolerance)


@pytest.mark.parametrize(
    "make",
    [
        lambda size: ReRoPE(K, 3, size, log_n=False),
        lambda size: LeakyReRoPE(K, 3, size, log_n=False),
        lambda size: SelfExtend(K, 3, size, size),
        lambda size: LMInfinite(K, size, 0),
        lambda size: Streaming(K, size, 2),
    ],
)
def test_window_that_holds_everything_is_rope_and_a_smaller_one_is_not(
    make: Callable[[int], LayerEncoding],
) -> None:
    assert near(output(make(TOKENS)), output(RoPE(K)), 1e-12)
    assert not near(output(make(TOKENS - 4)), output(RoPE(K)), 1e-3)


@pytest.mark.parametrize(
    ("encoding", "moves"),
    [
        (ReRoPE(K, 3, 5), True),
        (ReRoPE(K, 3, 5, log_n=False), True),
        (LeakyReRoPE(K, 3, 5), True),
        (LMInfinite(K, 5, 3), True),
        (Streaming(K, 7, 2), True),
        (SelfExtend(K, 3, 6, 3), False),
    ],
)
@pytest.mark.parametrize("position", [ROWS, JUMPING])
def test_scores_do_not_change_with_all_positions_but_for_groups(
    encoding: LayerEncoding, moves: bool, position: Tensor
) -> None:
    assert ("shift_invariant" in encoding.claims) == moves
    assert near(output(encoding, position + 37), output(encoding, position), 1e-11) == moves
    if not moves:  # by whole groups
        assert near(output(encoding, position + 36), output(encoding, position), 1e-11)


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


def test_streaming_is_rope_on_the_text_of_its_cache() -> None:
    """The last query's output, as if what was dropped had never been."""
    x, q, k, v = inputs()
    kept = [0, 1, 2, *range(TOKENS - 5, TOKENS)]
    expected = reference_attention(
        RoPE(K), x[:, kept], q[:, :, kept], k[:, :, kept], v[:, :, kept], torch.arange(8)
    )
    assert near(output(Streaming(K, cache=8, sinks=3))[:, :, -1], expected[:, :, -1], 1e-12)


# mistakes


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ReRoPE(7, 8, 4), "d_head=7 is odd"),
        (lambda: ReRoPE(K, 8, 0), "window .* not 0"),
        (lambda: ReRoPE(K, 1, 4), "train_length of at least 2 tokens, not 1"),
        (lambda: ReRoPE(K, 8, 4, base=0.0), "base must exceed 1, .* not 0"),
        (lambda: LeakyReRoPE(K, 8, 4, 0.5), "factor must be at least 1, .* not 0.5"),
        (
            lambda: SelfExtend(K, TOKENS, 10, 4),
            "group_size=4 must divide encoding.window=10: try encoding.window=8 ",
        ),
        (
            lambda: SelfExtend(K, TOKENS, 3, 4),
            "group_size=4 must divide encoding.window=3: try encoding.window=4 ",
        ),
        (lambda: SelfExtend(K, TOKENS, 4, 0), "group_size must be positive, not 0"),
        (lambda: LMInfinite(K, 4, -1), "global_tokens must not be negative, as -1"),
        (lambda: Streaming(K, 4, 4), "sinks=4 must leave room in encoding.cache=4"),
        (lambda: Streaming(K, 4, -1), "sinks=-1"),
        (lambda: Chunks(0), "chunk must hold at least 1 token, not 0"),
        (lambda: SlidingWindow(0), "window must hold at least 1 token, not 0"),
        (lambda: LogSteps(0), "step must be at least 1 token, not 0"),
        (lambda: LogSteps(8, -1.0), "beta must not be negative, as -1"),
        (lambda: LogN(8, 1.0), "scale_base must be more than 1, not 1.0"),
        (lambda: Temperature(4, [1.0, 2.0]), "n_heads=4 heads: 2 were given"),
        (lambda: Temperature(4, 0.0), "factor must be positive, not 0.0"),
        (lambda: SSMax(4, 0), "window must hold at least 1 key, not 0"),
    ],
)
def test_option_that_cannot_work_is_told_to_the_user(make: Callable[[], object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        make()
