"""The numbers that `show` draws: expected scores, wavelengths and masks."""

import math

import numpy as np
import pytest
import torch
from support.encodings import one_of_a_kind
from support.shown import NAMES, SMALL, one

from pe_bench.errors import UserError
from pe_bench.inspection import curves
from pe_bench.inspection.picture import rows_of
from pe_bench.inspection.resolve import ResolvedEncoding


def scores(subject: ResolvedEncoding) -> torch.Tensor:
    length = curves.length_within(subject, 8)
    return curves.scores_by_distance(subject, subject.encoding.layer(0), length).scores


# Numbers


def test_the_expected_score_of_rope_is_the_mean_cosine():
    theta = 10_000.0 ** (-torch.arange(16) / 16)
    expected = math.sqrt(32) * (torch.arange(1_024).unsqueeze(-1) * theta).cos().mean(-1)
    assert (scores(one("rope")) - expected).abs().max() < 2e-3


def test_a_bias_is_added_to_the_content_that_is_shared():
    slopes = torch.tensor([2.0 ** (-2 * head) for head in range(1, 5)])
    expected = math.sqrt(32) - slopes.unsqueeze(-1) * torch.arange(1_024)
    assert (scores(one("alibi")) - expected).abs().max() < 1e-3


def test_contents_have_the_moments_of_the_normal_distribution():
    x, heads = curves.contents(d_model=6, n_heads=3, d_head=4)
    assert heads.shape == (8, 3, 1, 4) and x.shape == (8, 1, 6)
    products = torch.einsum("shqk,shqc->hkc", heads, heads) / len(heads)
    assert (products - torch.eye(4)).abs().max() < 1e-5
    assert heads.mean(0).abs().max() < 1e-6


def test_hidden_keys_have_no_score_and_the_mask_shows_them():
    window = one("sliding_window", "window=20")
    assert torch.equal(scores(window)[0].isnan(), torch.arange(1_024) >= 20)
    mask = curves.mask(window, window.encoding.layer(0), 64)
    row, column = torch.arange(64).unsqueeze(-1), torch.arange(64)
    assert torch.equal(mask, (column <= row) & (row - column < 20))


def test_a_mask_of_a_long_text_has_every_nth_token():
    subject = one("nope", "train.length=1024")
    mask = curves.mask(subject, subject.encoding.layer(0), 4_096)
    assert torch.equal(mask, torch.ones(1_024, 1_024).tril().bool())


def test_without_positions_attention_is_spread_evenly():
    subject = one("nope")
    found = curves.scores_by_distance(subject, subject.encoding.layer(0), 64)
    assert (found.weights - 1 / 64).abs().max() < 1e-6 and not found.is_weight


def test_where_the_softmax_is_replaced_scores_are_logarithms_of_weights():
    subject = one("stick_breaking")
    found = curves.scores_by_distance(subject, subject.encoding.layer(0), 64)
    assert found.is_weight and float(found.scores[0, 1]) == pytest.approx(0, abs=0.1)
    assert float(found.weights.sum(-1).max()) <= 1 + 1e-5


def test_what_is_undefined_past_training_is_shown_up_to_it():
    assert curves.length_within(one("learned"), 8) == 128
    assert curves.length_within(one("rope"), 8) == 1_024


def test_products_of_sinusoids_are_sums_of_cosines_of_the_distance():
    found = curves.input_products(one("sinusoidal"), 100)
    assert found is not None and not found[1]
    theta = 10_000.0 ** (-torch.arange(64) / 64)
    expected = (torch.arange(100).unsqueeze(-1) * theta).cos().sum(-1)
    assert (found[0] - expected).abs().max() < 1e-3
    assert curves.input_products(one("rope"), 100) is None


def test_what_multiplies_the_input_is_shown_on_contents():
    found = curves.input_products(one("multiplicative"), 100)
    assert found is not None and found[1] and float(found[0][0]) > 10


def test_wavelengths_are_those_of_the_window():
    def of(*arguments: str, length: int = 1_024) -> torch.Tensor:
        (found,) = curves.wavelengths(one(*arguments).encoding.layer(0), length)
        return found

    rope = of("rope", "base=500")
    assert (rope - 2 * math.pi * 500.0 ** (torch.arange(16) / 16)).abs().max() < 1e-3
    assert torch.allclose(of("rope_pi"), 8 * of("rope"))
    assert torch.allclose(of("rope_pi", length=128), of("rope"))
    assert curves.wavelengths(one("alibi").encoding.layer(0), 1_024) == []


def test_layers_that_differ_are_shown_apart_and_alike_ones_once():
    assert [kind.numbers for kind in curves.kinds(one("rope"))] == [(0, 1, 2, 3)]
    assert [kind.numbers for kind in curves.kinds(one("deberta"))] == [(0, 1, 2, 3)]
    assert len(curves.kinds(one("swan"))) == 2


@pytest.mark.parametrize("name", one_of_a_kind(NAMES))
def test_every_encoding_has_something_to_draw(name):
    subject = one(name, *SMALL)
    try:
        _ = subject.encoding
    except UserError as refusal:
        pytest.skip(str(refusal))
    rows = rows_of([subject])
    assert rows
    for row in rows:
        assert (row.scores is None) != (row.products is None)
        if row.scores is not None:
            assert np.isfinite(row.scores.scores.numpy()).any(1).all()
            assert np.isfinite(row.scores.weights.numpy()).all()
        if row.products is not None:
            assert np.isfinite(row.products[0]).all()
