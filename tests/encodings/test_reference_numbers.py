"""Encodings against numbers from their papers or the authors' code, and against other forms of themselves.

Inputs are those of `reference_inputs`, unless a test says otherwise.
"""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from support.reference_inputs import (
    K4,
    Q4,
    V4,
    X4,
    B,
    D,
    H,
    K,
    T,
    fill,
    near,
    output,
    residual_of_the_best_shift,
    row_of_scores,
    row_of_weights,
    series,
)
from torch import Tensor

from pe_bench.encodings.alibi import ALiBi, alibi_slopes
from pe_bench.encodings.base import LayerEncoding, LengthError, PositionalEncoding
from pe_bench.encodings.compose import Stack
from pe_bench.encodings.cope import CoPE, contextual_position
from pe_bench.encodings.fox import FoX
from pe_bench.encodings.kerple_log import KerpleLog
from pe_bench.encodings.learned import Learned
from pe_bench.encodings.logn import LogN
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.randomized import Randomized
from pe_bench.encodings.rope import RoPE, rope_frequencies, rotate
from pe_bench.encodings.shaw import Shaw
from pe_bench.encodings.sinusoidal import Layout, sinusoids
from pe_bench.encodings.sliding_window import SlidingWindow
from pe_bench.encodings.stick_breaking import StickBreaking
from pe_bench.encodings.t5 import T5, t5_buckets
from pe_bench.errors import UserError
from pe_bench.model.attention import attention, project, reference_attention, slice_tokens

# nope


def test_nope_scores_are_content_over_the_root_of_the_width() -> None:
    assert near(row_of_scores(NoPE()), (Q4[0, 0, 3] @ K4[0, 0].T) / 2, 1e-12)


def test_nope_in_one_layer_does_not_see_the_order_of_the_past() -> None:
    order = torch.tensor([2, 0, 1, 3])
    shuffled = reference_attention(
        NoPE(), X4, Q4[:, :, order], K4[:, :, order], V4[:, :, order], torch.arange(T)
    )
    assert near(shuffled[..., 3, :], output(NoPE())[..., 3, :], 1e-12)


# sinusoidal


def test_sinusoidal_layouts_have_their_published_values() -> None:
    paper = sinusoids(torch.arange(3), 4, 10_000.0, "interleaved")
    assert near(paper[0], [0, 1, 0, 1])
    assert near(paper[1], [0.841471, 0.540302, 0.01, 0.99995])
    assert near(paper[2], [0.909297, -0.416147, 0.019999, 0.9998])
    assert near(sinusoids(torch.arange(3), 4, 10_000.0, "concatenated")[1], [0.841471, 0.0001, 0.540302, 1.0])
    assert near(sinusoids(torch.arange(3), 4, 10_000.0, "neox")[1], [0.841471, 0.01, 0.540302, 0.99995])


@pytest.mark.parametrize("layout", ["interleaved", "concatenated", "neox"])
def test_sinusoidal_has_constant_norm_and_a_toeplitz_gram_matrix(layout: Layout) -> None:
    table = sinusoids(torch.arange(20), 16, 10_000.0, layout)
    gram = table @ table.T
    assert near(table.square().sum(-1), torch.full((20,), 8.0), 1e-12)
    assert near(gram[1:, 1:], gram[:-1, :-1], 1e-12)


@pytest.mark.parametrize("layout", ["interleaved", "concatenated", "neox"])
def test_sinusoidal_shift_is_one_linear_map_for_all_positions(layout: Layout) -> None:
    # A small base: slow pairs are nearly collinear, and the least squares ill-conditioned.
    assert residual_of_the_best_shift(sinusoids(torch.arange(200), 8, 100.0, layout)) < 1e-9


def test_sinusoidal_slowest_pair_has_the_period_of_the_formula() -> None:
    period = 2 * math.pi * 10_000 ** (62 / 64)
    start, turned = sinusoids(torch.tensor([0.0, period], dtype=torch.float64), 64, 10_000.0, "interleaved")
    assert near(turned[-2:], start[-2:], 1e-9)
    half = sinusoids(torch.tensor([period / 2], dtype=torch.float64), 64, 10_000.0, "interleaved")
    assert near(half[0, -2:], -start[-2:], 1e-9)


