"""Encodings as one picture: a row for each, and what can be laid over each other in one panel above.

Letters: H heads, T distances.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator

from pe_bench.encodings.base import LayerEncoding, LengthError
from pe_bench.inspection import curves
from pe_bench.inspection.resolve import ResolvedEncoding
from pe_bench.plot.paper import mark_length, save_picture
from pe_bench.plot.style import DASHES, GREY, STROKES, styles_of, wrapped

REACH = 8  # times the training length, for scores
MASK_REACH = 4
ROW = 2.7  # inches
WIDTH = 10.0  # inches
MAX_NOTE = 150  # characters of a line
WIDTHS = {"curve": 4.4, "wavelengths": 2.4, "mask": 2.0}  # of the panels, against each other
MIN_RANGE = 1.0  # of scores in a panel, so that small changes appear small
SHOWN_BELOW = 20.0  # what lies further below the largest score weighs less than e^-20
FONT = 9  # points
NOTE = (
    "Scores: the mean over contents from N(0, 1) that the query and the key share, with biases, "
    "at the initial values of parameters."
)
WAVELENGTH_NOTE = "Wavelengths: in a window of the largest distance."
MASK_NOTE = "A query sees all keys before it where no picture shows others."
COMPARED = "Attention where all tokens are the same"
TITLE: dict[str, Any] = {"loc": "left", "fontsize": FONT + 1, "fontweight": "bold", "pad": 14}
BESIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "frameon": False}


@dataclass(frozen=True)
class Row:
    """A row of panels: the layers of one kind, or the input.

    curves: expected scores of the heads, or products of inputs, by distance [.., T]. weights: mean attention
    by distance [T], None for inputs. mask: of visible keys, None where they are all before the query.
    """

    title: str
    subject: ResolvedEncoding
    colour: str
    stroke: str
    curves: np.ndarray
    meaning: str
    weights: np.ndarray | None = None
    wavelengths: Sequence[np.ndarray] = ()
    mask: np.ndarray | None = None
    mask_reach: int = 0

    @property
    def train_length(self) -> int:
        return self.subject.config.train.length

    @property
    def shades(self) -> Colormap:
        """Return colours from black through that of the encoding to white."""
        return LinearSegmentedColormap.from_list("", ["black", self.colour, "white"])


def draw_subjects(subjects: Sequence[ResolvedEncoding], path: Path) -> None:
    """Draw the encodings into the file `path`; its suffix is the format."""
    save_picture(lambda: draw(rows_of(subjects)), path)


def rows_of(subjects: Sequence[ResolvedEncoding]) -> list[Row]:
    """Return the rows of encodings, up to the training length where they have no meaning past it."""
    styles, rows = styles_of(subject.label for subject in subjects), []
    for subject in subjects:
        colour, length = styles[subject.label].colour, subject.config.train.length
        try:
            rows += _rows(subject, colour, REACH * length, MASK_REACH * length)
        except LengthError:
            rows += _rows(subject, colour, length, length)
    return rows


def _rows(subject: ResolvedEncoding, colour: str, reach: int, mask_reach: int) -> Iterator[Row]:
    products, kinds = curves.input_products(subject, reach), curves.kinds(subject)
    has_layers = False
    for index, numbers in enumerate(kinds):
        layer = subject.encoding.layer(numbers[0])
        if products is not None and len(kinds) == 1 and type(layer) is LayerEncoding:
            continue
        has_layers = True
        scores = curves.scores_by_distance(subject, layer, reach)
        yield Row(
            subject.label if len(kinds) == 1 else f"{subject.label}, {name_numbers('layer', numbers)}",
            subject,
            colour,
            STROKES[index % len(STROKES)],
            scores.scores.numpy(),
            "log of expected weight" if scores.is_weight else "expected score",
            scores.weights.numpy().mean(0),
            [wavelengths.numpy() for wavelengths in curves.wavelengths(layer, reach)],
            _mask(subject, layer, mask_reach),
            mask_reach,
        )
    if products is not None:
        meaning = "product of embedded contents" if products[1] else "p_i · p_j of what is added"
        mask = None if has_layers else _mask(subject, subject.encoding.layer(0), mask_reach)
        yield Row(
            f"{subject.label}: the input",
            subject,
            colour,
            STROKES[0],
            products[0].numpy()[None],
            meaning,
            mask=mask,
            mask_reach=mask_reach,
        )


def _mask(subject: ResolvedEncoding, layer: LayerEncoding, reach: int) -> np.ndarray | None:
    mask = curves.mask(subject, layer, reach).numpy()
    return None if np.array_equal(mask, np.tril(np.ones_like(mask))) else mask


def draw(rows: Sequence[Row]) -> Figure:
    """Return a figure with a row of panels for each of `rows`, below attention of all in one panel."""
    is_compared = sum(row.weights is not None for row in rows) > 1
    has_wavelengths = any(row.wavelengths for row in rows)
    columns = {
        "curve": True,
        "wavelengths": has_wavelengths,
        "mask": any(row.mask is not None for row in rows),
    }
    shown = [name for name, is_shown in columns.items() if is_shown]
    height = len(rows) + is_compared
    figure = Figure(figsize=(WIDTH, ROW * height + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(height, len(shown), width_ratios=[WIDTHS[name] for name in shown])
    if is_compared:
        _draw_shares(figure.add_subplot(grid[0, :2]), rows)
    for index, row in enumerate(rows, start=int(is_compared)):
        cells = {name: grid[index, column] for column, name in enumerate(shown)}
        _draw_curves(figure.add_subplot(cells["curve"]), row)
        if row.wavelengths:
            _draw_wavelengths(figure.add_subplot(cells["wavelengths"]), row)
        if row.mask is not None:
            _draw_mask(figure.add_subplot(cells["mask"]), row, row.mask)
    notes = {NOTE: True, WAVELENGTH_NOTE: has_wavelengths, MASK_NOTE: any(row.mask is None for row in rows)}
    note = wrapped([note for note, is_needed in notes.items() if is_needed], MAX_NOTE)
    figure.supxlabel(note, fontsize=FONT - 1.5, color=GREY, x=0.01, ha="left")
    return figure


def _draw_shares(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the share of attention that a query gives to keys within a distance, all contents being one."""
    shares = [(row, row.weights.cumsum()) for row in rows if row.weights is not None]
    # In the order in which the curves cross one half, the first ones wider, to be seen below others.
    shares.sort(key=lambda pair: int(np.searchsorted(pair[1], 0.5)))
    for index, (row, share) in enumerate(shares):
        half = int(np.searchsorted(share, 0.5)) + 1
        within = f"half within {half:,}" if half <= len(share) else "less than half"
        width = 1.4 + min(3.0, 1.2 * (len(shares) - 1 - index))
        label = f"{row.title}: {within}"
        axes.plot(share, color=row.colour, linestyle=row.stroke, linewidth=width, label=label)
    drawn = {row.subject.label for row, _ in shares}
    for label in dict.fromkeys(row.subject.label for row in rows if row.subject.label not in drawn):
        axes.plot([], [], linestyle="none", color=GREY, label=f"{label}: changes inputs, not scores")
    axes.set_ylim(0, 1.03)
    axes.set_ylabel("share of attention within")
    axes.set_title(COMPARED, **TITLE)
    axes.legend(**BESIDE, labelcolor="linecolor")
    _by_distance(axes, rows[0].train_length, max(len(share) for _, share in shares))


