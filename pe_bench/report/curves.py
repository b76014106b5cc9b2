"""The charts of tables: curves over context length or over position, and their notes.

`draw` draws them, into files and on the page.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf, isfinite
from typing import Literal

import numpy as np

from pe_bench.render.grid import join_parts
from pe_bench.report.records import Line, PlotValues, Record, Table
from pe_bench.report.statistics import student_interval

MIN_SPAN_IN_MARGINS = 10  # margins of the table, so that a change by less than one margin looks flat
MAX_TITLE = 76  # characters
MAX_DRAWN_VALUE = 1e100  # above it floats are too coarse for an axis
LENGTH_LABEL = "context length (tokens)"
POSITION_LABEL = "position of the token (tokens before it; the text at each is another)"
LOG_AXIS_RATIO = 4.0  # the highest level over the lowest
MIN_LOG_LEVEL = 0.1  # bits per byte; below it a log axis would magnify negligible changes


@dataclass(frozen=True)
class Point:
    """A value at a length or a position."""

    x: float
    value: float
    low: float = -inf  # the lower end of the band, infinite if unknown
    high: float = inf  # the upper end of the band
    scored_on: str = ""  # the hash of its targets
    uses_context: bool = False  # text beyond the training length is surely used
    seeds: int = 1  # the number of seeds whose mean the value is


@dataclass(frozen=True)
class Curve:
    """The points of one line of the table, in order of length or position."""

    label: str
    points: tuple[Point, ...]
    broken_at: Point | None = None  # the break point

    @property
    def segments(self) -> list[list[Point]]:
        """Return the points by their targets and number of seeds: the curve has a gap where these change."""

        def what_is_averaged(point: Point) -> tuple[str, int]:
            return point.scored_on, point.seeds

        return [list(points) for _, points in groupby(self.points, key=what_is_averaged)]


@dataclass(frozen=True)
class Chart:
    """The curves of a table, in the order of its lines, and the texts around them."""

    table: Table
    curves: tuple[Curve, ...]
    values: PlotValues
    lengths: tuple[int, ...]  # ticks of the x axis, up to the end of a whole curve
    x_label: str = LENGTH_LABEL
    anchors: tuple[Curve, ...] = ()  # models that cost no training

    @property
    def train_length(self) -> int:
        return self.table.key.train_length

    @property
    def caption(self) -> str:
        return f"{self.y_label[0].upper()}{self.y_label[1:]} by {self.x_label}"

    @property
    def points(self) -> list[Point]:
        return [point for curve in self.curves for point in curve.points]

    @property
    def title(self) -> str:
        """Return the table's title in lines, without the unit, which is at the axis."""
        return "\n".join(join_parts(self.table.title[:-1], MAX_TITLE))

    @property
    def shape(self) -> Literal["linear", "log", "symlog"]:
        """Return the shape of the axis of values.

        Levels are logarithmic where the highest is more than four times the lowest. Changes are logarithmic
        beyond the margin where some are large, so that one curve that fails does not flatten the others.
        """
        values = [point.value for point in self.points]
        low = min(values, default=0.0)
        high = max(values, default=0.0)
        span = MIN_SPAN_IN_MARGINS * self.table.margin
        if self.values == "change":
            return "symlog" if max(-low, high) > span else "linear"
        is_wide = high > LOG_AXIS_RATIO * low and high - low >= span
        return "log" if low > MIN_LOG_LEVEL and is_wide else "linear"

    @property
    def y_label(self) -> str:
        if self.values == "change":
            return f"change against {self.train_length:,}, {self.table.key.loss.unit} (+ is worse)"
        measure = self.table.measure
        better = "higher" if measure.higher_is_better else "lower"
        scale = ", log scale" if self.shape == "log" else ""
        return f"{measure.unit}{scale} ({better} is better)"

    @property
    def notes(self) -> list[str]:
        """Return the meanings of the chart's crosses, gaps, bands, rings, grey margin and thin curves."""
        lines = self.table.lines
        notes = []
        is_scaled = any(line.scored_with != line.encoding for line in lines)
        if is_scaled and any(line.longest for line in lines):
            notes.append("Dashed: scored with an encoding that was not trained.")
        if any(curve.broken_at for curve in self.curves):
            verbs = "be solved in part or not at all" if self.table.is_task else "degrade or fail"
            notes.append(f"Cross: the break point, the first length seen to {verbs}.")
        if any(len({point.scored_on for point in curve.points}) > 1 for curve in self.curves):
            notes.append("Gap: the targets are others from there on.")
        if any(len({point.seeds for point in curve.points}) > 1 for curve in self.curves):
            notes.append("Gap: from there on, the mean is over more or fewer seeds.")
        if any(point.low < point.high and isfinite(point.low) for point in self.points):
            notes.append(f"Bands: {self._band_text()}.")
        if any(point.uses_context for point in self.points):
            notes.append("Ringed: uses the context beyond the training length.")
        if self.values == "change":
            beyond = "; beyond it the axis is logarithmic" if self.shape == "symlog" else ""
            margin = f"within the margin of {self.table.margin:g}"
            notes.append(f"Grey: {margin}, where a change holds{beyond}.")
        if self.anchors:
            names = ", ".join(curve.label for curve in self.anchors)
            notes.append(f"Thin grey: {names}, counted on the same training tokens.")
        return notes

    def _band_text(self) -> str:
        """Return the meaning of the bands. The band of two seeds is no interval, which would be far wider."""
        if self.values == "change":
            return "the 95 % interval of the change, over documents and seeds"
        return "the 95 % interval of the mean over seeds; of two seeds, from the lower to the higher"

    def remark(self, curve: Curve) -> str:
        """Return the remark beside the name of a curve that ends early or has no point."""
        if curve.points:
            last = curve.points[-1].x
            return f"(to {last:,.0f})" if last < self.lengths[-1] else ""
        if self._has_other_targets(curve.label):
            return "(other targets)"
        if self.values == "change":
            return f"(none past {self.train_length:,})"
        return "(no number)"

    def _has_other_targets(self, label: str) -> bool:
        """Return whether a line has levels of other targets than the curves."""
        line = next(line for line in self.table.lines if line.label == label)
        for record in line.records.values():
            if record.levels and not self.table.is_drawn(record, record.target_hash):
                return True
        return False


