"""Axes of pictures: where a value lies on one, and which values get a tick; the same in PNG and page."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

LOGARITHMIC_FROM = 4.0  # the highest level over the lowest
NEARLY_ZERO = 0.1  # bits per byte; below it a log axis would magnify negligible changes
BAND_SHARE = 0.25  # of the values' span that bands may add above and below
PADDING = 0.05  # of the span
SIDE_PADDING = 0.03  # of the span of lengths
MAX_TICKS = 7
MIN_TICKS = 3
# Round numbers of a decade, the densest first.
LOG_STEPS = ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,))


@dataclass(frozen=True)
class Scale:
    """The limits of an axis and its shape; asinh is linear around 0, as far as `linear_width`, then log."""

    low: float
    high: float
    shape: Literal["linear", "log", "asinh"] = "linear"
    linear_width: float = 1.0

    def share(self, value: float) -> float:
        """Return where a value lies on the axis: 0 at its lower end, 1 at its upper end."""
        low, high, place = self._stretch(np.array([self.low, self.high, value]))
        return float((place - low) / (high - low))

    def between(self, first: float, last: float, share: float) -> float:
        """Return the value at a share of the way from one value to another, along the axis."""
        start, stop = self._stretch(np.array([first, last]))
        return self._unstretch(float(start + share * (stop - start)))

    def ticks(self, maximum: int = MAX_TICKS) -> list[float]:
        """Return at most `maximum` round values within the limits, and never fewer than two."""
        if self.shape == "asinh":
            return self._ticks_around_zero(maximum)
        if self.shape == "log":
            for steps in LOG_STEPS:
                found = self._inside(step * 10.0**power for power in self._decades() for step in steps)
                if MIN_TICKS <= len(found) <= maximum:
                    return found
            decades = self._inside(10.0**power for power in self._decades())
            if len(decades) > maximum:
                return decades[:: math.ceil(len(decades) / maximum)]
        return self._even_ticks(maximum)

    def _ticks_around_zero(self, maximum: int) -> list[float]:
        for steps in ((1, 3), (1,)):
            sizes = [step * 10.0**power for power in self._decades() for step in steps]
            sizes = [size for size in sizes if size >= 0.99 * self.linear_width]
            found = self._inside([*(-size for size in reversed(sizes)), 0.0, *sizes])
            if len(found) <= maximum:
                return found
        positive = [tick for tick in found if tick > 0]
        return [0.0, *positive[:: math.ceil(len(positive) / (maximum - 1))]]

    def _even_ticks(self, maximum: int) -> list[float]:
        power = math.floor(math.log10((self.high - self.low) / maximum))
        for factor in (1, 2, 2.5, 5, 10):
            step = factor * 10.0**power
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            if last - first < maximum:
                break
        return [place * step for place in range(first, last + 1)]

    def _decades(self) -> range:
        smallest = self.low if self.shape == "log" else self.linear_width
        return range(
            math.floor(math.log10(smallest)), math.ceil(math.log10(max(abs(self.low), abs(self.high)))) + 1
        )

    def _inside(self, values: Iterable[float]) -> list[float]:
        return [value for value in values if self.low <= value <= self.high]

    def _stretch(self, values: np.ndarray) -> np.ndarray:
        if self.shape == "linear":
            return values
        if self.shape == "asinh":
            return np.arcsinh(values / self.linear_width)
        return np.log(np.maximum(values, np.finfo(float).tiny))

    def _unstretch(self, place: float) -> float:
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


def scale_of_ratios(ratios: Sequence[float]) -> Scale:
    """Return a logarithmic axis with all ratios and 1 in it."""
    return _fit(Scale(0.0, 1.0, "log"), np.array([*ratios, 1.0]), np.array([]), 0.2)


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


def _fit(scale: Scale, values: np.ndarray, bands: np.ndarray, smallest_span: float) -> Scale:
    """Return the scale with limits for `values` and for as much of the bands as leaves them room.

    smallest_span: of the limits, after `_stretch`.
    """
    places = scale._stretch(values)
    low, high = float(places.min()), float(places.max())
    missing = max(0.0, smallest_span - (high - low)) / 2
    low, high = low - missing, high + missing
    room, edges = BAND_SHARE * (high - low), scale._stretch(bands[np.isfinite(bands)])
    low, high = max(low - room, min([low, *edges])), min(high + room, max([high, *edges]))
    padding = PADDING * (high - low)
    ends = scale._unstretch(low - padding), scale._unstretch(high + padding)
    return Scale(*ends, scale.shape, scale.linear_width)
