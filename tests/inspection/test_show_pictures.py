"""The pictures of `show`: panels, labels, colours and files."""

import numpy as np
import pytest
from matplotlib.text import Text
from support.shown import SMALL, one

from pe_bench.inspection import curves
from pe_bench.inspection.picture import draw, rows_of
from pe_bench.inspection.resolve import resolve
from pe_bench.plot.style import styles_of

# Pictures


@pytest.mark.parametrize("name", ["p_rope", "partial_rope"])
def test_rotations_of_no_pair_have_no_wavelengths_and_can_be_drawn(name):
    subject = one(name, "fraction=0", *SMALL)
    assert curves.wavelengths(subject.encoding.layer(0), 128) == []
    assert draw(rows_of([subject])).axes


def texts(figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_heads_are_named_where_they_differ_with_what_the_panel_leaves_out():
    shown = texts(draw(rows_of(resolve(["alibi"]))))
    assert "head 3" in shown and "head 0 (to \N{MINUS SIGN}250)" in shown
    assert "all heads" in texts(draw(rows_of(resolve(["rope"]))))
    assert "all heads (masked from 20)" in texts(draw(rows_of(resolve(["sliding_window", "window=20"]))))
    assert "undefined" in texts(draw(rows_of(resolve(["learned"]))))


def test_several_encodings_have_a_row_each_and_one_panel_of_all():
    figure = draw(rows_of(resolve(["rope", "alibi"])))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title for title in titles if title in ("rope", "alibi")] == ["rope", "alibi"]
    (legend,) = [found for axes in figure.axes if (found := axes.get_legend()) is not None]
    assert [text.get_text() for text in legend.get_texts()] == [
        "alibi: half within 19",
        "rope: half within 216",
    ]


def test_only_a_mask_that_hides_keys_before_the_query_is_drawn():
    """All others would be the same triangle."""
    causal, window = rows_of([one("rope")]), rows_of([one("sliding_window", "window=20")])
    assert [row.mask is None for row in (*causal, *window)] == [True, False]
    assert "A query sees all keys before it" in note_of(draw(causal))
    assert "A query sees all keys before it" not in note_of(draw(window))


def note_of(figure) -> str:
    return " ".join(figure.subfigs[-1].get_supxlabel().split())


def test_an_encoding_without_scores_by_distance_is_named_beside_the_panel_of_all():
    figure = draw(rows_of(resolve(["rope", "alibi", "sinusoidal"])))
    (legend,) = [found for axes in figure.axes if (found := axes.get_legend()) is not None]
    assert [text.get_text() for text in legend.get_texts()][-1] == "sinusoidal: changes inputs, not scores"


def test_pairs_that_turn_fully_are_counted_and_said_to_be_so():
    figure = draw(rows_of(resolve(["rope"])))
    titles = [" ".join(axes.get_title().split()) for axes in figure.axes]
    assert "feature pairs that turn fully within the training length" in titles
    assert "6 of 16" in texts(figure)


def test_an_encoding_has_the_colour_of_its_curve_in_a_report():
    found = {row.subject.label: row.colour for row in rows_of(resolve(["rope", "alibi"]))}
    assert found == {name: style.colour for name, style in styles_of(["rope", "alibi"]).items()}


def test_no_text_of_a_picture_is_a_formula():
    figure = draw(rows_of(resolve(["rope", "sinusoidal", "sliding_window"])))
    shown = [text.get_text() for text in figure.findobj(Text)]
    assert "10,000" in shown and not [text for text in shown if "$" in text]


def test_labels_of_a_panel_lie_apart():
    figure = draw(rows_of(resolve(["fox", "model=small"])))
    heights = sorted(
        text.get_position()[1] for text in figure.axes[0].texts if text.get_text().startswith("head")
    )
    points = np.diff(heights) * figure.axes[0].get_window_extent().height * 72 / figure.dpi
    assert len(heights) == 8 and points.min() > 9


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_picture_is_written_in_the_format_of_its_name(command, tmp_path, suffix, start):
    file = tmp_path / f"a{suffix}"
    outcome = command("show", "rope", *SMALL, "--plot", str(file))
    assert outcome.code == 0 and f"wrote {file}" in outcome.err, outcome.err
    assert "RoPE: each pair" in outcome.out
    assert file.read_bytes().startswith(start)


def test_a_picture_is_the_same_each_time(command, tmp_path):
    for name in "ab":
        assert command("show", "t5", *SMALL, "--plot", str(tmp_path / f"{name}.svg")).code == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
