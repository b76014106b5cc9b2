"""The picture of heat maps, and the file it is written to: PNG, SVG or PDF."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pe_bench.plot.file import save_picture
from pe_bench.plot.labels import fitting, wrapped
from pe_bench.plot.placing import lines_height, place_axes, place_text
from pe_bench.plot.style import COLOURS, FONT, GREY, LEFT, NOTE_FONT, WIDTH
from pe_bench.report.charts.heat import DEPTHS, LENGTHS, HeatCell, HeatChart, HeatMap, heat_chart
from pe_bench.report.tables.probes import ProbeTable

COLOUR = COLOURS[3]
CELL_WIDTH, CELL_HEIGHT = 0.55, 0.3  # inches, of a cell at most
GAP, ABOVE, BELOW = 0.25, 0.28, 0.62  # inches: between maps, for a name, for an axis
BETWEEN = 0.3  # inches between two charts
LETTER = 0.6 * FONT  # points
DARK = 0.55  # from this share on, a number is white


def plot_probes(tables: Sequence[ProbeTable], path: Path) -> None:
    """Draw tables of probes into the file `path`; its suffix is the format.

    Raises `UserError` for another suffix than .png, .svg or .pdf and for a missing folder.
    """
    save_picture(lambda: draw_probes(tables), path)


def draw_probes(tables: Sequence[ProbeTable]) -> Figure:
    charts = [heat_chart(table) for table in tables]
    heights = [_height(chart) for chart in charts]
    figure = Figure(figsize=(WIDTH, sum(heights) + BETWEEN * (len(charts) - 1)))
    FigureCanvasAgg(figure)
    top = 0.0
    for chart, height in zip(charts, heights, strict=True):
        _draw_chart(figure, chart, top)
        top += height + BETWEEN
    return figure


def _columns(chart: HeatChart) -> int:
    width = CELL_WIDTH * len(chart.lengths) + GAP
    return max(1, min(len(chart.maps), int((WIDTH - LEFT + GAP) / width)))


def _map_size(chart: HeatChart) -> tuple[float, float]:
    """Return the width and height of a map in inches; many lengths share the page's width."""
    width = min(CELL_WIDTH * len(chart.lengths), WIDTH - LEFT)
    return width, CELL_HEIGHT * len(chart.depths)


def _height(chart: HeatChart) -> float:
    rows = math.ceil(len(chart.maps) / _columns(chart))
    text = lines_height(chart.title, FONT) + lines_height(wrapped([chart.note]), NOTE_FONT)
    return text + rows * (ABOVE + _map_size(chart)[1] + GAP) + BELOW


def _draw_chart(figure: Figure, chart: HeatChart, top: float) -> None:
    place_text(figure, LEFT, top, chart.title)
    top += lines_height(chart.title, FONT)
    columns, (width, height) = _columns(chart), _map_size(chart)
    names = fitting([each.label for each in chart.maps], max(8, int(72 * width / LETTER)))
    rows = math.ceil(len(chart.maps) / columns)
    for place, each in enumerate(chart.maps):
        row, column = divmod(place, columns)
        left = LEFT + column * (width + GAP)
        axes = place_axes(figure, left, top + ABOVE + row * (height + ABOVE + GAP), width, height)
        axes.set_title(names[each.label], fontsize=FONT, loc="left", pad=4, y=1.0)
        is_lowest = place + columns >= len(chart.maps)
        _draw_map(axes, each, chart, has_depths=column == 0, has_lengths=is_lowest)
    foot = top + rows * (height + ABOVE + GAP)
    place_text(figure, 0.05, (top + foot) / 2, DEPTHS, rotation=90, ha="left", va="center", color=GREY)
    place_text(figure, LEFT, foot + 0.1, LENGTHS, color=GREY)
    place_text(figure, LEFT, foot + 0.36, wrapped([chart.note]), fontsize=NOTE_FONT, color=GREY)


def _draw_map(axes: Axes, each: HeatMap, chart: HeatChart, *, has_depths: bool, has_lengths: bool) -> None:
    axes.set_xlim(0, len(chart.lengths))
    axes.set_ylim(len(chart.depths), 0)
    for cell in each.cells:
        _draw_cell(axes, cell)
    _number(axes.xaxis, chart.lengths if has_lengths else ())
    _number(axes.yaxis, chart.depths if has_depths else ())
    axes.tick_params(length=0, labelsize=NOTE_FONT)
    axes.spines[:].set_color("0.8")


def _number(axis: Axis, labels: Sequence[str]) -> None:
    axis.set_ticks([place + 0.5 for place in range(len(labels))], labels)


def _draw_cell(axes: Axes, cell: HeatCell) -> None:
    share = cell.share or 0.0
    axes.add_patch(Rectangle((cell.column, cell.row), 1, 1, facecolor=COLOUR, alpha=share, linewidth=0))
    axes.text(
        cell.column + 0.5,
        cell.row + 0.5,
        cell.text,
        ha="center",
        va="center",
        fontsize=NOTE_FONT,
        color="white" if share > DARK else "black",
    )
