"""Bits per byte against context length, one panel for each table, as PNG, SVG or PDF."""

from collections.abc import Sequence
from itertools import cycle, groupby, islice
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from scipy.optimize import isotonic_regression

from pe_bench.errors import UserError
from pe_bench.files import write_atomically
from pe_bench.report.tables import Line, Table
from pe_bench.statistics import student_interval

# Okabe and Ito's colours, told apart by colour-blind people, without the yellow that white swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*", "d")
STROKES = ("-", "--", ":")
# What would make two writings of one picture differ.
UNDATED = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}

WIDTH = 7.5  # inches
FONT = 10  # points
LABEL_GAP = 1.25 * FONT  # points between the middles of two labels
TICK_GAP = 24  # points between the middles of two tick labels

Style = tuple[str, str, str]


def plot_tables(tables: Sequence[Table], path: Path) -> None:
    """Draw `tables` into the file `path`; its suffix is the format.

    Raises `UserError` for another suffix than .png, .svg or .pdf and for a missing folder.
    """
    kind = picture_format(path)
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}")
    # The salt names an SVG's parts, and would be random; 42 embeds a PDF's letters as text.
    with matplotlib.rc_context({"font.size": FONT, "svg.hashsalt": "pe-bench", "pdf.fonttype": 42}):
        figure = draw(tables)
        write_atomically(
            path,
            lambda temporary: figure.savefig(
                temporary, format=kind, dpi=150, bbox_inches="tight", metadata=UNDATED[kind]
            ),
        )