def chart_of(table: Table, values: PlotValues = "levels") -> Chart:
    """Return the chart of levels or of changes over context length; of a task, always of levels."""
    train_length = table.key.train_length
    curves = tuple(_length_curve(line, table, values) for line in table.lines)
    if values == "change" and not table.is_task:  # lengths of a task are not paired, so have no change
        lengths = tuple(length for length in table.lengths if length >= train_length)
        return Chart(table, curves, "change", lengths or (train_length,))
    anchors = [_length_curve(line, table, "levels") for line in table.shown_anchors]
    drawn = tuple(anchor for anchor in anchors if anchor.points)
    return Chart(table, curves, "levels", table.lengths or (train_length,), anchors=drawn)


def chart_over_position(table: Table) -> Chart:
    """Return the chart of levels by position; each range of positions has text of its own, and no verdict."""
    curves = []
    longest = 1.0
    for line in table.lines:
        drawable = [position for position in line.positions if _are_drawable(position.levels)]
        points = tuple(_level_point(position.context, position.levels) for position in drawable)
        longest = max([longest, *(point.x for point in points)])
        if line.positions:
            curves.append(Curve(line.label, points))
    octaves = int(math.log2(longest))
    ticks = (2**octave for octave in range(octaves + 1))
    return Chart(table, tuple(curves), "levels", tuple(ticks), POSITION_LABEL)


def _length_curve(line: Line, table: Table, values: PlotValues) -> Curve:
    """Return the curve of a line: levels at all lengths, or changes from the training length on."""
    records = [record for _, record in sorted(line.records.items())]
    scored = [record for record in records if _are_drawable(record.levels)]
    scored = [record for record in scored if table.is_drawn(record, record.target_hash)]
    if table.is_task:  # each length has examples of its own, which break no curve
        points = [_level_point(record.length, record.levels, "", record) for record in scored]
    elif values == "levels":
        points = [_level_point(record.length, record.levels, record.target_hash, record) for record in scored]
    else:
        comparable = [record for record in scored if _is_comparable(record, table)]
        points = _change_points(comparable, table.key.train_length)
    broken = (point for point in points if point.x == line.break_point.breaks_at)
    return Curve(line.label, tuple(points), next(broken, None))


def _change_points(records: Sequence[Record], train_length: int) -> list[Point]:
    """Return the known changes as points, after a zero at the training length."""
    records = [record for record in records if record.length >= train_length]
    points = []
    for record in records:
        if record.change is not None and _are_drawable([record.change]):
            points.append(_change_point(record, record.change))
    starts = [record for record in records if record.length == train_length]
    if points and any(record.change is None for record in starts):
        points.insert(0, Point(train_length, 0.0, scored_on=points[0].scored_on, seeds=points[0].seeds))
    return points


def _change_point(record: Record, change: float) -> Point:
    """Return the point of a record's change, with the change's interval as its band."""
    point = Point(record.length, change, scored_on=record.compared.target_hash)
    point = replace(point, uses_context=_uses_context(record), seeds=len(record.levels))
    if record.interval is None:
        return point
    return replace(point, low=record.interval.low, high=record.interval.high)


def _is_comparable(record: Record, table: Table) -> bool:
    """Return whether a record's change was measured on the targets of its curve; true without a change."""
    target_hash = record.compared.target_hash
    return not target_hash or table.is_drawn(record, target_hash)


def _uses_context(record: Record | None) -> bool:
    """Return whether the models surely use text beyond the training length at a record's length."""
    if record is None or record.use is None:
        return False
    return record.use.uses_context == "yes"


def _are_drawable(values: Sequence[float]) -> bool:
    """Return whether there are values, and all are finite and small enough for a picture."""
    return bool(values) and all(abs(value) < MAX_DRAWN_VALUE for value in values)  # false for NaN


def _level_point(
    x: float, levels: Sequence[float], scored_on: str = "", record: Record | None = None
) -> Point:
    """Return the point at the mean of `levels`, one for each seed, with the interval of the mean as its band.

    With two seeds, the band goes from the lower level to the higher level.
    """
    values = np.array(levels)
    low, high = student_interval(values)
    if len(levels) == 2:
        low = min(levels)
        high = max(levels)
    return Point(x, float(values.mean()), low, high, scored_on, _uses_context(record), len(levels))
