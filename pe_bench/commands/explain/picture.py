"""The picture of `explain`: for each layer the shares that changes restore, and measures against length."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pe_bench.commands.explain.effects import Effect, Place, is_nonzero
from pe_bench.commands.explain.measures import LayerMeasure
from pe_bench.render import paper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LAYERS = 8
LEFT = 1.25  # inches left of the panels, for names of changes
GAP = 0.2  # inches between panels
BARS, LINES = 1.7, 1.5  # inches, heights of panels
ABOVE, BETWEEN, BELOW = 0.6, 0.6, 0.6  # inches: above the bars, between the rows, below the lines
LEAST_SHARE = -0.6  # the smallest share that is shown
MOST_SHARE = 1.15  # the largest share that is shown
SHARE_TICKS = ([-0.5, 0, 0.5, 1], ["-50", "0", "50", "100 %"])
FEW_SHARE_TICKS = ([0, 1], ["0", "100 %"])  # of a narrow panel
NARROW = 0.9  # inches
X_MARGIN = 0.05  # the margin left and right of lines, as a part of their width
SMALL_FONT = 8  # points, of numbers at the axes
NOTE_WIDTH = 110  # characters of the note


class LineStyle(NamedTuple):
    """The text of a measure's line, and the numbers of its colour and marker."""

    text: str
    colour: int
    marker: int


# The measures that are drawn against length.
LINE_STYLES = {
    "entropy": LineStyle("entropy / ln n", 1, 2),
    "far mass": LineStyle("far mass", 2, 3),
    "first four": LineStyle("first four tokens", 4, 4),
}


def draw_layers(
    path: Path,
    title: str,
    notes: Sequence[str],
    effects: Sequence[Effect],
    measures: Sequence[LayerMeasure],
) -> None:
    """Draw changes and measures of each layer; the suffix of the path is the file's format.

    notes: sentences below the picture. effects: the effects at one length.
    Raises `UserError` for another suffix than .png, .svg or .pdf.
    """
    paper.save_picture(lambda: _draw_figure(title, notes, effects, measures), path)


def _draw_figure(
    title: str, notes: Sequence[str], effects: Sequence[Effect], measures: Sequence[LayerMeasure]
) -> "Figure":
    changes = _shown_changes(effects)
    if measures:
        notes = [*notes, "What a layer reads need not be a cause."]
    note = paper.wrapped(notes, NOTE_WIDTH)
    rows = _rows_of_places(effects, measures)
    below_bars = ABOVE + len(rows) * (BARS + BETWEEN) - BETWEEN
    note_top = below_bars + BELOW
    if measures:
        note_top += BETWEEN + LINES
    note_height = paper.lines_height(note, paper.NOTE_FONT)
    figure = paper.new_figure(paper.WIDTH, note_top + note_height + 0.1)
    paper.place_text(figure, 0.1, 0.05, title)
    for number, row in enumerate(rows):
        top = ABOVE + number * (BARS + BETWEEN)
        width = _panel_width(row)
        first = next(filter(None, row), None)
        for column, place in enumerate(row):
            if place is None:
                continue
            axes = paper.place_axes(figure, LEFT + column * (width + GAP), top, width, BARS)
            ticks = SHARE_TICKS if width >= NARROW else FEW_SHARE_TICKS
            axes.set_xticks(*ticks, fontsize=SMALL_FONT)
            _draw_bars(axes, [effect for effect in effects if effect.place == place], changes)
            axes.set_title(_title_of(place), fontsize=paper.FONT)
            if place == first:
                axes.set_yticks(range(len(changes)), changes)
    if measures:
        _draw_measures(figure, rows[-1], measures, below_bars + BETWEEN)
    paper.place_text(figure, 0.1, note_top, note, fontsize=paper.NOTE_FONT, color=paper.GREY)
    return figure


def _draw_measures(
    figure: "Figure", row: Sequence[Place | None], measures: Sequence[LayerMeasure], top: float
) -> None:
    """Draw the measures of each single layer of a row below its bars, and a legend at the left.

    top: inches from the top of the figure.
    """
    width = _panel_width(row)
    singles = row[1:]  # below the first panel is the legend
    for column, place in enumerate(singles, start=1):
        assert place is not None
        axes = paper.place_axes(figure, LEFT + column * (width + GAP), top, width, LINES)
        _draw_lines(axes, [measure for measure in measures if measure.layer == place.layers[0]])
        if place == singles[0]:
            axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"], fontsize=SMALL_FONT)
    _draw_legend(paper.place_axes(figure, 0.1, top, LEFT + width, LINES))