def test_sinusoidal_reads_positions_between_tokens_and_odd_widths() -> None:
    assert near(
        sinusoids(torch.tensor([0.5]), 5, 10_000.0, "interleaved")[0, :2], [math.sin(0.5), math.cos(0.5)]
    )
    assert sinusoids(torch.arange(3), 5, 10_000.0, "interleaved").shape == (3, 5)


# learned


def test_learned_row_p_is_added_at_position_p() -> None:
    encoding, x, ids = Learned(d_model=8, max_position=6), torch.zeros(1, 3, 8), torch.tensor([4, 0, 2])
    assert torch.equal(encoding.embed(x, ids, x)[0], encoding.table[ids])


def test_learned_gives_gradient_to_used_rows_only() -> None:
    encoding, x = Learned(d_model=8, max_position=6), torch.zeros(1, 3, 8)
    encoding.embed(x, torch.arange(3), x).sum().backward()
    assert encoding.table.grad is not None
    assert encoding.table.grad.sum(-1).tolist() == [8, 8, 8, 0, 0, 0]


def test_learned_past_its_table_is_an_error_that_names_both_lengths_and_the_way_out() -> None:
    x = torch.zeros(1, 7, 8)
    with pytest.raises(LengthError, match=r"max_position=6 .* position 6.*overflow=clamp"):
        Learned(d_model=8, max_position=6).embed(x, torch.arange(7), x)


def test_learned_clamp_repeats_the_last_row() -> None:
    encoding, x = Learned(d_model=8, max_position=6, overflow="clamp"), torch.zeros(1, 9, 8)
    assert torch.equal(encoding.embed(x, torch.arange(9), x)[0, 5:], encoding.table[5].expand(4, 8))


def test_learned_interpolate_stretches_first_to_first_and_last_to_last() -> None:
    encoding, x = Learned(d_model=8, max_position=3, overflow="interpolate"), torch.zeros(1, 5, 8)
    table = encoding.table
    expected = torch.stack(
        [table[0], (table[0] + table[1]) / 2, table[1], (table[1] + table[2]) / 2, table[2]]
    )
    assert near(encoding.embed(x, torch.arange(5), x)[0], expected.double(), 1e-7)
    assert torch.equal(encoding.embed(x[:, :3], torch.arange(3), x)[0], table)
    assert "prefix_consistent" not in encoding.claims


def test_learned_takes_ids_of_each_sequence_and_ids_between_rows() -> None:
    encoding, x = Learned(d_model=8, max_position=6), torch.zeros(2, 3, 8)
    ids = torch.tensor([[0, 1, 2], [3, 4, 5]])
    assert torch.equal(encoding.embed(x, ids, x), encoding.table[ids])
    assert near(
        encoding.embed(x[:1, :1], torch.tensor([1.5]), x)[0, 0], encoding.table[1:3].mean(0).double(), 1e-7
    )


# rope


def test_rope_has_the_published_frequencies_and_angles() -> None:
    assert near(
        rope_frequencies(512, 10_000.0)[:10],
        [1, 0.9647, 0.9306, 0.8977, 0.8660, 0.8354, 0.8058, 0.7774, 0.7499, 0.7234],
        5e-5,
    )
    theta = rope_frequencies(32, 10_000.0)[:8]
    assert near(theta.cos(), [0.5403, 0.8460, 0.9504, 0.9842, 0.9950, 0.9984, 0.9995, 0.9998], 6e-5)
    assert near(theta.sin(), [0.8415, 0.5332, 0.3110, 0.1769, 0.0998, 0.0562, 0.0316, 0.0178], 6e-5)


def test_rope_turns_counterclockwise() -> None:
    x = torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64)
    turned = rotate(x, torch.tensor([1]), rope_frequencies(2, 10_000.0), "half")
    assert near(turned[0, 0, 0], [math.cos(1), math.sin(1)], 1e-12)


