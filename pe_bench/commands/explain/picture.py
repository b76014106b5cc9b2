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
    layers = _shown_layers(effects, measures)
    changes = _shown_changes(effects)
    note = paper.wrapped([*notes, "What a layer reads need not be a cause."], NOTE_WIDTH)
    columns = len(layers) + 1
    width = (paper.WIDTH - LEFT) / columns - GAP
    below_bars = ABOVE + BARS + BETWEEN
    note_top = below_bars + LINES + BELOW
    note_height = paper.lines_height(note, paper.NOTE_FONT)
    figure = paper.new_figure(paper.WIDTH, note_top + note_height + 0.1)
    paper.place_text(figure, 0.1, 0.05, title)
    for number, layer in enumerate([None, *layers]):
        left = LEFT + number * (width + GAP)
        axes = paper.place_axes(figure, left, ABOVE, width, BARS)
        shown = [effect for effect in effects if _is_in_panel(effect.place, layer)]
        _draw_bars(axes, shown, changes)
        if layer is None:
            axes.set_title("all layers", fontsize=paper.FONT)
            axes.set_yticks(range(len(changes)), changes)
        else:
            axes.set_title(f"layer {layer}", fontsize=paper.FONT)
            lines = paper.place_axes(figure, left, below_bars, width, LINES)
            _draw_lines(lines, [measure for measure in measures if measure.layer == layer])
            if layer == layers[0]:
                lines.set_yticks([0, 0.5, 1], ["0", "0.5", "1"], fontsize=SMALL_FONT)
    _draw_legend(paper.place_axes(figure, 0.1, below_bars, LEFT + width, LINES))
    paper.place_text(figure, 0.1, note_top, note, fontsize=paper.NOTE_FONT, color=paper.GREY)
    return figure


def _shown_layers(effects: Sequence[Effect], measures: Sequence[LayerMeasure]) -> list[int]:
    """Return the layers that were changed alone, or all layers if none was; at most `MAX_LAYERS`."""
    changed_alone: set[int] = set()
    for effect in effects:
        if effect.place.is_single and effect.place.head is None:
            changed_alone.update(effect.place.layers)
    measured = {measure.layer for measure in measures}
    return sorted(changed_alone or measured)[:MAX_LAYERS]


def _shown_changes(effects: Sequence[Effect]) -> list[str]:
    """Return the changes with a bar in some panel, the first at the top of the axis."""
    has_bars = dict.fromkeys(effect.change for effect in effects if effect.share is not None)
    return [*reversed(has_bars)]


def _is_in_panel(place: Place, layer: int | None) -> bool:
    """Return whether the panel of a layer shows a change in this place. layer: None: all layers."""
    return place.is_all if layer is None else place == Place((layer,))


def _draw_bars(axes: "Axes", effects: Sequence[Effect], changes: Sequence[str]) -> None:
    """Draw the share that each change restores as a bar, with its interval."""
    axes.set_xlim(LEAST_SHARE, MOST_SHARE)
    rows = max(1, len(changes))
    axes.set_ylim(-0.6, rows - 0.4)
    axes.axvline(0, color=paper.GREY, linewidth=0.8)
    axes.set_xticks(*SHARE_TICKS, fontsize=SMALL_FONT)
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
