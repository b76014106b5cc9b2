"""Tables of rows by distance: shifted views and merged parts give what the reference gives."""

import pytest
import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Side
from pe_bench.encodings.compose import Stack
from pe_bench.encodings.distance.rerope import ReRoPE
from pe_bench.encodings.logits.logn import LogN
from pe_bench.encodings.relative.deberta import DeBERTa
from pe_bench.encodings.relative.shaw import Shaw
from pe_bench.inspection.check.case import as_type, layer_inputs
from pe_bench.inspection.check.result import worst
from pe_bench.model.attention import attention, choose, chunks, reference_attention
from pe_bench.model.attention.chunks import fused_relative_attention, keys_band, queries_band
from pe_bench.model.attention.fused import fused_with_lse, merge_by_lse

torch.set_num_threads(1)  # tensors are small here, and tests run side by side

H, K, D = 4, 8, 32  # those of `layer_inputs`
CHUNK = 7

MADE = {
    "shaw": lambda: Shaw(K, max_distance=5),
    "shaw of the token before": lambda: Shaw(K, max_distance=1),
    "shaw of chunks": lambda: Shaw(K, max_distance=CHUNK),
    "shaw of more than a chunk": lambda: Shaw(K, max_distance=2 * CHUNK + 3),
    "shaw of more than the text": lambda: Shaw(K, max_distance=99),
    "deberta": lambda: deberta(11),
    "deberta of one row": lambda: deberta(1),
    "deberta of two rows": lambda: deberta(2),
    "deberta in buckets": lambda: deberta(24, buckets=8),
    "content to position": lambda: deberta(11, terms="c2p"),
    "position to content": lambda: deberta(11, terms="p2c"),
}


def deberta(max_distance: int, **options) -> LayerEncoding:
    return DeBERTa(D, H, K, 1, max_distance, **options).layer(0)


def made(name: str, dtype: torch.dtype = torch.float64) -> LayerEncoding:
    """With parameters as large as queries and keys."""
    torch.manual_seed(0)
    encoding = MADE[name]()
    for parameter in encoding.parameters():
        parameter.requires_grad_(False).normal_()
    return encoding.to(dtype)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_QUERIES", CHUNK)


@torch.no_grad()
@pytest.mark.parametrize("name", MADE)
def test_tables_are_the_reference_at_any_length(name: str) -> None:
    encoding = made(name)
    for tokens in (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 33, 61):
        arguments = (*layer_inputs(tokens), torch.arange(tokens) + 500)
        assert choose(encoding, arguments[1], arguments[-1]).run is fused_relative_attention
        assert worst(attention(encoding, *arguments), reference_attention(encoding, *arguments)) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("make", [*MADE.values(), lambda: ReRoPE(K, train_length=128, window=64)])
def test_the_end_of_a_long_text_is_that_of_float64(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_QUERIES", 256)
    tokens, rows = 3_001, range(3_001 - 8, 3_001)
    encoding, inputs = make(), layer_inputs(tokens, torch.float32, batch=1)
    found = attention(encoding, *inputs, torch.arange(tokens))[:, :, -len(rows) :]
    exact = as_type(inputs, torch.float64)
    truth = reference_attention(encoding.double(), *exact, torch.arange(tokens), rows=rows)
    assert worst(found, truth) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_outputs_do_not_depend_on_the_chunks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, arguments = made("shaw"), (*layer_inputs(40), torch.arange(40))
    before = attention(encoding, *arguments)
    monkeypatch.setattr(chunks, "CHUNK_QUERIES", size)
    assert worst(attention(encoding, *arguments), before) < 1e-12


@torch.no_grad()
def test_a_row_that_outweighs_all_others_stays_finite() -> None:
    encoding = made("shaw", torch.float32)
    encoding.get_parameter("keys")[0] = 1e3
    inputs = as_type(layer_inputs(33), torch.float32)
    exact = reference_attention(encoding.double(), *layer_inputs(33), torch.arange(33))
    assert worst(attention(encoding.float(), *inputs, torch.arange(33)), exact) < 1e-3


@torch.no_grad()
@pytest.mark.parametrize("make", [*MADE.values(), lambda: ReRoPE(K, train_length=8, window=5)])
def test_in_a_model_that_is_autocast_no_error_is_larger_than_the_references(make) -> None:
    torch.manual_seed(0)
    encoding, inputs = make(), as_type(layer_inputs(61), torch.bfloat16)
    for parameter in encoding.parameters():
        parameter.normal_()
    exact = reference_attention(encoding.double(), *as_type(inputs, torch.float64), torch.arange(61))
    encoding.float()
    with torch.autocast("cpu", torch.bfloat16):
        found = attention(encoding, *inputs, torch.arange(61))
        reference = reference_attention(encoding, *inputs, torch.arange(61))
    assert found.dtype == torch.bfloat16
    assert worst(found, exact) <= worst(reference, exact)


@pytest.mark.parametrize("before", [0, 2, 4])
def test_a_band_has_the_row_of_each_pairs_distance(before: int) -> None:
    queries, rows = 6, 5
    keys = queries + before
    distance = torch.arange(queries).unsqueeze(-1) + before - torch.arange(keys)
    is_near = (distance >= 0) & (distance < rows)
    of_queries, of_keys = torch.rand(2, 3, queries, rows), torch.rand(2, 3, keys, rows)
    near = distance.clamp(0, rows - 1)
    gathered_q = of_queries.gather(-1, near.expand(2, 3, -1, -1))
    gathered_k = of_keys.mT.gather(-2, near.expand(2, 3, -1, -1))
    for band, gathered in (
        (queries_band(of_queries, before), gathered_q),
        (keys_band(of_keys, before), gathered_k),
    ):
        assert torch.equal(band[..., is_near], gathered[..., is_near])
        assert (band[..., distance >= rows] == 0).all()


def test_a_part_in_which_a_query_sees_nothing_has_no_mass() -> None:
    _, q, k, v = layer_inputs(9)
    seen = torch.ones(9, 9, dtype=torch.bool)
    seen[2] = False
    for mask in (seen, torch.zeros(9, 9, dtype=torch.float64).masked_fill(~seen, float("-inf"))):
        part = fused_with_lse(q, k, v, mask, 0.5)
        assert part[1][:, :, 2].isneginf().all()
        other = fused_with_lse(q, k, v, None, 0.5)
        assert worst(merge_by_lse([part, other])[:, :, 2], other[0][:, :, 2]) < 1e-12


def test_the_reference_serves_what_tables_do_not() -> None:
    class Changed(Shaw):
        def scores(self, queries: Side, keys: Side, scale: float) -> Tensor:
            return 2 * super().scores(queries, keys, scale)

    q, count = layer_inputs(9)[1], torch.arange(9)
    with torch.no_grad():
        assert choose(Shaw(K), q, count).run is fused_relative_attention
        assert choose(Changed(K), q, count).run is reference_attention
        assert choose(Stack([Shaw(K), LogN(3)]), q, count).run is reference_attention
        assert choose(Shaw(K), q, 2 * count).run is reference_attention
        assert choose(Shaw(K), q, count, window=4).run is reference_attention
    assert choose(Shaw(K), q, count).run is reference_attention
