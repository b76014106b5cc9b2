"""Relative encodings against the authors' formulations, their buckets, and the memory that they take."""

import math
from fractions import Fraction
from typing import Any, TypeVar

import pytest
import torch
from support.reference_inputs import K4, Q4, X4, D, H, K, T, fill, near, series
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.inputs.sinusoidal import sinusoids
from pe_bench.encodings.relative.deberta import DeBERTa, log_buckets
from pe_bench.encodings.relative.transformer_xl import TransformerXL
from pe_bench.encodings.relative.tupe import TUPE
from pe_bench.model.attention import attention, choose_path
from pe_bench.model.attention.fused import fused_attention
from pe_bench.model.attention.reference import logits, make_sides

LAYERS, TRAIN = 2, 16
E = TypeVar("E", bound=torch.nn.Module)
CONTENT = Q4 @ K4.mT  # [B, H, T, T], neither scaled nor masked


def with_parameters(encoding: E) -> E:
    """The encoding in float64, every parameter a wave of its own."""
    for number, parameter in enumerate(encoding.double().parameters()):
        fill(parameter, series(torch.sin, 0.3 + 0.17 * number, *parameter.shape))
    return encoding


def final_logits(layer: LayerEncoding) -> Tensor:
    """[B, H, T, T] with zeros for keys after the query."""
    queries, keys = make_sides(layer, X4, Q4, K4, torch.arange(T))
    return logits(layer, queries, keys, 1 / math.sqrt(K))[0].detach().tril()


def tupe(max_position: int = T, **options: Any) -> TUPE:
    return with_parameters(TUPE(D, H, K, max_position, **options))


def official_xl(encoding: TransformerXL, number: int, q: Tensor, k: Tensor) -> Tensor:
    """Projected distances T-1 .. 0, their products with every query, and the shift."""
    tokens = q.shape[-2]
    distances = sinusoids(torch.arange(tokens).flip(0), D, 10_000.0, "neox")
    projected = torch.einsum("rd,hkd->hrk", distances, encoding.projections[number])
    u, v = encoding.content_bias.unsqueeze(-2), encoding.position_bias.unsqueeze(-2)
    # The authors' shift: entry (i, j) becomes (i, j + T - 1 - i), and after the diagonal garbage.
    padded = torch.nn.functional.pad((q + v) @ projected.mT, (1, 0)).flatten(-2)
    shifted = padded[..., tokens:].unflatten(-1, (tokens, tokens))
    return (((q + u) @ k.mT + shifted) / math.sqrt(K)).detach().tril()


def test_transformer_xl_is_the_official_formulation_at_any_length_on_the_fused_path() -> None:
    encoding, tokens = with_parameters(TransformerXL(D, H, K, LAYERS)), 50
    layer = encoding.layer(1)
    q, k, v = (series(torch.sin, step, 1, H, tokens, K) for step in (0.3, 0.5, 0.7))
    hidden = torch.ones(tokens, tokens).triu(1).bool()
    weights = official_xl(encoding, 1, q, k).masked_fill(hidden, float("-inf")).softmax(-1)
    assert choose_path(layer, q, torch.arange(tokens)).run is fused_attention
    assert near(attention(layer, q, q, k, v, torch.arange(tokens)).detach(), weights @ v, 1e-12)


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
    encoding = with_parameters(DeBERTa(D, H, K, LAYERS, 3))
    found = final_logits(encoding.layer(number))
    assert near(found, official_deberta(encoding, number, papers_direction=False), 1e-12)
    paper = official_deberta(encoding, number, papers_direction=True)
    # The diagonal is the one row that both directions have in common.
    assert near(found.diagonal(dim1=-2, dim2=-1), paper.diagonal(dim1=-2, dim2=-1), 1e-12)
    assert ((found - paper).abs() > 1e-4)[..., torch.ones(T, T).tril(-1).bool()].all()


@pytest.mark.parametrize(("buckets", "largest"), [(256, 512), (20, 81), (6, 10)])
def test_deberta_buckets_are_exact_at_every_edge(buckets: int, largest: int) -> None:
    exact = buckets // 2
    found = log_buckets(torch.arange(2 * largest), buckets, largest).tolist()
    for distance, bucket in enumerate(found):
        # ceil(ln(r/e) / ln((M-1)/e) * (e-1)) is the least s for which (r/e)^(e-1) <= ((M-1)/e)^s.
        power, base = Fraction(distance, exact) ** (exact - 1), Fraction(largest - 1, exact)
        far = min((exact + s for s in range(exact) if power <= base**s), default=buckets - 1)
        assert bucket == (distance if distance <= exact else far), distance


def products_of_positions(encoding: TUPE, rows: Tensor) -> Tensor:
    """U_Q p_i . U_K p_j, [H, T, T], of rows [T, D] before the norm."""
    centred = rows - rows.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    p = normed * encoding.norm.weight + encoding.norm.bias
    return ((p @ encoding.query) @ (p @ encoding.key).mT).detach()


def table_of(encoding: TUPE) -> Tensor:
    (table,) = encoding.positions.parameters()
    return table


def test_tupe_adds_products_of_normed_positions_under_one_root() -> None:
    encoding = tupe()
    expected = (CONTENT + products_of_positions(encoding, table_of(encoding))).tril() / math.sqrt(2 * K)
    assert near(final_logits(encoding), expected, 1e-12)
    assert not near(final_logits(encoding), CONTENT.tril() / math.sqrt(2 * K), 0.1)
