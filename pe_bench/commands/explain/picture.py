"""The picture of `explain`: for each layer what changes restore, and what it reads, against length."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.commands.explain.effects import Effect, Place
from pe_bench.commands.explain.measures import Quantity
from pe_bench.render import paper

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LAYERS = 8
LEFT = 1.25  # inches left of the panels, for names of changes
GAP = 0.2  # inches between panels
BARS, LINES = 1.7, 1.5  # inches, heights of panels
ABOVE, BETWEEN, BELOW = 0.6, 0.6, 0.6  # inches: above the bars, between the rows, below the lines
LEAST = -0.6  # the smallest share that is shown
MOST = 1.15  # the largest share that is shown
SMALL = 8  # points, of numbers at the axes
LINE_WIDTH = 110  # characters of the note
# The measures that are drawn against length: their text, and the numbers of their colour and marker.
MEASURED = {
    "entropy": ("entropy / ln n", 1, 2),
    "far mass": ("far mass", 2, 3),
    "first four": ("first four tokens", 4, 4),
}


def draw_layers(
    path: Path, title: str, sentence: str, effects: Sequence[Effect], measures: Sequence[Quantity]
) -> None:
    """Draw changes and measures of each layer; the suffix of the path is the file's format.

    effects: at one length. Raises `UserError` for another suffix than .png, .svg or .pdf.
    """
    paper.save_picture(lambda: _draw(title, sentence, effects, measures), path)


def _draw(title: str, sentence: str, effects: Sequence[Effect], measures: Sequence[Quantity]) -> "Figure":
    layers = _shown_layers(effects, measures)
    changes = _shown_changes(effects)
    note = paper.wrapped([sentence, "What a layer reads need not be a cause."], LINE_WIDTH)
    columns = len(layers) + 1
    width = (paper.WIDTH - LEFT - GAP * columns) / columns
    below_bars = ABOVE + BARS + BETWEEN
    note_top = below_bars + LINES + BELOW
    figure = paper.new_figure(paper.WIDTH, note_top + paper.lines_height(note, paper.NOTE_FONT) + 0.1)
    paper.place_text(figure, 0.1, 0.05, title)
    for number, layer in enumerate([None, *layers]):
        left = LEFT + number * (width + GAP)
        axes = paper.place_axes(figure, left, ABOVE, width, BARS)
        axes.set_title("all layers" if layer is None else f"layer {layer}", fontsize=paper.FONT)
        _draw_bars(axes, [effect for effect in effects if _is_of(effect.place, layer)], changes)
        if layer is None:
            axes.set_yticks(range(len(changes)), changes)
        else:
            lines = paper.place_axes(figure, left, below_bars, width, LINES)
            _draw_lines(lines, [measure for measure in measures if measure.layer == layer])
            if layer == layers[0]:
                lines.set_yticks([0, 0.5, 1], ["0", "0.5", "1"], fontsize=SMALL)
    _draw_legend(paper.place_axes(figure, 0.1, below_bars, LEFT + width, LINES))
    paper.place_text(figure, 0.1, note_top, note, fontsize=paper.NOTE_FONT, color=paper.GREY)
    return figure


def _shown_layers(effects: Sequence[Effect], measures: Sequence[Quantity]) -> list[int]:
    """Return the layers that were changed alone, or else the first of all layers."""
    changed: list[int] = []
    for effect in effects:
        if effect.place.is_single and effect.place.head is None:
            changed.append(effect.place.layers[0])
    measured = [measure.layer for measure in measures]
    return sorted(set(changed or measured))[:MOST_LAYERS]


def _shown_changes(effects: Sequence[Effect]) -> list[str]:
    """Return the changes with a bar in some panel, the first at the top of the axis."""
    has_bars = [effect.change for effect in effects if effect.share is not None]
    return [*dict.fromkeys(has_bars)][::-1]


def _is_of(place: Place, layer: int | None) -> bool:
    if layer is None:
        return place.is_all
    return place.is_single and place.layers == (layer,) and place.head is None


def _draw_bars(axes: "Axes", effects: Sequence[Effect], changes: Sequence[str]) -> None:
    axes.set_xlim(LEAST, MOST)
    axes.set_ylim(-0.6, max(1, len(changes)) - 0.4)
    axes.axvline(0, color=paper.GREY, linewidth=0.8)
    axes.set_xticks([-0.5, 0, 0.5, 1], ["-50", "0", "50", "100 %"], fontsize=SMALL)
    axes.set_yticks([])
    axes.grid(axis="x", color=paper.RULE)
    axes.set_axisbelow(True)
    for effect in effects:
        if effect.share is None:
            continue
        share = effect.share
        place = changes.index(effect.change)
        is_sure = share.low > 0 or share.high < 0
        axes.barh(place, share.mean, height=0.7, color=paper.COLOURS[3] if is_sure else paper.COLOURS[0])
        axes.plot([max(share.low, LEAST), min(share.high, MOST)], [place, place], color="black", linewidth=1)


def _draw_lines(axes: "Axes", measures: Sequence[Quantity]) -> None:
    """Draw the measures of a layer against length."""
    axes.set_ylim(-0.03, 1.03)
    axes.set_yticks([0, 0.5, 1], ["", "", ""])
    axes.grid(axis="y", color=paper.RULE)
    reasons = [measure.reason for measure in measures if measure.name in MEASURED and measure.reason]
    if reasons:
        axes.text(0.5, 0.5, reasons[0], ha="center", transform=axes.transAxes)
    lengths = sorted({measure.length for measure in measures})
    axes.set_xscale("log", base=2)
    axes.set_xticks([lengths[0], lengths[-1]], [f"{lengths[0]:,}", f"{lengths[-1]:,}"], fontsize=SMALL)
    axes.minorticks_off()
    axes.set_xlabel("tokens", fontsize=SMALL)
    for name in MEASURED:
        points = [
            (each.length, each.mean) for each in measures if each.name == name and each.mean is not None
        ]
        _plot(axes, name, [length for length, _ in points], [mean for _, mean in points])


def _draw_legend(axes: "Axes") -> None:
    """Name the lines, in a panel without axes."""
    axes.set_axis_off()
    for name in MEASURED:
        _plot(axes, name, [], [])
    axes.legend(loc="upper left", frameon=False, fontsize=SMALL)


def _plot(axes: "Axes", name: str, lengths: Sequence[int], means: Sequence[float]) -> None:
    text, colour, marker = MEASURED[name]
    style = {"color": paper.COLOURS[colour], "marker": paper.MARKERS[marker], "markersize": 4}
    axes.plot(lengths, means, label=text, **style)
