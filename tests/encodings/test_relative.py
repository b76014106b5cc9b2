"""Relative terms of the scores against the authors' formulations, numbers and limits.

Inputs are those of `reference_inputs`, unless a test says otherwise.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeVar

import pytest
import torch
from support.reference_inputs import K4, Q4, X4, D, H, K, T, fill, near, output, row_of_scores, series
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pe_bench.config.compose import compose
from pe_bench.encodings.base import LayerEncoding, Layers, LengthError, PositionalEncoding
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.deberta import DeBERTa, Terms, log_buckets
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.shaw import Shaw
from pe_bench.encodings.sinusoidal import sinusoids
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.encodings.t5 import T5
from pe_bench.encodings.transformer_xl import TransformerXL
from pe_bench.encodings.tupe import TUPE, Positions
from pe_bench.errors import UserError
from pe_bench.model.attention import attention, choose, logits, project, reference_attention
from pe_bench.model.attention.fused import fused_attention

LAYERS, TRAIN = 2, 16
E = TypeVar("E", bound=torch.nn.Module)
CONTENT = Q4 @ K4.mT  # [B, H, T, T], neither scaled nor masked


def with_parameters(encoding: E) -> E:
    """The encoding in float64, every parameter a wave of its own."""
    for number, parameter in enumerate(encoding.double().parameters()):
        fill(parameter, series(torch.sin, 0.3 + 0.17 * number, *parameter.shape))
    return encoding


def layer_of(encoding: PositionalEncoding | LayerEncoding, number: int = 0) -> LayerEncoding:
    return encoding if isinstance(encoding, LayerEncoding) else encoding.layer(number)


def final_logits(layer: LayerEncoding, position: Tensor | None = None, q: Tensor = Q4) -> Tensor:
    """[B, H, T, T] with zeros for keys after the query."""
    position = torch.arange(T) if position is None else position
    queries, keys = project(layer, X4, q, K4, position)
    return logits(layer, queries, keys, 1 / math.sqrt(K))[0].detach().tril()


def spread_of_scores(encoding: PositionalEncoding | LayerEncoding) -> float:
    """The standard deviation of logits of random queries and keys of variance 1."""
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 4, 8, 64, 16, generator=generator)
    queries, keys = project(layer_of(encoding), q.transpose(1, 2).flatten(2), q, k, torch.arange(64))
    found = logits(layer_of(encoding), queries, keys, 1 / math.sqrt(16))[0]
    return found[..., torch.ones(64, 64).tril().bool()].std().item()


# transformer_xl


def xl(layers: int = LAYERS) -> TransformerXL:
    return TransformerXL(d_model=D, n_heads=H, d_head=K, n_layers=layers)


def shifted_rows(scores: Tensor) -> Tensor:
    """The authors' shift: entry (i, j) becomes (i, j + T - 1 - i), and after the diagonal garbage."""
    padded = torch.nn.functional.pad(scores, (1, 0)).flatten(-2)
    return padded[..., scores.shape[-1] :].unflatten(-1, scores.shape[-2:])


def official_xl(encoding: TransformerXL, number: int, q: Tensor, k: Tensor) -> Tensor:
    """Projected distances T-1 .. 0, their products with every query, and the shift."""
    tokens = q.shape[-2]
    distances = sinusoids(torch.arange(tokens).flip(0), D, 10_000.0, "neox")
    projected = torch.einsum("rd,hkd->hrk", distances, encoding.projections[number])
    u, v = encoding.content_bias.unsqueeze(-2), encoding.position_bias.unsqueeze(-2)
    scores = (q + u) @ k.mT + shifted_rows((q + v) @ projected.mT)
    return (scores / math.sqrt(K)).detach().tril()


def test_transformer_xl_official_shift_is_right_up_to_the_diagonal_alone() -> None:
    shifted = shifted_rows(torch.arange(1, 17).view(4, 4))
    assert shifted.tolist() == [[4, 0, 5, 6], [7, 8, 0, 9], [10, 11, 12, 0], [13, 14, 15, 16]]


@pytest.mark.parametrize("number", range(LAYERS))
def test_transformer_xl_columns_are_the_official_formulation(number: int) -> None:
    encoding = with_parameters(xl())
    assert near(final_logits(encoding.layer(number)), official_xl(encoding, number, Q4, K4), 1e-12)


def test_transformer_xl_is_the_official_formulation_at_any_length_on_the_fused_path() -> None:
    encoding, tokens = with_parameters(xl()), 50
    layer = encoding.layer(1)
    q, k, v = (series(torch.sin, step, 1, H, tokens, K) for step in (0.3, 0.5, 0.7))
    hidden = torch.ones(tokens, tokens).triu(1).bool()
    weights = official_xl(encoding, 1, q, k).masked_fill(hidden, float("-inf")).softmax(-1)
    assert choose(layer, q, torch.arange(tokens)).run is fused_attention
    assert near(attention(layer, q, q, k, v, torch.arange(tokens)).detach(), weights @ v, 1e-12)


