"""The whole picture of some tables, and the file it is written to: PNG, SVG or PDF."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pe_bench.errors import UserError
from pe_bench.files import write_atomically
from pe_bench.plot.charts import charts_of
from pe_bench.plot.grid import Grid
from pe_bench.plot.panel import Panel
from pe_bench.plot.style import FONT, WIDTH, styles_of
from pe_bench.report.tables import Table

# What would make two writings of one picture differ.
UNDATED = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
MOST_IN_A_PANEL = 8  # curves; more would be a tangle, and each gets a panel of its own
BETWEEN = 0.45  # inches between two charts


def plot_tables(tables: Sequence[Table], path: Path) -> None:
    """Draw `tables` into the file `path`; its suffix is the format.

    Raises `UserError` for another suffix than .png, .svg or .pdf and for a missing folder.
    """
    kind = picture_format(path)
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}")
    # The salt names an SVG's parts, and would be random; 42 embeds a PDF's letters as text.
    with matplotlib.rc_context({"font.size": FONT, "svg.hashsalt": "pe-bench", "pdf.fonttype": 42}):
        figure = draw(tables)
        write_atomically(
            path,
            lambda temporary: figure.savefig(
                temporary, format=kind, dpi=150, bbox_inches="tight", metadata=UNDATED[kind]
            ),
        )


def picture_format(path: Path) -> str:
    """What the suffix of a picture's name stands for. Raises `UserError` for an unknown one."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in UNDATED:
        raise UserError(f"cannot draw {path}: the name must end with .png, .svg or .pdf")
    return kind


def draw(tables: Sequence[Table]) -> Figure:
    """A figure with the tables' charts, one below the other."""
    charts = [chart for table in tables for chart in charts_of(table, tables)]
    few = [chart for chart in charts if len(chart.curves) <= MOST_IN_A_PANEL]
    styles = styles_of(curve.label for chart in few for curve in chart.curves)
    parts = [Panel(chart, styles) if chart in few else Grid(chart) for chart in charts]
    height = sum(part.height for part in parts) + BETWEEN * (len(parts) - 1)
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    top = 0.0
    for part in parts:
        part.draw(figure, top)
        top += part.height + BETWEEN
    return figure
