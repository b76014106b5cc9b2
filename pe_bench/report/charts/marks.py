"""What is drawn of a curve, alike in one panel and in a grid of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from pe_bench.plot.style import DASHES, GREY, Style
from pe_bench.report.charts.axes import Scale
from pe_bench.report.charts.curves import Chart, Curve, Point

BEYOND = "^"


def draw_curve(axes: Axes, curve: Curve, style: Style, **looks: Any) -> None:
    """The curve with its bands, broken where the targets change: levels on either side are of other text."""
    for points in curve.segments:
        x, levels = [point.x for point in points], [point.level for point in points]
        axes.plot(x, levels, color=style.colour, marker=style.marker, linestyle=style.stroke, **looks)
        low, high = np.array([[point.low, point.high] for point in points]).T
        if np.any(np.isfinite(low)):
            known = np.isfinite(low).tolist()
            axes.fill_between(x, low, high, where=known, color=style.colour, alpha=0.15, linewidth=0)


def mark_training_length(axes: Axes, length: int, width: float) -> None:
    axes.axvline(length, color=GREY, linewidth=width, linestyle=DASHES, zorder=0.5, gid="training length")


def mark_context_use(axes: Axes, curve: Curve, colour: str, size: float) -> None:
    """A ring around each point where the controls say that the far context is used."""
    _mark(axes, [point for point in curve.points if point.uses_context], "o", colour, size, hollow=True)


def mark_beyond(axes: Axes, points: Sequence[Point], colour: str, size: float) -> None:
    """A mark at the panel's upper edge for each level that lies above it."""
    _mark(axes, points, BEYOND, colour, size)


def mark_break_point(axes: Axes, curve: Curve, colour: str, size: float) -> None:
    _mark(axes, [curve.broken_at] if curve.broken_at else [], "X", colour, size)


def notes_on_marks(chart: Chart, scale: Scale) -> list[str]:
    """What bands and rings mean, where there are any."""
    points = [point for curve in chart.curves for point in curve.points]
    notes = []
    if any(np.isfinite(point.low) for point in points):
        notes.append("Bands: the 95 % interval of the mean over seeds.")
    if any(point.uses_context for point in points):
        notes.append("Ringed: uses the context beyond the training length.")
    if any(point.level > scale.high for point in points):
        notes.append("Triangles: levels beyond the axis; the highest is written out.")
    return notes


def _mark(
    axes: Axes, points: Sequence[Point], marker: str, colour: str, size: float, hollow: bool = False
) -> None:
    """Marks on points, at the panel's upper edge for those above it."""
    if points:
        axes.plot(
            [point.x for point in points],
            [min(point.level, axes.get_ylim()[1]) for point in points],
            linestyle="none",
            marker=marker,
            markersize=size,
            markerfacecolor="none" if hollow else colour,
            markeredgecolor=colour,
            markeredgewidth=0.9 if hollow else 0,
            clip_on=False,
            zorder=3,
        )
