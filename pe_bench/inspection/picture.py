"""Encodings as one picture: a row for each, and what can be laid over each other in one panel above.

Letters: H heads, T distances.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
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
from pe_bench.plot.paper import DASHES, GREY, STROKES, mark_length, styles_of, wrapped

REACH, MASK_REACH = 8, 4  # times the training length, for scores and for masks
WIDTH, ROW = 10.0, 2.7  # inches, of the page and of a row
WIDTHS = {"curve": 4.4, "wavelengths": 2.4, "mask": 2.0}  # of the panels, against each other
MIN_RANGE = 1.0  # of scores in a panel, so that small changes appear small
SHOWN_BELOW = 20.0  # what lies further below the largest score weighs less than e^-20
NOTES = (
    "Scores: the mean over contents from N(0, 1) that the query and the key share, with biases, at the "
    "initial values of parameters.",
    "Wavelengths: in a window of the largest distance.",
    "A query sees all keys before it where no picture shows others.",
)
MAX_NOTE = 150  # characters of a line
TITLE: dict[str, Any] = {"loc": "left", "fontsize": 10, "fontweight": "bold", "pad": 14}
SMALL: dict[str, Any] = {"fontsize": 8.5, "color": "0.3"}
BESIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "frameon": False}
MARK: dict[str, Any] = {"color": GREY, "linewidth": 0.9, "linestyle": DASHES, "zorder": 1}


@dataclass(frozen=True)
class Row:
    """A row of panels: the layers of one kind, or the input.

    curves: expected scores of the heads, or products of inputs, by distance [.., T]. weights: mean attention
    by distance [T], None for inputs. mask: of visible keys, None where they are all before the query.
    """

    label: str
    title: str
    colour: str
    stroke: str
    train_length: int
    curves: np.ndarray
    meaning: str
    weights: np.ndarray | None = None
    wavelengths: Sequence[np.ndarray] = ()
    mask: np.ndarray | None = None
    mask_reach: int = 0


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
    label, length = subject.label, subject.config.train.length
    products, kinds = (
        curves.input_products(subject, reach),
        curves.kinds(subject.encoding, subject.config.model.n_layers),
    )
    for stroke, numbers in zip(len(kinds) * STROKES, kinds, strict=False):
        layer = subject.encoding.layer(numbers[0])
        if products is not None and len(kinds) == 1 and type(layer) is LayerEncoding:
            continue
        title = label if len(kinds) == 1 else f"{label}, {name_numbers('layer', numbers)}"
        scores = curves.scores_by_distance(subject, layer, reach)
        meaning = "log of expected weight" if scores.is_weight else "expected score"
        weights = scores.weights.numpy().mean(0)
        wavelengths = [values.numpy() for values in curves.wavelengths(layer, reach)]
        mask = curves.mask(subject, layer, mask_reach).numpy()
        mask = None if np.array_equal(mask, np.tril(np.ones_like(mask))) else mask
        drawn = (scores.scores.numpy(), meaning, weights, wavelengths, mask, mask_reach)
        yield Row(label, title, colour, stroke, length, *drawn)
    if products is not None:
        meaning = "product of embedded contents" if products[1] else "p_i · p_j of what is added"
        values = products[0].numpy()[None]
        yield Row(label, f"{label}: the input", colour, STROKES[0], length, values, meaning)


def draw(rows: Sequence[Row]) -> Figure:
    """Return a figure with a row of panels for each of `rows`, below attention of all in one panel."""
    is_compared = sum(row.weights is not None for row in rows) > 1
    shown = {"curve": True, "wavelengths": any(row.wavelengths for row in rows)}
    shown["mask"] = any(row.mask is not None for row in rows)
    columns = [name for name, is_shown in shown.items() if is_shown]
    height = len(rows) + is_compared
    figure = Figure(figsize=(WIDTH, ROW * height + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(height, len(columns), width_ratios=[WIDTHS[name] for name in columns])
    if is_compared:
        _draw_shares(figure.add_subplot(grid[0, :2]), rows)
    for index, row in enumerate(rows, start=int(is_compared)):
        cells = {name: grid[index, column] for column, name in enumerate(columns)}
        _draw_curves(figure.add_subplot(cells["curve"]), row)
        if row.wavelengths:
            _draw_wavelengths(figure.add_subplot(cells["wavelengths"]), row)
        if row.mask is not None:
            _draw_mask(figure.add_subplot(cells["mask"]), row, row.mask)
    figure.supxlabel(wrapped(NOTES, MAX_NOTE), fontsize=7.5, color=GREY, x=0.01, ha="left")
    return figure


def _draw_shares(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the share of attention that a query gives to keys within a distance, all contents being one."""
    shares = [(row, row.weights.cumsum()) for row in rows if row.weights is not None]
    # In the order in which the curves cross one half, the first ones wider, to be seen below others.
    shares.sort(key=lambda pair: int(np.searchsorted(pair[1], 0.5)))
    for later, (row, share) in zip(range(len(shares) - 1, -1, -1), shares, strict=True):
        half = int(np.searchsorted(share, 0.5)) + 1
        within = f"half within {half:,}" if half <= len(share) else "less than half"
        look: dict[str, Any] = {"color": row.colour, "linestyle": row.stroke}
        axes.plot(share, **look, linewidth=1.4 + min(3.0, 1.2 * later), label=f"{row.title}: {within}")
    drawn = {row.label for row, _ in shares}
    for label in dict.fromkeys(row.label for row in rows if row.label not in drawn):
        axes.plot([], [], linestyle="none", color=GREY, label=f"{label}: changes inputs, not scores")
    axes.set_ylim(0, 1.03)
    axes.set_ylabel("share of attention within")
    axes.set_title("Attention where all tokens are the same", **TITLE)
    axes.legend(**BESIDE, labelcolor="linecolor")
    _by_distance(axes, rows[0].train_length, max(len(share) for _, share in shares))