@pytest.mark.parametrize(
    ("distance", "expected"), [(0, 128), (1, 124.1874), (16, 79.4033), (64, 61.0401), (256, 41.0497)]
)
def test_rope_of_ones_has_the_published_curve(distance: int, expected: float) -> None:
    ones = torch.ones(1, 1, 1, 128, dtype=torch.float64)
    frequencies = rope_frequencies(128, 10_000.0)
    far = rotate(ones, torch.tensor([distance]), frequencies, "half")
    near_by = rotate(ones, torch.tensor([0]), frequencies, "half")
    assert abs(float((far * near_by).sum()) - expected) < 5e-5


def test_rope_interleaved_is_the_dense_and_the_complex_form() -> None:
    x, position = series(torch.sin, 0.7, 1, 2, 6, 8), torch.arange(6)
    theta = rope_frequencies(8, 10_000.0)
    turned = rotate(x, position, theta, "interleaved")
    angle = position.double().unsqueeze(-1) * theta
    as_complex = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
        torch.ones_like(angle), angle
    )
    assert near(turned, torch.view_as_real(as_complex).flatten(-2), 1e-12)
    for p in range(6):
        blocks = [torch.tensor([[a.cos(), -a.sin()], [a.sin(), a.cos()]]).double() for a in angle[p]]
        assert near(turned[0, :, p], x[0, :, p] @ torch.block_diag(*blocks).T, 1e-6)


def test_rope_half_is_interleaved_with_the_features_reordered() -> None:
    x, position, theta = series(torch.sin, 0.7, 1, 2, 6, 8), torch.arange(6), rope_frequencies(8, 10_000.0)
    order = torch.arange(8).view(2, 4).T.flatten()  # half's pairs (c, c + 4) side by side
    half = rotate(x, position, theta, "half")
    assert near(half[..., order], rotate(x[..., order], position, theta, "interleaved"), 1e-12)
    assert not near(half, rotate(x, position, theta, "interleaved"), 0.1)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rope_keeps_norms_and_depends_on_distance_alone(layout: str) -> None:
    encoding = RoPE(d_head=8, layout="half" if layout == "half" else "interleaved").double()
    q, k = series(torch.sin, 0.7, 1, 2, 6, 8), series(torch.cos, 0.9, 1, 2, 6, 8)
    here, there = torch.arange(6), torch.arange(6) + 7
    q_here, k_here = encoding.transform(q, k, here, here)
    q_there, k_there = encoding.transform(q, k, there, there)
    assert near(q_here.norm(dim=-1), q.norm(dim=-1), 1e-12)
    assert near(q_here @ k_here.mT, q_there @ k_there.mT, 1e-12)
    assert not near(q_here, q, 0.1)
    assert not near(q_here @ k_here.mT, q @ k.mT, 0.1)


def test_rope_of_random_vectors_does_not_decay() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 64, dtype=torch.float64, generator=generator)
    position = torch.arange(200)
    theta = rope_frequencies(64, 10_000.0)
    scores = (rotate(q.expand(1, 1, 200, 64), position, theta, "half") * k).sum(-1).flatten()
    assert (scores.diff() > 0).any()
    assert (scores.diff() < 0).any()


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


def test_alibi_has_its_reference_weights_and_output() -> None:
    assert near(row_of_weights(ALiBi(2)), [0.693643, 0.227611, 0.054847, 0.023899])
    assert near(output(ALiBi(2))[0, 0, 3], [0.43903, 0.600229, 0.707811, 0.752167])


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


def test_kerple_log_has_its_reference_bias() -> None:
    encoding = KerpleLog(2)
    fill(encoding.p, torch.tensor([1.5, 0.5]))
    fill(encoding.a, torch.tensor([0.25, 2.0]))
    bias = encoding.double().distance_bias(torch.tensor([4, 3, 2, 1, 0]))
    assert near(bias[0], [-1.039721, -0.839424, -0.608198, -0.334715, 0])
    assert near(bias[1], [-1.098612, -0.972955, -0.804719, -0.549306, 0])


def test_kerple_bound_holds_the_value_but_not_the_gradient() -> None:
    encoding = KerpleLog(1)
    fill(encoding.p, torch.tensor([-3.0]))
    fill(encoding.a, torch.tensor([0.0]))
    bias = encoding.distance_bias(torch.tensor([100]))
    assert near(bias.detach().flatten(), [-0.01 * math.log(2)])
    bias.sum().backward()
    assert encoding.p.grad is not None
    assert encoding.p.grad.item() < 0


