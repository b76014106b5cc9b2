"""Colours and marks of lines: the same from picture to picture, and no two alike in one."""

import pytest

from pe_bench.config.groups import names_in
from pe_bench.plot.style import COLOURS, COMMON, styles_of


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
