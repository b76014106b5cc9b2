"""Heat maps of probes: how often spans are found, by length (right) and depth (down); a map for each line."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe_bench.plot.paper import (
    Attributes,
    inline_svg,
    lines_height,
    new_figure,
    place_axes,
    place_text,
    save_picture,
)
from pe_bench.plot.style import COLOURS, FONT, GREY, LEFT, NOTE_FONT, WIDTH, fitting, wrapped
from pe_bench.report.charts.draw import Part, stacked
from pe_bench.report.needles import Found, ProbeLine, ProbeTable
from pe_bench.report.probes import percent, title_of

LENGTHS, DEPTHS = "context length (tokens)", "depth of the span"
COLOUR = COLOURS[3]
CELL_WIDTH, CELL_HEIGHT = 0.55, 0.3  # inches, of a cell at most
GAP, ABOVE, BELOW = 0.25, 0.28, 0.62  # inches: between maps, for a name, for an axis
BETWEEN = 0.3  # inches between two charts
LETTER = 0.6 * FONT  # points
DARK = 0.55  # from this share on, a number is white


@dataclass(frozen=True)
class HeatCell:
    """A length and a depth, by their places on the axes.

    share: from the accuracy without the span, 0, to all answers being right, 1; None without a number.
    """

    column: int
    row: int
    share: float | None
    text: str
    meaning: str


@dataclass(frozen=True)
class HeatChart:
    """The cells of each line of a table, by its label."""

    title: str
    lengths: tuple[str, ...]
    depths: tuple[str, ...]
    maps: Mapping[str, Sequence[HeatCell]]
    note: str


def heat_chart(table: ProbeTable) -> HeatChart:
    return HeatChart(
        f"{title_of(table)}\nspans that are found, by length and depth",
        tuple(f"{length:,}" for length in table.lengths),
        tuple(_depth(depth) for depth in table.depths),
        {line.label: [*_cells(line, table)] for line in table.lines},
        f"Numbers: accuracy in percent; guessing: {100 * table.chance:.3g}. Colour: from the accuracy where "
        "the span is replaced (white) to all answers being right.",
    )


def plot_probes(tables: Sequence[ProbeTable], path: Path) -> None:
    """Draw tables of probes into the file `path`, whose suffix is the format."""
    save_picture(lambda: draw_probes(tables), path)


def draw_probes(tables: Sequence[ProbeTable]) -> Figure:
    return stacked([_part(heat_chart(table)) for table in tables], BETWEEN)


def heat_svg(chart: HeatChart, key: str) -> str:
    """Return the maps of a chart as an element of a page; each cell says what it means."""
    cells = [cell for cells in chart.maps.values() for cell in cells]
    parts: dict[str, list[Attributes]] = {
        f"cell {number}": [{"role": "img", "aria-label": cell.meaning, "title": cell.meaning}]
        for number, cell in enumerate(cells)
    }

    def page_figure() -> Figure:
        figure = new_figure(WIDTH, _maps_height(chart) + BELOW / 2)
        _draw_maps(figure, chart, 0.0)
        return figure

    return inline_svg(page_figure, key, parts)


def _depth(depth: float) -> str:
    return {0.0: "start", 1.0: "end"}.get(depth, f"{100 * depth:.3g} %")


def _cells(line: ProbeLine, table: ProbeTable) -> Iterator[HeatCell]:
    for (length, depth), found in line.by_depth.items():
        place = table.lengths.index(length), table.depths.index(depth)
        where = f"{line.label} at {length:,} tokens, depth {_depth(depth)}"
        if isinstance(found, Found):
            meaning = (
                f"{where}\naccuracy {percent(found.accuracy.mean)}, without the span "
                f"{percent(found.without)}\ngain {found.gain.mean:+.3f} bits per byte\n{found.verdict}"
            )
            yield HeatCell(*place, found.by_span, f"{100 * found.accuracy.mean:.0f}", meaning)
        else:
            yield HeatCell(*place, None, "-", f"{where}\n{found}")


def _map_size(chart: HeatChart) -> tuple[int, float, float]:
    """Return how many maps are in a row, and the width and height of one in inches."""
    width = min(CELL_WIDTH * len(chart.lengths), WIDTH - LEFT)
    columns = max(1, min(len(chart.maps), int((WIDTH - LEFT + GAP) / (width + GAP))))
    return columns, width, CELL_HEIGHT * len(chart.depths)


def _maps_height(chart: HeatChart) -> float:
    columns, _, height = _map_size(chart)
    return math.ceil(len(chart.maps) / columns) * (ABOVE + height + GAP)


def _part(chart: HeatChart) -> Part:
    title, note = lines_height(chart.title, FONT), wrapped([chart.note])

    def draw_part(figure: Figure, top: float) -> None:
        place_text(figure, LEFT, top, chart.title)
        foot = top + title + _maps_height(chart)
        _draw_maps(figure, chart, top + title)
        depths: dict[str, Any] = {"rotation": 90, "ha": "left", "va": "center"}
        place_text(figure, 0.05, (top + title + foot) / 2, DEPTHS, color=GREY, **depths)
        place_text(figure, LEFT, foot + 0.1, LENGTHS, color=GREY)
        place_text(figure, LEFT, foot + 0.36, note, fontsize=NOTE_FONT, color=GREY)

    return title + _maps_height(chart) + BELOW + lines_height(note, NOTE_FONT), draw_part


def _draw_maps(figure: Figure, chart: HeatChart, top: float) -> None:
    columns, width, height = _map_size(chart)
    names = fitting([*chart.maps], max(8, int(72 * width / LETTER)))
    numbers = itertools.count()
    for place, (label, cells) in enumerate(chart.maps.items()):
        row, column = divmod(place, columns)
        left = LEFT + column * (width + GAP)
        axes = place_axes(figure, left, top + ABOVE + row * (height + ABOVE + GAP), width, height)
        axes.set_title(names[label], fontsize=FONT, loc="left", pad=4, y=1.0)
        axes.set_xlim(0, len(chart.lengths))
        axes.set_ylim(len(chart.depths), 0)
        for cell in cells:
            _draw_cell(axes, cell, f"cell {next(numbers)}")
        is_lowest = place + columns >= len(chart.maps)
        axes.set_xticks([at + 0.5 for at in range(len(chart.lengths))], chart.lengths)
        axes.set_yticks([at + 0.5 for at in range(len(chart.depths))], chart.depths)
        axes.tick_params(length=0, labelsize=NOTE_FONT, labelbottom=is_lowest, labelleft=column == 0)
        axes.spines[:].set(color="0.8", visible=True)


def _draw_cell(axes: Axes, cell: HeatCell, gid: str) -> None:
    from matplotlib.patches import Rectangle

    share = cell.share or 0.0
    box: dict[str, Any] = {"facecolor": COLOUR, "alpha": share, "linewidth": 0, "gid": gid}
    axes.add_patch(Rectangle((cell.column, cell.row), 1, 1, **box))
    colour = "white" if share > DARK else "black"
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": NOTE_FONT, "color": colour}
    axes.text(cell.column + 0.5, cell.row + 0.5, cell.text, **style)
