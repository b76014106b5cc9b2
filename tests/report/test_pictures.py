"""Pictures: their files, names, marks and axes, and the colours that lines have in all of them."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from support.results import add_run

from pe_bench.config.groups import names_in
from pe_bench.render.paper import COLOURS, COMMON_LABELS, inline_svg, styles_of
from pe_bench.report.build import build_tables
from pe_bench.report.curves import MAX_TITLE, chart_of
from pe_bench.report.draw import draw, plot_tables, spread_apart
from pe_bench.report.records import Table

LENGTHS = (64, 128, 132, 192, 256, 512)


def tables_of(folder: Path, encodings: int = 3, seeds: int = 1) -> list[Table]:
    """Return encodings whose curves end almost at one point, where names would overlap."""
    for index in range(encodings):
        for seed in range(seeds):
            levels: dict[int, float | None] = dict.fromkeys(LENGTHS, 2.5 + 0.001 * index + 0.1 * seed)
            add_run(folder, f"encoding{index}", levels, seed=seed)
    return build_tables(folder)


def panel_of(folder: Path, levels: dict[str, dict[int, float | None]], values: Any = "levels") -> Axes:
    for name, levels_of_run in levels.items():
        add_run(folder, name, levels_of_run)
    [axes] = draw(build_tables(folder), values).axes
    return axes


def names_beside(axes: Axes) -> list[str]:
    """Return the names to the right of the curves' ends."""
    return [text.get_text() for text in axes.texts if (text.get_gid() or "").startswith("name of ")]


def curve_lines(axes: Axes) -> list[Line2D]:
    return [line for line in axes.lines if (line.get_gid() or "").startswith("curve of ")]


def notes(figure: Figure) -> str:
    return " ".join(" ".join(text.get_text() for text in figure.texts).split())


def shown_ticks(axes: Axes) -> list[str]:
    """Return the labels of the ticks that the axis of values shows."""
    low, high = axes.get_ylim()
    ticks = [tick for tick in axes.get_yticks() if low <= tick <= high]
    return axes.yaxis.get_major_formatter().format_ticks(ticks)


def rendered(figure: Figure) -> tuple[Bbox, list[Bbox]]:
    """Return the boxes of the picture and of all its text, in pixels, without the strokes of names."""
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    figure.draw_without_rendering()
    renderer = canvas.get_renderer()
    edges = Bbox(figure.get_tightbbox(renderer).get_points() * figure.dpi).padded(0.1)  # for rounding
    hidden = [
        label
        for axes in figure.axes
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim()))
        for tick in axis.get_major_ticks()
        if not low <= tick.get_loc() <= high
        for label in (tick.label1, tick.label2)
    ]
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]
    shown = [text for text in texts if text.get_visible() and text not in hidden]
    return edges, [Text.get_window_extent(text, renderer) for text in shown]


def overlapping(boxes: Sequence[Bbox]) -> list[tuple[Bbox, Bbox]]:
    # Boxes have room for the letters' tails: two may share half a point.
    smaller = [box.padded(-0.25) for box in boxes]
    return [(one, other) for one, other in combinations(smaller, 2) if one.overlaps(other)]


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")])
def test_the_suffix_is_the_format_and_a_second_drawing_is_the_same(
    tmp_path: Path, suffix: str, start: bytes
) -> None:
    tables = tables_of(tmp_path, encodings=2)
    paths = [tmp_path / f"{name}.{suffix}" for name in ("first", "second")]
    for path in paths:
        plot_tables(tables, path)
    contents = [path.read_bytes() for path in paths]
    assert contents[0].startswith(start) and contents[0] == contents[1]
    assert not list(tmp_path.glob(".partial-*"))


@pytest.mark.parametrize("encodings", [1, 8, 40])
def test_every_curve_is_named_and_no_two_names_overlap_or_leave_the_picture(
    tmp_path: Path, encodings: int
) -> None:
    figure = draw(tables_of(tmp_path, encodings))
    [axes] = figure.axes
    assert np.argsort(spread_apart(np.array([5.0, 5.0, 99.0, 0.0]), 10, 100)).tolist() == [3, 0, 1, 2]
    assert set(names_beside(axes)) == {f"encoding{index}" for index in range(encodings)}
    picture, boxes = rendered(figure)
    assert overlapping(boxes) == []
    assert all(picture.x0 <= box.x0 and box.x1 <= picture.x1 for box in boxes)
    assert all(picture.y0 <= box.y0 and box.y1 <= picture.y1 for box in boxes)


