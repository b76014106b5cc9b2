"""Pictures as files, what all of them have, and few curves in one panel."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from support.results import add_run

from pe_bench.report.build import build_tables
from pe_bench.report.draw import draw, plot_tables, spread_apart
from pe_bench.report.records import Line, Table
from pe_bench.report.verdicts import find_break_point

LENGTHS = (64, 128, 192, 256, 512)


def tables_of(folder: Path, encodings: int = 3, seeds: int = 1) -> list[Table]:
    """Return encodings whose curves end almost at one point, where names would overlap."""
    for index in range(encodings):
        for seed in range(seeds):
            levels: dict[int, float | None] = dict.fromkeys(LENGTHS, 2.5 + 0.001 * index + 0.1 * seed)
            add_run(folder, f"encoding{index}", levels, seed=seed)
    return build_tables(folder)


def with_verdicts(tables: Sequence[Table], verdicts: Mapping[str, Mapping[int, str]]) -> list[Table]:
    """Return the same tables with verdicts of some encodings at some lengths, and `holds` everywhere else."""

    def add(line: Line) -> Line:
        own = verdicts.get(line.label, {})
        cells = {
            length: replace(cell, verdict=own.get(length, "holds")) for length, cell in line.records.items()
        }
        return replace(line, records=cells, break_point=find_break_point(cells, 128))

    return [replace(table, lines=tuple(add(line) for line in table.lines)) for table in tables]


def names_beside(axes: Axes) -> list[str]:
    """Return the names to the right of the curves' ends."""
    return [text.get_text() for text in axes.texts if (text.get_gid() or "").startswith("name of ")]


def curve_lines(axes: Axes) -> list[Line2D]:
    """Return the lines of curves, without marks and the training length."""
    return [line for line in axes.lines if line.get_marker() != "None" and line.get_linestyle() != "None"]


def draws_training_length(axes: Axes, length: int) -> bool:
    low, high = axes.get_xlim()
    found = [line for line in axes.lines if line.get_gid() == "training length"]
    return low < length < high and [list(line.get_xdata()) for line in found] == [[length, length]]  # pyright: ignore[reportArgumentType]


def notes(figure: Figure) -> str:
    return " ".join(" ".join(text.get_text() for text in figure.texts).split())


def rendered(figure: Figure) -> tuple[Bbox, list[Bbox]]:
    """Return the boxes of the picture and of all its text, in pixels, without the strokes of names."""
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    figure.draw_without_rendering()
    renderer = canvas.get_renderer()
    picture = figure.get_tightbbox(renderer)
    edges = Bbox(picture.get_points() * figure.dpi).padded(0.1)  # for rounding
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]
    shown = [text for text in texts if text.get_visible() and not _is_hidden_tick(text, figure)]
    return edges, [Text.get_window_extent(text, renderer) for text in shown]


def overlapping(boxes: Sequence[Bbox]) -> list[tuple[Bbox, Bbox]]:
    return [(one, other) for one, other in combinations(boxes, 2) if _overlap(one, other)]


def _overlap(one: Bbox, other: Bbox) -> bool:
    # Boxes have room for the letters' tails: two may share half a point.
    return (
        one.x0 + 0.5 < other.x1
        and other.x0 + 0.5 < one.x1
        and one.y0 + 0.5 < other.y1
        and other.y0 + 0.5 < one.y1
    )


def _is_hidden_tick(text: Text, figure: Figure) -> bool:
    """Return whether it labels a tick that is outside the axis or has no number."""
    for axes in figure.axes:
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            for tick in axis.get_major_ticks():
                if text in (tick.label1, tick.label2):
                    return not low <= tick.get_loc() <= high or not text.get_visible()
    return False


# Files


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")])
def test_the_suffix_is_the_format_and_a_second_drawing_is_the_same(
    tmp_path: Path, suffix: str, start: bytes
) -> None:
    tables = tables_of(tmp_path, encodings=2)
    paths = [tmp_path / f"{name}.{suffix}" for name in ("first", "second")]
    for path in paths:
        plot_tables(tables, path)
    contents = [path.read_bytes() for path in paths]
    assert contents[0].startswith(start)
    assert contents[0] == contents[1]
    assert not list(tmp_path.glob(".partial-*"))


# Names of curves


