"""Encodings as one picture: a row of panels for each, and above them a panel that compares all.

Letters: H heads, T distances.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator

from pe_bench.encodings.base import LayerEncoding
from pe_bench.inspection import curves
from pe_bench.inspection.resolve import ResolvedEncoding, parameter_count
from pe_bench.render.paper import DASH_PATTERN, GREY, STROKES, mark_length, styles_of, wrapped

REACH, MASK_REACH = 8, 4  # times the training length, for scores and for masks
MAX_MASK = 2_048  # tokens
WIDTH, ROW = 10.0, 2.7  # inches, of the page and of a row
WIDTHS = {"curve": 4.4, "wavelengths": 2.4, "mask": 2.0}  # the relative widths of the panels
MIN_RANGE = 1.0  # the smallest range of scores in a panel, so that small changes appear small
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
LEGEND: dict[str, Any] = {"fontsize": 8, "frameon": False, "labelcolor": "linecolor"}
MARK: dict[str, Any] = {"color": GREY, "linewidth": 0.9, "linestyle": DASH_PATTERN, "zorder": 1}


@dataclass(frozen=True)
class PanelRow:
    """A row of panels: one layer, the layers of one kind, or the input."""

    title: str
    colour: str
    stroke: str
    train_length: int
    curves: np.ndarray  # expected scores of the heads, or products of inputs, by distance [.., T]
    meaning: str  # the meaning of the curves, for the label of an axis
    weights: np.ndarray | None = None  # mean attention by distance [T]; None for inputs
    wavelengths: Sequence[np.ndarray] = ()  # of the pairs of each frequency table, in tokens [pairs]
    mask: np.ndarray | None = None  # the mask of visible keys; None if a query sees all keys before it
    is_untrained: bool = False  # parameters have their initial values

    @property
    def heading(self) -> str:
        return f"{self.title}: not trained" if self.is_untrained else self.title


def rows_of(subjects: Sequence[ResolvedEncoding]) -> list[PanelRow]:
    """Return the rows of encodings; rows of an encoding without a meaning past training end there."""
    styles = styles_of(subject.label for subject in subjects)
    rows = []
    for subject in subjects:
        rows += _rows_of_encoding(subject, styles[subject.label].colour)
    return rows


def _rows_of_encoding(subject: ResolvedEncoding, colour: str) -> Iterator[PanelRow]:
    """Yield the row of the input, if the encoding changes the input, then a row for each kind of layer."""
    length = subject.config.train.length
    is_defined = subject.encoding.past_training != "undefined"
    reach = REACH * length if is_defined else length
    mask_reach = MASK_REACH * length if is_defined else length
    added = input_row(subject, colour, reach)
    is_untrained = parameter_count(subject.encoding) > 0
    kinds = curves.layer_kinds(subject.encoding, subject.config.model.n_layers)
    for stroke, numbers in zip(len(kinds) * STROKES, kinds, strict=False):
        layer = subject.encoding.layer(numbers[0])
        is_only_kind = len(kinds) == 1
        if added is not None and is_only_kind and type(layer) is LayerEncoding:
            continue
        title = subject.label
        if len(kinds) > 1:
            title += f", {name_numbers('layer', numbers)}"
        scores = curves.scores_by_distance(subject, layer, reach)
        weights = scores.weights.numpy().mean(0)
        wavelengths = [values.numpy() for values in curves.wavelengths(layer, reach)]
        mask = curves.mask(subject, layer, min(mask_reach, MAX_MASK)).numpy()
        if np.array_equal(mask, np.tril(np.ones_like(mask))):
            mask = None
        drawn = (scores.scores.numpy(), scores.meaning, weights, wavelengths, mask)
        yield PanelRow(title, colour, stroke, length, *drawn, is_untrained=is_untrained)
    if added is not None:
        yield added


def input_row(subject: ResolvedEncoding, colour: str, reach: int) -> PanelRow | None:
    """Return the row of an encoding that changes the input, None for others. reach: the largest distance."""
    found = curves.input_products(subject, reach)
    if found is None:
        return None
    products, are_of_contents = found
    meaning = "product of embedded contents" if are_of_contents else "p_i · p_j of what is added"
    length = subject.config.train.length
    title = f"{subject.label}: the input"
    return PanelRow(title, colour, STROKES[0], length, products.numpy()[None], meaning)


def draw(rows: Sequence[PanelRow]) -> Figure:
    """Draw a row of panels for each of `rows`, below one panel with the attention of all."""
    with_weights = [row for row in rows if row.weights is not None]
    is_compared = len(with_weights) > 1
    shown = {"curve": True, "wavelengths": any(row.wavelengths for row in rows)}
    shown["mask"] = any(row.mask is not None for row in rows)
    columns = [name for name, is_shown in shown.items() if is_shown]
    height = len(rows) + is_compared
    size = (WIDTH, ROW * height + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    widths = [WIDTHS[name] for name in columns]
    grid = figure.add_gridspec(height, len(columns), width_ratios=widths)
    if is_compared:
        _draw_cumulative_shares(figure.add_subplot(grid[0, :]), rows)
    limits = limits_of(rows)
    for index, row in enumerate(rows, start=int(is_compared)):
        cells = {name: grid[index, column] for column, name in enumerate(columns)}
        draw_curves(figure.add_subplot(cells["curve"]), row, limits)
        if row.wavelengths:
            _draw_wavelengths(figure.add_subplot(cells["wavelengths"]), row)
        if row.mask is not None:
            _draw_mask(figure.add_subplot(cells["mask"]), row, row.mask)
    figure.supxlabel(wrapped(NOTES, MAX_NOTE), fontsize=7.5, color=GREY, x=0.01, ha="left")
    return figure


def limits_of(rows: Sequence[PanelRow]) -> tuple[float, float]:
    """Return the lowest and the highest score to draw, the same for all rows, so that heights compare."""
    scores = [row.curves for row in rows if row.weights is not None]
    if not scores:
        return 0.0, 0.0
    top = max(float(np.nanmax(each)) for each in scores)
    lowest = min(float(np.nanmin(each)) for each in scores)
    bottom = max(lowest, top - SHOWN_BELOW)
    height = top - bottom
    margin = max(0.05 * height, (MIN_RANGE - height) / 2)
    return bottom - margin, top + margin


def _draw_cumulative_shares(axes: Axes, rows: Sequence[PanelRow]) -> None:
    """Draw the share of attention within each distance, if all tokens are the same."""
    for row in rows:
        if row.weights is not None:
            share = row.weights.cumsum()
            half = int(np.searchsorted(share, 0.5)) + 1
            within = "less than half"
            if half <= len(share):
                within = f"half within {half:,}"
            label = f"{row.title}: {within}"
            axes.plot(share, color=row.colour, linestyle=row.stroke, label=label)
    axes.set(ylim=(0, 1.03), ylabel="share of attention within")
    axes.set_title("Attention where all tokens are the same", **TITLE)
    axes.legend(**LEGEND)
    reach = max(row.curves.shape[-1] for row in rows)
    _set_distance_axis(axes, rows[0].train_length, reach)


def draw_curves(axes: Axes, row: PanelRow, limits: tuple[float, float]) -> None:
    """Draw the scores of each head by distance; heads with the same scores share a curve.

    limits: the smallest and the largest number of the axis of scores.
    """
    groups: list[list[int]] = []  # heads with the same scores
    for head, values in enumerate(row.curves):
        for group in groups:
            if np.allclose(row.curves[group[0]], values, 1e-5, 1e-3, True):
                group.append(head)
                break
        else:
            groups.append([head])
    for index, group in enumerate(groups):
        values = row.curves[group[0]]
        visible = np.flatnonzero(np.isfinite(values))
        label = "all heads" if len(groups) == 1 else name_numbers("head", group)
        if visible[-1] < len(values) - 1:
            label += f" (masked from {visible[-1] + 1:,})"
        (line,) = axes.plot(values, color=row.colour, linewidth=1.3, label=label)
        line.set_alpha(1 - 0.7 * index / len(groups))
        line.set_linestyle(STROKES[index % len(STROKES)])
    axes.set_ylabel(row.meaning)
    axes.set_title(row.heading, **TITLE, color=row.colour)
    if row.weights is not None:
        axes.set_ylim(*limits)
        axes.legend(**LEGEND)
    _set_distance_axis(axes, row.train_length, row.curves.shape[-1])


def _set_distance_axis(axes: Axes, train_length: int, reach: int) -> None:
    """Set the horizontal axis to distances up to `reach`, with a mark at the training length."""
    axes.set_xscale("symlog", base=2, linthresh=1, linscale=0.5)
    all_powers = [4**power for power in range(12)]
    powers = [power for power in all_powers if power < train_length / 2.5]
    ticks = sorted({0, *powers, train_length, reach})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlim=(0, reach), xlabel="distance (tokens)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92")
    mark_length(axes, train_length, "training length", width=0.9, offset=3)


def _draw_wavelengths(axes: Axes, row: PanelRow) -> None:
    """Draw 2 pi / theta of each feature pair, and write how many pairs turn fully in the training length."""
    for values in row.wavelengths:
        axes.plot(values, color=row.colour, marker="o", markersize=2.5, linewidth=1.0)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")  # matplotlib's own is a formula
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.axhline(row.train_length, **MARK)
    every = np.concatenate(row.wavelengths)
    turning = int((every <= row.train_length).sum())
    axes.set_title(
        f"{turning} of {every.size} feature pairs turn fully\nwithin the training length (dashed)", **SMALL
    )
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set(xlabel="feature pair", ylabel="wavelength (tokens)")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_mask(axes: Axes, row: PanelRow, mask: np.ndarray) -> None:
    """Draw the mask of visible keys, bool [queries, keys], in the colour of the row."""
    reach = len(mask)
    colours = ListedColormap(["0.95", row.colour])
    image = axes.imshow(mask, cmap=colours, extent=(0, reach, reach, 0), interpolation="nearest")
    image.set_clim(0, 1)
    ticks = sorted({0, min(row.train_length, reach), reach})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_title("visible keys (coloured)", **SMALL)
    axes.set(xlabel="key", ylabel="query")


def name_numbers(noun: str, numbers: Sequence[int]) -> str:
    """Return `head 3` or `heads 0, 1, 5`."""
    plural = "s" if len(numbers) > 1 else ""
    listed = ", ".join(map(str, numbers))
    return f"{noun}{plural} {listed}"
