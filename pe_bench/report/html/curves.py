"""Curves as inline SVG: bits per byte against length, and against the place in the document.

Each point is labelled with its values, for the script to show and for a screen reader to say. The
script moves between them by mouse, touch and arrow keys; without it, and in print, the picture stays.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from pe_bench.report.html.element import Html, element, join
from pe_bench.report.html.scale import Scale, scale_of_lengths, scale_of_levels, spread_apart, ticks
from pe_bench.report.html.style import Look
from pe_bench.report.html.text import number, point_text
from pe_bench.report.statistics import student_interval
from pe_bench.report.tables.build import Table
from pe_bench.report.tables.lines import Line

# Units of the picture, which a wide window shows as pixels.
WIDTH, HEIGHT, TALL = 800, 380, 520
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 36, 32
LABELS = 150  # for the names right of the curves
MOST_LABELS = 12  # more lines than this are named in the table alone
LABEL_GAP = 16
TICK_GAP, NARROW_TICK_GAP = 40, 62  # between numbers on the axis; a narrow window has larger ones
LONGEST_LABEL = 19  # characters


@dataclass(frozen=True)
class Point:
    """A level at a length. band: what holds the mean of the seeds, infinite where that is not known."""

    length: float
    level: float
    band: tuple[float, float]
    text: str


@dataclass(frozen=True)
class Curve:
    """Points in rising order of length; between two segments the line breaks."""

    label: str
    name: str
    look: Look
    segments: tuple[tuple[Point, ...], ...]

    @property
    def points(self) -> list[Point]:
        return [point for segment in self.segments for point in segment]


@dataclass(frozen=True)
class Panel:
    """Where values lie in a picture of some height."""

    x: Scale
    y: Scale
    height: float


def level_picture(table: Table, name: str, looks: Mapping[str, Look]) -> Html:
    """The lines of a table over the context length. It breaks where the targets change."""
    curves = [
        Curve(line.label, f"{name}-{place}", looks[line.label], _level_segments(line, table))
        for place, line in enumerate(table.lines)
    ]
    caption = "by context length in tokens"
    return _picture(curves, table, table.lengths, caption)


def position_picture(table: Table, name: str, looks: Mapping[str, Look]) -> Html:
    """The lines of a table over the place in the document; nothing where no positions were scored."""
    curves = [
        Curve(line.label, f"{name}-{place}", looks[line.label], _position_segments(line))
        for place, line in enumerate(table.lines)
        if line.positions
    ]
    if not curves:
        return Html()
    powers = [2.0**power for power in range(40)]
    caption = "by tokens of context before the target: other text at each position, so it carries no verdict"
    return _picture(curves, table, powers, caption)


def _level_segments(line: Line, table: Table) -> tuple[tuple[Point, ...], ...]:
    cells = [cell for _, cell in sorted(line.cells.items()) if _is_finite(cell.levels)]
    return tuple(
        tuple(_point(cell.length, cell.levels, point_text(line, cell, table)) for cell in segment)
        for _, segment in groupby(cells, key=lambda cell: (cell.target_hash, len(cell.levels)))
    )


def _position_segments(line: Line) -> tuple[tuple[Point, ...], ...]:
    def text(context: float, levels: Sequence[float]) -> str:
        return f"{line.label}\n{context:,.0f} tokens before it\n{number(float(np.mean(levels)))} bits/byte"

    found = [position for position in line.positions if _is_finite(position.levels)]
    return (tuple(_point(one.context, one.levels, text(one.context, one.levels)) for one in found),)


def _is_finite(levels: Sequence[float]) -> bool:
    return bool(levels) and all(map(math.isfinite, levels))


def _point(length: float, levels: Sequence[float], text: str) -> Point:
    return Point(length, float(np.mean(levels)), student_interval(np.array(levels)), text)


def _picture(curves: Sequence[Curve], table: Table, lengths: Sequence[float], by: str) -> Html:
    """The curves under a caption; `lengths` are worth a number on the axis."""
    points = [point for curve in curves for point in curve.points]
    if not points:
        return Html()
    few = len(curves) <= MOST_LABELS
    panel = _panel(points, table, HEIGHT if few else TALL, LABELS if few else RIGHT)
    scale = ", logarithmic" if panel.y.log else ""
    caption = f"Bits per byte (lower is better{scale}) {by}"
    drawing = element(
        "svg",
        _grid(panel),
        _lengths_axis(panel, lengths, table.group.train_length),
        _training_length(panel, table.group.train_length),
        *(_curve(curve, panel) for curve in curves),
        *(_labels(curves, panel) if few else []),
        class_=f"picture {'few' if few else 'many'}",
        viewBox=f"0 0 {WIDTH} {panel.height:g}",
        role="group",
        aria_label=f"{caption}; arrow keys go from point to point",
    )
    return element("figure", element("figcaption", caption), element("div", drawing, class_="frame"))


def _panel(points: Sequence[Point], table: Table, height: float, right: float) -> Panel:
    lengths = [*(point.length for point in points), table.group.train_length]
    return Panel(
        scale_of_lengths(lengths, LEFT, WIDTH - right),
        scale_of_levels([point.level for point in points], height - BOTTOM, TOP),
        height,
    )


def _grid(panel: Panel) -> Html:
    x = panel.x
    lines = [
        join(
            element("path", d=f"M{x.start} {panel.y(value):.1f}H{x.end}"),
            _text(f"{value:g}", x.start - 8, panel.y(value) + 4, "end"),
        )
        for value in ticks(panel.y)
    ]
    return element("g", *lines, class_="grid")


def _lengths_axis(panel: Panel, lengths: Sequence[float], trained: int) -> Html:
    """A stroke at each length, and a number where it does not touch another."""
    x, y = panel.x, panel.height - BOTTOM
    inside = [length for length in lengths if x.low <= length <= x.high]
    always = _labelled(inside, trained, x, NARROW_TICK_GAP)
    numbers = [
        _text(f"{length:g}", x(length), y + 22, "middle", None if length in always else "if-wide")
        for length in _labelled(inside, trained, x, TICK_GAP)
    ]
    strokes = [element("path", d=f"M{x(length):.1f} {y}v4") for length in inside]
    return element("g", element("path", d=f"M{x.start} {y}H{x.end}"), *strokes, *numbers, class_="axis")


def _labelled(lengths: Sequence[float], trained: int, x: Scale, gap: float) -> list[float]:
    """Lengths whose numbers lie `gap` apart: the training length's, then from the longest on."""
    chosen: list[float] = []
    for length in sorted(lengths, key=lambda length: (length != trained, -length)):
        if all(abs(x(length) - x(other)) >= gap for other in chosen):
            chosen.append(length)
    return chosen


