"""A chart as inline SVG: where its parts lie, in units that a wide window shows as pixels.

Each point is labelled with its values, for the script to show and for a screen reader to say. The
script moves between them by mouse, touch and arrow keys; without it, and in print, the picture stays.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pe_bench.plot.labels import fitting
from pe_bench.plot.scale import tick_labels
from pe_bench.report.charts.anchors import describe_anchors, seen_anchors
from pe_bench.report.charts.curves import NO_VERDICT, Chart, Curve, Point
from pe_bench.report.columns import point_text
from pe_bench.report.html.style import LineStyle
from pe_bench.report.tables.table import Table
from pe_bench.report.values import number_text

WIDTH, HEIGHT, TALL = 800, 320, 480
LEFT, RIGHT, TOP, BOTTOM = 80, 16, 36, 32
NAMES = 160  # for the names right of the curves
MAX_NAMED = 12  # curves; of more the names are in the list below alone
NAME_GAP = 16
TICK_GAP, NARROW_TICK_GAP = 40, 62  # between numbers on the axis; a narrow window has larger ones
MAX_NAME = 19  # characters


@dataclass(frozen=True)
class Marker:
    """A point of a curve and what is known of it, a line each."""

    x: float
    y: float
    text: str
    is_ringed: bool
    is_break: bool


@dataclass(frozen=True)
class Name:
    """The name of a curve, and a thin stroke to the curve's end."""

    text: str
    x: float
    y: float
    leader: str


@dataclass(frozen=True)
class DrawnCurve:
    """The paths of a curve; key: what its parts and its row of the table have in common."""

    key: str
    label: str
    style: LineStyle
    bands: Sequence[str]
    strokes: Sequence[str]
    markers: Sequence[Marker]
    name: Name | None


@dataclass(frozen=True)
class DrawnAnchor:
    """The paths of a model that cost no training, and the middle of its name's foot."""

    key: str
    label: str
    strokes: Sequence[str]
    x: float
    y: float


@dataclass(frozen=True)
class Picture:
    """A chart in its places. numbers: of the x axis, with the class of those that a narrow window lacks."""

    chart: Chart
    caption: str
    height: int
    right: int
    curves: Sequence[DrawnCurve]
    anchors: Sequence[DrawnAnchor] = ()
    notes: Sequence[str] = ()

    width, left, top = WIDTH, LEFT, TOP

    @property
    def foot(self) -> int:
        return self.height - BOTTOM

    @property
    def is_named(self) -> bool:
        return len(self.curves) <= MAX_NAMED

    @property
    def levels(self) -> Iterator[tuple[float, str]]:
        """The places and labels of the ticks on the y axis."""
        ticks = self.chart.y.ticks()
        labels = tick_labels(ticks, signed=self.chart.values == "change")
        return zip(map(self.y, ticks), labels, strict=True)

    @property
    def strokes(self) -> list[float]:
        """The places of the ticks on the x axis."""
        return [self.x(length) for length in self.chart.lengths if self._shows(length)]

    @property
    def numbers(self) -> list[tuple[float, int, str]]:
        """The places of the numbers on the x axis, and the class of those that a narrow window lacks."""
        width = self.right - LEFT
        always = self.chart.numbered(width, NARROW_TICK_GAP)
        return [
            (self.x(length), length, "" if length in always else "if-wide")
            for length in self.chart.numbered(width, TICK_GAP)
        ]

    @property
    def margin_band(self) -> tuple[float, float] | None:
        """The upper edge and the height of the changes within the margin."""
        if self.chart.values != "change":
            return None
        upper, lower = self.y(self.chart.margin), min(self.y(-self.chart.margin), self.foot)
        return max(upper, TOP), lower - max(upper, TOP)

    def x(self, length: float) -> float:
        return LEFT + (self.right - LEFT) * self.chart.x.share(length)

    def y(self, value: float) -> float:
        return self.foot - (self.foot - TOP) * self.chart.y.share(value)

    def _shows(self, length: float) -> bool:
        return self.chart.x.low <= length <= self.chart.x.high