def _draw_curves(axes: Axes, row: Row) -> None:
    """Draw one curve for all heads that have the same, as far as it has a weight."""
    groups: list[list[int]] = []
    for head, values in enumerate(row.curves):
        same = [
            group for group in groups if np.allclose(row.curves[group[0]], values, atol=1e-3, equal_nan=True)
        ]
        groups += [] if same else [[]]
        (same or groups[-1:])[0].append(head)
    top, low = float(np.nanmax(row.curves)), float(np.nanmin(row.curves))
    is_input = row.weights is None
    top, bottom = (max(top, 0.0), min(low, 0.0)) if is_input else (top, max(low, top - SHOWN_BELOW))
    margin = max(0.05 * (top - bottom), ((1e-3 if is_input else MIN_RANGE) - (top - bottom)) / 2)
    axes.set_ylim(bottom - margin, top + margin)
    for index, heads in enumerate(groups):
        values = row.curves[heads[0]]
        name = "all heads" if len(groups) == 1 else name_numbers("head", heads)
        shade = row.shades(0.5 if len(groups) == 1 else 0.25 + 0.55 * index / (len(groups) - 1))
        label = f"{name}{describe_end(values, bottom)}"
        axes.plot(values, color=shade, linestyle=STROKES[index % len(STROKES)], linewidth=1.3, label=label)
    axes.set_ylabel(row.meaning)
    axes.set_title(row.title, **TITLE, color=row.colour)
    if not is_input:
        axes.legend(**BESIDE, labelcolor="linecolor")
    _by_distance(axes, row.train_length, row.curves.shape[-1])


