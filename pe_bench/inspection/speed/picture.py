"""The rows as curves: time relative to the reference against length, each named where it ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pe_bench.inspection.speed.rows import Row
from pe_bench.plot.file import save_picture
from pe_bench.plot.labels import fitting
from pe_bench.plot.placing import (
    apply_scale,
    keep_apart,
    lines_height,
    place_axes,
    place_text,
    spread_apart,
)
from pe_bench.plot.scale import Scale, scale_of_lengths, scale_of_ratios, tick_labels
from pe_bench.plot.style import DASHES, FONT, GREY, LEFT, WIDTH, Style, styles_of

PANEL_WIDTH, PANEL_HEIGHT = 6.4, 3.6  # inches
NAME_HEIGHT = 0.17  # inches
TICK_GAP = 36  # points between the middles of two lengths
MAX_NAME = 36  # characters


@dataclass(frozen=True)
class SpeedCurve:
    """The times of an encoding relative to the reference, at rising lengths."""

    label: str
    lengths: list[int]
    relative: list[float]


def draw_rows(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draw rows into the file `path`, whose suffix is the format; nothing where no row has a number."""
    curves = curves_of(rows)
    if curves:
        save_picture(lambda: draw(curves, rows[0].encoding, title), path)


def curves_of(rows: Sequence[Row]) -> list[SpeedCurve]:
    """Return a curve for each encoding, where it has a number."""
    known = [row for row in rows if row.relative is not None]
    known.sort(key=lambda row: (row.encoding, row.length))
    return [
        SpeedCurve(label, [row.length for row in group], [row.relative or 0.0 for row in group])
        for label, found in groupby(known, key=lambda row: row.encoding)
        for group in [list(found)]
    ]


def draw(curves: Sequence[SpeedCurve], reference: str, title: str) -> Figure:
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
    x = scale_of_lengths([length for curve in curves for length in curve.lengths])
    y = scale_of_ratios([ratio for curve in curves for ratio in curve.relative])
    _set_axes(axes, curves, x, y)
    axes.set_xlabel("length (tokens)")
    axes.set_ylabel(f"time, relative to {reference}, log scale")
    _name_curves(axes, curves, styles, y, 72 * height)
    return figure


def _set_axes(axes: Axes, curves: Sequence[SpeedCurve], x: Scale, y: Scale) -> None:
    lengths = sorted({length for curve in curves for length in curve.lengths}, reverse=True)
    places = [72 * PANEL_WIDTH * x.share(length) for length in lengths]
    numbered = keep_apart(lengths, places, TICK_GAP)
    apply_scale(axes, "x", x, lengths, [f"{length:,}" if length in numbered else "" for length in lengths])
    apply_scale(axes, "y", y, y.ticks(), tick_labels(y.ticks()))
    axes.grid(axis="y", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)


def _name_curves(
    axes: Axes, curves: Sequence[SpeedCurve], styles: Mapping[str, Style], y: Scale, height: float
) -> None:
    """Write the names right of the panel, each as near as can be to where its curve ends."""
    names = fitting([curve.label for curve in curves], MAX_NAME)
    wanted = np.array([height * y.share(curve.relative[-1]) for curve in curves])
    gap = min(1.3 * FONT, NAME_HEIGHT * 72)
    for curve, place in zip(curves, spread_apart(wanted, gap, height), strict=True):
        colour = styles[curve.label].colour
        axes.annotate(
            f"{names[curve.label]} {curve.relative[-1]:.3g}",
            (curve.lengths[-1], curve.relative[-1]),
            xytext=(1 + FONT / (72 * PANEL_WIDTH), place / height),
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
