"""Few curves in one panel, each named where it ends."""

from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe_bench.plot.labels import fitting, wrapped
from pe_bench.plot.placing import lines_height, place_axes, place_text
from pe_bench.plot.style import FONT, GREY, LEFT, NOTE_FONT, Style
from pe_bench.report.charts.anchors import describe_anchors, seen_anchors
from pe_bench.report.charts.curves import Chart
from pe_bench.report.charts.marks import (
    draw_anchors,
    draw_axes,
    draw_curve,
    mark_break_point,
    mark_context_use,
    mark_training_length,
)

PANEL_WIDTH, PANEL_HEIGHT = 6.4, 3.6  # inches
ABOVE, BELOW = 0.35, 0.55  # inches, for the name of the training length, and for the x axis
MAX_TICKS = 9  # on the y axis
TICK_GAP = 26  # points between the middles of two tick labels
NAME_GAP = 1.3 * FONT  # points between the middles of two names
MAX_NAME = 36  # characters
RING, CROSS = 10, 8  # points


@dataclass(frozen=True)
class Panel:
    """A chart of few curves with its title above and a note below."""

    chart: Chart
    styles: Mapping[str, Style]

    @property
    def height(self) -> float:
        """The height in inches."""
        title, note = (lines_height(self.chart.title, FONT), lines_height(self._note, NOTE_FONT))
        return title + ABOVE + PANEL_HEIGHT + BELOW + note

    @property
    def _note(self) -> str:
        return wrapped([*self.chart.notes, *describe_anchors(seen_anchors(self.chart))])

    def draw(self, figure: Figure, top: float) -> None:
        """Draw the panel, so many inches below the page's upper edge."""
        chart = self.chart
        place_text(figure, LEFT, top, chart.title)
        top += lines_height(chart.title, FONT) + ABOVE
        axes = place_axes(figure, LEFT, top, PANEL_WIDTH, PANEL_HEIGHT)
        place_text(figure, LEFT, top + PANEL_HEIGHT + BELOW, self._note, fontsize=NOTE_FONT, color=GREY)
        draw_axes(axes, chart, 72 * PANEL_WIDTH, TICK_GAP, MAX_TICKS)
        axes.grid(axis="y", color="0.9")
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(chart.y_label)
        draw_anchors(axes, seen_anchors(chart))
        for curve in chart.curves:
            style = self.styles[curve.label]
            draw_curve(axes, curve, style, linewidth=1.6, markersize=5)
            mark_context_use(axes, curve, style.colour, RING)
            mark_break_point(axes, curve, CROSS)
        _name_training_length(axes, chart)
        _name_curves(axes, chart, self.styles)


def _name_training_length(axes: Axes, chart: Chart) -> None:
    length = chart.train_length
    mark_training_length(axes, length, 1.0)
    axes.annotate(
        f"training length {length}",
        (length, 1),
        xycoords=axes.get_xaxis_transform(),
        xytext=(0, 8),
        textcoords="offset points",
        ha="center" if chart.x.share(length) > 0.1 else "left",
        color=GREY,
    )


def _name_curves(axes: Axes, chart: Chart, styles: Mapping[str, Style]) -> None:
    """Write each name right of where its curve ends, and draw a thin stroke between them."""
    names = fitting([curve.label for curve in chart.curves], MAX_NAME)
    height, gap = 72 * PANEL_HEIGHT, FONT / (72 * PANEL_WIDTH)
    for curve, (x, place) in zip(chart.curves, chart.name_places(height, NAME_GAP), strict=True):
        colour = styles[curve.label].colour
        stroke = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
        axes.annotate(
            f"{names[curve.label]} {chart.remark(curve)}".rstrip(),
            chart.last_place(curve),
            xycoords="axes fraction",
            xytext=(x + gap, place / height),
            textcoords="axes fraction",
            va="center",
            color=colour,
            annotation_clip=False,
            arrowprops={**stroke, "relpos": (0, 0.5)} if curve.points else None,
            bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1},
            gid=f"name of {curve.label}",
        )
