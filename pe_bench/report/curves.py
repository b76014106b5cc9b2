"""What pictures of tables show: curves over context length or over position, their axes and their notes.

Files and the page draw the same charts (`draw`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import inf, isfinite
from textwrap import fill
from typing import Literal

import numpy as np

from pe_bench.report.records import Line, PlotValues, Record, Table
from pe_bench.report.statistics import student_interval

SHARE_PADDING = 0.03  # above 1 and below 0
MIN_SPAN = 10  # margins of the table, so that what changes by less than one looks flat
VISIBLE_BAND = 0.012  # of the axis; a thinner band is hidden under its curve
MAX_TITLE = 76  # characters
MAX_DRAWN = 1e100  # beyond it floats are too coarse for an axis
LENGTH_LABEL = "context length (tokens)"
POSITION_LABEL = "position of the token (tokens before it)"
NO_VERDICT = "Different text at each position: not a comparison of lengths, no verdict."
LOGARITHMIC_FROM = 4.0  # the highest level over the lowest
NEARLY_ZERO = 0.1  # bits per byte; below it a log axis would magnify negligible changes
BAND_SHARE = 0.25  # of the values' span that bands may add above and below
PADDING = 0.05  # of the span
SIDE_PADDING = 0.03  # of the span of lengths


@dataclass(frozen=True)
class Scale:
    """The limits of an axis and its shape; asinh is linear around 0, as far as `linear_width`, then log."""

    low: float
    high: float
    shape: Literal["linear", "log", "asinh"] = "linear"
    linear_width: float = 1.0

    def share(self, value: float) -> float:
        """Return where a value lies on the axis: 0 at its lower end, 1 at its upper end."""
        low, high, position = self.stretch(np.array([self.low, self.high, value]))
        return float((position - low) / (high - low))

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


@dataclass(frozen=True)
class Point:
    """A value at a length or position; low and high: its band, infinite where that is not known.

    scored_on: the targets; values on others are of other text. seeds: over how many it is a mean.
    """

    x: float
    value: float
    low: float = -inf
    high: float = inf
    scored_on: str = ""
    uses_context: bool = False
    seeds: int = 1


@dataclass(frozen=True)
class Curve:
    """A line of the table; broken_at: the point at which it breaks, if it does."""

    label: str
    points: tuple[Point, ...]
    broken_at: Point | None = None

    @property
    def segments(self) -> list[list[Point]]:
        """Return the points by their sets of targets: the curve has a gap where the set changes."""
        return [list(points) for _, points in groupby(self.points, key=lambda point: point.scored_on)]


@dataclass(frozen=True)
class Chart:
    """The curves of a table in its order.

    values: levels or changes in bits per byte. lengths: ticks of the x axis; the last is where a curve ends
    that has all of them. no_training: models that cost none, which do not set the axes.
    """

    table: Table
    curves: tuple[Curve, ...]
    values: PlotValues
    lengths: tuple[int, ...]
    x_label: str = LENGTH_LABEL
    no_training: tuple[Curve, ...] = ()

    @property
    def train_length(self) -> int:
        return self.table.key.train_length

    @property
    def caption(self) -> str:
        caption = f"{self.y_label[0].upper()}{self.y_label[1:]} by {self.x_label}"
        return caption if self.x_label == LENGTH_LABEL else f"{caption}. {NO_VERDICT}"

    @property
    def points(self) -> list[Point]:
        return [point for curve in self.curves for point in curve.points]

    @property
    def title(self) -> str:
        """Return the table's title in lines, without the unit, which is at the axis."""
        return fill(" · ".join(self.table.title[:-1]), MAX_TITLE, break_long_words=False)

    @cached_property
    def x(self) -> Scale:
        """The axis of lengths or positions; the training length is in it."""
        return scale_of_lengths([*(point.x for point in self.points), self.train_length])

    @cached_property
    def y(self) -> Scale:
        """The axis of values, which never spans less than ten margins; that of shares is whole."""
        if self.table.is_task:
            return Scale(-SHARE_PADDING, 1 + SHARE_PADDING)
        margin, two = self.table.margin, [point for point in self.points if point.seeds == 2]
        bands = np.array([edge for point in self.points for edge in (point.low, point.high)])
        if self.values == "change":
            changes = np.array([point.value for point in self.points])
            return scale_of_changes(changes, bands, margin, MIN_SPAN * margin)
        # The band of two seeds goes from one to the other.
        seeds = [edge for point in two for edge in (point.low, point.high)]
        levels = np.array([*(point.value for point in self.points), *seeds])
        return scale_of_levels(levels, bands, MIN_SPAN * margin)

    @cached_property
    def anchors(self) -> list[Curve]:
        """Return the curves of models that cost no training, those that are seen between the axes."""
        low, high = self.y.low, self.y.high
        return [
            curve for curve in self.no_training if any(low <= point.value <= high for point in curve.points)
        ]

    @property
    def y_label(self) -> str:
        if self.values == "change":
            return f"change against {self.train_length}, bits per byte (+ is worse)"
        measure = self.table.measure
        better = "higher" if measure.higher_is_better else "lower"
        return f"{measure.unit}{', log scale' if self.y.shape == 'log' else ''} ({better} is better)"

    @property
    def notes(self) -> list[str]:
        """Return what crosses, bands, rings, the grey margin and thin curves mean that are seen."""
        lines, changes = self.table.lines, self.values == "change"
        is_family = any(line.longest for line in lines)
        verbs = "be solved in part or not at all" if self.table.is_task else "degrade or fail"
        beyond = "; beyond it the axis is logarithmic" if self.y.shape == "asinh" else ""
        notes = {
            "Dashed: scored with an encoding that was not trained.": is_family
            and any(line.scored_with != line.encoding for line in lines),
            f"Cross: the break point, the first length seen to {verbs}.": any(
                curve.broken_at for curve in self.curves
            ),
            f"Bands: {self._band_text()}.": any(
                self.y.share(point.high) - self.y.share(point.low) > VISIBLE_BAND
                for point in self.points
                if isfinite(point.low) and isfinite(point.high)
            ),
            "Ringed: uses the context beyond the training length.": any(
                point.uses_context for point in self.points
            ),
            f"Grey: within the margin of {self.table.margin:g}, where a change holds{beyond}.": changes,
            f"Thin grey: {', '.join(curve.label for curve in self.anchors)}, counted on the same training "
            "tokens.": bool(self.anchors),
        }
        return [note for note, is_seen in notes.items() if is_seen]

    def _band_text(self) -> str:
        """Describe the bands. Those of two seeds are no interval, which would be many times as wide."""
        if self.values == "change":
            return "the 95 % interval of the change, over documents and seeds"
        seeds, of_two = {point.seeds for point in self.points}, "from the lower to the higher of two seeds"
        if max(seeds, default=0) <= 2:
            return of_two
        return "the 95 % interval of the mean over seeds" + (f"; with two, {of_two}" if 2 in seeds else "")

    def end_of(self, curve: Curve) -> tuple[float, float]:
        """Return the shares of width and height where a curve ends; the right foot where it has no number."""
        if not curve.points:
            return 1.0, 0.0
        last = curve.points[-1]
        return self.x.share(last.x), min(1.0, max(0.0, self.y.share(last.value)))

    def remark(self, curve: Curve) -> str:
        """Return what a name adds where a curve ends early or has no point."""
        if not curve.points:
            return f"(none past {self.train_length})" if self.values == "change" else "(no number)"
        last = curve.points[-1].x
        return f"(to {last:.0f})" if last < self.lengths[-1] else ""


