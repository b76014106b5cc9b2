"""The pictures of a report: a panel of curves for each table."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator
from scipy.optimize import isotonic_regression

from pe_bench.plot import paper
from pe_bench.plot.paper import Attributes, Style
from pe_bench.report.curves import Chart, Curve, Point, Scale, chart_of
from pe_bench.report.records import PlotValues, Table

MAX_NAMED = 12  # curves of the page's picture, which lets one of them stand out
BETWEEN = 0.45  # inches between two charts
PANEL_WIDTH, PANEL_HEIGHT = 4.9, 3.1  # inches: small, so that letters are large on a telephone
PAGE_PANEL = 6.4  # inches, the width of a panel of the page
ON_PAGE, TALL_ON_PAGE = 2.9, 4.6  # inches that a picture of the page is high
ABOVE, BELOW = 0.35, 0.55  # inches, for the name of the training length, and for the x axis
MAX_TICKS = 9  # on the y axis
TICK_GAP, TICK_GAP_ON_PAGE = 26, 45  # points between two numbers; letters are larger in a narrow window
NAME_GAP = 1.3 * paper.FONT  # points between the middles of two names
NEAR_END = 0.9  # of the width: curves that end before it have no stroke to their names
MAX_NAME, MAX_NAME_ON_PAGE = 52, 19  # characters: a stage's name stands whole in a file, which may be wide
BROKEN = "#B3261E"
MARGIN_BAND = "0.94"  # the colour of changes that are within the margin
FEW_DECADES = 0.4  # of a log axis, whose ticks are those of a linear one
STEPS = (1, 2, 2.5, 5, 10)  # between the ticks of a linear axis
LOG_STEPS = ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5))  # round numbers of a decade, the densest first

Styles = Mapping[str, Style]
Part = tuple[float, Callable[[Figure, float], None]]  # its height in inches, and what draws it so far down
Look = dict[str, Any]  # what matplotlib takes


def plot_tables(tables: Sequence[Table], path: Path, values: PlotValues = "levels") -> None:
    """Draw `tables` into the file `path`; its suffix is the format. Raises `UserError` for its name."""
    paper.save_picture(lambda: draw(tables, values), path)


def draw(tables: Sequence[Table], values: PlotValues = "levels") -> Figure:
    """Return a figure with a panel for each table, one below the other."""
    styles = _styles(tables)
    return stacked([_part(chart_of(table, values), styles) for table in tables])


def stacked(parts: Sequence[Part]) -> Figure:
    """Return a figure with parts one below the other."""
    figure, top = paper.new_figure(paper.WIDTH, sum(height + BETWEEN for height, _ in parts) - BETWEEN), 0.0
    for height, draw_part in parts:
        draw_part(figure, top)
        top += height + BETWEEN
    return figure


def _styles(tables: Sequence[Table]) -> Styles:
    """Return the styles of curves; in a family, lines scored with an untrained encoding are dashed."""
    lines = [line for table in tables for line in table.lines]
    styles = paper.styles_of(line.label for line in lines)
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
    width, height = (PAGE_PANEL, ON_PAGE) if is_named else (paper.WIDTH - paper.LEFT - 0.1, TALL_ON_PAGE)
    within = f"within the margin of {chart.table.margin}: holds"
    parts: dict[str, list[Attributes]] = {
        "margin": [{"class": "margin", "title": within}],
    }
    for curve, said in zip(chart.curves, texts, strict=True):
        line = {"data-line": keys[curve.label]}
        points = [{"class": "marker", "tabindex": "-1", "role": "img", "aria-label": text} for text in said]
        look = {"class": f"line {class_of(styles[curve.label])}", **line}
        parts[f"curve of {curve.label}"] = [look, *points]
        for part in ("band", "ring", "break"):
            parts[f"{part} of {curve.label}"] = [{"class": f"line {part}", **line}]
    for curve in (*chart.curves, *chart.anchors):
        parts[f"name of {curve.label}"] = [{"class": "label", "data-line": keys[curve.label]}]
    for curve in chart.anchors:
        parts[f"anchor {curve.label}"] = [{"class": "anchor", "data-line": keys[curve.label]}]

    def page_figure() -> Figure:
        figure = paper.new_figure(paper.WIDTH, ABOVE + height + BELOW / 2)
        axes = paper.place_axes(figure, paper.LEFT, ABOVE, width, height)
        _draw_panel(axes, chart, styles, width, height, MAX_NAME_ON_PAGE if is_named else 0)
        return figure

    return paper.inline_svg(page_figure, key, parts)


def class_of(style: Style) -> str:
    """Return the classes of a colour and a stroke, which style.css has."""
    return f"colour{paper.COLOURS.index(style.colour)} stroke{paper.STROKES.index(style.stroke)}"


# Panels of curves


def _part(chart: Chart, styles: Styles) -> Part:
    """Return a panel with its title above and its notes below, as high as the names of its curves need."""
    title, note = paper.lines_height(chart.title, paper.FONT), paper.wrapped(chart.notes)
    panel = max(PANEL_HEIGHT, NAME_GAP / 72 * len(chart.curves))

    def draw_part(figure: Figure, top: float) -> None:
        paper.place_text(figure, paper.LEFT, top, chart.title)
        axes = paper.place_axes(figure, paper.LEFT, top + title + ABOVE, PANEL_WIDTH, panel)
        _draw_panel(axes, chart, styles, PANEL_WIDTH, panel, MAX_NAME)
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(chart.y_label)
        below = top + title + ABOVE + panel + BELOW
        paper.place_text(figure, paper.LEFT, below, note, fontsize=paper.NOTE_FONT, color=paper.GREY)

    return title + ABOVE + panel + BELOW + paper.lines_height(note, paper.NOTE_FONT), draw_part


def _draw_panel(axes: Axes, chart: Chart, styles: Styles, width: float, height: float, max_name: int) -> None:
    """Draw all curves of a chart, with names of so many characters where they end; in inches."""
    _set_lengths(axes, chart, 72 * width, TICK_GAP if max_name == MAX_NAME else TICK_GAP_ON_PAGE)
    set_values(axes, chart.y, signed=chart.values == "change")
    if chart.values == "change":
        margin = chart.table.margin
        axes.axhspan(-margin, margin, color=MARGIN_BAND, linewidth=0, zorder=0, gid="margin")
    axes.grid(axis="y", color=paper.RULE)
    for anchor in chart.anchors:
        for points in anchor.segments:
            look: Look = {"color": paper.GREY, "linewidth": 0.7, "zorder": 0.8}
            x, values = [point.x for point in points], [point.value for point in points]
            axes.plot(x, values, gid=f"anchor {anchor.label}", **look)
    for curve in chart.curves:
        _draw_curve(axes, curve, styles[curve.label])
    paper.mark_length(axes, chart.train_length, f"training length {chart.train_length}")
    if max_name:
        _name_ends(axes, chart, styles, 72 * width, 72 * height, max_name)


def _draw_curve(axes: Axes, curve: Curve, style: Style) -> None:
    """Draw the curve with its bands, broken where the targets change: beyond are levels of other text.

    A ring is where the controls say that the far context is used, a cross the break point.
    """
    for points in curve.segments:
        x, values, low, high = np.array([(point.x, point.value, point.low, point.high) for point in points]).T
        look: Look = {"color": style.colour, "marker": style.marker, "linestyle": style.stroke}
        axes.plot(x, values, linewidth=1.6, markersize=5, gid=f"curve of {curve.label}", **look)
        is_known = np.isfinite(low)
        if is_known.any():
            band: Look = {"color": style.colour, "alpha": 0.15, "linewidth": 0}
            axes.fill_between(x, low, high, where=is_known.tolist(), gid=f"band of {curve.label}", **band)
    ringed = [point for point in curve.points if point.uses_context]
    ring: Look = {"marker": "o", "markersize": 10, "markerfacecolor": "none"}
    _mark(axes, ringed, markeredgecolor=style.colour, gid=f"ring of {curve.label}", **ring)
    broken = [curve.broken_at] if curve.broken_at else []
    cross: Look = {"color": BROKEN, "markeredgecolor": "white", "markeredgewidth": 0.5, "markersize": 8}
    _mark(axes, broken, marker="X", gid=f"break of {curve.label}", **cross)


def _mark(axes: Axes, points: Sequence[Point], **style: Any) -> None:
    if points:
        x, values = [point.x for point in points], [point.value for point in points]
        axes.plot(x, values, linestyle="none", clip_on=False, zorder=3, **style)


def _name_ends(axes: Axes, chart: Chart, styles: Styles, width: float, height: float, max_name: int) -> None:
    """Write the names of curves beside the panel, as near their ends as possible, with thin strokes to them.

    width and height are in points.
    """
    curves = [*chart.curves, *chart.anchors]
    names, ends = paper.fitting([curve.label for curve in curves], max_name), [*map(chart.end_of, curves)]
    places = spread_apart(height * np.array([end[1] for end in ends]), NAME_GAP, height)
    for curve, end, height_of_name in zip(curves, ends, places, strict=True):
        colour = styles[curve.label].colour if curve in chart.curves else paper.GREY
        stroke: Look = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
        is_near = end[0] > NEAR_END  # a long stroke would look like a curve
        axes.annotate(
            f"{names[curve.label]} {chart.remark(curve)}".rstrip(),
            end,
            xycoords="axes fraction",
            xytext=(1 + paper.FONT / width, height_of_name / height),
            textcoords="axes fraction",
            va="center",
            color=colour,
            annotation_clip=False,
            arrowprops={**stroke, "relpos": (0, 0.5)} if is_near else None,
            gid=f"name of {curve.label}",
        )


def spread_apart(preferred: np.ndarray, gap: float, height: float) -> np.ndarray:
    """Return places [n] from 0 to `height`, `gap` apart or more, in the order of `preferred` [n] and near it.

    Where n of them do not fit they go on beyond `height`.
    """
    order = np.argsort(preferred, kind="stable")
    steps = gap * np.arange(len(preferred))
    nearest = np.clip(isotonic_regression(preferred[order] - steps).x, 0, max(0.0, height - steps[-1]))
    places = np.empty(len(preferred))
    places[order] = nearest + steps
    return places


# Ticks


def _set_lengths(axes: Axes, chart: Chart, width: float, gap: float) -> None:
    """Give a panel, `width` points wide, the axis of lengths, with numbers at least `gap` points apart.

    The training length gets its number first, then the longest.
    """
    axes.set_xscale("log")
    axes.set_xlim(chart.x.low, chart.x.high)
    ticks = sorted(length for length in chart.lengths if chart.x.low <= length <= chart.x.high)
    numbered: list[int] = []
    for tick in sorted(ticks, key=lambda length: (length != chart.train_length, -length)):
        distances = (width * abs(chart.x.share(tick) - chart.x.share(other)) for other in numbered)
        if all(distance >= gap for distance in distances):
            numbered.append(tick)
    axes.set_xticks(ticks, [str(tick) if tick in numbered else "" for tick in ticks])
    axes.set_xticks([], minor=True)


def set_values(axes: Axes, scale: Scale, ticks: int = MAX_TICKS, signed: bool = False) -> None:
    """Give a panel a y axis of at most so many round values, with a sign if they are `signed`."""
    axes.set_yscale(scale.shape, **({"linear_width": scale.linear_width} if scale.shape == "asinh" else {}))
    axes.set_ylim(scale.low, scale.high)
    decades = math.log10(scale.high / scale.low) if scale.shape == "log" else 0.0
    numbers = "g"
    if scale.shape == "asinh":
        axes.yaxis.set_major_locator(FixedLocator(_ticks_around_zero(scale, ticks)))
    elif decades > FEW_DECADES:
        sparse = [steps for steps in LOG_STEPS if decades * len(steps) < ticks]
        axes.yaxis.set_major_locator(LogLocator(subs=(*sparse, (1,))[0], numticks=ticks))
    else:
        locator = MaxNLocator(ticks, steps=STEPS)
        axes.yaxis.set_major_locator(locator)
        values = locator.tick_values(scale.low, scale.high)
        numbers = f".{max(len(f'{value:g}'.partition('.')[2]) for value in values)}f"
    sign = "+" if signed else ""
    axes.yaxis.set_major_formatter(lambda tick, _: f"{tick:{sign if tick else ''}{numbers}}")
    axes.yaxis.set_minor_locator(NullLocator())


def _ticks_around_zero(scale: Scale, most: int) -> list[float]:
    """Return 0 and round multiples of the linear width: matplotlib's own ticks overlap around 0."""
    ends = max(abs(scale.low), abs(scale.high)) / scale.linear_width
    sizes = [scale.linear_width * 10.0**power for power in range(math.ceil(math.log10(ends)) + 1)]
    sparse = [tick for size in sizes for tick in (-size, size) if scale.low <= tick <= scale.high]
    dense = [*sparse, *(3 * tick for tick in sparse if scale.low <= 3 * tick <= scale.high)]
    ticks = sorted(dense if len(dense) < most else sparse)
    return [0.0, *ticks[:: math.ceil(len(ticks) / (most - 1))]]
