"""Axes of a picture: where a value lies on them, and which values are worth a number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

FACTOR_FOR_LOG = 3  # between the lowest and the highest level; more of it hides the low ones below
STEPS = (1, 2, 2.5, 5, 10)
LOG_STEPS = (1, 1.5, 2, 3, 4, 5, 6, 8)


@dataclass(frozen=True)
class Scale:
    """From values between `low` and `high` to places between `start` and `end`, in units of the picture."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        low, high, value = (
            (math.log(number) if self.log else number) for number in (self.low, self.high, value)
        )
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def scale_of_levels(levels: Sequence[float], start: float, end: float) -> Scale:
    """For bits per byte, with a little air; logarithmic where they span more than a factor of three."""
    low, high = (min(levels), max(levels)) if levels else (0.0, 1.0)
    if low > 0 and high / low > FACTOR_FOR_LOG:
        air = (high / low) ** 0.05
        return Scale(low / air, high * air, start, end, log=True)
    air = 0.05 * (high - low) or 0.05
    return Scale(low - air, high + air, start, end, log=False)


def scale_of_lengths(lengths: Sequence[float], start: float, end: float) -> Scale:
    """Logarithmic."""
    low, high = (min(lengths), max(lengths)) if lengths else (1.0, 2.0)
    return Scale(low / 1.06, high * 1.06, start, end, log=True)


def ticks(scale: Scale, most: int = 7) -> list[float]:
    """At most so many round numbers within a scale."""
    decades = range(math.floor(math.log10(scale.high - scale.low)) - 2, math.ceil(math.log10(scale.high)) + 1)
    if scale.log:
        found = [step * 10.0**decade for decade in decades for step in LOG_STEPS]
        inside = [value for value in found if scale.low <= value <= scale.high]
        return inside[:: math.ceil(len(inside) / most)] if inside else []
    for step in (step * 10.0**decade for decade in decades for step in STEPS):
        first, last = math.ceil(scale.low / step), math.floor(scale.high / step)
        if last - first < most:
            return [place * step for place in range(first, last + 1)]
    return []


def spread_apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places in the order of `wanted`, at least `gap` apart and within the limits where all fit."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    places = [0.0] * len(wanted)
    edge = low - gap
    for i in order:
        edge = places[i] = max(wanted[i], edge + gap)
    edge = max(high, low + gap * (len(wanted) - 1)) + gap
    for i in reversed(order):
        edge = places[i] = min(places[i], edge - gap)
    return places
