"""tupe: products of positions beside those of contents."""

import math

import torch
from support.reference_inputs import D, H, K, T, near
from support.relative_encodings import (
    CONTENT,
    LAYERS,
    final_logits,
    tupe,
    with_parameters,
)
from torch import Tensor

from pe_bench.encodings.base import Layers
from pe_bench.encodings.bias.t5 import T5
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.inputs.sinusoidal import sinusoids
from pe_bench.encodings.relative.tupe import TUPE


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


def test_tupe_with_sinusoids_reads_positions_beyond_every_table() -> None:
    encoding, far = tupe(positions="sinusoidal"), torch.arange(T) + 5_000
    rows = sinusoids(far, D, 10_000.0, "interleaved")
    expected = (CONTENT + products_of_positions(encoding, rows)).tril() / math.sqrt(2 * K)
    assert near(final_logits(encoding, far), expected, 1e-12)
    assert encoding.past_training == "defined"


def test_tupe_and_t5_is_tupe_r() -> None:
    encoding, bias = tupe(), with_parameters(T5(D, H, buckets=4, max_distance=8))
    both = Composition(Layers([encoding]), {"t5": Layers([bias])}, LAYERS).layer(0)
    distance = torch.arange(T).unsqueeze(-1) - torch.arange(T)
    added = bias.distance_bias(distance.clamp(min=0).flatten()).view(H, T, T).detach().tril()
    assert near(final_logits(both), final_logits(encoding) + added, 1e-12)


def test_tupe_clamps_or_stretches_its_table_where_told() -> None:
    for overflow, position in (("clamp", [0, 1, 1, 1]), ("interpolate", [0, 1 / 3, 2 / 3, 1])):
        encoding = tupe(max_position=2, overflow=overflow)
        share = torch.tensor(position, dtype=torch.float64).unsqueeze(-1)
        rows = torch.lerp(table_of(encoding)[0], table_of(encoding)[1], share)
        expected = (CONTENT + products_of_positions(encoding, rows)).tril() / math.sqrt(2 * K)
        assert near(final_logits(encoding), expected, 1e-12)
        assert ("prefix_consistent" in encoding.claims) == (overflow == "clamp")