def make_picture(chart: Chart, table: Table, prefix: str, styles: Mapping[str, LineStyle]) -> Picture | None:
    """Return the chart in its places; None where it has no point. `prefix` begins the keys of its curves."""
    if not chart.points:
        return None
    is_named = len(chart.curves) <= MAX_NAMED
    picture = Picture(
        chart, _caption(chart), HEIGHT if is_named else TALL, WIDTH - (NAMES if is_named else RIGHT), ()
    )
    names = _names(picture) if is_named else [None] * len(chart.curves)
    places = {line.label: place for place, line in enumerate(table.all_lines)}
    curves = tuple(
        DrawnCurve(
            f"{prefix}-{places[curve.label]}",
            curve.label,
            styles[curve.label],
            [path for points in curve.segments if (path := _band(picture, points))],
            [_path(picture, points) for points in curve.segments],
            [
                Marker(
                    picture.x(point.x),
                    picture.y(point.value),
                    _text(point, curve, chart, table),
                    point.uses_context,
                    point == curve.broken_at,
                )
                for point in curve.points
            ],
            name,
        )
        for curve, name in zip(chart.curves, names, strict=True)
    )
    seen = seen_anchors(chart)
    anchors = [
        DrawnAnchor(
            f"{prefix}-{places[anchor.curve.label]}",
            anchor.curve.label,
            [_path(picture, points) for points in anchor.curve.segments],
            LEFT + (picture.right - LEFT) * anchor.name_at[0],
            picture.foot - (picture.foot - TOP) * anchor.name_at[1] - 4,
        )
        for anchor in seen
    ]
    notes = [*chart.notes, *describe_anchors(seen)]
    return replace(picture, curves=curves, anchors=anchors, notes=notes)


def _caption(chart: Chart) -> str:
    title = chart.y_label[0].upper() + chart.y_label[1:]
    return f"{title} by {chart.x_label}" + ("" if chart.is_over_length else f". {NO_VERDICT}")


def _text(point: Point, curve: Curve, chart: Chart, table: Table) -> str:
    line = next(line for line in table.lines if line.label == curve.label)
    cell = line.cells.get(int(point.x))
    if chart.is_over_length and cell is not None:
        return point_text(line, cell, table)
    return f"{curve.label}\n{point.x:,.0f} tokens before it\n{number_text(point.value)} bits/byte"


def _path(picture: Picture, points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{picture.x(point.x):.1f} {picture.y(point.value):.1f}" for point in points)


def _band(picture: Picture, points: Sequence[Point]) -> str:
    """Return the outline of the 95 % intervals, within the picture; empty for fewer than two."""
    known = [point for point in points if math.isfinite(point.low) and math.isfinite(point.high)]
    if len(known) < 2:
        return ""

    def edge(value: float, length: float) -> str:
        scale = picture.chart.y
        return f"{picture.x(length):.1f} {picture.y(min(max(value, scale.low), scale.high)):.1f}"

    below = [edge(point.low, point.x) for point in known]
    above = [edge(point.high, point.x) for point in reversed(known)]
    return f"M{'L'.join([*below, *above])}z"


def _names(picture: Picture) -> list[Name]:
    chart, height = picture.chart, picture.foot - TOP
    short = fitting([curve.label for curve in chart.curves], MAX_NAME)
    names = []
    for curve, (share, place) in zip(chart.curves, chart.name_places(height, NAME_GAP), strict=True):
        x, y = LEFT + (picture.right - LEFT) * share + 14, picture.foot - place
        leader = ""
        if curve.points:
            end = curve.points[-1]
            leader = f"M{picture.x(end.x) + 6:.1f} {picture.y(end.value):.1f}L{x - 3:.1f} {y:.1f}"
        names.append(Name(f"{short[curve.label]} {chart.remark(curve)}".rstrip(), x, y + 4, leader))
    return names