def test_kerple_tends_to_a_straight_line_at_small_distances() -> None:
    encoding = KerpleLog(2).double()
    distance = torch.linspace(0, 1e-6, 5, dtype=torch.float64)
    line = -(encoding.p.clamp(min=0.01) * encoding.a.clamp(min=0.01)).unsqueeze(-1) * distance
    assert near(1e6 * encoding.distance_bias(distance), 1e6 * line.detach(), 1e-5)


# shaw


def shaw_of_the_reference() -> Shaw:
    encoding = Shaw(d_head=K, max_distance=2).double()
    # The reference's tables have rows for later keys too, which a decoder does not read.
    fill(encoding.keys, series(torch.sin, 0.15, 5, K)[:3])
    fill(encoding.values, series(torch.sin, 0.25, 5, K)[:3])
    return encoding


def test_shaw_has_its_reference_scores_and_output() -> None:
    encoding = shaw_of_the_reference()
    assert near(row_of_scores(encoding), [2.402589, 1.225771, 0.63625, 0.075696])
    assert near(output(encoding)[0, 0, 3], [0.742502, 1.052788, 1.283774, 1.418978])


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


# fox


def fox_with_gates() -> FoX:
    """FoX whose gate of head h reads feature h of the layer's input."""
    encoding = FoX(d_model=D, n_heads=H).double()
    fill(encoding.weight, torch.eye(H, D))
    return encoding


def gate_input(logits: Tensor) -> Tensor:
    """A layer's input [1, T, D] that holds the gates' logits [T, H]."""
    return torch.nn.functional.pad(logits, (0, D - H)).unsqueeze(0)


def test_fox_has_its_reference_output() -> None:
    logits = series(torch.cos, 0.4, T, H)
    result = output(fox_with_gates(), x=gate_input(logits))
    assert near(result[0, 0, 3].detach(), [0.286166, 0.326795, 0.338232, 0.319456])


def test_fox_columns_are_its_bias() -> None:
    encoding = FoX(d_model=D, n_heads=H).double()
    queries, keys = project(encoding, X4, Q4, K4, torch.arange(T))
    queries = slice_tokens(queries, 1, 3)
    of_queries, of_keys = encoding.columns(queries, keys)
    assert near((of_queries @ of_keys.mT).detach(), encoding.bias(queries, keys).detach(), 1e-12)


def test_fox_forgets_more_between_distant_tokens_and_every_gate_counts_once() -> None:
    logits = series(torch.cos, 0.4, T, H)
    encoding = fox_with_gates()
    queries, keys = project(encoding, gate_input(logits), Q4, K4, torch.arange(T))
    log_forget = torch.nn.functional.logsigmoid(logits)
    bias = encoding.bias(queries, keys)[0]
    assert abs(bias[0, 3, 1].item() - (log_forget[2, 0] + log_forget[3, 0]).item()) < 1e-12
    assert bias[1, 2, 2] == 0


# cope


def cope_of_the_reference() -> CoPE:
    encoding = CoPE(d_head=K, max_position=4).double()
    fill(encoding.table, series(torch.sin, 0.19, 4, K))
    return encoding


def test_cope_has_its_reference_positions_and_output() -> None:
    scores, visible = Q4 @ K4.mT / 2, torch.ones(T, T).tril().bool()
    assert near(contextual_position(scores, visible)[0, 0, 3], [1.875397, 1.03172, 0.407142, 0.133567])
    assert near(output(cope_of_the_reference())[0, 0, 3].detach(), [0.469462, 0.652659, 0.777556, 0.832997])


def test_cope_gates_that_are_all_open_count_every_token() -> None:
    visible = torch.ones(T, T).tril().bool()
    counted = contextual_position(torch.full((T, T), 1e3), visible)
    assert counted[3].tolist() == [4, 3, 2, 1]
    assert counted[1, :2].tolist() == [2, 1]


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


def test_stick_breaking_has_its_reference_weights_and_output() -> None:
    assert near(row_of_weights(StickBreaking(remainder=False)), [0.230084, 0.453709, 0.273575, 0])
    assert near(output(StickBreaking())[0, 0, 3], [0.608167, 0.573209, 0.487048, 0.35738])


