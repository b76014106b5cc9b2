"""The pictures of a report: a panel of curves for each table, and the training losses of its runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, SymmetricalLogLocator
from scipy.optimize import isotonic_regression

from pe_bench.render import paper
from pe_bench.render.paper import Attributes, Style
from pe_bench.report.curves import MIN_SPAN_IN_MARGINS, Chart, Curve, Point, chart_of
from pe_bench.report.records import PlotValues, Table

CHART_GAP = 0.45  # inches between two charts
PANEL_WIDTH, PANEL_HEIGHT = 4.9, 3.1  # inches: small, so that letters are large on a telephone
PANEL_WIDTH_ON_PAGE = 6.4  # inches, the width of a panel of the page
PANEL_HEIGHT_ON_PAGE, LOSSES_HEIGHT = 2.9, 2.2  # inches that a picture of the page is high
SPACE_ABOVE, SPACE_BELOW = 0.35, 0.55  # inches, for the name of the training length, and for the x axis
MAX_LOSS_POINTS = 200  # points of a run's training losses
MAX_TICKS = 9  # the most ticks on the y axis
TICK_GAP, TICK_GAP_ON_PAGE = 26, 45  # points between two numbers; letters are larger in a narrow window
NAME_GAP = 1.3 * paper.FONT  # points between the middles of two names
NEAR_END = 0.9  # a share of the width: curves that end before it have no stroke to their names
MAX_NAME, MAX_NAME_ON_PAGE = 52, 19  # characters: a file, which may be wide, has room for a stage's name
SIDE_MARGIN, TOP_MARGIN = 0.03, 0.1  # the margins of the axes beside the curves, and above and below them
BREAK_COLOUR = "#B3261E"
LETTER_WIDTH = 0.29  # the width of a letter of a number, in gaps
TICK_STEPS = (1, 2, 2.5, 5, 10)  # distances between the ticks of a linear axis, times a power of ten
LOG_TICKS = ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5))  # round numbers of a decade, the densest first

Styles = Mapping[str, Style]
# The losses of each run, as pairs of a step and nats per token.
Losses = Mapping[str, Sequence[tuple[int, float]]]
Keywords = dict[str, Any]  # keyword arguments for matplotlib's drawing functions


def plot_tables(tables: Sequence[Table], path: Path, values: PlotValues = "levels") -> None:
    """Draw `tables` into the file `path`; its suffix is the format. Raises `UserError` for its name."""
    paper.save_picture(lambda: draw(tables, values), path)


def draw(tables: Sequence[Table], values: PlotValues = "levels") -> Figure:
    """Return a figure with a panel for each table, one below the other.

    A panel has its title above and its notes below, and is as high as the names of its curves need.
    """
    styles = _styles(tables)
    charts = [chart_of(table, values) for table in tables]
    titles = [paper.lines_height(chart.title, paper.FONT) for chart in charts]
    panels = [max(PANEL_HEIGHT, _names_height(chart)) for chart in charts]
    notes = [paper.wrapped(chart.notes) for chart in charts]
    around = SPACE_ABOVE + SPACE_BELOW + CHART_GAP
    spaces = [around + paper.lines_height(note, paper.NOTE_FONT) for note in notes]
    figure = paper.new_figure(paper.WIDTH, sum((*titles, *panels, *spaces)))
    top = 0.0
    for chart, title, panel, note, space in zip(charts, titles, panels, notes, spaces, strict=True):
        paper.place_text(figure, paper.LEFT, top, chart.title)
        top += title
        axes = paper.place_axes(figure, paper.LEFT, top + SPACE_ABOVE, PANEL_WIDTH, panel)
        _draw_panel(axes, chart, styles, PANEL_WIDTH, panel, MAX_NAME)
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(chart.y_label)
        below = top + SPACE_ABOVE + panel + SPACE_BELOW
        paper.place_text(figure, paper.LEFT, below, note, fontsize=paper.NOTE_FONT, color=paper.GREY)
        top += panel + space
    return figure


def _names_height(chart: Chart) -> float:
    """Return the inches that the names of all curves need, one below the other."""
    return NAME_GAP / 72 * len(chart.curves)


def _styles(tables: Sequence[Table]) -> Styles:
    """Return each label's style; with later stages, lines scored with an untrained encoding are dashed."""
    lines = list(chain.from_iterable(table.lines for table in tables))
    styles = paper.styles_of(line.label for line in lines)
    if any(line.longest for line in lines):
        for line in lines:
            stroke = "-" if line.scored_with == line.encoding else "--"
            styles[line.label] = replace(styles[line.label], stroke=stroke)
    return styles


