"""Pictures for a page."""

import re

from matplotlib.figure import Figure

from pe_bench.plot.paper import inline_svg


def test_numbers_of_a_page_s_axis_keep_their_decimals_and_coordinates_have_two() -> None:
    def draw() -> Figure:
        figure = Figure()
        figure.subplots().set_yticks([0.1, 0.2], ["3.825", "3.850"])
        return figure

    svg = inline_svg(draw, "picture", {})
    assert ">3.825<" in svg and ">3.850<" in svg
    assert not re.search(r'="[^"]*\d\.\d{3}', svg)
