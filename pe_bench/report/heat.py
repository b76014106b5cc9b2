"""Heat maps of probes: how often spans are found, by length (right) and depth (down); a map for each line."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pe_bench.plot import paper
from pe_bench.report.draw import Look, Part, stacked
from pe_bench.report.probes import Found, ProbeLine, ProbeTable, percent

COLOUR = paper.COLOURS[3]
CELL_WIDTH, CELL_HEIGHT = 0.55, 0.3  # inches, of a cell at most
GAP, ABOVE, BELOW = 0.25, 0.28, 0.62  # inches: between maps, for a name, for an axis
DARK = 0.55  # from this share on, a number is white


def plot_probes(tables: Sequence[ProbeTable], path: Path) -> None:
    """Draw tables of probes into the file `path`, whose suffix is the format."""
    paper.save_picture(lambda: draw_probes(tables), path)


def draw_probes(tables: Sequence[ProbeTable]) -> Figure:
    return stacked([_part(table) for table in tables])


def heat_svg(table: ProbeTable, key: str) -> str:
    """Return the maps of a table as an element of a page; each cell says what it means."""
    parts = {}
    for line in table.lines:
        for (length, depth), finding in line.found.items():
            if depth is not None:
                meaning = f"{line.label} at {length:,} tokens, depth {_depth(depth)}\n{_meaning(finding)}"
                parts[_gid(line, length, depth)] = [{"role": "img", "aria-label": meaning, "title": meaning}]

    def page_figure() -> Figure:
        figure = paper.new_figure(paper.WIDTH, _maps_height(table) + BELOW / 2)
        _draw_maps(figure, table, 0.0)
        return figure

    return paper.inline_svg(page_figure, key, parts)


def heat_note(table: ProbeTable) -> str:
    return (
        f"Numbers: accuracy in percent; guessing: {100 * table.chance:.3g}. Colour: from the accuracy where "
        "the span is replaced (white) to all answers being right."
    )


def _gid(line: ProbeLine, length: int, depth: float) -> str:
    return f"cell {line.label} {length} {depth}"


def _meaning(finding: Found | str) -> str:
    if isinstance(finding, str):
        return finding
    return (
        f"accuracy {percent(finding.accuracy.mean)}, without the span {percent(finding.without)}\n"
        f"gain {finding.gain.mean:+.3f} bits per byte\n{finding.verdict}"
    )


def _depth(depth: float) -> str:
    return {0.0: "start", 1.0: "end"}.get(depth, f"{100 * depth:.3g} %")


def _map_size(table: ProbeTable) -> tuple[int, float, float]:
    """Return how many maps are in a row, and the width and height of one in inches."""
    width = min(CELL_WIDTH * len(table.lengths), paper.WIDTH - paper.LEFT)
    columns = max(1, min(len(table.lines), int((paper.WIDTH - paper.LEFT + GAP) / (width + GAP))))
    return columns, width, CELL_HEIGHT * len(table.depths)


def _maps_height(table: ProbeTable) -> float:
    columns, _, height = _map_size(table)
    return math.ceil(len(table.lines) / columns) * (ABOVE + height + GAP)


def _part(table: ProbeTable) -> Part:
    title = f"{' · '.join(table.title)}\nspans that are found, by length (right) and depth (down)"
    above, note = paper.lines_height(title, paper.FONT), paper.wrapped([heat_note(table)])

    def draw_part(figure: Figure, top: float) -> None:
        paper.place_text(figure, paper.LEFT, top, title)
        foot = top + above + _maps_height(table)
        _draw_maps(figure, table, top + above)
        paper.place_text(figure, paper.LEFT, foot + 0.3, note, fontsize=paper.NOTE_FONT, color=paper.GREY)

    return above + _maps_height(table) + BELOW + paper.lines_height(note, paper.NOTE_FONT), draw_part


def _draw_maps(figure: Figure, table: ProbeTable, top: float) -> None:
    columns, width, height = _map_size(table)
    names = paper.fitting([line.label for line in table.lines], max(8, int(72 * width / (0.6 * paper.FONT))))
    lengths, depths = [f"{length:,}" for length in table.lengths], [_depth(depth) for depth in table.depths]
    for number, line in enumerate(table.lines):
        row, column = divmod(number, columns)
        left = paper.LEFT + column * (width + GAP)
        axes = paper.place_axes(figure, left, top + ABOVE + row * (height + ABOVE + GAP), width, height)
        axes.set_title(names[line.label], fontsize=paper.FONT, loc="left", pad=4, y=1.0)
        axes.set_xlim(0, len(lengths))
        axes.set_ylim(len(depths), 0)
        for (length, depth), finding in line.found.items():
            if depth is not None:
                corner = table.lengths.index(length), table.depths.index(depth)
                _draw_cell(axes, corner, finding, _gid(line, length, depth))
        axes.set_xticks([index + 0.5 for index in range(len(lengths))], lengths)
        axes.set_yticks([index + 0.5 for index in range(len(depths))], depths if column == 0 else [])
        axes.tick_params(
            length=0, labelsize=paper.NOTE_FONT, labelbottom=number + columns >= len(table.lines)
        )
        axes.spines[:].set(color="0.8", visible=True)


def _draw_cell(axes: Axes, corner: tuple[int, int], finding: Found | str, gid: str) -> None:
    """Draw a number on its colour: from the accuracy without the span to all answers being right."""
    share, text = 0.0, "-"
    if not isinstance(finding, str):
        share, text = finding.by_span, f"{100 * finding.accuracy.mean:.0f}"
    box: Look = {"facecolor": COLOUR, "alpha": share, "linewidth": 0, "gid": gid}
    axes.add_patch(Rectangle(corner, 1, 1, **box))
    style: Look = {"ha": "center", "va": "center", "fontsize": paper.NOTE_FONT}
    axes.text(corner[0] + 0.5, corner[1] + 0.5, text, color="white" if share > DARK else "black", **style)