def _draw_curves(axes: Axes, row: Row) -> None:
    """Draw one curve for all heads that have the same, as far as it has a weight."""
    heads: list[list[int]] = []
    for head, values in enumerate(row.curves):
        same = [group for group in heads if np.allclose(row.curves[group[0]], values, 1e-5, 1e-3, True)]
        heads += [] if same else [[]]
        (same or heads[-1:])[0].append(head)
    top, bottom = float(np.nanmax(row.curves)), float(np.nanmin(row.curves))
    least = 1e-3
    if row.weights is not None:
        bottom, least = max(bottom, top - SHOWN_BELOW), MIN_RANGE
    margin = max(0.05 * (top - bottom), (least - (top - bottom)) / 2)
    axes.set_ylim(bottom - margin, top + margin)
    for index, group in enumerate(heads):
        values, is_one = row.curves[group[0]], len(heads) == 1
        shade = shades(row.colour)(0.5 if is_one else 0.25 + 0.55 * index / (len(heads) - 1))
        label = f"{'all heads' if is_one else name_numbers('head', group)}{describe_end(values, bottom)}"
        axes.plot(values, color=shade, linestyle=STROKES[index % len(STROKES)], linewidth=1.3, label=label)
    axes.set_ylabel(row.meaning)
    axes.set_title(row.title, **TITLE, color=row.colour)
    if row.weights is not None:
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
        at = {"x": (reach * farthest) ** 0.5, "y": 0.5, "transform": axes.get_xaxis_transform()}
        axes.text(s="undefined", **at, ha="center", va="center", color=GREY, rotation=90)


def _draw_wavelengths(axes: Axes, row: Row) -> None:
    """Draw 2 pi / theta of each feature pair, and say how many turn fully within the training length."""
    for values in row.wavelengths:
        axes.plot(values, color=row.colour, marker="o", markersize=2.5, linewidth=1.0)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")  # matplotlib's own is a formula
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.axhline(row.train_length, **MARK)
    every = np.concatenate(row.wavelengths)
    within = f"{int((every <= row.train_length).sum())} of {every.size}"
    axes.set_title(f"{within} feature pairs turn fully\nwithin the training length (dashed)", **SMALL)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel("feature pair", labelpad=1)
    axes.set_ylabel("wavelength (tokens)")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_mask(axes: Axes, row: Row, mask: np.ndarray) -> None:
    length, reach = row.train_length, row.mask_reach
    colours = ListedColormap(["0.95", shades(row.colour)(0.7)])
    axes.imshow(mask, cmap=colours, vmin=0, vmax=1, extent=(0, reach, reach, 0), interpolation="nearest")
    for line in (axes.axvline, axes.axhline) if length < reach else ():
        line(length, **MARK)
    ticks = sorted({0, length, reach})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_title("visible keys (coloured)", **SMALL)
    axes.set_xlabel("key", labelpad=1)
    axes.set_ylabel("query", labelpad=1)


def shades(colour: str) -> Colormap:
    """Return colours from black through this one to white."""
    return LinearSegmentedColormap.from_list("", ["black", colour, "white"])


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