def test_transformer_xl_reads_distances_far_away_and_between_tokens() -> None:
    layer = with_parameters(xl()).layer(0)
    here = final_logits(layer, 1.5 * torch.arange(T))
    assert near(final_logits(layer, 1.5 * torch.arange(T) + 60_000), here, 1e-9)
    assert not near(final_logits(layer), here, 0.01)


def test_transformer_xl_biases_are_shared_and_projections_are_not() -> None:
    encoding = with_parameters(xl())
    before = [final_logits(encoding.layer(number)) for number in range(LAYERS)]
    fill(encoding.projections[1], torch.zeros(H, K, D))
    assert torch.equal(final_logits(encoding.layer(0)), before[0])
    assert not near(final_logits(encoding.layer(1)), before[1], 0.01)
    fill(encoding.content_bias, torch.zeros(H, K))
    assert not near(final_logits(encoding.layer(0)), before[0], 0.01)


def test_transformer_xl_starts_near_the_usual_scale() -> None:
    torch.manual_seed(0)
    # Content has variance 1 and the distances, sinusoids of mean square 1/2, add 1/2.
    encoding = TransformerXL(d_model=128, n_heads=8, d_head=16, n_layers=1)
    assert spread_of_scores(encoding) == pytest.approx(math.sqrt(1.5), rel=0.1)


def test_xlnet_is_transformer_xl() -> None:
    assert composed("xlnet") == composed("transformer_xl")


# deberta


def deberta(max_distance: int = 3, terms: Terms = "c2p+p2c", buckets: int | None = None) -> DeBERTa:
    return with_parameters(DeBERTa(D, H, K, LAYERS, max_distance, buckets, terms))


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


# tupe


def tupe(max_position: int = T, positions: Positions = "learned", **options: Any) -> TUPE:
    return with_parameters(TUPE(D, H, K, max_position, positions=positions, **options))


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


def test_tupe_without_projections_is_nope_at_half_the_variance() -> None:
    encoding = tupe()
    fill(encoding.query, torch.zeros(H, D, K))
    assert near(final_logits(encoding), CONTENT.tril() / math.sqrt(2 * K), 1e-12)


def test_tupe_and_t5_is_tupe_r() -> None:
    encoding, bias = tupe(), with_parameters(T5(D, H, buckets=4, max_distance=8))
    both = Composition(Layers([encoding]), {"t5": Layers([bias])}, LAYERS).layer(0)
    distance = torch.arange(T).unsqueeze(-1) - torch.arange(T)
    added = bias.distance_bias(distance.clamp(min=0).flatten()).view(H, T, T).detach().tril()
    assert near(final_logits(both), final_logits(encoding) + added, 1e-12)


def test_tupe_past_its_table_is_an_error_that_names_both_lengths_and_the_way_out() -> None:
    with pytest.raises(LengthError, match=r"max_position=3 .* position 3.*overflow=clamp"):
        final_logits(tupe(max_position=3))


def test_tupe_clamps_or_stretches_its_table_where_told() -> None:
    for overflow, position in (("clamp", [0, 1, 1, 1]), ("interpolate", [0, 1 / 3, 2 / 3, 1])):
        encoding = tupe(max_position=2, overflow=overflow)
        share = torch.tensor(position, dtype=torch.float64).unsqueeze(-1)
        rows = torch.lerp(table_of(encoding)[0], table_of(encoding)[1], share)
        expected = (CONTENT + products_of_positions(encoding, rows)).tril() / math.sqrt(2 * K)
        assert near(final_logits(encoding), expected, 1e-12)
        assert ("prefix_consistent" in encoding.claims) == (overflow == "clamp")


def test_tupe_starts_at_the_usual_scale() -> None:
    torch.manual_seed(0)
    assert spread_of_scores(TUPE(128, 8, 16, max_position=64)) == pytest.approx(1, rel=0.1)


# shaw


def shaw(max_distance: int = 2) -> Shaw:
    return with_parameters(Shaw(d_head=K, max_distance=max_distance))


def test_shaw_adds_no_vector_to_the_queries() -> None:
    # softmax((Q + R)(K + R)^T) would give a query of zeros a preference.
    assert (final_logits(shaw(), q=torch.zeros_like(Q4)) == 0).all()


def test_shaw_scales_the_relative_term_as_the_content() -> None:
    encoding = shaw()
    queries, keys = project(encoding, X4, Q4, K4, torch.arange(T))
    assert near(
        encoding.scores(queries, keys, 3.0).detach(), 3 * encoding.scores(queries, keys, 1.0).detach(), 1e-12
    )
    fill(encoding.keys, series(torch.sin, 0.15, 5, K)[:3])
    unscaled = [3.119334, 1.942516, 2.24906, 2.021169]  # of the relative term alone
    assert not near(row_of_scores(encoding).detach(), unscaled, 0.5)
    relative = 2 * (row_of_scores(encoding).detach() - CONTENT[0, 0, 3] / 2)
    assert near(CONTENT[0, 0, 3] / 2 + relative, unscaled)


