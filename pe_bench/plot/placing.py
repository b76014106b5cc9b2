"""Places in inches and points, and apart from each other."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import isotonic_regression


def place_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """A panel whose upper left corner lies so far from the page's; all in inches."""
    page_width, page_height = figure.get_size_inches()
    lower = page_height - top - height
    return figure.add_axes((left / page_width, lower / page_height, width / page_width, height / page_height))


def place_text(figure: Figure, left: float, top: float, text: str, **looks: Any) -> None:
    """Words so far from the page's upper left corner, in inches; by default they begin there."""
    page_width, page_height = figure.get_size_inches()
    looks = {"ha": "left", "va": "top", **looks}
    figure.text(left / page_width, 1 - top / page_height, text, **looks)


def lines_height(text: str, size: float) -> float:
    """Of a text in letters of `size` points, in inches."""
    return (text.count("\n") + 1 if text else 0) * 1.25 * size / 72


def spread_apart(wanted: np.ndarray, gap: float, height: float) -> np.ndarray:
    """Places [n] from 0 to `height`, at least `gap` apart, ordered as `wanted` [n] and as near as can be.

    Where n of them do not fit they go on beyond `height`.
    """
    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(wanted))
    nearest = np.clip(isotonic_regression(wanted[order] - steps).x, 0, max(0.0, height - steps[-1]))
    places = np.empty(len(wanted))
    places[order] = nearest + steps
    return places


def in_points(axes: Axes, x: float, level: float) -> tuple[float, float]:
    """Where a point of a curve lies, in points from the panel's lower left corner."""
    corner, scale = axes.get_window_extent(), 72 / axes.figure.dpi
    place_x, place_y = axes.transData.transform((x, level))
    return float(place_x - corner.x0) * scale, float(place_y - corner.y0) * scale


def untouching(values: Sequence[int], places: Sequence[float], gap: float) -> list[int]:
    """Of `values` those whose `places` are `gap` or more from all that were kept before."""
    kept: dict[int, float] = {}
    for value, place in zip(values, places, strict=True):
        if all(abs(place - other) >= gap for other in kept.values()):
            kept[value] = place
    return list(kept)
