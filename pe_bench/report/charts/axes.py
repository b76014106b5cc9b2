"""Limits and ticks of a panel, alike for one panel and for a grid of them."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator, ScalarFormatter

from pe_bench.plot.labels import plain
from pe_bench.plot.placing import in_points, untouching
from pe_bench.report.charts.curves import Chart, Curve, Point

LOGARITHMIC_FROM = 4.0  # the highest level over the lowest
NEARLY_ZERO = 0.1  # bits per byte; below it a log axis would magnify what is as good as nothing
FAR_OUT = 3.0  # quartile distances above the upper quartile: Tukey's outer fence, over log levels
WORTH_CUTTING = 1.5  # how much higher the axis would be with all levels than without those far out
BAND_SHARE = 0.25  # of the levels' span that bands may add above and below
PADDING = 0.05  # of the span
SIDE_PADDING = 0.03  # of the span


@dataclass(frozen=True)
class Scale:
    """Limits of the y axis in bits per byte, and whether it is logarithmic."""

    low: float
    high: float
    logarithmic: bool

    @property
    def label(self) -> str:
        return f"bits per byte{', log scale' if self.logarithmic else ''} (lower is better)"

    def beyond(self, curve: Curve) -> list[Point]:
        return [point for point in curve.points if point.level > self.high]


def scale_of(chart: Chart) -> Scale:
    """Limits that show every level, but for those so far out that they would flatten all others."""
    levels = chart.levels
    if not levels.size:
        return Scale(0.0, 1.0, logarithmic=False)
    lowest, highest = float(levels.min()), _highest_shown(levels)
    logarithmic = lowest > NEARLY_ZERO and highest > LOGARITHMIC_FROM * lowest
    step, back = (np.log, np.exp) if logarithmic else (float, float)
    low, high = _with_bands(chart, lowest, highest)
    low, high = step(low), step(high)
    missing = 0.0 if logarithmic else max(0.0, chart.smallest_span - (high - low)) / 2
    padding = missing + PADDING * (high - low + 2 * missing)
    return Scale(float(back(low - padding)), float(back(high + padding)), logarithmic)


def set_scales(axes: Axes, chart: Chart, scale: Scale, ticks: int) -> None:
    """Both axes, with at most about so many ticks on the y axis."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(*_ends(chart))
    axes.set_yscale("log" if scale.logarithmic else "linear")
    axes.set_ylim(scale.low, scale.high)
    if scale.logarithmic:
        axes.yaxis.set_major_locator(FixedLocator(_octaves(scale, ticks)))
        axes.yaxis.set_major_formatter(lambda level, _: plain(level))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    axes.spines[["top", "right"]].set_visible(False)


def number_ticks(axes: Axes, chart: Chart, gap: float) -> None:
    """The chart's ticks, each with its number where that is `gap` points from the others."""
    wanted = sorted(chart.ticks, key=lambda tick: (tick != chart.train_length, -tick))
    places = [in_points(axes, tick, axes.get_ylim()[0])[0] for tick in wanted]
    numbered = untouching(wanted, places, gap)
    axes.xaxis.set_major_locator(FixedLocator(chart.ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(
        FixedFormatter([str(tick) if tick in numbered else "" for tick in chart.ticks])
    )


def _ends(chart: Chart) -> tuple[float, float]:
    """Of the x axis: the points and the training length are in it."""
    places = [point.x for curve in chart.curves for point in curve.points]
    shown = [*places, chart.train_length]
    if min(shown) == max(shown):
        shown = [chart.train_length / 2, chart.train_length * 2]
    margin = (max(shown) / min(shown)) ** SIDE_PADDING
    return min(shown) / margin, max(shown) * margin


def _highest_shown(levels: np.ndarray) -> float:
    """The highest level, or the highest one that is not far out where those would flatten the others."""
    low, highest = float(levels.min()), float(levels.max())
    if low <= NEARLY_ZERO:
        return highest
    lower, upper = np.percentile(np.log(levels), [25, 75])
    # Levels that are almost one have no quartile distance to go by: twice as high is never far out.
    fence = float(np.exp(upper + max(FAR_OUT * (upper - lower), np.log(2))))
    would_flatten = np.log(highest / low) > WORTH_CUTTING * np.log(fence / low)
    return float(levels[levels <= fence].max()) if would_flatten else highest


def _with_bands(chart: Chart, low: float, high: float) -> tuple[float, float]:
    """The limits with as much of the bands as leaves the levels most of the room."""
    room = BAND_SHARE * max(high - low, chart.smallest_span)
    shown = [point for curve in chart.curves for point in curve.points if point.level <= high]
    lows = [point.low for point in shown if np.isfinite(point.low)]
    highs = [point.high for point in shown if np.isfinite(point.high)]
    return max(low - room, low / 2, min([low, *lows])), min(high + room, max([high, *highs]))


def _octaves(scale: Scale, most: int) -> list[float]:
    """Powers of two within the limits and those times 1.5, or every second, fourth ... of them."""
    first, last = int(np.floor(np.log2(scale.low))), int(np.ceil(np.log2(scale.high)))
    ticks = [factor * 2.0**power for power in range(first, last + 1) for factor in (1.0, 1.5)]
    ticks = [tick for tick in ticks if scale.low <= tick <= scale.high]
    while len(ticks) > most:
        powers = [tick for tick in ticks if float(np.log2(tick)).is_integer()]
        ticks = powers if len(powers) < len(ticks) else ticks[::2]
    return ticks
