"""A chart of the page: an SVG, each of whose points says its values to the script and to screen readers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pe_bench.plot.style import Style
from pe_bench.report.charts.curves import NO_VERDICT, Chart, Curve, PlotValues, describe_anchors, seen_anchors
from pe_bench.report.charts.draw import MAX_NAMED, chart_svg
from pe_bench.report.columns import point_text
from pe_bench.report.html.style import LineStyle, line_styles
from pe_bench.report.records import Table
from pe_bench.report.values import number_text


@dataclass(frozen=True)
class Name:
    """A curve in the list below a picture; key: what its parts and its row of the table have in common."""

    label: str
    key: str
    style: LineStyle


@dataclass(frozen=True)
class Picture:
    """A drawn chart; `is_named` where the names of its curves stand beside them too."""

    values: PlotValues
    caption: str
    svg: Markup
    names: Sequence[Name]
    is_named: bool
    notes: Sequence[str]


def make_picture(
    chart: Chart, table: Table, key: str, prefix: str, styles: Mapping[str, Style]
) -> Picture | None:
    """Return the chart drawn; None where it has no point.

    `key` tells it from other pictures of the page, and `prefix` begins the keys of its curves.
    """
    if not chart.points:
        return None
    lines = {line.label: f"{prefix}-{number}" for number, line in enumerate(table.all_lines)}
    looks = line_styles(styles)
    texts = [_point_texts(curve, chart, table) for curve in chart.curves]
    caption = f"{chart.y_label[0].upper()}{chart.y_label[1:]} by {chart.x_label}"
    return Picture(
        values=chart.values,
        caption=caption if chart.is_over_length else f"{caption}. {NO_VERDICT}",
        svg=Markup(chart_svg(chart, styles, key, lines, texts)),
        names=[Name(curve.label, lines[curve.label], looks[curve.label]) for curve in chart.curves],
        is_named=len(chart.curves) <= MAX_NAMED,
        notes=[*chart.notes, *describe_anchors(seen_anchors(chart))],
    )


def _point_texts(curve: Curve, chart: Chart, table: Table) -> list[str]:
    """Return what is known at each point of a curve, some lines each."""
    line = next(line for line in table.lines if line.label == curve.label)
    texts = []
    for point in curve.points:
        cell = line.records.get(int(point.x)) if chart.is_over_length else None
        before = f"{curve.label}\n{point.x:,.0f} tokens before it\n{number_text(point.value)} bits/byte"
        texts.append(point_text(line, cell, table) if cell else before)
    return texts
