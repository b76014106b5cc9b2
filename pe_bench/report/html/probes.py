"""Sections of the page on probes: a heat map for each line, and a table."""

from collections.abc import Sequence
from dataclasses import dataclass

from pe_bench.report.charts.heat import HeatChart, heat_chart
from pe_bench.report.probes import grid_of, title_of
from pe_bench.report.tables.probes import ProbeTable
from pe_bench.system.grid import Grid


@dataclass(frozen=True)
class ProbeSection:
    """A table of probes with its heat maps; sizes are those of a map, in pixels."""

    title: str
    why: str
    chart: HeatChart
    grid: Grid
    left: int = 56
    top: int = 22
    cell_width: int = 56
    cell_height: int = 30

    @property
    def width(self) -> int:
        return self.left + self.cell_width * len(self.chart.lengths) + 4

    @property
    def height(self) -> int:
        return self.top + self.cell_height * len(self.chart.depths) + 24


def probe_sections(tables: Sequence[ProbeTable]) -> list[ProbeSection]:
    return [
        ProbeSection(
            f"Probe: {title_of(table)}",
            table.why,
            heat_chart(table),
            grid_of(table),
        )
        for table in tables
    ]
