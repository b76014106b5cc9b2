"""What pictures of tables show: curves over context length or over position, their axes and their notes.

Files and the page draw the same charts (`draw`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from math import inf, isfinite
from textwrap import fill
from typing import Literal

import numpy as np

from pe_bench.plot.scale import Scale, scale_of_changes, scale_of_lengths, scale_of_levels
from pe_bench.report.records import BITS, Line, Measure, Record, Table
from pe_bench.report.statistics import student_interval

SHARE_PADDING = 0.03  # above 1 and below 0
MIN_SPAN = 10  # margins of the table, so that what changes by less than one looks flat
VISIBLE_BAND = 0.012  # of the axis; a thinner band is hidden under its curve
MAX_TITLE = 64  # characters
MAX_DRAWN = 1e100  # beyond it floats are too coarse for an axis
LENGTH_LABEL = "context length (tokens)"
NO_VERDICT = "Different text at each position: not a comparison of lengths, no verdict."

PlotValues = Literal["levels", "change"]


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
    """The points of one line of a table, where it has a finite number; `broken_at` is its break point."""

    label: str
    points: tuple[Point, ...]
    broken_at: Point | None = None

    @property
    def segments(self) -> list[list[Point]]:
        """Return the points by their sets of targets: the curve has a gap where the set changes."""
        return [list(points) for _, points in groupby(self.points, key=lambda point: point.scored_on)]


@dataclass(frozen=True)
class Chart:
    """Curves in the order of their table.

    order_note: a sentence on how curves are ordered. values: levels or changes in bits per byte. lengths:
    ticks of the x axis. end: where a whole curve ends. margin: of the verdicts, in bits per byte.
    no_training: models that cost none, which do not set the axes.
    """

    title: str
    curves: tuple[Curve, ...]
    values: PlotValues
    lengths: tuple[int, ...]
    end: float
    train_length: int
    x_label: str
    order_note: str
    margin: float
    no_training: tuple[Curve, ...] = ()
    measure: Measure = BITS

    @property
    def is_over_length(self) -> bool:
        return self.x_label == LENGTH_LABEL

    @property
    def points(self) -> list[Point]:
        return [point for curve in self.curves for point in curve.points]

    @cached_property
    def x(self) -> Scale:
        """The axis of lengths or positions; the training length is in it."""
        return scale_of_lengths([*(point.x for point in self.points), self.train_length])

    @cached_property
    def y(self) -> Scale:
        """The axis of values, which never spans less than ten margins; that of shares is whole."""
        if self.measure.higher_is_better:
            return Scale(-SHARE_PADDING, 1 + SHARE_PADDING)
        values = np.array([point.value for point in self.points])
        bands = np.array([edge for point in self.points for edge in (point.low, point.high)])
        if self.values == "change":
            return scale_of_changes(values, bands, self.margin, MIN_SPAN * self.margin)
        return scale_of_levels(values, bands, MIN_SPAN * self.margin)

    @cached_property
    def anchors(self) -> list[Curve]:
        """Return the curves of models that cost no training, those that are seen between the axes."""
        low, high = self.y.low, self.y.high
        ranges = [(curve, [point.value for point in curve.points]) for curve in self.no_training]
        return [curve for curve, values in ranges if values and max(values) >= low and min(values) <= high]

    @property
    def y_label(self) -> str:
        if self.values == "change":
            return f"change against {self.train_length}, bits per byte (+ is worse)"
        better = "higher" if self.measure.higher_is_better else "lower"
        return f"{self.measure.unit}{', log scale' if self.y.shape == 'log' else ''} ({better} is better)"

    @property
    def notes(self) -> list[str]:
        """Return what crosses, bands, rings and the grey margin mean, for those that are seen."""
        notes = []
        if any(curve.broken_at for curve in self.curves):
            verbs = "be solved in part or not at all" if self.measure.higher_is_better else "degrade or fail"
            notes.append(f"Cross: the break point, the first length seen to {verbs}.")
        bands = [point for point in self.points if isfinite(point.low) and isfinite(point.high)]
        if any(self.y.share(point.high) - self.y.share(point.low) > VISIBLE_BAND for point in bands):
            notes.append(f"Bands: {self._band_text()}.")
        if any(len({point.seeds for point in curve.points}) > 1 for curve in self.curves):
            notes.append("Some points are means over fewer seeds than their curve has.")
        if any(point.uses_context for point in self.points):
            notes.append("Ringed: uses the context beyond the training length.")
        if self.values == "change":
            beyond = "; beyond it the axis is logarithmic" if self.y.shape == "asinh" else ""
            notes.append(f"Grey: within the margin of {self.margin:g}, where a change holds{beyond}.")
        return notes

    def _band_text(self) -> str:
        """Describe the bands. Those of two seeds are no interval, which would be many times as wide."""
        if self.values == "change":
            return "the 95 % interval of the change, over documents and seeds"
        seeds = {point.seeds for point in self.points}
        of_two = "from the lower to the higher of two seeds"
        if max(seeds) <= 2:
            return of_two
        return "the 95 % interval of the mean over seeds" + (f"; with two, {of_two}" if 2 in seeds else "")

    @property
    def anchor_notes(self) -> list[str]:
        """Return what the thin curves are, and which of them leave the axes."""
        names = ", ".join(curve.label for curve in self.anchors)
        outside = [
            curve.label
            for curve in self.anchors
            if any(not self.y.low <= point.value <= self.y.high for point in curve.points)
        ]
        notes = [f"Thin grey: {names}, counted on the same training tokens."] if names else []
        return [*notes, *([f"{', '.join(outside)} goes on beyond the axis."] if outside else [])]

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
        return f"(to {curve.points[-1].x:.0f})" if self.ends_early(curve) else ""

    def ends_early(self, curve: Curve) -> bool:
        return bool(curve.points) and curve.points[-1].x != self.end


def charts_of(tables: Sequence[Table], values: PlotValues = "levels") -> list[list[Chart]]:
    """Return the charts of each table: one over context length, and one over position where it has any.

    Tables of several protocols have the same curves over position; those are in the first one's charts only.
    """
    drawn: set[tuple[object, ...]] = set()
    charts_of_tables = []
    for table in tables:
        settings = _setting_among(table, tables)
        charts = [_chart_over_length(table, _wrap_title(table) + settings, values)]
        positions = tuple((line.label, line.positions) for line in table.lines if line.positions)
        if positions and positions not in drawn:
            drawn.add(positions)
            by_position = replace(table, key=replace(table.key, protocol="positions", stride_rule=""))
            charts.append(_chart_over_position(table, f"{_wrap_title(by_position)}{settings}\n{NO_VERDICT}"))
        charts_of_tables.append(charts)
    return charts_of_tables


def _wrap_title(table: Table) -> str:
    """Return the title in two lines, or more where they are long, without the hash of the data."""
    parts = [part.replace(f" ({table.key.data_hash[:8]})", "") for part in table.title_parts]
    return "\n".join(fill(part, MAX_TITLE, break_long_words=False) for part in parts)


def _setting_among(table: Table, tables: Sequence[Table]) -> str:
    """Return the hashes that tell the table from others with its title."""
    alike = [other.key for other in tables if _wrap_title(other) == _wrap_title(table)]
    data = f", data {table.key.data_hash[:8]}" if len({key.data_hash for key in alike}) > 1 else ""
    has_settings = len({key.setting for key in alike}) > 1
    return data + (f", settings {table.key.setting[:8]}" if has_settings else "")


def _chart_over_length(table: Table, title: str, values: PlotValues) -> Chart:
    values = "levels" if table.is_task else values  # lengths of a task are not paired, so have no change
    from_length = 0 if values == "levels" else table.key.train_length
    return Chart(
        title=title,
        curves=tuple(_length_curve(line, table, values) for line in table.lines),
        values=values,
        lengths=tuple(length for length in table.lengths if length >= from_length),
        end=table.lengths[-1],
        train_length=table.key.train_length,
        x_label=LENGTH_LABEL,
        order_note=_describe_order(table),
        margin=table.margin,
        no_training=tuple(_length_curve(line, table, values) for line in table.anchors if values == "levels"),
        measure=table.measure,
    )


def _chart_over_position(table: Table, title: str) -> Chart:
    curves = tuple(_position_curve(line) for line in table.lines if line.positions)
    places = [point.x for curve in curves for point in curve.points] or [table.key.train_length]
    first, last = np.ceil(np.log2(min(places))), np.floor(np.log2(max(places)))
    powers_of_two = (2**power for power in range(max(0, int(first)), int(last) + 1))
    return Chart(
        title=title,
        curves=curves,
        values="levels",
        lengths=tuple(sorted({table.key.train_length, *powers_of_two})),
        end=max(places),
        train_length=table.key.train_length,
        x_label="position of the token (tokens before it)",
        order_note=_describe_order(table),
        margin=table.margin,
    )


def _describe_order(table: Table) -> str:
    if table.ranked_at is None:
        return "Row by row as the table is"
    return f"Best first, row by row, by bits per byte at context length {table.ranked_at}"


def _length_curve(line: Line, table: Table, values: PlotValues) -> Curve:
    points = {int(point.x): point for point in _points(line, table.key.train_length, values)}
    return Curve(line.label, tuple(points.values()), points.get(line.break_point.breaks_at or 0))


def _points(line: Line, train_length: int, values: PlotValues) -> list[Point]:
    """Return levels at all lengths, or changes from the training length on: below it less context costs."""
    scored = [record for _, record in sorted(line.records.items()) if _is_drawable(record.levels)]
    if values == "levels":
        return [
            # Each length of a task has examples of its own, which break no curve.
            _mean_point(record.length, record.levels, "" if record.answers else record.target_hash, record)
            for record in scored
        ]
    points = [
        Point(
            record.length,
            record.change,
            *((record.interval.low, record.interval.high) if record.interval else (-inf, inf)),
            record.compared.target_hash,
            _uses_context(record),
            len(record.levels),
        )
        for record in scored
        if record.change is not None and _is_drawable([record.change]) and record.length >= train_length
    ]
    trained = line.records.get(train_length)
    if points and trained is not None and trained in scored and trained.change is None:
        points.insert(0, Point(train_length, 0.0, scored_on=points[0].scored_on, seeds=len(trained.levels)))
    return points


def _position_curve(line: Line) -> Curve:
    known = [part for part in line.positions if part.context > 0 and _is_drawable(part.levels)]
    return Curve(line.label, tuple(_mean_point(part.context, part.levels) for part in known))


def _uses_context(record: Record | None) -> bool:
    return record is not None and record.use is not None and record.use.uses_context == "yes"


def _is_drawable(values: Sequence[float]) -> bool:
    return bool(values) and all(abs(value) < MAX_DRAWN for value in values)  # false for NaN


def _mean_point(
    x: float, levels: Sequence[float], scored_on: str = "", record: Record | None = None
) -> Point:
    values = np.array(levels)
    low, high = (min(levels), max(levels)) if len(levels) == 2 else student_interval(values)
    return Point(x, float(values.mean()), low, high, scored_on, _uses_context(record), len(levels))
