"""Many curves: each has a small panel, can be read, and is not flattened by another."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.pictures import (
    curve_lines,
    notes,
    overlapping,
    rendered,
    tables_of,
)
from support.results import add_run

from pe_bench.report.build import build_tables
from pe_bench.report.draw import draw
from pe_bench.report.records import Table


def many(folder: Path, encodings: int, levels: Mapping[str, Mapping[int, float | None]]) -> list[Table]:
    """Return encodings that rise by less the later they come, some with given levels."""
    for index in range(encodings - len(levels)):
        slope = 0.5 / (1 + index)
        add_run(
            folder,
            f"encoding_of_windows_{index}",
            {64: 2.5, 128: 2.4, 256: 2.4 + slope, 512: 2.4 + 2 * slope},
        )
    for name, own in levels.items():
        add_run(folder, name, own)
    return build_tables(folder)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Table, Figure]:
    """Return 51 encodings: one has a long name, one explodes, one ends early, one has no number."""
    long_name = "longrope long_factors=[1.0, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 4.0]"
    levels: dict[str, dict[int, float | None]] = {
        long_name: {64: 2.5, 128: 2.4, 256: 2.5, 512: 2.6},
        "explodes": {64: 2.5, 128: 2.4, 256: 60.0, 512: 480.0},
        "learned": {64: 2.5, 128: 2.4, 256: None, 512: None},
        "missing": {64: None, 128: None},
    }
    [table] = many(tmp_path_factory.mktemp("many"), 51, levels)
    return table, draw([table])


def test_each_encoding_has_a_panel_in_the_order_of_the_table(drawn: tuple[Table, Figure]) -> None:
    table, figure = drawn
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert len(titles) == len(set(titles)) == 51
    for line, title in zip(table.lines, titles, strict=True):
        start, _, end = title.partition("…")
        assert line.label.startswith(start)
        assert line.label.endswith(end)
    places = [(-axes.get_position().y0, axes.get_position().x0) for axes in figure.axes]
    assert places == sorted(places)
    assert "by bits per byte at context length 512; all others in grey" in notes(figure)


def test_fifty_one_panels_fit_on_one_page_and_no_text_overlaps(
    drawn: tuple[Table, Figure],
) -> None:
    _, figure = drawn
    width, height = figure.get_size_inches()
    assert width < 9.5
    assert height < 13
    assert len({round(axes.get_position().x0, 6) for axes in figure.axes}) == 6
    picture, boxes = rendered(figure)
    assert overlapping(boxes) == []
    assert all(picture.x0 <= box.x0 and box.x1 <= picture.x1 for box in boxes)


def test_a_panel_has_its_own_curve_in_colour_and_all_others_in_grey(drawn: tuple[Table, Figure]) -> None:
    table, figure = drawn
    for line, axes in zip(table.lines, figure.axes, strict=True):
        own = [level for stroke in curve_lines(axes) for level in np.asarray(stroke.get_ydata())]
        assert own == [cell.bits_per_byte for cell in line.records.values() if cell.levels]
        grey = axes.lines[0]
        assert grey.get_color() == "0.83"
        assert np.count_nonzero(np.isfinite(np.asarray(grey.get_ydata()))) == 49 * 4 + 2


def test_eight_encodings_share_a_panel_and_nine_have_one_each(tmp_path: Path) -> None:
    [table] = tables_of(tmp_path, 9)
    assert [len(draw([replace(table, lines=table.lines[:count])]).axes) for count in (8, 9)] == [1, 9]