def _training_length(panel: Panel, length: int) -> Html:
    place = panel.x(length)
    stroke = element("path", d=f"M{place:.1f} {TOP - 8}V{panel.height - BOTTOM}")
    return element(
        "g", stroke, _text(f"training length {length}", place, TOP - 14, "middle"), class_="trained"
    )


def _curve(curve: Curve, panel: Panel) -> Html:
    return element(
        "g",
        *(_band(segment, panel) for segment in curve.segments),
        *(element("path", class_="curve", d=_path(segment, panel)) for segment in curve.segments),
        *(_marker(point, curve.look, panel) for point in curve.points),
        class_=f"line {curve.look.classes}",
        data_line=curve.name,
    )


def _path(points: Sequence[Point], panel: Panel) -> str:
    return "M" + "L".join(f"{panel.x(point.length):.1f} {panel.y(point.level):.1f}" for point in points)


def _band(points: Sequence[Point], panel: Panel) -> Html:
    """The 95 % interval of the seeds' mean, within the picture; nothing for one seed."""
    known = [point for point in points if all(map(math.isfinite, point.band))]
    if len(known) < 2:
        return Html()

    def edge(level: float, length: float) -> str:
        return f"{panel.x(length):.1f} {panel.y(min(max(level, panel.y.low), panel.y.high)):.1f}"

    below = [edge(point.band[0], point.length) for point in known]
    above = [edge(point.band[1], point.length) for point in reversed(known)]
    return element("path", class_="band", d=f"M{'L'.join([*below, *above])}z")


def _marker(point: Point, look: Look, panel: Panel) -> Html:
    place = f"translate({panel.x(point.length):.1f} {panel.y(point.level):.1f})"
    return element(
        "path",
        class_="marker",
        d=look.marker,
        transform=place,
        tabindex=-1,
        role="img",
        aria_label=point.text,
    )


def _labels(curves: Sequence[Curve], panel: Panel) -> Iterator[Html]:
    """Names right of the curves, each as near as can be to where its line ends."""
    shown = [curve for curve in curves if curve.points]
    wanted = [panel.y(curve.points[-1].level) for curve in shown]
    places = spread_apart(wanted, LABEL_GAP, TOP, panel.height - BOTTOM)
    longest = max(curve.points[-1].length for curve in shown)
    for curve, place in zip(shown, places, strict=True):
        yield _label(curve, panel, place, curve.points[-1].length == longest)


def _label(curve: Curve, panel: Panel, place: float, reaches_right: bool) -> Html:
    """A name with a thin stroke to the line's end; where the line ends before, up to which length."""
    end, x = curve.points[-1], panel.x.end + 12
    if reaches_right:
        stroke = f"M{panel.x(end.length) + 6:.1f} {panel.y(end.level):.1f}L{x - 3} {place:.1f}"
        parts = [
            element("path", class_="leader", d=stroke),
            _text(_short(curve.label), x, place + 4, "start"),
        ]
    else:
        parts = [_text(f"{_short(curve.label)} (to {end.length:g})", x, place + 4, "start")]
    return element("g", *parts, class_=f"label {curve.look.classes}", data_line=curve.name)


def _short(label: str) -> str:
    return label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 1]}…"


def _text(text: str, x: float, y: float, anchor: str, class_: str | None = None) -> Html:
    return element("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, class_=class_)
