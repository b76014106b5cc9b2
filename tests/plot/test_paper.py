"""Colours and marks of lines, which are the same from picture to picture, and pictures for a page."""

import re

import pytest
from matplotlib.figure import Figure

from pe_bench.config.groups import names_in
from pe_bench.plot.paper import COLOURS, COMMON, inline_svg, styles_of


def test_numbers_of_a_page_s_axis_keep_their_decimals_and_coordinates_have_two() -> None:
    def draw() -> Figure:
        figure = Figure()
        figure.subplots().set_yticks([0.1, 0.2], ["3.825", "3.850"])
        return figure

    svg = inline_svg(draw, "picture", {})
    assert ">3.825<" in svg and ">3.850<" in svg
    assert not re.search(r'="[^"]*\d\.\d{3}', svg)


def test_the_encodings_compared_most_keep_their_style_in_every_picture_of_them() -> None:
    alone = {name: styles_of([name])[name] for name in COMMON}
    assert styles_of(COMMON) == alone
    assert len({style.colour for style in alone.values()}) == len(COLOURS)
    for name in names_in("encoding"):
        assert styles_of([*COMMON[:3], name])["rope"] == alone["rope"], name


def test_names_that_would_share_a_colour_differ_in_it_where_there_are_enough() -> None:
    names = names_in("encoding")
    alone = {name: styles_of([name])[name].colour for name in names}
    first, second = next((a, b) for a in names for b in names if a < b and alone[a] == alone[b])
    together = styles_of([second, first])
    assert together[first].colour == alone[first]
    assert together[second].colour != alone[second]


@pytest.mark.parametrize("count", [2, 7, 8, 60])
def test_no_two_lines_of_a_picture_look_alike(count: int) -> None:
    styles = styles_of(f"encoding{number}" for number in range(count))
    assert len(set(styles.values())) == count