def test_stick_breaking_gives_the_first_token_its_own_value() -> None:
    assert torch.equal(output(StickBreaking())[..., 0, :], V4[..., 0, :])
    assert torch.equal(output(StickBreaking(remainder=False))[..., 0, :], torch.zeros(B, H, K).double())


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


# sliding window, log-n


def test_sliding_window_of_w_sees_w_tokens() -> None:
    zeros = torch.zeros(1, H, 9, K)
    queries, keys = project(SlidingWindow(3), torch.zeros(1, 9, D), zeros, zeros, torch.arange(9))
    assert SlidingWindow(3).visible(queries, keys).sum(-1).tolist() == [1, 2, 3, 3, 3, 3, 3, 3, 3]


def test_logn_has_its_reference_factors() -> None:
    position = torch.tensor([0, 511, 512, 1023, 4095])
    zeros = torch.zeros(1, H, 5, K)
    queries, _ = project(LogN(512), torch.zeros(1, 5, D), zeros, zeros, position)
    assert near(LogN(512).logit_scale(queries).flatten(), [1, 1, 1.000313, 1.111111, 1.333333])


def test_logn_reads_the_position_and_not_the_index() -> None:
    moved = output(LogN(2), torch.arange(T) + 100)
    factor = torch.tensor([math.log(101 + p) / math.log(2) for p in range(T)]).double()
    weights = ((Q4 @ K4.mT / 2) * factor[:, None]).masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
    assert near(moved, weights.softmax(-1) @ V4, 1e-5)


# randomized


