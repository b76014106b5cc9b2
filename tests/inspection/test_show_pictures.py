"""What `show --plot` draws: expected scores, wavelengths and masks; panels, labels and files."""

import math

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from support.encodings import one_of_a_kind
from support.shown import NAMES, SMALL, one

from pe_bench.inspection import curves
from pe_bench.inspection.picture import draw, rows_of
from pe_bench.inspection.resolve import resolve
from pe_bench.render.paper import styles_of


def scores(*arguments: str, length: int = 1_024) -> curves.AttentionCurves:
    subject = one(*arguments)
    return curves.scores_by_distance(subject, subject.encoding.layer(0), length)


def test_the_expected_score_of_rope_is_the_mean_cosine_and_of_alibi_the_shared_content_with_its_bias():
    theta = 10_000.0 ** (-torch.arange(16) / 16)
    expected = math.sqrt(32) * (torch.arange(1_024).unsqueeze(-1) * theta).cos().mean(-1)
    assert (scores("rope").scores - expected).abs().max() < 2e-3
    slopes = torch.tensor([2.0 ** (-2 * head) for head in range(1, 5)])
    expected = math.sqrt(32) - slopes.unsqueeze(-1) * torch.arange(1_024)
    assert (scores("alibi").scores - expected).abs().max() < 1e-3


def test_hidden_keys_have_no_score_and_the_mask_shows_them():
    arguments = ("sliding_window", "window=20")
    assert torch.equal(scores(*arguments).scores[0].isnan(), torch.arange(1_024) >= 20)
    subject = one(*arguments)
    mask = curves.mask(subject, subject.encoding.layer(0), 64)
    row, column = torch.arange(64).unsqueeze(-1), torch.arange(64)
    assert torch.equal(mask, (column <= row) & (row - column < 20))


def test_without_positions_attention_is_even_and_a_replaced_softmax_is_shown_by_its_weights():
    even = scores("nope", length=64)
    assert (even.weights - 1 / 64).abs().max() < 1e-6 and even.meaning == "expected score"
    replaced = scores("stick_breaking", length=64)
    assert replaced.meaning == "log of expected weight"
    assert float(replaced.scores[0, 1]) == pytest.approx(0, abs=0.1)
    assert float(replaced.weights.sum(-1).max()) <= 1 + 1e-5


def test_a_state_is_shown_by_what_is_left_in_it():
    kept = scores("retention", length=64)
    assert kept.meaning == "log of what is left of a token"
    heads = torch.arange(len(kept.scores))
    expected = torch.log1p(-(2.0 ** (-5 - heads)))[:, None] * torch.arange(64)
    torch.testing.assert_close(kept.scores, expected, rtol=1e-4, atol=1e-4)
    decaying = scores("gated_deltanet", length=64)
    assert (decaying.scores[:, 0] == 0).all() and (decaying.scores.diff(dim=-1) < 0).all()


def test_products_of_sinusoids_are_sums_of_cosines_of_the_distance():
    products = curves.input_products(one("sinusoidal"), 100)
    assert products is not None and not products[1]
    theta = 10_000.0 ** (-torch.arange(64) / 64)
    expected = (torch.arange(100).unsqueeze(-1) * theta).cos().sum(-1)
    assert (products[0] - expected).abs().max() < 1e-3
    assert curves.input_products(one("rope"), 100) is None
    products = curves.input_products(one("multiplicative"), 100)
    assert products is not None and products[1] and float(products[0][0]) > 10, "on contents"


def test_wavelengths_are_those_of_the_window():
    def of(*arguments: str, length: int = 1_024) -> list[torch.Tensor]:
        return curves.wavelengths(one(*arguments).encoding.layer(0), length)

    (rope,) = of("rope", "base=500")
    assert (rope - 2 * math.pi * 500.0 ** (torch.arange(16) / 16)).abs().max() < 1e-3
    assert torch.allclose(of("rope_pi")[0], 8 * of("rope")[0])
    assert torch.allclose(of("rope_pi", length=128)[0], of("rope")[0])
    assert of("alibi") == of("p_rope", "fraction=0") == []


def test_layers_that_differ_are_shown_apart_and_alike_ones_once():
    kinds = [curves.layer_kinds(one(name).encoding, 4) for name in ("rope", "deberta", "swan")]
    assert kinds == [[(0, 1, 2, 3)], [(0, 1, 2, 3)], [(0,), (1, 2, 3)]]


@pytest.mark.parametrize("name", one_of_a_kind(NAMES))
def test_every_encoding_has_something_to_draw(name):
    rows = rows_of([one(name, *SMALL)])
    assert rows
    for row in rows:
        assert np.isfinite(row.curves).any(1).all()
        assert row.weights is None or np.isfinite(row.weights).all()


def test_heads_are_named_where_they_differ_and_each_encoding_has_a_row_below_a_panel_of_all():
    subjects = resolve(["alibi", "sliding_window", "learned", "window=20"])
    rows = rows_of(subjects)
    assert [row.title for row in rows] == ["alibi", subjects[1].label, "learned: the input"]
    styles = styles_of(subject.label for subject in subjects)
    assert [row.colour for row in rows] == [styles[subject.label].colour for subject in subjects]
    assert rows[2].curves.shape == (1, 128), "undefined past the training length"
    assert [row.mask is None for row in rows] == [True, False, True], "others would be the same triangle"
    figure = draw(rows)
    figure.draw_without_rendering()
    texts = [text.get_text() for text in figure.findobj(Text)]
    assert {"head 3", "all heads (masked from 20)", "10,000", "alibi: half within 19"} <= {*texts}
    assert "6 of 16 feature pairs turn fully\nwithin the training length (dashed)" in texts
    assert not [text for text in texts if "$" in text], "no text is a formula"
    assert len([axes for axes in figure.axes if axes.get_images()]) == 1


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_picture_is_written_in_the_format_of_its_name_the_same_each_time(command, tmp_path, suffix, start):
    files = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for file in files:
        outcome = command("show", "rope", *SMALL, "--plot", str(file))
        assert outcome.code == 0 and f"wrote {file}" in outcome.err, outcome.err
    assert files[0].read_bytes() == files[1].read_bytes() and files[0].read_bytes().startswith(start)


def test_scores_have_one_axis_and_what_was_not_trained_says_so() -> None:
    figure = draw(rows_of(resolve(["alibi", "t5", "rope"])))
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes}
    assert {"alibi", "t5: not trained", "rope"} <= panels.keys()
    assert len({panels[title].get_ylim() for title in ("alibi", "t5: not trained", "rope")}) == 1
