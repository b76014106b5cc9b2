"""fox, cope, stick-breaking, sliding windows and log-n, against numbers and their own double loops."""

import math

import pytest
import torch
from support.reference_inputs import (
    D,
    H,
    K,
    fill,
    near,
    series,
)

from pe_bench.encodings.content.cope import CoPE
from pe_bench.encodings.content.fox import FoX
from pe_bench.encodings.content.stick_breaking import StickBreaking
from pe_bench.model.attention import attention, reference_attention

# fox


# cope


def test_cope_is_its_double_loop() -> None:
    encoding, tokens = CoPE(d_head=K, max_position=3).double(), 6
    table = series(torch.sin, 0.9, 3, K)
    fill(encoding.table, table)
    q, k, v = (series(torch.sin, step, 1, 1, tokens, K) for step in (0.3, 0.5, 0.7))
    result = reference_attention(encoding, k, q, k, v, torch.arange(tokens), block=4)[0, 0]
    for i in range(tokens):
        z = [float(q[0, 0, i] @ k[0, 0, j]) / math.sqrt(K) for j in range(i + 1)]
        gates = [1 / (1 + math.exp(-score)) for score in z]
        for j in range(i + 1):
            p = min(sum(gates[j:]), 2)
            row = table[math.floor(p)] * (math.floor(p) + 1 - p)
            row = row + (table[math.ceil(p)] * (p - math.floor(p)) if p % 1 else 0)
            z[j] += float(q[0, 0, i] @ row)
        expected = torch.tensor(z, dtype=torch.float64).softmax(-1) @ v[0, 0, : i + 1]
        assert near(result[i].detach(), expected, 1e-12)


# stick-breaking


def test_stick_breaking_in_logarithms_is_the_product_and_stays_finite() -> None:
    scores, visible = series(torch.sin, 0.8, 7, 7) * 4, torch.ones(7, 7).tril(-1).bool()
    weights, broken = StickBreaking().weights(scores, visible), scores.sigmoid()
    for i in range(7):
        for j in range(7):
            left = math.prod(1 - float(broken[i, between]) for between in range(j + 1, i))
            assert abs(float(weights[i, j]) - (float(broken[i, j]) * left if j < i else 0)) < 1e-12
    extreme = StickBreaking().weights(200 * scores.float(), visible)
    assert extreme.isfinite().all()
    assert (extreme.sum(-1) <= 1 + 1e-5).all()


# log-n


@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_fast_path_of_fox_is_its_reference(tokens: int) -> None:
    encoding = FoX(d_model=D, n_heads=H).double()
    x = series(torch.sin, 0.3, 2, tokens, D)
    q, k, v = (series(torch.cos, step, 2, H, tokens, K) for step in (0.3, 0.5, 0.7))
    fast = attention(encoding, x, q, k, v, torch.arange(tokens))
    assert near(
        fast.detach(), reference_attention(encoding, x, q, k, v, torch.arange(tokens)).detach(), 1e-12
    )
