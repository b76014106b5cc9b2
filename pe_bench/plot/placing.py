"""Places of what a picture consists of, and apart from each other.

The page uses this too, and draws without matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pe_bench.plot.scale import Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def place_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add a panel whose upper left corner lies so far from the page's; all in inches."""
    page_width, page_height = figure.get_size_inches()
    lower = page_height - top - height
    return figure.add_axes((left / page_width, lower / page_height, width / page_width, height / page_height))


def place_text(figure: Figure, left: float, top: float, text: str, **style: Any) -> None:
    """Write a text so far from the page's upper left corner, in inches; by default it begins there."""
    page_width, page_height = figure.get_size_inches()
    style = {"ha": "left", "va": "top", **style}
    figure.text(left / page_width, 1 - top / page_height, text, **style)


def lines_height(text: str, size: float) -> float:
    """Return the height in inches of a text in letters of `size` points."""
    return (text.count("\n") + 1 if text else 0) * 1.25 * size / 72


def spread_apart(wanted: np.ndarray, gap: float, height: float) -> np.ndarray:
    """Return places [n] from 0 to `height`, `gap` apart or more, in the order of `wanted` [n] and near it.

    Where n of them do not fit they go on beyond `height`.
    """
    from scipy.optimize import isotonic_regression  # imported here: it takes longer than a report

    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(wanted))
    nearest = np.clip(isotonic_regression(wanted[order] - steps).x, 0, max(0.0, height - steps[-1]))
    places = np.empty(len(wanted))
    places[order] = nearest + steps
    return places


def keep_apart(values: Sequence[int], places: Sequence[float], gap: float) -> list[int]:
    """Return those `values` whose `places` are `gap` or more from the places of all kept before."""
    kept: dict[int, float] = {}
    for value, place in zip(values, places, strict=True):
        if all(abs(place - other) >= gap for other in kept.values()):
            kept[value] = place
    return list(kept)


def apply_scale(axes: Axes, axis: str, scale: Scale, ticks: Sequence[float], labels: Sequence[str]) -> None:
    """Give the `axis` x or y of a panel its limits, its shape and its ticks."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    width = {"linear_width": scale.linear_width} if scale.shape == "asinh" else {}
    getattr(axes, f"set_{axis}scale")(scale.shape, **width)
    getattr(axes, f"set_{axis}lim")(scale.low, scale.high)
    drawn = axes.xaxis if axis == "x" else axes.yaxis
    drawn.set_major_locator(FixedLocator(ticks))
    drawn.set_major_formatter(FixedFormatter(labels))
    drawn.set_minor_locator(NullLocator())
