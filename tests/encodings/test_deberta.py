"""deberta against the released code, and its buckets."""

import math
from fractions import Fraction

import pytest
import torch
from support.reference_inputs import K4, Q4, D, H, K, T, fill, near, series
from support.relative_encodings import (
    CONTENT,
    LAYERS,
    deberta,
    final_logits,
    spread_of_scores,
)
from torch import Tensor

from pe_bench.encodings.relative.deberta import DeBERTa, Terms, log_buckets


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


@pytest.mark.parametrize(("terms", "count"), [("c2p+p2c", 3), ("c2p", 2), ("p2c", 2)])
def test_deberta_without_positions_is_nope_at_the_scale_of_its_terms(terms: Terms, count: int) -> None:
    encoding = deberta(terms=terms)
    fill(encoding.positions, torch.zeros(3, D))
    assert near(final_logits(encoding.layer(0)), CONTENT.tril() / math.sqrt(count * K), 1e-12)


def test_deberta_terms_add_up() -> None:
    both, c2p, p2c = deberta(), deberta(terms="c2p"), deberta(terms="p2c")
    fill(c2p.projections["c2p"], both.projections["c2p"])
    fill(p2c.projections["p2c"], both.projections["p2c"])
    of_both = final_logits(both.layer(0)) * math.sqrt(3 * K)
    of_each = sum(final_logits(one.layer(0)) * math.sqrt(2 * K) for one in (c2p, p2c))
    assert near(of_both, torch.as_tensor(of_each) - CONTENT.tril(), 1e-12)


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


def test_deberta_buckets_widen_and_need_as_many_rows() -> None:
    encoding = deberta(max_distance=64, buckets=8)
    assert encoding.positions.shape == (8, D)
    assert encoding.rows(torch.tensor([0, 4, 5, 63, 500])).tolist() == [0, 4, 5, 7, 7]


def test_deberta_table_is_shared_and_projections_are_not() -> None:
    encoding = deberta()
    before = [final_logits(encoding.layer(number)) for number in range(LAYERS)]
    fill(encoding.projections["p2c"][1], torch.zeros(H, D, K))
    assert torch.equal(final_logits(encoding.layer(0)), before[0])
    assert not near(final_logits(encoding.layer(1)), before[1], 0.01)
    assert set(encoding.state_dict()) == {"positions", "projections.c2p", "projections.p2c"}


def test_deberta_starts_at_the_usual_scale() -> None:
    torch.manual_seed(0)
    assert spread_of_scores(DeBERTa(128, 8, 16, 1, max_distance=64)) == pytest.approx(1, rel=0.1)