@pytest.mark.parametrize("encodings", [1, 8, 40])
def test_every_curve_is_named_and_no_two_names_overlap_or_leave_the_picture(
    tmp_path: Path, encodings: int
) -> None:
    figure = draw(tables_of(tmp_path, encodings))
    [axes] = figure.axes
    assert set(names_beside(axes)) == {f"encoding{index}" for index in range(encodings)}
    picture, boxes = rendered(figure)
    assert overlapping(boxes) == []
    assert all(picture.x0 <= box.x0 and box.x1 <= picture.x1 for box in boxes)
    assert all(picture.y0 <= box.y0 and box.y1 <= picture.y1 for box in boxes)


# Bands and marks


def test_a_line_breaks_where_the_targets_change(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {64: 3.1, 128: 3.0, 256: 3.1})
    add_run(tmp_path, "rope", {128: 3.5, 4096: 5.0, 8192: 5.1}, target_hash="0ther", seed=0)
    add_run(tmp_path, "rope", {1024: 3.2}, seed=0)
    [axes] = draw(build_tables(tmp_path)).axes
    segments = curve_lines(axes)
    assert [list(np.asarray(line.get_xdata())) for line in segments] == [[64, 128, 256, 1024], [4096, 8192]]
    assert len({line.get_color() for line in segments}) == 1


def test_break_points_are_marked_and_explained(tmp_path: Path) -> None:
    [table] = with_verdicts(tables_of(tmp_path, 2), {"encoding1": {256: "unclear", 512: "fails"}})
    figure = draw([table])
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "X"]
    assert [list(np.asarray(cross.get_xdata())) for cross in crosses] == [[512]]
    assert "Cross: the break point" in notes(figure)


# Axes


def test_the_scored_lengths_are_the_ticks_of_a_log2_axis_with_the_training_length_marked(
    tmp_path: Path,
) -> None:
    [axes] = draw(tables_of(tmp_path)).axes
    assert axes.get_xscale() == "log"
    assert list(axes.get_xticks()) == list(LENGTHS)
    assert [label.get_text() for label in axes.get_xticklabels()] == list(map(str, LENGTHS))
    assert "training length 128" in [text.get_text() for text in axes.texts]
    assert draws_training_length(axes, 128)


def test_a_curve_that_fails_flattens_no_other_in_the_view_of_changes(tmp_path: Path) -> None:
    add_run(tmp_path, "alibi", {64: 2.1, 128: 2.0, 256: 2.03, 512: 2.06})
    add_run(tmp_path, "rope", {64: 2.1, 128: 2.0, 256: 300.0, 512: 900.0})
    tables = build_tables(tmp_path)
    by_level, by_change = draw(tables).axes[0], draw(tables, "change").axes[0]

    def height(axes: Axes, low: float, high: float) -> float:
        ends = axes.transData.transform([(128, low), (128, high)])[:, 1]
        return float(np.diff(ends)[0]) / axes.get_window_extent().height

    assert height(by_level, 2.0, 2.06) < 0.01
    assert height(by_change, 0.0, 0.06) > 0.1
    assert by_change.get_yscale() == "asinh"
    assert "the axis is logarithmic" in notes(draw(tables, "change"))


def test_the_view_of_changes_begins_at_the_training_length_with_zero(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {64: 2.1, 128: 2.0, 256: 2.5})
    add_run(tmp_path, "learned", {64: 2.1, 128: 2.0, 256: None})
    figure = draw(build_tables(tmp_path), "change")
    [axes] = figure.axes
    [rope] = curve_lines(axes)
    assert list(np.asarray(rope.get_xdata())) == [128, 256]
    assert np.asarray(rope.get_ydata()) == pytest.approx([0.0, 0.5])
    assert axes.get_ylabel() == "change against 128, bits per byte (+ is worse)"
    assert sorted(names_beside(axes)) == ["learned (none past 128)", "rope"]
    assert [patch.get_gid() for patch in axes.patches] == ["margin"]


# Places


def test_places_are_spread_apart_in_order_inside_the_limits() -> None:
    wanted = np.array([5.0, 5.0, 99.0, 0.0])
    places = spread_apart(wanted, 10, 100)
    assert np.all(np.diff(np.sort(places)) >= 10 - 1e-9)
    assert places.min() >= 0
    assert places.max() <= 100
    assert np.argsort(places).tolist() == [3, 0, 1, 2]
    assert spread_apart(np.array([20.0, 80.0]), 10, 100).tolist() == [20.0, 80.0]
