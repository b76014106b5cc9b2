"""The rows as curves: time relative to the reference against length, each named where it ends."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from pe_bench.inspection.speed.rows import Row
from pe_bench.plot.paper import (
    NAME_GAP,
    lines_height,
    name_ends,
    new_figure,
    place_axes,
    place_text,
    save_picture,
)
from pe_bench.plot.scale import scale_of_lengths, scale_of_ratios, set_lengths, set_values
from pe_bench.plot.style import DASHES, FONT, GREY, LEFT, RULE, WIDTH, fitting, styles_of

PANEL_WIDTH, PANEL_HEIGHT = 6.4, 3.6  # inches
TICK_GAP, MAX_TICKS = 36, 7  # points between two lengths; ticks of ratios
MAX_NAME = 36  # characters

Curves = dict[str, list[tuple[int, float]]]  # the lengths of each encoding, and its times as ratios


def draw_rows(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draw rows into the file `path`, whose suffix is the format; nothing where no row has a number."""
    curves = curves_of(rows)
    if curves:
        save_picture(lambda: draw(curves, rows[0].encoding, title), path)


def curves_of(rows: Sequence[Row]) -> Curves:
    """Return a curve for each encoding, where it has a number, at rising lengths."""
    points = sorted((row.encoding, row.length, row.relative) for row in rows if row.relative is not None)
    grouped = groupby(points, key=lambda point: point[0])
    return {label: [(length, ratio) for _, length, ratio in group] for label, group in grouped}


def draw(curves: Curves, reference: str, title: str) -> Figure:
    top, height = lines_height(title, FONT) + 0.15, max(PANEL_HEIGHT, NAME_GAP / 72 * len(curves))
    figure = new_figure(WIDTH, top + height + 0.55)
    place_text(figure, LEFT, 0.0, title)
    axes = place_axes(figure, LEFT, top, PANEL_WIDTH, height)
    points = [point for curve in curves.values() for point in curve]
    lengths = sorted({length for length, _ in points}, reverse=True)
    x, y = scale_of_lengths(lengths), scale_of_ratios([ratio for _, ratio in points])
    set_lengths(axes, x, lengths, 72 * PANEL_WIDTH, TICK_GAP)
    set_values(axes, y, MAX_TICKS)
    axes.set_xlabel("length (tokens)")
    axes.set_ylabel(f"time, relative to {reference}, log scale")
    axes.grid(axis="y", color=RULE)
    axes.axhline(1.0, color=GREY, linewidth=0.9, linestyle=DASHES, zorder=1)
    styles, short = styles_of(curves), fitting([*curves], MAX_NAME)
    for label, curve in curves.items():
        style = styles[label]
        look: dict[str, Any] = {"color": style.colour, "marker": style.marker, "linestyle": style.stroke}
        axes.plot(*zip(*curve, strict=True), linewidth=1.4, markersize=4, **look)
    names = [
        (label, f"{short[label]} {curve[-1][1]:.3g}", styles[label].colour) for label, curve in curves.items()
    ]
    ends = [(x.share(curve[-1][0]), y.share(curve[-1][1])) for curve in curves.values()]
    name_ends(axes, names, ends, 72 * height, 72 * PANEL_WIDTH)
    return figure