def _by_distance(axes: Axes, train_length: int, reach: int) -> None:
    farthest = REACH * train_length
    axes.set_xscale("symlog", base=2, linthresh=1, linscale=0.5)
    axes.set_xlim(0, farthest)
    powers = [4**power for power in range(12) if 4**power < farthest / 2.5]
    apart = [tick for tick in powers if not train_length / 2.5 < tick < train_length * 2.5]
    ticks = sorted({0, *apart, train_length, farthest})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("distance (tokens)", labelpad=1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92")
    mark_length(axes, train_length, "training length", width=0.9, offset=3)
    if reach < farthest:
        axes.axvspan(reach, farthest, color="0.95", zorder=0, linewidth=0)
        middle = {"x": (reach * farthest) ** 0.5, "y": 0.5, "transform": axes.get_xaxis_transform()}
        axes.text(s="undefined", **middle, ha="center", va="center", color=GREY, rotation=90)


def _draw_wavelengths(axes: Axes, row: Row) -> None:
    """Draw 2 pi / theta of each feature pair, and say how many turn fully within the training length."""
    for values in row.wavelengths:
        axes.plot(values, color=row.colour, marker="o", markersize=2.5, linewidth=1.0)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")  # matplotlib's own is a formula
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.axhline(row.train_length, color=GREY, linewidth=0.9, linestyle=DASHES, zorder=1)
    within = sum(int((values <= row.train_length).sum()) for values in row.wavelengths)
    pairs = sum(values.size for values in row.wavelengths)
    title = f"{within} of {pairs} feature pairs turn fully\nwithin the training length (dashed)"
    axes.set_title(title, fontsize=FONT - 0.5, color="0.3")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel("feature pair", labelpad=1)
    axes.set_ylabel("wavelength (tokens)")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_mask(axes: Axes, row: Row, mask: np.ndarray) -> None:
    length, reach = row.train_length, row.mask_reach
    colours = ListedColormap(["0.95", row.shades(0.7)])
    axes.imshow(mask, cmap=colours, vmin=0, vmax=1, extent=(0, reach, reach, 0), interpolation="nearest")
    if length < reach:
        axes.axvline(length, color="0.35", linewidth=0.9, linestyle=DASHES)
        axes.axhline(length, color="0.35", linewidth=0.9, linestyle=DASHES)
    ticks = sorted({0, length, reach})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_title("visible keys (coloured)", fontsize=FONT - 0.5, color="0.3")
    axes.set_xlabel("key", labelpad=1)
    axes.set_ylabel("query", labelpad=1)


def describe_end(values: np.ndarray, bottom: float) -> str:
    """Return what the panel does not show of a curve's end."""
    finite = np.flatnonzero(np.isfinite(values))
    end, remarks = values[finite[-1]], []
    if finite[-1] < len(values) - 1:
        remarks.append(f"masked from {finite[-1] + 1:,}")
    if end < bottom - 1e-6:
        remarks.append(f"to \N{MINUS SIGN}{-end:,.0f}" if end > -9_999 else "to no weight")
    return f" ({', '.join(remarks)})" if remarks else ""


def name_numbers(noun: str, numbers: Sequence[int]) -> str:
    """Return `head 3` or `heads 0-2, 5`."""
    steps = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in run] for _, run in steps]
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}\N{EN DASH}{run[-1]}" for run in runs)
    return f"{noun} {shown}" if len(numbers) == 1 else f"{noun}s {shown}"