def chart_of(table: Table, values: PlotValues = "levels") -> Chart:
    """Return the chart of a table over context length."""
    values = "levels" if table.is_task else values  # lengths of a task are not paired, so have no change
    first = table.key.train_length if values == "change" else 0
    return Chart(
        table,
        tuple(_length_curve(line, table, values) for line in table.lines),
        values,
        tuple(length for length in table.lengths if length >= first) or (table.key.train_length,),
        no_training=tuple(_length_curve(line, table, values) for line in table.anchors if values == "levels"),
    )


def chart_over_position(table: Table) -> Chart:
    """Return the chart of a table over the position of tokens: each has text of its own, and no verdict."""
    curves = tuple(
        Curve(
            line.label,
            tuple(_level_point(at.context, at.levels) for at in line.positions if _is_drawable(at.levels)),
        )
        for line in table.lines
        if line.positions
    )
    longest = max((point.x for curve in curves for point in curve.points), default=1.0)
    ticks = (2**power for power in range(int(math.log2(longest)) + 1))
    return Chart(table, curves, "levels", tuple(ticks), POSITION_LABEL)


def _length_curve(line: Line, table: Table, values: PlotValues) -> Curve:
    """Return levels at all lengths, or changes from the training length on: below it less context costs."""
    scored = [record for _, record in sorted(line.records.items()) if _is_drawable(record.levels)]
    if values == "levels":
        # Each length of a task has examples of its own, which break no curve.
        points = [
            _level_point(record.length, record.levels, "" if table.is_task else record.target_hash, record)
            for record in scored
        ]
    else:
        points = _changes(scored, table.key.train_length)
    broken = (point for point in points if point.x == line.break_point.breaks_at)
    return Curve(line.label, tuple(points), next(broken, None))


def _changes(records: Sequence[Record], train_length: int) -> list[Point]:
    """Return the changes that are known, after a zero at the training length."""
    points = [
        Point(
            record.length,
            record.change,
            *((record.interval.low, record.interval.high) if record.interval else (-inf, inf)),
            record.compared.target_hash,
            _uses_context(record),
            len(record.levels),
        )
        for record in records
        if record.change is not None and _is_drawable([record.change]) and record.length >= train_length
    ]
    starts = (record for record in records if record.length == train_length and record.change is None)
    zeros = (Point(train_length, 0.0, scored_on=points[0].scored_on) for _ in starts if points)
    return [*zeros, *points]


def _uses_context(record: Record | None) -> bool:
    return record is not None and record.use is not None and record.use.uses_context == "yes"


def _is_drawable(values: Sequence[float]) -> bool:
    return bool(values) and all(abs(value) < MAX_DRAWN for value in values)  # false for NaN


def _level_point(
    x: float, levels: Sequence[float], scored_on: str = "", record: Record | None = None
) -> Point:
    values = np.array(levels)
    low, high = (min(levels), max(levels)) if len(levels) == 2 else student_interval(values)
    return Point(x, float(values.mean()), low, high, scored_on, _uses_context(record), len(levels))
