"""nope, sinusoidal, learned and randomized positions, against numbers and other forms of themselves."""

import math

import pytest
import torch
from support.reference_encodings import ids
from support.reference_inputs import (
    K4,
    Q4,
    V4,
    X4,
    T,
    near,
    output,
    residual_of_the_best_shift,
)

from pe_bench.encodings.base import LengthError
from pe_bench.encodings.ids.randomized import Randomized
from pe_bench.encodings.inputs.learned import Learned
from pe_bench.encodings.inputs.sinusoidal import Layout, sinusoids
from pe_bench.encodings.nope import NoPE
from pe_bench.model.attention import reference_attention

# nope


def test_nope_in_one_layer_does_not_see_the_order_of_the_past() -> None:
    order = torch.tensor([2, 0, 1, 3])
    shuffled = reference_attention(
        NoPE(), X4, Q4[:, :, order], K4[:, :, order], V4[:, :, order], torch.arange(T)
    )
    assert near(shuffled[..., 3, :], output(NoPE())[..., 3, :], 1e-12)


# sinusoidal


@pytest.mark.parametrize("layout", ["interleaved", "concatenated", "neox"])
def test_sinusoidal_shift_is_one_linear_map_for_all_positions(layout: Layout) -> None:
    # A small base: slow pairs are nearly collinear, and the least squares ill-conditioned.
    assert residual_of_the_best_shift(sinusoids(torch.arange(200), 8, 100.0, layout)) < 1e-9


def test_sinusoidal_reads_positions_between_tokens_and_odd_widths() -> None:
    assert near(
        sinusoids(torch.tensor([0.5]), 5, 10_000.0, "interleaved")[0, :2], [math.sin(0.5), math.cos(0.5)]
    )
    assert sinusoids(torch.arange(3), 5, 10_000.0, "interleaved").shape == (3, 5)


# learned


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