def _rows_of_places(effects: Sequence[Effect], measures: Sequence[LayerMeasure]) -> list[list[Place | None]]:
    """Return rows of panels, each panel a place: all layers together, then single layers.

    A deep model has two rows: all layers and the quarters, then single layers. None is an empty panel. The
    single layers are the layers that were changed alone, or else the measured layers; at most `MAX_LAYERS`.
    """
    places = dict.fromkeys(effect.place for effect in effects if effect.place.head is None)
    everything = next((place for place in places if place.is_all), None)
    parts = sorted((place for place in places if not place.is_all), key=lambda place: place.layers)
    quarters = [place for place in parts if not place.is_single]
    singles = [place for place in parts if place.is_single]
    if not singles:
        singles = [Place((layer,)) for layer in sorted({measure.layer for measure in measures})]
    singles = singles[:MAX_LAYERS]
    if quarters:
        return [[everything, *quarters], [None, *singles]]
    return [[everything, *singles]]


def _panel_width(row: Sequence[Place | None]) -> float:
    """Return the width in inches of each panel of a row."""
    return (paper.WIDTH - LEFT) / len(row) - GAP


def _title_of(place: Place) -> str:
    if place.is_all:
        return "all layers"
    return f"layer {place}" if place.is_single else f"layers {place}"


def _shown_changes(effects: Sequence[Effect]) -> list[str]:
    """Return the changes with a bar in some panel, the first at the top of the axis."""
    has_bars = dict.fromkeys(effect.change for effect in effects if effect.share is not None)
    return [*reversed(has_bars)]


def _draw_bars(axes: "Axes", effects: Sequence[Effect], changes: Sequence[str]) -> None:
    """Draw the share that each change restores as a bar, with its interval."""
    axes.set_xlim(LEAST_SHARE, MOST_SHARE)
    rows = max(1, len(changes))
    axes.set_ylim(-0.6, rows - 0.4)
    axes.axvline(0, color=paper.GREY, linewidth=0.8)
    axes.set_yticks([])
    axes.grid(axis="x", color=paper.RULE)
    axes.set_axisbelow(True)
    for effect in effects:
        if effect.share is None:
            continue
        share = effect.share
        row = changes.index(effect.change)
        colour = paper.COLOURS[3] if is_nonzero(share) else paper.COLOURS[0]
        axes.barh(row, share.mean, height=0.7, color=colour)
        axes.hlines(row, max(share.low, LEAST_SHARE), min(share.high, MOST_SHARE), color="black", linewidth=1)


def _draw_lines(axes: "Axes", measures: Sequence[LayerMeasure]) -> None:
    """Draw the measures of a layer against length."""
    axes.set_ylim(-0.03, 1.03)
    axes.set_yticks([0, 0.5, 1], ["", "", ""])
    axes.grid(axis="y", color=paper.RULE)
    shown = [measure for measure in measures if measure.name in LINE_STYLES]
    reasons = [measure.reason for measure in shown if measure.reason]
    if reasons:
        axes.text(0.5, 0.5, reasons[0], ha="center", transform=axes.transAxes)
    lengths = [measure.length for measure in measures]
    ends = [min(lengths), max(lengths)]
    axes.set_xscale("log", base=2)
    if ends[0] < ends[1]:  # a panel without lines has no limits of its own
        margin = (ends[1] / ends[0]) ** X_MARGIN
        axes.set_xlim(ends[0] / margin, ends[1] * margin)
    axes.set_xticks(ends, [f"{length:,}" for length in ends], fontsize=SMALL_FONT)
    axes.minorticks_off()
    axes.set_xlabel("tokens", fontsize=SMALL_FONT)
    for name in LINE_STYLES:
        means: dict[int, float] = {}
        for measure in shown:
            if measure.name == name and measure.mean is not None:
                means[measure.length] = measure.mean
        _draw_line(axes, name, means)


def _draw_legend(axes: "Axes") -> None:
    """Name the lines, in a panel without axes."""
    axes.set_axis_off()
    for name in LINE_STYLES:
        _draw_line(axes, name, {})
    axes.legend(loc="upper left", frameon=False, fontsize=SMALL_FONT)


def _draw_line(axes: "Axes", name: str, means: Mapping[int, float]) -> None:
    """Draw the line of a measure. means: the mean at each length."""
    style = LINE_STYLES[name]
    (line,) = axes.plot([*means], [*means.values()], label=style.text, markersize=4)
    line.set(color=paper.COLOURS[style.colour], marker=paper.MARKERS[style.marker])