# For the page


def chart_svg(
    chart: Chart, styles: Styles, picture_id: str, line_ids: Mapping[str, str], texts: Sequence[Sequence[str]]
) -> str:
    """Return the chart as an SVG element of a page.

    picture_id: the beginning of the ids in the picture. line_ids: for each label, the attribute that a curve
    shares with its row of the table. texts: for each curve, the texts of its points.
    """
    height = max(PANEL_HEIGHT_ON_PAGE, _names_height(chart))
    parts_by_name: dict[str, list[Attributes]] = {}

    def add_part(part: str, curve: Curve, kind: str) -> None:
        parts_by_name[f"{part} {curve.label}"] = [{"class": kind, "data-line": line_ids[curve.label]}]

    for curve, texts_of_points in zip(chart.curves, texts, strict=True):
        add_part("curve of", curve, f"line {css_classes(styles[curve.label])}")
        for text in texts_of_points:
            marker = {"class": "marker", "tabindex": "-1", "role": "img", "aria-label": text}
            parts_by_name[f"curve of {curve.label}"].append(marker)
        for part in ("band", "ring", "break"):
            add_part(f"{part} of", curve, f"line {part}")
    for curve in (*chart.curves, *chart.anchors):
        add_part("name of", curve, "label")
    for curve in chart.anchors:
        add_part("anchor", curve, "anchor")

    def draw_for_page() -> Figure:
        total = SPACE_ABOVE + height + SPACE_BELOW / 2
        figure = paper.new_figure(paper.WIDTH, total)
        axes = paper.place_axes(figure, paper.LEFT, SPACE_ABOVE, PANEL_WIDTH_ON_PAGE, height)
        _draw_panel(axes, chart, styles, PANEL_WIDTH_ON_PAGE, height, MAX_NAME_ON_PAGE)
        return figure

    return paper.inline_svg(draw_for_page, picture_id, parts_by_name)


def losses_svg(
    table: Table, losses: Losses, styles: Styles, picture_id: str, line_ids: Mapping[str, str]
) -> str:
    """Return the training losses of a table's runs as an SVG element of a page; empty without any loss."""
    curves = []
    for line in table.lines:
        if line.scored_with == line.encoding:
            curves += [(line.label, losses[run]) for run in line.runs if losses.get(run)]
    if not curves:
        return ""

    def draw_for_page() -> Figure:
        figure = paper.new_figure(paper.WIDTH, LOSSES_HEIGHT + SPACE_BELOW)
        axes = paper.place_axes(figure, paper.LEFT, 0.1, PANEL_WIDTH_ON_PAGE, LOSSES_HEIGHT)
        for label, points in curves:
            style = styles[label]
            keywords: Keywords = {"color": style.colour, "linestyle": style.stroke, "linewidth": 1.0}
            every = math.ceil(len(points) / MAX_LOSS_POINTS)
            steps, values = zip(*points[::every], strict=True)
            axes.plot(steps, values, gid=f"losses of {label}", **keywords)
        axes.grid(axis="y", color=paper.RULE)
        axes.set_xlabel("step")
        return figure

    parts_by_name: dict[str, list[Attributes]] = {
        f"losses of {label}": [{"class": f"line {css_classes(styles[label])}", "data-line": line_ids[label]}]
        for label, _ in curves
    }
    return paper.inline_svg(draw_for_page, picture_id, parts_by_name)


def css_classes(style: Style) -> str:
    """Return the names of the CSS classes for a style's colour and stroke: `colour2 stroke0`."""
    colour = paper.COLOURS.index(style.colour)
    stroke = paper.STROKES.index(style.stroke)
    return f"colour{colour} stroke{stroke}"


# Panels of curves


