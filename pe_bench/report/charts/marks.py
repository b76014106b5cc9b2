"""The marks of a chart, which are drawn alike in one panel and in a grid of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from pe_bench.plot.placing import apply_scale
from pe_bench.plot.scale import tick_labels
from pe_bench.plot.style import DASHES, GREY, NOTE_FONT, Style
from pe_bench.report.charts.anchors import SeenAnchor
from pe_bench.report.charts.curves import Chart, Curve, Point

BROKEN = "#B3261E"
MARGIN_BAND = "0.94"  # the colour of changes that are within the margin


def draw_axes(axes: Axes, chart: Chart, width: float, gap: float, max_ticks: int) -> None:
    """Set both axes; numbers of lengths are `gap` points apart on a panel of some width in points."""
    numbered = chart.numbered(width, gap)
    lengths = [str(length) if length in numbered else "" for length in chart.lengths]
    apply_scale(axes, "x", chart.x, chart.lengths, lengths)
    ticks = chart.y.ticks(max_ticks)
    apply_scale(axes, "y", chart.y, ticks, tick_labels(ticks, signed=chart.values == "change"))
    axes.spines[["top", "right"]].set_visible(False)
    if chart.values == "change":
        axes.axhspan(-chart.margin, chart.margin, color=MARGIN_BAND, linewidth=0, zorder=0, gid="margin")


def draw_curve(axes: Axes, curve: Curve, style: Style, linewidth: float, markersize: float) -> None:
    """Draw the curve with its bands, broken where the targets change: beyond are levels of other text."""
    for points in curve.segments:
        x, values = [point.x for point in points], [point.value for point in points]
        axes.plot(
            x,
            values,
            color=style.colour,
            marker=style.marker,
            linestyle=style.stroke,
            linewidth=linewidth,
            markersize=markersize,
        )
        low, high = np.array([[point.low, point.high] for point in points]).T
        if np.any(np.isfinite(low)):
            known = np.isfinite(low).tolist()
            axes.fill_between(x, low, high, where=known, color=style.colour, alpha=0.15, linewidth=0)


def draw_anchors(axes: Axes, anchors: Sequence[SeenAnchor]) -> None:
    """Draw the models that cost no training below all curves, each with its name above it."""
    for anchor in anchors:
        for points in anchor.curve.segments:
            x, values = [point.x for point in points], [point.value for point in points]
            axes.plot(x, values, color=GREY, linewidth=0.7, zorder=0.8, gid=f"anchor {anchor.curve.label}")
        axes.annotate(
            anchor.curve.label,
            anchor.name_at,
            xycoords="axes fraction",
            xytext=(0, 2),
            ha="center",
            textcoords="offset points",
            fontsize=NOTE_FONT,
            color=GREY,
        )


def mark_training_length(axes: Axes, length: int, width: float) -> None:
    axes.axvline(length, color=GREY, linewidth=width, linestyle=DASHES, zorder=0.5, gid="training length")


def mark_context_use(axes: Axes, curve: Curve, colour: str, size: float) -> None:
    """Draw a ring around each point where the controls say that the far context is used."""
    ringed = [point for point in curve.points if point.uses_context]
    _mark(axes, ringed, marker="o", markersize=size, markerfacecolor="none", markeredgecolor=colour)


def mark_break_point(axes: Axes, curve: Curve, size: float) -> None:
    broken = [curve.broken_at] if curve.broken_at else []
    _mark(
        axes, broken, marker="X", markersize=size, color=BROKEN, markeredgecolor="white", markeredgewidth=0.5
    )


def _mark(axes: Axes, points: Sequence[Point], **style: Any) -> None:
    if points:
        x, values = [point.x for point in points], [point.value for point in points]
        axes.plot(x, values, linestyle="none", clip_on=False, zorder=3, **style)
