"""Tables to draw, and the contents of a drawn picture."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from support.results import add_run

from pe_bench.report.build import build_tables
from pe_bench.report.records import Line, Position, Table
from pe_bench.report.verdicts import find_break_point

LENGTHS = (64, 128, 192, 256, 512)


def tables_of(folder: Path, encodings: int = 3, seeds: int = 1) -> list[Table]:
    """Return encodings whose curves end almost at one point, where names would overlap."""
    for index in range(encodings):
        for seed in range(seeds):
            levels: dict[int, float | None] = dict.fromkeys(LENGTHS, 2.5 + 0.001 * index + 0.1 * seed)
            add_run(folder, f"encoding{index}", levels, seed=seed)
    return build_tables(folder)


def with_positions(tables: Sequence[Table], seeds: int = 1) -> list[Table]:
    """Return the same tables, with levels at positions from 1.5 to 768."""

    def add(line: Line) -> Line:
        positions = [
            Position(1.5 * 2**k, tuple(5 - 0.3 * k + 0.1 * n for n in range(seeds))) for k in range(10)
        ]
        return replace(line, positions=tuple(positions))

    return [replace(table, lines=tuple(add(line) for line in table.lines)) for table in tables]


def with_verdicts(tables: Sequence[Table], verdicts: Mapping[str, Mapping[int, str]]) -> list[Table]:
    """Return the same tables with verdicts of some encodings at some lengths, and `holds` everywhere else."""

    def add(line: Line) -> Line:
        own = verdicts.get(line.label, {})
        cells = {
            length: replace(cell, verdict=own.get(length, "holds")) for length, cell in line.records.items()
        }
        return replace(line, records=cells, break_point=find_break_point(cells, 128))

    return [replace(table, lines=tuple(add(line) for line in table.lines)) for table in tables]


def names_beside(axes: Axes) -> list[str]:
    """Return the names to the right of the curves' ends."""
    return [text.get_text() for text in axes.texts if (text.get_gid() or "").startswith("name of ")]


def curve_lines(axes: Axes) -> list[Line2D]:
    """Return the lines of curves, without marks and the training length."""
    return [line for line in axes.lines if line.get_marker() != "None" and line.get_linestyle() != "None"]


def draws_training_length(axes: Axes, length: int) -> bool:
    low, high = axes.get_xlim()
    found = [line for line in axes.lines if line.get_gid() == "training length"]
    return low < length < high and [list(line.get_xdata()) for line in found] == [[length, length]]  # pyright: ignore[reportArgumentType]


def notes(figure: Figure) -> str:
    return " ".join(" ".join(text.get_text() for text in figure.texts).split())


def rendered(figure: Figure) -> tuple[Bbox, list[Bbox]]:
    """Return the boxes of the picture and of all its text, in pixels, without the strokes of names."""
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    figure.draw_without_rendering()
    renderer = canvas.get_renderer()
    picture = figure.get_tightbbox(renderer)
    edges = Bbox(picture.get_points() * figure.dpi).padded(0.1)  # for rounding
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]
    shown = [text for text in texts if text.get_visible() and not _is_hidden_tick(text, figure)]
    return edges, [Text.get_window_extent(text, renderer) for text in shown]


def overlapping(boxes: Sequence[Bbox]) -> list[tuple[Bbox, Bbox]]:
    return [(one, other) for one, other in combinations(boxes, 2) if _overlap(one, other)]


def _overlap(one: Bbox, other: Bbox) -> bool:
    # Boxes have room for the letters' tails: two may share half a point.
    return (
        one.x0 + 0.5 < other.x1
        and other.x0 + 0.5 < one.x1
        and one.y0 + 0.5 < other.y1
        and other.y0 + 0.5 < one.y1
    )


def _is_hidden_tick(text: Text, figure: Figure) -> bool:
    """Return whether it labels a tick that is outside the axis or has no number."""
    for axes in figure.axes:
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            for tick in axis.get_major_ticks():
                if text in (tick.label1, tick.label2):
                    return not low <= tick.get_loc() <= high or not text.get_visible()
    return False