def picture_format(path: Path) -> str:
    """What the suffix of a picture's name stands for. Raises `UserError` for an unknown one."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in UNDATED:
        raise UserError(f"cannot draw {path}: the name must end with .png, .svg or .pdf")
    return kind


def draw(tables: Sequence[Table]) -> Figure:
    """A figure with the tables' panels, one below the other."""
    heights = [max(3.8, (len(table.lines) + 2) * LABEL_GAP / 72) for table in tables]
    figure = Figure(figsize=(WIDTH, sum(heights) + 1.2 * len(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(tables), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    styles = _styles(tables)
    for axes, table in zip(panels, tables, strict=True):
        _draw_panel(axes, table, styles)
        axes.set_title(_title(table, tables), loc="left", fontsize=FONT, pad=24)
    # Labels and ticks are spaced in points, which are known once the panels have their places.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes, table in zip(panels, tables, strict=True):
        _tick_lengths(axes, table)
        _label_lines(axes, table, styles)
    return figure


def spread_apart(wanted: np.ndarray, gap: float, height: float) -> np.ndarray:
    """Places [n] from 0 to `height`, at least `gap` apart, ordered as `wanted` [n] and as near as can be.

    Where n of them do not fit they go on beyond `height`.
    """
    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(wanted))
    nearest = np.clip(isotonic_regression(wanted[order] - steps).x, 0, max(0.0, height - steps[-1]))
    places = np.empty(len(wanted))
    places[order] = nearest + steps
    return places


def _title(table: Table, tables: Sequence[Table]) -> str:
    same = [other for other in tables if other.title == table.title]
    settings = f", settings {table.group.setting[:8]}" if len(same) > 1 else ""
    return table.title.replace(", trained", "\ntrained") + settings


def _styles(tables: Sequence[Table]) -> dict[str, Style]:
    """Each label's colour, marker and stroke: the same in every panel."""
    labels = sorted({line.label for table in tables for line in table.lines})
    strokes = (stroke for stroke in STROKES for _ in COLOURS)
    looks = zip(cycle(COLOURS), cycle(MARKERS), cycle(strokes), strict=False)
    return dict(zip(labels, islice(looks, len(labels)), strict=True))


def _draw_panel(axes: Axes, table: Table, styles: dict[str, Style]) -> None:
    for line in table.lines:
        _draw_line(axes, line, styles[line.label])
    axes.set_xscale("log", base=2)
    axes.set_xlabel("context length (tokens)")
    axes.set_ylabel("bits per byte (lower is better)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9")
    axes.margins(x=0.03)
    if not any(_points(line)[0] for line in table.lines):
        axes.set_xlim(table.group.train_length / 2, table.group.train_length * 2)
    _mark_training_length(axes, table.group.train_length)


def _draw_line(axes: Axes, line: Line, style: Style) -> None:
    """The line breaks where the targets change: levels on either side are of different text."""
    points = zip(*_points(line), strict=True)
    for _, segment in groupby(points, key=lambda point: line.cells[point[0]].target_hash):
        _draw_segment(axes, line, list(segment), style)


def _draw_segment(axes: Axes, line: Line, points: Sequence[tuple[int, float]], style: Style) -> None:
    lengths, levels = [length for length, _ in points], [level for _, level in points]
    colour, marker, stroke = style
    axes.plot(lengths, levels, color=colour, marker=marker, linestyle=stroke, linewidth=1.6, markersize=5)
    bands = [student_interval(np.array(line.cells[length].levels)) for length in lengths]
    low, high = np.array(bands).T
    axes.fill_between(
        lengths, low, high, where=np.isfinite(low).tolist(), color=colour, alpha=0.15, linewidth=0
    )


def _points(line: Line) -> tuple[list[int], list[float]]:
    """The lengths [n] that have a finite number, and their bits per byte [n]."""
    found = [(length, cell.bits_per_byte) for length, cell in sorted(line.cells.items())]
    finite = [(length, level) for length, level in found if level is not None and np.isfinite(level)]
    return [length for length, _ in finite], [level for _, level in finite]


def _mark_training_length(axes: Axes, length: int) -> None:
    axes.axvline(length, color="0.4", linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    axes.annotate(
        f"training length {length}",
        (length, 1),
        xycoords=axes.get_xaxis_transform(),
        xytext=(0, 4),
        textcoords="offset points",
        ha="center",
        color="0.3",
    )


def _tick_lengths(axes: Axes, table: Table) -> None:
    """The scored lengths as ticks, each with its number where that does not touch another."""
    train_length = table.group.train_length
    labelled: dict[int, float] = {}
    for length in sorted(table.lengths, key=lambda length: (length != train_length, -length)):
        x, _ = _in_points(axes, length, axes.get_ylim()[0])
        if all(abs(x - other) >= TICK_GAP for other in labelled.values()):
            labelled[length] = x
    axes.xaxis.set_major_locator(FixedLocator(table.lengths))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([str(length) if length in labelled else "" for length in table.lengths])


def _label_lines(axes: Axes, table: Table, styles: dict[str, Style]) -> None:
    """The encodings' names right of the panel, each as near as can be to where its line ends."""
    ends = {}
    for line in table.lines:
        lengths, levels = _points(line)
        if levels:
            ends[line.label] = (lengths[-1], levels[-1])
    if not ends:
        return
    width, height = _in_points(axes, axes.get_xlim()[1], axes.get_ylim()[1])
    heights = np.array([_in_points(axes, *end)[1] for end in ends.values()])
    for (label, end), place in zip(ends.items(), spread_apart(heights, LABEL_GAP, height), strict=True):
        reaches_right = end[0] == table.lengths[-1]
        text = label if reaches_right else f"{label} (to {end[0]})"
        _label_line(axes, text, end, (1 + FONT / width, place / height), styles[label][0], reaches_right)


def _label_line(
    axes: Axes, text: str, end: tuple[float, float], place: tuple[float, float], colour: str, leader: bool
) -> None:
    """A name at `place`, in shares of the panel, with a thin stroke to the line's end if `leader`."""
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


def _in_points(axes: Axes, length: float, level: float) -> tuple[float, float]:
    """Where a point of the curve lies, in points from the panel's lower left corner."""
    corner, scale = axes.get_window_extent(), 72 / axes.figure.dpi
    x, y = axes.transData.transform((length, level))
    return float(x - corner.x0) * scale, float(y - corner.y0) * scale