def test_shaw_adds_the_vectors_of_values_by_weight() -> None:
    encoding = shaw()
    fill(encoding.values, torch.zeros(3, K))
    without = output(encoding).detach()
    vector = torch.tensor([1.0, -2.0, 0.5, 3.0])
    fill(encoding.values, vector.expand(3, K))
    # One vector for every distance arrives whole, for weights sum to one.
    assert near(output(encoding).detach(), without + vector, 1e-12)


def test_shaw_row_0_is_that_of_the_keys_farthest_back() -> None:
    encoding = shaw(max_distance=2)
    before = final_logits(encoding)
    fill(encoding.keys[0], torch.full((K,), 5.0))
    changed = (final_logits(encoding) != before).any(0).any(0)
    distance = torch.arange(T).unsqueeze(-1) - torch.arange(T)
    assert torch.equal(changed, distance >= 2)


def test_shaw_of_the_longest_distance_clips_nothing() -> None:
    longest, longer = shaw(max_distance=T - 1), shaw(max_distance=T + 3)
    fill(longer.keys[4:], longest.keys)
    fill(longer.values[4:], longest.values)
    assert near(output(longer).detach(), output(longest).detach(), 1e-12)


# No tensor for each pair


class LargestTensor(TorchDispatchMode):
    """Watches the elements of the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            # A view of a small tensor may have any shape: what counts is the memory behind it.
            self.elements = max(self.elements, result.untyped_storage().nbytes() // result.element_size())
        return result


@pytest.mark.parametrize("make", [lambda: Shaw(32, 16), lambda: DeBERTa(32, 1, 32, 1, 16).layer(0)])
def test_no_tensor_has_a_vector_for_each_pair(make: Callable[[], LayerEncoding]) -> None:
    tokens, width, layer = 64, 32, make()
    q = torch.randn(1, 1, tokens, width)
    with LargestTensor() as watch:
        reference_attention(layer, q, q, q, q, torch.arange(tokens), block=tokens).sum().backward()
    assert tokens * tokens <= watch.elements < 2 * tokens * tokens
    with LargestTensor() as watch:
        (q.unsqueeze(-2) + q.unsqueeze(-3)).sum()
    assert watch.elements == tokens * tokens * width


# Limits and options


def without_parameters(encoding: E) -> E:
    for parameter in encoding.parameters():
        fill(parameter, torch.zeros_like(parameter))
    return encoding


@pytest.mark.parametrize("make", [xl, lambda: Shaw(K, 2)])
def test_without_its_parameters_it_is_nope(make: Callable[[], PositionalEncoding | LayerEncoding]) -> None:
    found = output(layer_of(without_parameters(make()).double())).detach()
    assert near(found, output(NoPE()).detach(), 1e-12)


def composed(name: str, *overrides: str) -> dict[str, Any]:
    shape = [f"model.d_model={D}", f"model.n_heads={H}", f"model.n_layers={LAYERS}", f"train.length={TRAIN}"]
    return compose([f"encoding={name}", *shape, *overrides])["encoding"]


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("transformer_xl", "base=100.0"),
        ("deberta", "max_distance=3"),
        ("deberta", "buckets=6"),
        ("deberta", "terms=c2p"),
        ("deberta", "terms=p2c"),
        ("tupe", "positions=sinusoidal"),
    ],
)
def test_option_changes_the_output(name: str, option: str) -> None:
    q, k, v = (series(torch.sin, step, 1, H, TRAIN, K) for step in (0.3, 0.5, 0.7))
    outputs = []
    for overrides in ([], [f"encoding.{option}"]):
        layer = with_parameters(EncodingSpec(composed(name, *overrides)).build(LAYERS)).layer(1)
        outputs.append(attention(layer, q, q, k, v, torch.arange(TRAIN)).detach())
    assert not near(outputs[0], outputs[1], 1e-3)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TransformerXL(7, H, K, LAYERS), "model.d_model=7 is odd"),
        (lambda: TransformerXL(D, H, K, LAYERS, base=0.0), "encoding.base must exceed 1, .* not 0.0"),
        (lambda: DeBERTa(D, H, K, LAYERS, 0), "encoding.max_distance must be positive, not 0"),
        (lambda: DeBERTa(D, H, K, LAYERS, 16, buckets=7), "encoding.buckets must be even.*not 7"),
        (lambda: DeBERTa(D, H, K, LAYERS, 16, buckets=2), "encoding.buckets must be.*at least 4.*not 2"),
        (
            lambda: DeBERTa(D, H, K, LAYERS, 16, buckets=32),
            "encoding.max_distance=16 must exceed 17.*encoding.buckets=32",
        ),
        (lambda: TUPE(D, H, K, 4, "clamp", "sinusoidal"), "overflow=clamp .*positions=sinusoidal"),
        (lambda: TUPE(D, H, K, 0), "encoding.max_position must be positive, not 0"),
        (lambda: Shaw(K, 0), "encoding.max_distance must be positive, not 0"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        make()