def test_a_line_breaks_where_the_targets_change(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {64: 3.1, 128: 3.0, 256: 3.1})
    add_run(tmp_path, "rope", {128: 3.5, 4096: 5.0, 8192: 5.1}, target_hash="0ther", seed=0)
    axes = panel_of(tmp_path, {"rope": {1024: 3.2}})
    segments = curve_lines(axes)
    assert isinstance(axes.figure, Figure) and "Gap: the targets are others" in notes(axes.figure)
    assert [list(np.asarray(line.get_xdata())) for line in segments] == [[64, 128, 256, 1024], [4096, 8192]]
    assert len({line.get_color() for line in segments}) == 1


def test_a_line_breaks_where_a_seed_was_not_scored(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {64: 3.1, 128: 3.0, 256: 3.1, 512: 3.2, 1024: 3.3}, seed=1)
    axes = panel_of(tmp_path, {"rope": {64: 3.0, 128: 2.9, 256: 3.0}})
    segments = curve_lines(axes)
    assert isinstance(axes.figure, Figure) and "mean is over more or fewer seeds" in notes(axes.figure)
    assert [list(np.asarray(line.get_xdata())) for line in segments] == [[64, 128, 256], [512, 1024]]


def test_break_points_are_marked_and_explained(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.0, 512: 4.0})
    figure = draw(build_tables(tmp_path))
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "X"]
    assert [list(np.asarray(cross.get_xdata())) for cross in crosses] == [[512]]
    assert "Cross: the break point" in notes(figure)


def test_points_that_use_the_context_are_ringed_and_explained(tmp_path: Path) -> None:
    for seed in range(3):
        add_run(tmp_path, "rope", {32: 2.0, 128: 1.75, 256: 1.74, 512: 1.74}, seed=seed, spread=0.002)
        add_run(tmp_path, "rope", {256: 1.9, 512: 1.74}, seed=seed, spread=0.002, control="swap")
        add_run(tmp_path, "alibi", {128: 1.75, 256: 1.74}, seed=seed, spread=0.002)
    figure = draw(build_tables(tmp_path))
    rings = [line for line in figure.axes[0].lines if (line.get_gid() or "").startswith("ring of ")]
    assert [(ring.get_gid(), list(np.asarray(ring.get_xdata()))) for ring in rings] == [
        ("ring of rope", [256])
    ]
    assert "Ringed: uses the context beyond the training length." in notes(figure)
    others = sorted(run.name for run in (tmp_path / "runs").glob("alibi-*"))
    assert "Ringed" not in notes(draw(build_tables(tmp_path, others)))


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_a_band_is_the_interval_over_seeds_or_the_two_that_there_are(tmp_path: Path, seeds: int) -> None:
    levels = [2.0 + 0.01 * seed for seed in range(seeds)]
    for seed, level in enumerate(levels):
        add_run(tmp_path, "rope", {128: level, 256: level}, seed=seed)
    tables = build_tables(tmp_path)
    figure = draw(tables)
    bands = [band for band in figure.axes[0].collections if band.get_gid() == "band of rope"]
    assert len(bands) == (seeds > 1) and ("Bands: " in notes(figure)) == (seeds > 1)
    half = {1: np.inf, 2: 0.005, 3: 0.01 * 4.302653 / np.sqrt(3)}[seeds]  # Student's quantile of two degrees
    for point in chart_of(tables[0]).curves[0].points:
        ends = (point.low, point.high)
        assert ends == pytest.approx((point.value - half, point.value + half), abs=1e-5)
    interval = tables[0].lines[0].records[256].interval
    changed = chart_of(tables[0], "change").curves[0].points[-1]
    assert interval is not None and (changed.low, changed.high) == (interval.low, interval.high)


def test_a_curve_that_ends_early_says_so_and_infinite_levels_are_left_out(tmp_path: Path) -> None:
    levels: dict[str, dict[int, float | None]] = {
        "undefined": {128: 3.0, 256: None},
        "infinite": {128: 3.0, 256: np.inf},
        "whole": {128: 3.0, 256: 4.0},
        "nothing": {256: None},
    }
    names = names_beside(panel_of(tmp_path, levels))
    assert sorted(names) == ["infinite (to 128)", "nothing (no number)", "undefined (to 128)", "whole"]


def test_the_scored_lengths_are_the_ticks_of_a_log_axis_with_the_training_length_marked(
    tmp_path: Path,
) -> None:
    [axes] = draw(tables_of(tmp_path)).axes
    assert axes.get_xscale() == "log" and list(axes.get_xticks()) == list(LENGTHS)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["64", "128", "", "192", "256", "512"]
    assert "training length 128" in [text.get_text() for text in axes.texts]
    [mark] = [line for line in axes.lines if line.get_gid() == "training length"]
    assert list(np.asarray(mark.get_xdata())) == [128, 128]


