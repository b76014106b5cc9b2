"""deberta against the released code, and its buckets."""

import math
from fractions import Fraction

import pytest
import torch
from support.reference_inputs import K4, Q4, D, K, T, fill, near, series
from support.relative_encodings import (
    CONTENT,
    LAYERS,
    deberta,
    final_logits,
)
from torch import Tensor

from pe_bench.encodings.relative.deberta import DeBERTa, log_buckets


def official_deberta(encoding: DeBERTa, number: int, papers_direction: bool) -> Tensor:
    """Pair by pair with the whole table of 2 max_distance rows, whose first half a decoder does not read."""
    k = encoding.max_distance
    earlier = series(torch.cos, 0.41, k, D)
    table = torch.cat([earlier, encoding.positions])
    keys, queries = (table @ encoding.projections[term][number] for term in ("c2p", "p2c"))
    scores = torch.zeros_like(CONTENT)
    for i in range(T):
        for j in range(i + 1):
            forth, back = (min(max(step + k, 0), 2 * k - 1) for step in (i - j, j - i))
            to_position = (Q4[:, :, i] * keys[:, forth]).sum(-1)
            to_content = (K4[:, :, j] * queries[:, back if papers_direction else forth]).sum(-1)
            scores[:, :, i, j] = CONTENT[:, :, i, j] + to_position + to_content
    return scores.detach() / math.sqrt(3 * K)


@pytest.mark.parametrize("number", range(LAYERS))
def test_deberta_is_the_released_code_and_not_the_papers_direction(number: int) -> None:
    encoding = deberta()
    found = final_logits(encoding.layer(number))
    assert near(found, official_deberta(encoding, number, papers_direction=False), 1e-12)
    paper = official_deberta(encoding, number, papers_direction=True)
    # The diagonal is the one row that both directions have in common.
    assert near(found.diagonal(dim1=-2, dim2=-1), paper.diagonal(dim1=-2, dim2=-1), 1e-12)
    assert ((found - paper).abs() > 1e-4)[..., torch.ones(T, T).tril(-1).bool()].all()


def test_deberta_distances_from_the_last_row_on_share_it() -> None:
    short, long = deberta(max_distance=2), deberta(max_distance=5)
    before = final_logits(short.layer(0))
    fill(short.positions[1], torch.zeros(D))
    assert ((final_logits(short.layer(0)) - before).abs() > 1e-3)[0, 0].tolist() == [
        [distance >= 1 for distance in range(i, -1, -1)] + [False] * (T - 1 - i) for i in range(T)
    ]
    before = final_logits(long.layer(0))
    fill(long.positions[4], torch.zeros(D))
    assert torch.equal(final_logits(long.layer(0)), before)


def test_deberta_buckets_have_their_published_numbers() -> None:
    distance = torch.tensor([0, 127, 128, 200, 300, 511, 512, 9_000])
    assert log_buckets(distance, 256, 512).tolist() == [0, 127, 128, 169, 207, 255, 255, 255]


@pytest.mark.parametrize(("buckets", "largest"), [(256, 512), (32, 128), (20, 81), (6, 10)])
def test_deberta_buckets_are_exact_at_every_edge(buckets: int, largest: int) -> None:
    exact = buckets // 2
    found = log_buckets(torch.arange(2 * largest), buckets, largest).tolist()
    for distance, bucket in enumerate(found):
        # ceil(ln(r/e) / ln((M-1)/e) * (e-1)) is the least s for which (r/e)^(e-1) <= ((M-1)/e)^s.
        power, base = Fraction(distance, exact) ** (exact - 1), Fraction(largest - 1, exact)
        far = min((exact + s for s in range(exact) if power <= base**s), default=buckets - 1)
        assert bucket == (distance if distance <= exact else far), distance
