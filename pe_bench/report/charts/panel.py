"""Few curves in one panel, each named where it ends."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe_bench.plot.labels import fitting, plain, wrapped
from pe_bench.plot.placing import in_points, lines_height, place_axes, place_text, spread_apart
from pe_bench.plot.style import FONT, GREY, LEFT, NOTE_FONT, Style
from pe_bench.report.charts.axes import Scale, number_ticks, scale_of, set_scales
from pe_bench.report.charts.curves import Chart, Curve
from pe_bench.report.charts.marks import (
    draw_curve,
    mark_beyond,
    mark_context_use,
    mark_training_length,
    notes_on_marks,
)

PANEL_WIDTH, PANEL_HEIGHT = 6.4, 3.6  # inches
ABOVE, BELOW = 0.35, 0.55  # inches, for the name of the training length, and for the x axis
TICKS = 7  # on the y axis, about
TICK_GAP = 26  # points between the middles of two tick labels
LABEL_GAP = 1.3 * FONT  # points between the middles of two names
LONGEST_NAME = 36  # characters
RING = 10  # points


@dataclass(frozen=True)
class Panel:
    """A chart of few curves with its title above and a note below."""

    chart: Chart
    styles: Mapping[str, Style]

    @property
    def height(self) -> float:
        """In inches."""
        title, note = (lines_height(self.chart.title, FONT), lines_height(self._note, NOTE_FONT))
        return title + ABOVE + PANEL_HEIGHT + BELOW + note

    @property
    def _scale(self) -> Scale:
        return scale_of(self.chart)

    @property
    def _note(self) -> str:
        return wrapped(notes_on_marks(self.chart, self._scale))

    def draw(self, figure: Figure, top: float) -> None:
        """Onto the page, so many inches below its upper edge."""
        chart, scale = self.chart, self._scale
        place_text(figure, LEFT, top, chart.title)
        top += lines_height(chart.title, FONT) + ABOVE
        axes = place_axes(figure, LEFT, top, PANEL_WIDTH, PANEL_HEIGHT)
        place_text(figure, LEFT, top + PANEL_HEIGHT + BELOW, self._note, fontsize=NOTE_FONT, color=GREY)
        set_scales(axes, chart, scale, TICKS)
        number_ticks(axes, chart, TICK_GAP)
        axes.grid(axis="y", color="0.9")
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(scale.label)
        for curve in chart.curves:
            style = self.styles[curve.label]
            draw_curve(axes, curve, style, linewidth=1.6, markersize=5)
            mark_context_use(axes, curve, style.colour, RING)
            mark_beyond(axes, scale.beyond(curve), style.colour, 7)
        _mark_training_length(axes, chart.train_length)
        _name_curves(axes, chart, scale, self.styles)


def _mark_training_length(axes: Axes, length: int) -> None:
    mark_training_length(axes, length, 1.0)
    axes.annotate(
        f"training length {length}",
        (length, 1),
        xycoords=axes.get_xaxis_transform(),
        xytext=(0, 8),
        textcoords="offset points",
        ha="center",
        color=GREY,
    )


def _name_curves(axes: Axes, chart: Chart, scale: Scale, styles: Mapping[str, Style]) -> None:
    """The names right of the panel, each as near as can be to where its curve ends."""
    names = fitting([curve.label for curve in chart.curves], LONGEST_NAME)
    width, height = in_points(axes, axes.get_xlim()[1], axes.get_ylim()[1])
    ends = [_end(curve, chart, scale) for curve in chart.curves]
    wanted = np.array([in_points(axes, *end)[1] for end in ends])
    for curve, end, place in zip(chart.curves, ends, spread_apart(wanted, LABEL_GAP, height), strict=True):
        text = " ".join([names[curve.label], *_remarks(curve, chart, scale)])
        whole = bool(curve.points) and end[0] == chart.ends
        _name_curve(axes, text, end, (1 + FONT / width, place / height), styles[curve.label].colour, whole)


def _end(curve: Curve, chart: Chart, scale: Scale) -> tuple[float, float]:
    """Where the curve is last seen in the panel; at its foot where it has no number."""
    if not curve.points:
        return chart.ends, scale.low
    return curve.points[-1].x, min(curve.points[-1].level, scale.high)


def _remarks(curve: Curve, chart: Chart, scale: Scale) -> list[str]:
    if not curve.points:
        return ["(no number)"]
    outside = [point.level for point in scale.beyond(curve)]
    height = [f"(up to {plain(max(outside))} bits/byte)"] if outside else []
    last = curve.points[-1].x
    return [*height, *([f"(to {last:.0f})"] if last != chart.ends else [])]


def _name_curve(
    axes: Axes, text: str, end: tuple[float, float], place: tuple[float, float], colour: str, leader: bool
) -> None:
    """A name at `place`, in shares of the panel, with a thin stroke to the curve's end if `leader`."""
    stroke = {
        "arrowstyle": "-",
        "color": colour,
        "linewidth": 0.6,
        "shrinkA": 0,
        "shrinkB": 3,
        "relpos": (0, 0.5),
    }
    axes.annotate(
        text,
        end,
        xytext=place,
        textcoords="axes fraction",
        va="center",
        color=colour,
        annotation_clip=False,
        arrowprops=stroke if leader else None,
    )
