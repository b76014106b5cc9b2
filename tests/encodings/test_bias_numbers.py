"""alibi, t5, kerple and shaw, against numbers from their papers or the authors' code."""

import math
from fractions import Fraction

import pytest
import torch
from support.reference_encodings import shaw_of_the_reference
from support.reference_inputs import (
    K4,
    Q4,
    V4,
    X4,
    H,
    K,
    T,
    fill,
    near,
    output,
    row_of_scores,
    series,
)

from pe_bench.encodings.bias.alibi import alibi_slopes
from pe_bench.encodings.bias.t5 import T5, t5_buckets
from pe_bench.encodings.relative.shaw import Shaw
from pe_bench.model.attention import project, reference_attention

# alibi


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (1, [2**-8]),
        (2, [0.0625, 0.00390625]),
        (6, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]),
        (8, [2.0**-power for power in range(1, 9)]),
        (12, [2.0**-power for power in range(1, 9)] + [0.70710678, 0.35355339, 0.1767767, 0.08838835]),
    ],
)
def test_alibi_slopes_are_the_papers(heads: int, expected: list[float]) -> None:
    assert near(torch.tensor(alibi_slopes(heads)), expected, 1e-7)


# t5


def test_t5_buckets_begin_at_the_published_distances() -> None:
    bucket = t5_buckets(torch.arange(200), 32, 128).tolist()
    first = [bucket.index(number) for number in range(32)]
    assert first == [*range(17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    assert bucket == sorted(bucket)
    assert bucket[-1] == 31


@pytest.mark.parametrize(("buckets", "largest"), [(32, 128), (64, 512), (32, 2048), (8, 64), (20, 1000)])
def test_t5_buckets_are_exact_at_every_edge(buckets: int, largest: int) -> None:
    exact = buckets // 2
    for distance, bucket in enumerate(t5_buckets(torch.arange(2 * largest), buckets, largest).tolist()):
        # floor(ln(r/e) / ln(M/e) * (n - e)) >= s exactly when (r/e)^(n - e) >= (M/e)^s.
        power = Fraction(distance, exact) ** (buckets - exact)
        steps = [s for s in range(buckets - exact) if power >= Fraction(largest, exact) ** s]
        assert bucket == (distance if distance < exact else exact + max(steps)), distance


def test_t5_bias_reads_the_row_of_the_head_and_is_not_scaled() -> None:
    encoding = T5(d_model=8, n_heads=2)
    fill(encoding.table, torch.arange(64.0).view(2, 32))
    assert encoding.distance_bias(torch.tensor([0, 18, 500])).tolist() == [[0, 16, 31], [32, 48, 63]]
    queries, keys = project(encoding, X4, Q4, K4, torch.arange(T))
    bias = encoding.bias(queries, keys)
    assert bias is not None
    assert bias[1, 3].tolist() == [35, 34, 33, 32]


# kerple


def test_shaw_gathered_is_shaw_pair_by_pair() -> None:
    encoding, tokens = Shaw(d_head=K, max_distance=3).double(), 9
    fill(encoding.keys, series(torch.sin, 0.9, 4, K))
    fill(encoding.values, series(torch.cos, 0.8, 4, K))
    q, k, v = (series(torch.sin, step, 2, H, tokens, K) for step in (0.3, 0.5, 0.7))
    result = reference_attention(encoding, k, q, k, v, torch.arange(tokens), block=2)
    for i in range(tokens):
        rows = [max(j - i, -3) + 3 for j in range(i + 1)]
        scores = (q[:, :, i : i + 1] * (k[:, :, : i + 1] + encoding.keys[rows])).sum(-1) / math.sqrt(K)
        mixed = (scores.softmax(-1).unsqueeze(-1) * (v[:, :, : i + 1] + encoding.values[rows])).sum(-2)
        assert near(result[:, :, i], mixed.detach(), 1e-12)


def test_shaw_row_0_serves_distant_keys_only() -> None:
    encoding, changed = shaw_of_the_reference(), shaw_of_the_reference()
    fill(changed.keys[0], torch.full((K,), 5.0))
    difference = row_of_scores(changed) - row_of_scores(encoding)
    assert (difference[:2].abs() > 0.1).all()
    assert (difference[2:] == 0).all()


def test_shaw_values_change_the_output_and_not_the_weights() -> None:
    encoding, changed = shaw_of_the_reference(), shaw_of_the_reference()
    fill(changed.values, torch.zeros(3, K))
    assert torch.equal(row_of_scores(changed), row_of_scores(encoding))
    assert not near(output(changed), output(encoding).detach(), 0.1)


def test_shaw_reads_positions_of_each_sequence() -> None:
    encoding = shaw_of_the_reference()
    x, q, k, v = (tensor.expand(2, *tensor.shape[1:]) for tensor in (X4, Q4, K4, V4))
    ids = torch.tensor([[0, 1, 2, 3], [0, 2, 4, 6]])
    both = reference_attention(encoding, x, q, k, v, ids)
    assert near(both[0], output(encoding)[0].detach(), 1e-12)
    assert near(both[1], output(encoding, ids[1])[0].detach(), 1e-12)
    assert not near(both[1], both[0].detach(), 1e-3)
