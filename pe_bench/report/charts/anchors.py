"""The curves of models that cost no training: cut at the edges of a chart, and named where there is room."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pe_bench.plot.scale import Scale
from pe_bench.report.charts.curves import Chart, Curve, Point

NAME_WIDTH, NAME_HEIGHT = 0.16, 0.05  # shares of a chart that a name takes


@dataclass(frozen=True)
class SeenAnchor:
    """A curve as far as it lies on the axes, and the shares of width and height under its name's middle."""

    curve: Curve
    name_at: tuple[float, float]


def seen_anchors(chart: Chart) -> list[SeenAnchor]:
    """Return what is seen of the anchors on axes that the other curves alone decide."""
    cut = [_cut_at_edges(anchor, chart.x, chart.y) for anchor in chart.anchors]
    seen = [curve for curve in cut if len(curve.points) > 1]
    return [SeenAnchor(curve, _place_name(curve, chart, seen)) for curve in seen]


def describe_anchors(anchors: Sequence[SeenAnchor]) -> list[str]:
    """Return a sentence on the thin curves of a picture, where there are any."""
    names = ", ".join(anchor.curve.label for anchor in anchors)
    return [f"Thin grey: {names}, counted on the same training tokens."] if names else []


def _cut_at_edges(curve: Curve, x: Scale, y: Scale) -> Curve:
    """Return the part of a curve within the y axis, up to where it crosses the axis's ends."""
    kept: list[Point] = []
    for points in curve.segments:
        for before, after in zip([None, *points], points, strict=False):
            kept += _crossings(before, after, x, y) if before else []
            kept += [after] if 0 <= y.share(after.value) <= 1 else []
    return replace(curve, points=tuple(kept))


def _place_name(curve: Curve, chart: Chart, seen: Sequence[Curve]) -> tuple[float, float]:
    """Return the middle of the foot of a curve's name: above a point where the others leave the most room."""
    edge = NAME_WIDTH / 2
    across = [chart.x.share(point.x) for point in curve.points]
    inside = [place for place in across if edge <= place <= 1 - edge] or across
    feet = [(place, float(_heights(curve, chart, place).max())) for place in inside]
    others = [other for other in (*chart.curves, *seen) if other != curve and len(other.points) > 1]
    return max(feet, key=lambda foot: min([1.0, *(_distance(foot, other, chart) for other in others)]))


def _crossings(before: Point, after: Point, x: Scale, y: Scale) -> list[Point]:
    """Return where the straight line between two points crosses the ends of the y axis, in its order."""
    start, stop = y.share(before.value), y.share(after.value)
    ends = [(end, value) for end, value in ((0.0, y.low), (1.0, y.high)) if (start - end) * (stop - end) < 0]
    shares = sorted(((end - start) / (stop - start), value) for end, value in ends)
    return [
        Point(x.between(before.x, after.x, share), value, scored_on=before.scored_on)
        for share, value in shares
    ]


def _distance(foot: tuple[float, float], other: Curve, chart: Chart) -> float:
    """Return how far another curve is from a name, in shares of the height; 1 where it is not near."""
    heights = _heights(other, chart, foot[0])
    return float(np.abs(heights - foot[1] - NAME_HEIGHT / 2).min(initial=1.0))


def _heights(curve: Curve, chart: Chart, middle: float) -> np.ndarray:
    """Return the heights of a curve along a name, in shares; where the curve has ended there are none."""
    places = [(chart.x.share(point.x), chart.y.share(point.value)) for point in curve.points]
    across, up = np.array(places).T
    along = np.linspace(middle - NAME_WIDTH / 2, middle + NAME_WIDTH / 2, 9)
    return np.interp(along[(across[0] <= along) & (along <= across[-1])], across, up)