def test_a_curve_that_fails_flattens_no_other_in_the_view_of_changes(tmp_path: Path) -> None:
    add_run(tmp_path, "alibi", {64: 2.1, 128: 2.0, 256: 2.03, 512: 2.06})
    add_run(tmp_path, "rope", {64: 2.1, 128: 2.0, 256: 300.0, 512: 900.0})
    tables = build_tables(tmp_path)
    by_level, by_change = draw(tables).axes[0], draw(tables, "change").axes[0]

    def height(axes: Axes, low: float, high: float) -> float:
        ends = axes.transData.transform([(128, low), (128, high)])[:, 1]
        return float(np.diff(ends)[0]) / axes.get_window_extent().height

    assert height(by_level, 2.0, 2.06) < 0.01 and height(by_change, 0.0, 0.06) > 0.1
    assert by_change.get_yscale() == "symlog" and "+0.01" in shown_ticks(by_change)
    assert "the axis is logarithmic" in notes(draw(tables, "change"))


def test_the_view_of_changes_begins_at_the_training_length_with_zero(tmp_path: Path) -> None:
    levels = {"rope": {64: 2.1, 128: 2.0, 256: 2.05}, "learned": {64: 2.1, 128: 2.0, 256: None}}
    axes = panel_of(tmp_path, levels, "change")
    [rope] = curve_lines(axes)
    assert list(np.asarray(rope.get_xdata())) == [128, 256]
    assert np.asarray(rope.get_ydata()) == pytest.approx([0.0, 0.05])
    assert axes.get_ylabel() == "change against 128, bits per byte (+ is worse)"
    assert sorted(names_beside(axes)) == ["learned (none past 128)", "rope"]
    assert [patch.get_gid() for patch in axes.patches] == ["margin"]


@pytest.mark.parametrize(
    ("levels", "scale"),
    [
        *(((2.0, 2.0), "linear"), ((4.486, 4.49), "linear"), ((2.0, 5.9), "linear"), ((0.0, 1e6), "linear")),
        *(((0.05, 8.0), "linear"), ((2.0, 7.9), "linear")),  # what is as good as nothing is not magnified
        *(((2.0, 8.1), "log"), ((1.5, 12.0), "log"), ((2.0, 9e9), "log"), ((0.2, 90.0), "log")),
    ],
)
def test_an_axis_of_levels_spans_ten_margins_and_has_several_ticks_that_differ(
    tmp_path: Path, levels: tuple[float, float], scale: str
) -> None:
    axes = panel_of(tmp_path, {"rope": dict(zip((128, 256), levels, strict=True))})
    low, high = axes.get_ylim()
    assert axes.get_yscale() == scale and high - low >= 0.1 - 1e-9
    assert low < min(levels) and max(levels) < high
    ticks = shown_ticks(axes)
    assert 3 <= len(ticks) == len(set(ticks)) <= 10, ticks


def test_ticks_of_the_page_s_axis_keep_their_decimals_and_coordinates_have_two() -> None:
    def draw_ticks() -> Figure:
        figure = Figure()
        figure.subplots().set_yticks([0.1, 0.2], ["3.825", "3.850"])
        return figure

    svg = inline_svg(draw_ticks, "picture", {})
    assert ">3.825<" in svg and ">3.850<" in svg
    assert not re.search(r'="[^"]*\d\.\d{3}', svg), "places on the page need no thousandths"


def test_colours_follow_names_and_those_that_would_share_one_differ_where_there_are_enough() -> None:
    names = names_in("encoding")
    alone = {name: styles_of([name])[name] for name in [*names, *COMMON_LABELS]}
    assert styles_of(COMMON_LABELS) == {name: alone[name] for name in COMMON_LABELS}
    assert len({alone[name].colour for name in COMMON_LABELS}) == len(COLOURS)
    for name in names:
        assert styles_of([*COMMON_LABELS[:3], name])["rope"] == alone["rope"], name
    first, second = next((a, b) for a in names for b in names if a < b and alone[a].colour == alone[b].colour)
    together = styles_of([second, first])
    assert together[first].colour == alone[first].colour != together[second].colour


def test_a_title_breaks_between_what_it_says_and_not_within(tmp_path: Path) -> None:
    for seed in range(12):
        add_run(tmp_path, "rope", {128: 2.5, 256: 2.6}, seed=seed, steps=1_000, tokenizer="bpe-4096")
    for data in ("stdlib", "a_text_of_some_length"):
        [table] = build_tables(tmp_path)
        titled = replace(table, key=replace(table.key, data=data))
        lines = chart_of(titled).title.split("\n")
        parts = [part for line in lines for part in line.split(" · ")]
        assert parts == titled.title[:-1] and "12 seeds" in parts
        assert len(lines) > 1 and max(map(len, lines)) <= MAX_TITLE
