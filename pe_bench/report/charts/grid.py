"""Many curves, a small panel for each: one in colour, and all others in grey below it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe_bench.plot.labels import fitting, wrapped
from pe_bench.plot.placing import lines_height, place_axes, place_text
from pe_bench.plot.style import FONT, GREY, LEFT, NOTE_FONT, PALE, WIDTH, Style
from pe_bench.report.charts.curves import Chart, Curve
from pe_bench.report.charts.marks import (
    draw_axes,
    draw_curve,
    mark_break_point,
    mark_context_use,
    mark_training_length,
)

ABOVE, BELOW = 0.3, 0.6  # inches, for the names of the first panels, and for the x axis
GAP = 0.18  # inches between two columns, and twice that between two rows, for the names
MAX_COLUMNS = 6
MAX_TICKS = 5  # on the y axis
TICK_GAP = 24  # points between the middles of two tick labels
SMALL = 7.5  # points, of names and numbers
LETTER = 0.6 * SMALL  # points that a letter of a name is wide, with room to spare


@dataclass(frozen=True)
class Grid:
    """A chart of many curves with its title above and a note below."""

    chart: Chart
    styles: Mapping[str, Style]

    @property
    def columns(self) -> int:
        return min(MAX_COLUMNS, max(1, math.ceil(math.sqrt(len(self.chart.curves)))))

    @property
    def rows(self) -> int:
        return math.ceil(len(self.chart.curves) / self.columns)

    @property
    def panel_size(self) -> tuple[float, float]:
        """The width and height of a panel in inches: wide ones are flatter, so that few do not tower."""
        width = (WIDTH - LEFT + GAP) / self.columns - GAP
        return width, 0.25 + 0.5 * width

    @property
    def height(self) -> float:
        """The height in inches."""
        title, note = (lines_height(self.chart.title, FONT), lines_height(self._note, NOTE_FONT))
        return title + ABOVE + self._panels_height + BELOW + note

    @property
    def _panels_height(self) -> float:
        return self.rows * (self.panel_size[1] + 2 * GAP) - 2 * GAP

    @property
    def _note(self) -> str:
        order = f"{self.chart.order_note}; all others in grey."
        return wrapped([order, f"Dashed: the training length, {self.chart.train_length}.", *self.chart.notes])

    def draw(self, figure: Figure, top: float) -> None:
        """Draw the panels, so many inches below the page's upper edge."""
        place_text(figure, LEFT, top, self.chart.title)
        top += lines_height(self.chart.title, FONT) + ABOVE
        self._draw_panels(figure, top)
        middle = top + self._panels_height / 2
        place_text(figure, 0.25, middle, self.chart.y_label, rotation=90, ha="center", va="center")
        bottom = top + self._panels_height
        middle = (LEFT + WIDTH) / 2
        place_text(figure, middle, bottom + 0.27, self.chart.x_label, ha="center")
        place_text(figure, LEFT, bottom + BELOW, self._note, fontsize=NOTE_FONT, color=GREY)

    def _draw_panels(self, figure: Figure, top: float) -> None:
        width, height = self.panel_size
        curves = self.chart.curves
        names = fitting([curve.label for curve in curves], int(72 * width / LETTER))
        everything = np.array(list(_all_points(self.chart))).reshape(-1, 2)
        for place, curve in enumerate(curves):
            row, column = divmod(place, self.columns)
            left = LEFT + column * (width + GAP)
            axes = place_axes(figure, left, top + row * (height + 2 * GAP), width, height)
            axes.plot(everything[:, 0], everything[:, 1], color=PALE, linewidth=0.6, zorder=1)
            _draw_panel(axes, self.chart, curve, self.styles[curve.label], 72 * width)
            # A given height spares matplotlib the search for one that is free of ticks.
            axes.set_title(names[curve.label], fontsize=SMALL, loc="left", pad=3, y=1.0)
            is_lowest = place + self.columns >= len(curves)
            axes.tick_params(labelsize=SMALL, length=2.5, labelleft=column == 0, labelbottom=is_lowest)


def _draw_panel(axes: Axes, chart: Chart, curve: Curve, style: Style, width: float) -> None:
    draw_axes(axes, chart, width, TICK_GAP, MAX_TICKS)
    mark_training_length(axes, chart.train_length, 0.7)
    draw_curve(axes, curve, replace(style, stroke="-"), linewidth=1.5, markersize=2.5)
    mark_context_use(axes, curve, style.colour, 7)
    mark_break_point(axes, curve, 6)
    axes.text(
        0.98,
        0.94,
        chart.remark(curve),
        transform=axes.transAxes,
        ha="right",
        va="top",
        fontsize=SMALL - 1,
        color=GREY,
        bbox={"facecolor": "white", "linewidth": 0, "pad": 1},
    )


def _all_points(chart: Chart) -> Iterator[tuple[float, float]]:
    """Yield the points of all segments with a gap after each: one stroke that draws them all."""
    for curve in chart.curves:
        for segment in curve.segments:
            yield from ((point.x, point.value) for point in segment)
            yield (np.nan, np.nan)
