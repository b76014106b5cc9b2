"""The whole picture of some tables, and the file it is written to: PNG, SVG or PDF."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pe_bench.plot.file import save_picture
from pe_bench.plot.style import WIDTH, styles_of
from pe_bench.report.charts.curves import PlotValues, charts_of
from pe_bench.report.charts.grid import Grid
from pe_bench.report.charts.panel import Panel
from pe_bench.report.tables.table import Table

MAX_IN_A_PANEL = 8  # curves; more would be a tangle, and each gets a panel of its own
BETWEEN = 0.45  # inches between two charts


def plot_tables(tables: Sequence[Table], path: Path, values: PlotValues = "levels") -> None:
    """Draw `tables` into the file `path`; its suffix is the format.

    Raises `UserError` for another suffix than .png, .svg or .pdf and for a missing folder.
    """
    save_picture(lambda: draw(tables, values), path)


def draw(tables: Sequence[Table], values: PlotValues = "levels") -> Figure:
    """Return a figure with the charts of the tables and of their recall, one below the other."""
    tables = [part for table in tables for part in table.with_recall]
    charts = [chart for of_table in charts_of(tables, values) for chart in of_table]
    styles = styles_of(curve.label for chart in charts for curve in chart.curves)
    parts = [
        Panel(chart, styles) if len(chart.curves) <= MAX_IN_A_PANEL else Grid(chart, styles)
        for chart in charts
    ]
    height = sum(part.height for part in parts) + BETWEEN * (len(parts) - 1)
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    top = 0.0
    for part in parts:
        part.draw(figure, top)
        top += part.height + BETWEEN
    return figure
