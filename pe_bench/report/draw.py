"""The picture of some tables: few curves in a panel with their names, many in a grid of panels."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe_bench.plot.paper import (
    Attributes,
    inline_svg,
    lines_height,
    mark_length,
    name_ends,
    new_figure,
    place_axes,
    place_text,
    save_picture,
)
from pe_bench.plot.scale import scale_of_levels, set_lengths, set_values
from pe_bench.plot.style import (
    COLOURS,
    FONT,
    GREY,
    LEFT,
    NOTE_FONT,
    PALE,
    RULE,
    STROKES,
    WIDTH,
    Style,
    fitting,
    styles_of,
    wrapped,
)
from pe_bench.report.curves import Chart, Curve, PlotValues, Point, charts_of
from pe_bench.report.records import Line, Table

MAX_IN_A_PANEL = 8  # curves; more would be a tangle, and each gets a panel of its own
MAX_NAMED = 12  # curves of the page's picture, which lets one of them stand out
BETWEEN = 0.45  # inches between two charts
PANEL_WIDTH, PANEL_HEIGHT = 4.9, 3.1  # inches: small, so that letters are large on a telephone
PAGE_PANEL = 6.4  # inches, the width of a panel of the page
ON_PAGE, TALL_ON_PAGE, LOSSES = 2.9, 4.6, 2.2  # inches that a picture of the page is high
ABOVE, BELOW = 0.35, 0.55  # inches, for the name of the training length, and for the x axis
MAX_TICKS, FEW_TICKS = 9, 5  # on the y axis of a panel, and of a small one
TICK_GAP, SMALL_TICK_GAP, WIDE_TICK_GAP = 26, 24, 45  # points between two numbers; wide: in a narrow window
MAX_NAME, MAX_NAME_ON_PAGE = 24, 19  # characters
RING, CROSS = 10, 8  # points
BROKEN = "#B3261E"
MARGIN_BAND = "0.94"  # the colour of changes that are within the margin
GAP = 0.18  # inches between two columns of a grid, and twice that between two rows, for the names
MAX_COLUMNS = 6
SMALL = 7.5  # points, of names and numbers of a grid
LETTER = 0.6 * SMALL  # points that a letter of a name is wide, with room to spare
MAX_LOSSES = 200  # points of a run's training losses

Styles = Mapping[str, Style]
Losses = Mapping[str, Sequence[tuple[int, float]]]  # of each run, by its steps; nats per token
Part = tuple[float, Callable[[Figure, float], None]]  # its height in inches, and what draws it so far down
Look = dict[str, Any]  # what matplotlib takes


def plot_tables(tables: Sequence[Table], path: Path, values: PlotValues = "levels") -> None:
    """Draw `tables` into the file `path`; its suffix is the format. Raises `UserError` for its name."""
    save_picture(lambda: draw(tables, values), path)


def draw(tables: Sequence[Table], values: PlotValues = "levels") -> Figure:
    """Return a figure with the charts of the tables, one below the other."""
    charts = [chart for of_table in charts_of(tables, values) for chart in of_table]
    styles = _styles(tables, [curve.label for chart in charts for curve in chart.curves])
    return stacked([_part(chart, styles) for chart in charts], BETWEEN)


def stacked(parts: Sequence[Part], between: float) -> Figure:
    """Return a figure with parts one below the other."""
    figure, top = new_figure(WIDTH, sum(height + between for height, _ in parts) - between), 0.0
    for height, draw_part in parts:
        draw_part(figure, top)
        top += height + between
    return figure


def _styles(tables: Sequence[Table], labels: Sequence[str]) -> Styles:
    """Return the styles of curves; in a family, lines scored with an untrained encoding are dashed."""
    styles, lines = styles_of(labels), [line for table in tables for line in table.lines]
    if not any(line.longest for line in lines):
        return styles
    as_is = {line.label for line in lines if line.scored_with != line.encoding}
    return {label: replace(style, stroke="--" if label in as_is else "-") for label, style in styles.items()}


# For the page


def chart_svg(
    chart: Chart, styles: Styles, key: str, keys: Mapping[str, str], texts: Sequence[Sequence[str]]
) -> str:
    """Return the chart as an element of a page.

    keys: what a curve and its row of the table have in common, by labels. texts: of each curve's points.
    """
    is_named = len(chart.curves) <= MAX_NAMED
    width, height = (PAGE_PANEL, ON_PAGE) if is_named else (WIDTH - LEFT - 0.1, TALL_ON_PAGE)
    parts: dict[str, list[Attributes]] = {
        "margin": [{"class": "margin", "title": f"within the margin of {chart.margin}: holds"}],
        "if wide": [{"class": "if-wide"}],
    }
    for curve, said in zip(chart.curves, texts, strict=True):
        line = {"data-line": keys[curve.label]}
        points = [{"class": "marker", "tabindex": "-1", "role": "img", "aria-label": text} for text in said]
        parts[f"curve of {curve.label}"] = [
            {"class": f"line {class_of(styles[curve.label])}", **line},
            *points,
        ]
        for part in ("band", "ring", "break"):
            parts[f"{part} of {curve.label}"] = [{"class": f"line {part}", **line}]
    for curve in (*chart.curves, *chart.anchors):
        parts[f"name of {curve.label}"] = [{"class": "label", "data-line": keys[curve.label]}]
    for curve in chart.anchors:
        parts[f"anchor {curve.label}"] = [{"class": "anchor", "data-line": keys[curve.label]}]

    def page_figure() -> Figure:
        figure = new_figure(WIDTH, ABOVE + height + BELOW / 2)
        axes = place_axes(figure, LEFT, ABOVE, width, height)
        _draw_panel(axes, chart, styles, width, height, MAX_NAME_ON_PAGE if is_named else 0)
        return figure

    return inline_svg(page_figure, key, parts)


def losses_svg(
    lines: Sequence[Line], losses: Losses, styles: Styles, key: str, keys: Mapping[str, str]
) -> str:
    """Return the training losses of the lines' runs as an element of a page; empty where none is known.

    A run that was scored with several encodings is drawn once, with the one that it was trained with.
    """
    line_of: dict[str, str] = {}
    for line in sorted(lines, key=lambda line: line.scored_with != line.encoding):
        for run in line.runs:
            line_of.setdefault(run, line.label)
    curves = [(label, losses[run]) for run, label in line_of.items() if losses.get(run)]
    values = np.array([loss for _, points in curves for _, loss in points if math.isfinite(loss)])
    if not values.size:
        return ""
    parts = {
        f"losses of {label}": [{"class": f"line {class_of(styles[label])}", "data-line": keys[label]}]
        for label, _ in curves
    }

    def page_figure() -> Figure:
        figure = new_figure(WIDTH, LOSSES + BELOW)
        axes = place_axes(figure, LEFT, 0.1, PAGE_PANEL, LOSSES)
        for label, points in curves:
            look: Look = {"color": styles[label].colour, "linestyle": styles[label].stroke, "linewidth": 1.0}
            thinned = points[:: math.ceil(len(points) / MAX_LOSSES)]
            axes.plot(*np.array(thinned).T, gid=f"losses of {label}", **look)
        set_values(axes, scale_of_levels(values, np.array([]), 0.1), MAX_TICKS)
        axes.grid(axis="y", color=RULE)
        axes.set_xlabel("step")
        return figure

    return inline_svg(page_figure, key, parts)


def class_of(style: Style) -> str:
    """Return the classes of a colour and a stroke, which style.css has."""
    return f"colour{COLOURS.index(style.colour)} stroke{STROKES.index(style.stroke)}"


# Panels


def _part(chart: Chart, styles: Styles) -> Part:
    """Return a chart with its title above and a note below, as a panel or as a grid of them."""
    is_grid = len(chart.curves) > MAX_IN_A_PANEL
    title = lines_height(chart.title, FONT)
    if is_grid:
        order = f"{chart.order_note}; all others in grey."
        note = wrapped([order, f"Dashed: the training length, {chart.train_length}.", *chart.notes])
        above, below, panels = 0.3, 0.6, _grid_height(chart)
    else:
        note = wrapped([*chart.notes, *chart.anchor_notes])
        above, below, panels = ABOVE, BELOW, PANEL_HEIGHT

    def draw_part(figure: Figure, top: float) -> None:
        place_text(figure, LEFT, top, chart.title)
        top += title + above
        if is_grid:
            _draw_grid(figure, chart, styles, top)
        else:
            axes = place_axes(figure, LEFT, top, PANEL_WIDTH, PANEL_HEIGHT)
            _draw_panel(axes, chart, styles, PANEL_WIDTH, PANEL_HEIGHT, MAX_NAME)
            axes.set_xlabel(chart.x_label)
            axes.set_ylabel(chart.y_label)
        place_text(figure, LEFT, top + panels + below, note, fontsize=NOTE_FONT, color=GREY)

    return title + above + panels + below + lines_height(note, NOTE_FONT), draw_part


def _draw_panel(axes: Axes, chart: Chart, styles: Styles, width: float, height: float, max_name: int) -> None:
    """Draw all curves of a chart in one panel, with names of so many characters where they end."""
    _draw_axes(axes, chart, 72 * width, TICK_GAP, MAX_TICKS)
    axes.grid(axis="y", color=RULE)
    for anchor in chart.anchors:
        for points in anchor.segments:
            look: Look = {"color": GREY, "linewidth": 0.7, "zorder": 0.8, "gid": f"anchor {anchor.label}"}
            axes.plot([point.x for point in points], [point.value for point in points], **look)
    for curve in chart.curves:
        _draw_curve(axes, curve, styles[curve.label], 1.6, 5, RING)
    mark_length(axes, chart.train_length, f"training length {chart.train_length}")
    curves = [*chart.curves, *chart.anchors]
    if not max_name or not curves:
        return
    short = fitting([curve.label for curve in curves], max_name)
    names = []
    for curve in curves:
        colour = styles[curve.label].colour if curve in chart.curves else GREY
        names.append((curve.label, f"{short[curve.label]} {chart.remark(curve)}".rstrip(), colour))
    ends = [chart.end_of(curve) for curve in curves]
    beside = [end[0] if chart.ends_early(curve) else 1.0 for curve, end in zip(curves, ends, strict=True)]
    name_ends(axes, names, ends, 72 * height, 72 * width, beside)


def _draw_axes(axes: Axes, chart: Chart, width: float, gap: float, max_ticks: int) -> None:
    inside = [length for length in chart.lengths if chart.x.low <= length <= chart.x.high]
    ticks = sorted(inside, key=lambda length: (length != chart.train_length, -length))
    set_lengths(axes, chart.x, ticks, width, gap, WIDE_TICK_GAP)
    set_values(axes, chart.y, max_ticks, signed=chart.values == "change")
    if chart.values == "change":
        axes.axhspan(-chart.margin, chart.margin, color=MARGIN_BAND, linewidth=0, zorder=0, gid="margin")


def _draw_curve(axes: Axes, curve: Curve, style: Style, width: float, marker: float, ring: float) -> None:
    """Draw the curve with its bands, broken where the targets change: beyond are levels of other text.

    width: of the stroke; marker: the size of markers; ring: of one where the controls say that the far
    context is used, a little less for the cross of the break point; in points.
    """
    for points in curve.segments:
        x, values, low, high = np.array([(point.x, point.value, point.low, point.high) for point in points]).T
        look: Look = {"color": style.colour, "marker": style.marker, "linestyle": style.stroke}
        axes.plot(x, values, linewidth=width, markersize=marker, gid=f"curve of {curve.label}", **look)
        is_known = np.isfinite(low)
        if is_known.any():
            band: Look = {"color": style.colour, "alpha": 0.15, "linewidth": 0}
            axes.fill_between(x, low, high, where=is_known.tolist(), gid=f"band of {curve.label}", **band)
    ringed = [point for point in curve.points if point.uses_context]
    hollow: Look = {"markerfacecolor": "none", "markeredgecolor": style.colour}
    _mark(axes, ringed, marker="o", markersize=ring, gid=f"ring of {curve.label}", **hollow)
    broken = [curve.broken_at] if curve.broken_at else []
    cross: Look = {"color": BROKEN, "markeredgecolor": "white", "markeredgewidth": 0.5}
    size = CROSS * ring / RING
    _mark(axes, broken, marker="X", markersize=size, gid=f"break of {curve.label}", **cross)


def _mark(axes: Axes, points: Sequence[Point], **style: Any) -> None:
    if points:
        x, values = [point.x for point in points], [point.value for point in points]
        axes.plot(x, values, linestyle="none", clip_on=False, zorder=3, **style)


# Grids


def _grid_size(chart: Chart) -> tuple[int, int, float, float]:
    """Return columns and rows, and the width and height of a panel in inches: wide ones are flatter."""
    columns = min(MAX_COLUMNS, max(1, math.ceil(math.sqrt(len(chart.curves)))))
    width = (WIDTH - LEFT + GAP) / columns - GAP
    return columns, math.ceil(len(chart.curves) / columns), width, 0.25 + 0.5 * width


def _grid_height(chart: Chart) -> float:
    _, rows, _, height = _grid_size(chart)
    return rows * (height + 2 * GAP) - 2 * GAP


def _draw_grid(figure: Figure, chart: Chart, styles: Styles, top: float) -> None:
    """Draw a small panel for each curve: one in colour, and all others in grey below it."""
    columns, _, width, height = _grid_size(chart)
    names = fitting([curve.label for curve in chart.curves], int(72 * width / LETTER))
    everything = np.array(list(_all_points(chart))).reshape(-1, 2)
    for number, curve in enumerate(chart.curves):
        row, column = divmod(number, columns)
        left, upper = LEFT + column * (width + GAP), top + row * (height + 2 * GAP)
        axes = place_axes(figure, left, upper, width, height)
        axes.plot(everything[:, 0], everything[:, 1], color=PALE, linewidth=0.6, zorder=1)
        _draw_axes(axes, chart, 72 * width, SMALL_TICK_GAP, FEW_TICKS)
        mark_length(axes, chart.train_length, width=0.7)
        _draw_curve(axes, curve, replace(styles[curve.label], stroke="-"), 1.5, 2.5, 0.7 * RING)
        remark: Look = {"fontsize": SMALL - 1, "color": GREY, "ha": "right", "va": "top"}
        paper: Look = {"facecolor": "white", "linewidth": 0, "pad": 1}
        axes.text(0.98, 0.94, chart.remark(curve), transform=axes.transAxes, bbox=paper, **remark)
        # A given height spares matplotlib the search for one that is free of ticks.
        axes.set_title(names[curve.label], fontsize=SMALL, loc="left", pad=3, y=1.0)
        is_lowest = number + columns >= len(chart.curves)
        axes.tick_params(labelsize=SMALL, length=2.5, labelleft=column == 0, labelbottom=is_lowest)
    middle, bottom = top + _grid_height(chart) / 2, top + _grid_height(chart)
    place_text(figure, 0.2, middle, chart.y_label, rotation=90, ha="center", va="center")
    place_text(figure, (LEFT + WIDTH) / 2, bottom + 0.27, chart.x_label, ha="center")


def _all_points(chart: Chart) -> Iterator[tuple[float, float]]:
    """Yield the points of all segments with a gap after each: one stroke that draws them all."""
    for curve in chart.curves:
        for segment in curve.segments:
            yield from ((point.x, point.value) for point in segment)
            yield (np.nan, np.nan)