def _draw_panel(axes: Axes, chart: Chart, styles: Styles, width: float, height: float, max_name: int) -> None:
    """Draw all curves of a chart, with their names, of at most `max_name` characters, where they end.

    width, height: the size of the panel, in inches. The curves set the axes; bands, which may be very wide,
    do not.
    """
    axes.set_xscale("log")
    if chart.shape == "symlog":
        axes.set_yscale("symlog", linthresh=chart.table.margin)
    else:
        axes.set_yscale(chart.shape)
    axes.margins(SIDE_MARGIN, TOP_MARGIN)
    for curve in chart.curves:
        style = styles[curve.label]
        line_keywords: Keywords = {"color": style.colour, "marker": style.marker, "linestyle": style.stroke}
        _plot_curve(axes, curve, f"curve of {curve.label}", linewidth=1.6, markersize=5, **line_keywords)
    for anchor in chart.anchors:
        marker = "_" if len(anchor.points) == 1 else ""  # a line of one point would not be seen
        grey: Keywords = {"color": paper.GREY, "linewidth": 0.7, "marker": marker, "zorder": 0.8}
        _plot_curve(axes, anchor, f"anchor {anchor.label}", **grey)
    paper.mark_length(axes, chart.train_length, f"training length {chart.train_length:,}")
    _set_value_axis(axes, chart)
    tick_gap = TICK_GAP if max_name == MAX_NAME else TICK_GAP_ON_PAGE
    _set_length_axis(axes, chart, 72 * width, tick_gap)
    if chart.values == "change":
        margin = chart.table.margin
        axes.axhspan(-margin, margin, color=paper.MARGIN_BAND, linewidth=0, zorder=0, gid="margin")
    axes.grid(axis="y", color=paper.RULE)
    for curve in chart.curves:
        _draw_marks(axes, curve, styles[curve.label].colour)
    _name_ends(axes, chart, styles, 72 * width, 72 * height, max_name)


def _plot_curve(axes: Axes, curve: Curve, gid: str, **keywords: Any) -> None:
    """Draw a curve, with gaps between its segments."""
    for points in curve.segments:
        x = [point.x for point in points]
        values = [point.value for point in points]
        axes.plot(x, values, gid=gid, **keywords)


def _draw_marks(axes: Axes, curve: Curve, colour: str) -> None:
    """Draw a curve's bands, a ring where far context is used, and a cross at the break point."""
    for points in curve.segments:
        bounds = [(point.x, point.low, point.high) for point in points]
        x, low, high = np.array(bounds).T
        band: Keywords = {"color": colour, "alpha": 0.15, "linewidth": 0, "gid": f"band of {curve.label}"}
        if (is_known := np.isfinite(low)).any():
            axes.fill_between(x, low, high, where=is_known.tolist(), **band)
    ringed = [point for point in curve.points if point.uses_context]
    ring: Keywords = {"marker": "o", "markersize": 10, "markerfacecolor": "none"}
    _plot_marks(axes, ringed, markeredgecolor=colour, gid=f"ring of {curve.label}", **ring)
    broken = [curve.broken_at] if curve.broken_at else []
    cross: Keywords = {
        "color": BREAK_COLOUR,
        "markeredgecolor": "white",
        "markeredgewidth": 0.5,
        "markersize": 8,
    }
    _plot_marks(axes, broken, marker="X", gid=f"break of {curve.label}", **cross)


def _plot_marks(axes: Axes, points: Sequence[Point], **style: Any) -> None:
    if points:
        x = [point.x for point in points]
        values = [point.value for point in points]
        axes.plot(x, values, linestyle="none", clip_on=False, zorder=3, **style)


def _name_ends(axes: Axes, chart: Chart, styles: Styles, width: float, height: float, max_name: int) -> None:
    """Write the names of curves beside the panel, near the ends of the curves, with thin strokes to them.

    width, height: the size of the panel, in points. max_name: as in `_draw_panel`. A curve without a number
    has its name at the lower right corner.
    """
    curves = [*chart.curves, *chart.anchors]
    corner = Point(axes.get_xlim()[1], axes.get_ylim()[0])
    last_points = [curve.points[-1] if curve.points else corner for curve in curves]
    ends = _places_in_axes(axes, last_points)
    places = spread_apart(height * ends[:, 1], NAME_GAP, height)
    text_keywords: Keywords = {"va": "center", "annotation_clip": False}
    for curve, (x, y), place in zip(curves, ends, places, strict=True):
        colour = styles[curve.label].colour if curve in chart.curves else paper.GREY
        stroke: Keywords | None = None
        if x > NEAR_END:  # a longer stroke would look like a curve
            stroke = {"arrowstyle": "-", "color": colour, "linewidth": 0.6}
            stroke |= {"shrinkA": 0, "shrinkB": 3, "relpos": (0, 0.5)}
        name = f"{paper.shortened(curve.label, max_name)} {chart.remark(curve)}"
        axes.annotate(
            name.rstrip(),
            (x, y),
            xycoords="axes fraction",
            xytext=(1 + paper.FONT / width, place / height),
            textcoords="axes fraction",
            color=colour,
            arrowprops=stroke,
            gid=f"name of {curve.label}",
            **text_keywords,
        )


