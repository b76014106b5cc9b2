"""Axes of pictures: their limits, their shapes, and which values get a tick."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOGARITHMIC_FROM = 4.0  # the highest level over the lowest
NEARLY_ZERO = 0.1  # bits per byte; below it a log axis would magnify negligible changes
BAND_SHARE = 0.25  # of the values' span that bands may add above and below
PADDING = 0.05  # of the span
SIDE_PADDING = 0.03  # of the span of lengths
FEW_DECADES = 0.4  # of a log axis, whose ticks are those of a linear one
STEPS = (1, 2, 2.5, 5, 10)  # between the ticks of a linear axis
LOG_STEPS = ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5))  # round numbers of a decade, the densest first


@dataclass(frozen=True)
class Scale:
    """The limits of an axis and its shape; asinh is linear around 0, as far as `linear_width`, then log."""

    low: float
    high: float
    shape: Literal["linear", "log", "asinh"] = "linear"
    linear_width: float = 1.0

    def share(self, value: float) -> float:
        """Return where a value lies on the axis: 0 at its lower end, 1 at its upper end."""
        low, high, place = self.stretch(np.array([self.low, self.high, value]))
        return float((place - low) / (high - low))

    def stretch(self, values: np.ndarray) -> np.ndarray:
        if self.shape == "linear":
            return values
        if self.shape == "asinh":
            return np.arcsinh(values / self.linear_width)
        return np.log(np.maximum(values, np.finfo(float).tiny))

    def unstretch(self, place: float) -> float:
        if self.shape == "linear":
            return place
        return self.linear_width * math.sinh(place) if self.shape == "asinh" else math.exp(place)


def scale_of_levels(levels: np.ndarray, bands: np.ndarray, smallest_span: float) -> Scale:
    """Return an axis of all levels [n] and most of their bands [m] that spans `smallest_span` or more.

    It is logarithmic where the highest level is more than four times the lowest.
    """
    if not levels.size:
        return Scale(0.0, max(1.0, smallest_span))
    low, high = float(levels.min()), float(levels.max())
    if low > NEARLY_ZERO and high > LOGARITHMIC_FROM * low and high - low >= smallest_span:
        return _fit(Scale(low, high, "log"), levels, bands, 0.0)
    return _fit(Scale(low, high), levels, bands, smallest_span)


def scale_of_changes(changes: np.ndarray, bands: np.ndarray, margin: float, smallest_span: float) -> Scale:
    """Return an axis that shows 0, all changes [n] and most of their bands [m].

    It is logarithmic beyond the margin where changes are larger than `smallest_span`, so that one curve that
    fails does not flatten the others.
    """
    values = np.append(changes, 0.0)
    if np.abs(values).max() > smallest_span:
        return _fit(Scale(0.0, 1.0, "asinh", margin), values, bands, 0.0)
    return _fit(Scale(0.0, 1.0), values, bands, smallest_span)


def scale_of_lengths(lengths: Sequence[float]) -> Scale:
    """Return a logarithmic axis with all lengths in it."""
    low, high = min(lengths), max(lengths)
    if low == high:
        low, high = low / 2, high * 2
    air = (high / low) ** SIDE_PADDING
    return Scale(low / air, high * air, "log")


def _fit(scale: Scale, values: np.ndarray, bands: np.ndarray, smallest_span: float) -> Scale:
    """Return the scale with limits for `values` and for as much of the bands as leaves them room.

    smallest_span: of the limits, after `stretch`.
    """
    places = scale.stretch(values)
    low, high = float(places.min()), float(places.max())
    missing = max(0.0, smallest_span - (high - low)) / 2
    low, high = low - missing, high + missing
    room, edges = BAND_SHARE * (high - low), scale.stretch(bands[np.isfinite(bands)])
    low, high = max(low - room, min([low, *edges])), min(high + room, max([high, *edges]))
    padding = PADDING * (high - low)
    ends = scale.unstretch(low - padding), scale.unstretch(high + padding)
    return Scale(*ends, scale.shape, scale.linear_width)


def set_lengths(
    axes: Axes, scale: Scale, ticks: Sequence[int], width: float, gap: float, wide_gap: float = 0.0
) -> None:
    """Give a panel an x axis of lengths with these ticks, on a panel of some `width` in points.

    The first of them get their numbers first, and the others where they are `gap` points from these. Of those
    that are less than `wide_gap` from these the gid is `if wide`, for windows with larger letters.
    """
    axes.set_xscale("log")
    axes.set_xlim(scale.low, scale.high)
    places = {tick: width * scale.share(tick) for tick in ticks}
    numbered, always = _apart(places, gap), _apart(places, wide_gap)
    shown = sorted(ticks)
    axes.set_xticks(shown, [str(tick) if tick in numbered else "" for tick in shown])
    axes.set_xticks([], minor=True)
    for tick, label in zip(shown, axes.get_xticklabels(), strict=True):
        if tick not in always:
            label.set_gid("if wide")


def _apart(places: Mapping[int, float], gap: float) -> list[int]:
    """Return those whose places are `gap` or more from the places of all before."""
    kept: list[int] = []
    for value, place in places.items():
        if all(abs(place - places[other]) >= gap for other in kept):
            kept.append(value)
    return kept


def set_values(axes: Axes, scale: Scale, ticks: int, signed: bool = False) -> None:
    """Give a panel a y axis of at most so many round values, with a sign if they are `signed`."""
    from matplotlib.ticker import FixedLocator, Formatter, LogLocator, MaxNLocator, NullLocator

    class Plain(Formatter):
        def __call__(self, value: float, place: int | None = None) -> str:
            return self.format_ticks([value])[0]

        def format_ticks(self, values: Sequence[float]) -> list[str]:
            return tick_labels(list(values), signed)

    width = {"linear_width": scale.linear_width} if scale.shape == "asinh" else {}
    axes.set_yscale(scale.shape, **width)
    axes.set_ylim(scale.low, scale.high)
    decades = math.log10(scale.high / scale.low) if scale.shape == "log" else 0.0
    if scale.shape == "asinh":
        axes.yaxis.set_major_locator(FixedLocator(_ticks_around_zero(scale, ticks)))
    elif decades > FEW_DECADES:
        sparse = [steps for steps in LOG_STEPS if decades * len(steps) < ticks]
        axes.yaxis.set_major_locator(LogLocator(subs=(*sparse, (1,))[0], numticks=ticks))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(ticks, steps=STEPS))
    axes.yaxis.set_major_formatter(Plain())
    axes.yaxis.set_minor_locator(NullLocator())


def _ticks_around_zero(scale: Scale, most: int) -> list[float]:
    """Return 0 and round multiples of the linear width: matplotlib's own ticks overlap around 0."""
    ends = max(abs(scale.low), abs(scale.high)) / scale.linear_width
    sizes = [scale.linear_width * 10.0**power for power in range(math.ceil(math.log10(ends)) + 1)]
    sparse = [tick for size in sizes for tick in (-size, size) if scale.low <= tick <= scale.high]
    dense = [*sparse, *(3 * tick for tick in sparse if scale.low <= 3 * tick <= scale.high)]
    ticks = sorted(dense if len(dense) < most else sparse)
    return [0.0, *ticks[:: math.ceil(len(ticks) / (most - 1))]]


def tick_labels(ticks: Sequence[float], signed: bool = False) -> list[str]:
    """Return the ticks as text with as many decimals as the finest of them needs."""
    if any(abs(tick) >= 1e6 for tick in ticks):
        return [f"{tick:.3g}" for tick in ticks]
    decimals = next(
        decimals
        for decimals in range(13)
        if all(math.isclose(round(tick, decimals), tick, rel_tol=1e-6, abs_tol=1e-12) for tick in ticks)
    )
    return [f"{tick:{'+' if signed and tick else ''}.{decimals}f}" for tick in ticks]
