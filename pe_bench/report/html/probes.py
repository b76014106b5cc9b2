"""Sections of the page on probes: a heat map for each line, and a table."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pe_bench.report.charts.heat import HeatChart, heat_chart, heat_svg
from pe_bench.report.needles import ProbeTable
from pe_bench.report.probes import grid_of, title_of
from pe_bench.system.grid import Grid


@dataclass(frozen=True)
class ProbeSection:
    """A table of probes with its heat maps."""

    title: str
    why: str
    chart: HeatChart
    svg: Markup
    grid: Grid


def probe_sections(tables: Sequence[ProbeTable]) -> list[ProbeSection]:
    charts = [heat_chart(table) for table in tables]
    return [
        ProbeSection(
            f"Probe: {title_of(table)}",
            table.why,
            chart,
            Markup(heat_svg(chart, f"probe-{number}")),
            grid_of(table),
        )
        for number, (table, chart) in enumerate(zip(tables, charts, strict=True))
    ]