def _places_in_axes(axes: Axes, points: Sequence[Point]) -> np.ndarray:
    """Return the places of points between the axes' ends, as shares of width and height [n, 2]."""
    values = axes.transData.transform([(point.x, point.value) for point in points])
    return axes.transAxes.inverted().transform(values)


def spread_apart(preferred: np.ndarray, gap: float, height: float) -> np.ndarray:
    """Return places [n] near the `preferred` places [n], in their order, at least `gap` apart.

    They lie between 0 and `height`, or go on beyond `height` if there are too many.
    """
    order = np.argsort(preferred, kind="stable")
    steps = gap * np.arange(len(preferred))
    nearest = isotonic_regression(preferred[order] - steps).x
    most = max(0.0, height - steps[-1])
    places = np.empty(len(preferred))
    places[order] = np.clip(nearest, 0, most) + steps
    return places


# Ticks


def _set_length_axis(axes: Axes, chart: Chart, width: float, gap: float) -> None:
    """Fix the range and ticks of the horizontal axis, with numbers at least `gap` points apart.

    width: the width of the panel, in points. Long numbers are further apart. The training length gets its
    number first, then the longest length.
    """
    first, last = axes.get_xlim()
    axes.set_xlim(first, last)
    ticks = sorted(length for length in chart.lengths if first <= length <= last)
    top = axes.get_ylim()[1]
    shares = _places_in_axes(axes, [Point(tick, top) for tick in ticks])
    places = dict(zip(ticks, width * shares[:, 0], strict=True))
    labels_of_ticks: dict[int, str] = {}

    def has_room(tick: int, other: int) -> bool:
        letters = len(f"{tick:,}") + len(f"{other:,}")
        apart = abs(places[tick] - places[other])
        return apart >= gap * max(1, LETTER_WIDTH * letters / 2)

    lengths_by_importance = sorted(ticks, key=lambda length: (length != chart.train_length, -length))
    for tick in lengths_by_importance:
        if all(has_room(tick, other) for other in labels_of_ticks):
            labels_of_ticks[tick] = f"{tick:,}"
    axes.set_xticks(ticks, [labels_of_ticks.get(tick, "") for tick in ticks])
    axes.set_xticks([], minor=True)


def _set_value_axis(axes: Axes, chart: Chart) -> None:
    """Fix the range and ticks of the vertical axis: few round numbers, with a sign if they are changes."""
    low, high = axes.get_ylim()
    if chart.table.is_task:  # shares are 0 to 1
        low = -SIDE_MARGIN
        high = 1 + SIDE_MARGIN
    span = max(high - low, MIN_SPAN_IN_MARGINS * chart.table.margin)
    missing = (span - (high - low)) / 2
    low -= missing
    high += missing
    axes.set_ylim(low, high)
    numbers = "g"
    if chart.shape == "symlog":
        axes.yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=chart.table.margin))
    elif chart.shape == "log":
        decades = math.log10(high / low)
        sparse = [steps for steps in LOG_TICKS if decades * len(steps) < MAX_TICKS]
        steps = sparse[0] if sparse else (1,)
        axes.yaxis.set_major_locator(LogLocator(subs=steps, numticks=MAX_TICKS))
    else:
        locator = MaxNLocator(MAX_TICKS, steps=TICK_STEPS)
        axes.yaxis.set_major_locator(locator)
        texts = [f"{value:g}" for value in locator.tick_values(low, high)]
        decimals = max(len(text.partition(".")[2]) for text in texts)
        numbers = f".{decimals}f"
    sign = "+" if chart.values == "change" else ""

    def text_of_tick(tick: float, _: float) -> str:
        spec = f"{sign}{numbers}" if tick else numbers
        return f"{tick:{spec}}"

    axes.yaxis.set_major_formatter(text_of_tick)
    axes.yaxis.set_minor_locator(NullLocator())