def ids(encoding: PositionalEncoding, tokens: int, seed: int = 0, train: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return encoding.ids(torch.zeros(3, tokens, dtype=torch.long), train=train, generator=generator)


def test_randomized_ids_rise_and_stay_below_max_position() -> None:
    for seed in range(20):
        drawn = ids(Randomized(64), 8, seed)
        assert drawn.shape == (8,)
        assert (drawn.diff() > 0).all()
        assert drawn.min() >= 0
        assert drawn.max() < 64


def test_randomized_ids_follow_the_generator() -> None:
    assert torch.equal(ids(Randomized(64), 8, 1), ids(Randomized(64), 8, 1))
    assert not torch.equal(ids(Randomized(64), 8, 1), ids(Randomized(64), 8, 2))


def test_randomized_ids_have_the_means_of_order_statistics() -> None:
    generator, tokens = torch.Generator().manual_seed(0), torch.zeros(1, 8)
    draws = [Randomized(64).ids(tokens, train=True, generator=generator) for _ in range(4_000)]
    expected = [(k + 1) * 65 / 9 - 1 for k in range(8)]
    assert abs(expected[0] - 6.2222) < 1e-4
    assert abs(expected[-1] - 56.7778) < 1e-4
    assert near(torch.stack(draws).double().mean(0), expected, 0.6)


def test_randomized_scored_with_says_which_ids_are_used_outside_training() -> None:
    assert torch.equal(ids(Randomized(64, "arange"), 8, train=False), torch.arange(8))
    assert ids(Randomized(64, "even"), 8, train=False).tolist() == [0, 9, 18, 27, 36, 45, 54, 63]
    assert torch.equal(ids(Randomized(64), 8, 3, train=False), ids(Randomized(64), 8, 3))
    for mode in ("arange", "even"):
        assert torch.equal(ids(Randomized(64, mode), 8, 3), ids(Randomized(64), 8, 3))


def test_randomized_with_more_tokens_than_positions_is_an_error_that_names_both() -> None:
    with pytest.raises(LengthError, match=r"max_position=8 .* 9 tokens"):
        ids(Randomized(8), 9)


# what an encoding becomes at the end of its range


def fox_without_forgetting() -> FoX:
    encoding = FoX(d_model=D, n_heads=H)
    fill(encoding.weight, torch.zeros(H, D))
    fill(encoding.intercept, torch.full((H,), 100.0))
    return encoding


def shaw_zero() -> Shaw:
    encoding = Shaw(d_head=K, max_distance=2)
    fill(encoding.keys, torch.zeros(3, K))
    fill(encoding.values, torch.zeros(3, K))
    return encoding


def t5_zero() -> T5:
    encoding = T5(d_model=D, n_heads=H)
    fill(encoding.table, torch.zeros(H, 32))
    return encoding


@pytest.mark.parametrize("make", [shaw_zero, t5_zero, fox_without_forgetting, lambda: CoPE(d_head=K)])
def test_parametric_encoding_at_zero_is_nope(make: Callable[[], LayerEncoding]) -> None:
    assert near(output(make()).detach(), output(NoPE()), 1e-12)


def test_fox_with_a_constant_gate_is_alibi() -> None:
    encoding = FoX(d_model=D, n_heads=H).double()
    slopes = torch.tensor(alibi_slopes(H), dtype=torch.float64)
    fill(encoding.weight, torch.zeros(H, D))
    fill(encoding.intercept, -torch.log(torch.expm1(slopes)))  # sigmoid of it is exp(-slope)
    assert near(output(encoding).detach(), output(ALiBi(H)), 1e-12)


@pytest.mark.parametrize("inner", [NoPE(), RoPE(d_head=K), ALiBi(H), shaw_of_the_reference()])
def test_window_that_holds_everything_is_the_inner_encoding(inner: LayerEncoding) -> None:
    assert near(output(Stack([inner, SlidingWindow(T)])).detach(), output(inner).detach(), 1e-12)
    assert not near(output(Stack([inner, SlidingWindow(2)])).detach(), output(inner).detach(), 1e-3)


def test_randomized_over_as_many_positions_as_tokens_is_the_inner_encoding() -> None:
    assert torch.equal(ids(Randomized(8), 8), torch.arange(8))
    assert torch.equal(ids(Randomized(8, "even"), 8, train=False), torch.arange(8))


def test_logn_within_the_training_length_is_the_inner_encoding() -> None:
    assert torch.equal(output(LogN(T)), output(NoPE()))


def test_stick_breaking_never_is_nope() -> None:
    assert not near(output(StickBreaking()), output(NoPE()), 1e-2)


# initial values and mistakes


def test_initial_values_are_the_documented_ones() -> None:
    torch.manual_seed(0)
    assert abs(Learned(64, 512).table.std().item() - 0.02) < 1e-3
    assert abs(T5(d_model=64, n_heads=64).table.std().item() - 1 / 8) < 0.01
    assert abs(Shaw(d_head=64, max_distance=200).keys.std().item() - 0.02) < 1e-3
    assert abs(Shaw(d_head=64, max_distance=200).values.std().item() - 0.02) < 1e-3
    assert abs(FoX(d_model=256, n_heads=64).weight.std().item() - 1 / 16) < 2e-3
    kerple = KerpleLog(4_096)
    assert abs(kerple.p.mean().item() - 1) < 0.05
    assert 1.99 < kerple.p.max().item() <= 2
    assert abs(kerple.a.mean().item() - 0.5) < 0.03
    assert 0.99 < kerple.a.max().item() <= 1
    assert not CoPE(d_head=64).table.any()
    assert not FoX(8, 2).intercept.any()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Learned(8, 0),
        lambda: RoPE(d_head=7),
        lambda: RoPE(d_head=8, base=-1.0),
        lambda: T5(8, 2, buckets=32, max_distance=16),
        lambda: T5(8, 2, buckets=1),
        lambda: Shaw(8, max_distance=0),
        lambda: CoPE(8, max_position=0),
        lambda: SlidingWindow(0),
        lambda: Randomized(0),
        lambda: LogN(1),
    ],
)
def test_option_that_cannot_work_is_told_to_the_user(make: Callable[[], object]) -> None:
    with pytest.raises(UserError, match=r"\d"):
        make()


@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_fast_path_of_fox_is_its_reference(tokens: int) -> None:
    encoding = FoX(d_model=D, n_heads=H).double()
    x = series(torch.sin, 0.3, 2, tokens, D)
    q, k, v = (series(torch.cos, step, 2, H, tokens, K) for step in (0.3, 0.5, 0.7))
    fast = attention(encoding, x, q, k, v, torch.arange(tokens))
    assert near(
        fast.detach(), reference_attention(encoding, x, q, k, v, torch.arange(tokens)).detach(), 1e-12
    )
