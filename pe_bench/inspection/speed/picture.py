"""The rows as curves: time relative to the reference against length, each named where it ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from pe_bench.inspection.speed.rows import Row
from pe_bench.plot.file import save_picture
from pe_bench.plot.labels import fitting, plain
from pe_bench.plot.placing import in_points, lines_height, place_axes, place_text, spread_apart
from pe_bench.plot.style import DASHES, FONT, GREY, LEFT, WIDTH, Style, styles_of

PANEL_WIDTH, PANEL_HEIGHT = 6.4, 3.6  # inches
NAME_HEIGHT = 0.17  # inches
LONGEST_NAME = 36  # characters
TICKS = (0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 200, 500, 1000, 2000, 5000)
MARGIN = 1.15  # of the y axis, times the lowest and the highest


@dataclass(frozen=True)
class Curve:
    label: str
    lengths: list[int]
    relative: list[float]


def draw_rows(rows: Sequence[Row], title: str, path: Path) -> None:
    """Into the file `path`, whose suffix is the format; nothing where no row has a number."""
    curves = curves_of(rows)
    if curves:
        save_picture(lambda: draw(curves, rows[0].encoding, title), path)


def curves_of(rows: Sequence[Row]) -> list[Curve]:
    """One for each encoding, where it has a number."""
    known = [row for row in rows if row.relative is not None]
    known.sort(key=lambda row: (row.encoding, row.length))
    return [
        Curve(label, [row.length for row in group], [row.relative or 0.0 for row in group])
        for label, found in groupby(known, key=lambda row: row.encoding)
        for group in [list(found)]
    ]


def draw(curves: Sequence[Curve], reference: str, title: str) -> Figure:
    top = lines_height(title, FONT) + 0.15
    height = max(PANEL_HEIGHT, NAME_HEIGHT * len(curves))
    figure = Figure(figsize=(WIDTH, top + height + 0.55))
    FigureCanvasAgg(figure)
    place_text(figure, LEFT, 0.0, title)
    axes = place_axes(figure, LEFT, top, PANEL_WIDTH, height)
    styles = styles_of(curve.label for curve in curves)
    for curve in curves:
        style = styles[curve.label]
        axes.plot(
            curve.lengths,
            curve.relative,
            color=style.colour,
            marker=style.marker,
            linestyle=style.stroke,
            linewidth=1.4,
            markersize=4,
        )
    axes.axhline(1.0, color=GREY, linewidth=0.9, linestyle=DASHES, zorder=1)
    _set_scales(axes, curves)
    axes.set_xlabel("length (tokens)")
    axes.set_ylabel(f"time, relative to {reference}, log scale")
    _name_curves(axes, curves, styles)
    return figure


def _set_scales(axes: Axes, curves: Sequence[Curve]) -> None:
    lengths = sorted({length for curve in curves for length in curve.lengths})
    levels = [level for curve in curves for level in curve.relative]
    low, high = min(1.0, *levels) / MARGIN, max(1.0, *levels) * MARGIN
    axes.set_xscale("log", base=2)
    axes.set_xlim(lengths[0] / 1.1, lengths[-1] * 1.1)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.xaxis.set_major_locator(FixedLocator(lengths))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{length:,}" for length in lengths]))
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FixedFormatter([plain(tick) for tick in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)


def _name_curves(axes: Axes, curves: Sequence[Curve], styles: dict[str, Style]) -> None:
    """The names right of the panel, each as near as can be to where its curve ends."""
    names = fitting([curve.label for curve in curves], LONGEST_NAME)
    width, height = in_points(axes, axes.get_xlim()[1], axes.get_ylim()[1])
    wanted = np.array([in_points(axes, curve.lengths[-1], curve.relative[-1])[1] for curve in curves])
    gap = min(1.3 * FONT, NAME_HEIGHT * 72)
    for curve, place in zip(curves, spread_apart(wanted, gap, height), strict=True):
        colour = styles[curve.label].colour
        axes.annotate(
            f"{names[curve.label]} {plain(curve.relative[-1])}",
            (curve.lengths[-1], curve.relative[-1]),
            xytext=(1 + FONT / width, place / height),
            textcoords="axes fraction",
            va="center",
            color=colour,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.6,
                "shrinkA": 0,
                "shrinkB": 3,
                "relpos": (0, 0.5),
            },
        )
