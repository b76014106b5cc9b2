"""Encodings as one picture: a row for each, and what can be laid over each other in one panel above.

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
from pe_bench.render.paper import DASHES, GREY, STROKES, mark_length, styles_of, wrapped

REACH, MASK_REACH = 8, 4  # times the training length, for scores and for masks
MAX_MASK = 2_048  # tokens
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
LEGEND: dict[str, Any] = {"fontsize": 8, "frameon": False, "labelcolor": "linecolor"}
MARK: dict[str, Any] = {"color": GREY, "linewidth": 0.9, "linestyle": DASHES, "zorder": 1}


@dataclass(frozen=True)
class Row:
    """A row of panels: the layers of one kind, or the input.

    curves: expected scores of the heads, or products of inputs, by distance [.., T]. weights: mean attention
    by distance [T], None for inputs. mask: of visible keys, None where they are all before the query.
    is_untrained: its parameters are at their initial values.
    """

    title: str
    colour: str
    stroke: str
    train_length: int
    curves: np.ndarray
    meaning: str
    weights: np.ndarray | None = None
    wavelengths: Sequence[np.ndarray] = ()
    mask: np.ndarray | None = None
    is_untrained: bool = False

    @property
    def heading(self) -> str:
        return f"{self.title}: not trained" if self.is_untrained else self.title


def rows_of(subjects: Sequence[ResolvedEncoding]) -> list[Row]:
    """Return the rows of encodings, up to the training length where they have no meaning past it."""
    styles = styles_of(subject.label for subject in subjects)
    rows = []
    for subject in subjects:
        rows += _rows(subject, styles[subject.label].colour)
    return rows


def _rows(subject: ResolvedEncoding, colour: str) -> Iterator[Row]:
    length = subject.config.train.length
    is_defined = subject.encoding.past_training != "undefined"
    reach = REACH * length if is_defined else length
    mask_reach = MASK_REACH * length if is_defined else length
    added = input_row(subject, colour, reach)
    kinds = curves.kinds(subject.encoding, subject.config.model.n_layers)
    for stroke, numbers in zip(len(kinds) * STROKES, kinds, strict=False):
        layer = subject.encoding.layer(numbers[0])
        if added is not None and len(kinds) == 1 and type(layer) is LayerEncoding:
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
        yield Row(title, colour, stroke, length, *drawn, is_untrained=parameter_count(subject.encoding) > 0)
    if added is not None:
        yield added


def input_row(subject: ResolvedEncoding, colour: str, reach: int) -> Row | None:
    """Return the row of what is added to the input, up to a distance; None where nothing is."""
    products = curves.input_products(subject, reach)
    if products is None:
        return None
    meaning = "product of embedded contents" if products[1] else "p_i · p_j of what is added"
    numbers = products[0].numpy()[None]
    length = subject.config.train.length
    return Row(f"{subject.label}: the input", colour, STROKES[0], length, numbers, meaning)


def draw(rows: Sequence[Row]) -> Figure:
    """Return a figure with a row of panels for each of `rows`, below attention of all in one panel."""
    is_compared = sum(row.weights is not None for row in rows) > 1
    shown = {"curve": True, "wavelengths": any(row.wavelengths for row in rows)}
    shown["mask"] = any(row.mask is not None for row in rows)
    columns = [name for name, is_shown in shown.items() if is_shown]
    height = len(rows) + is_compared
    figure = Figure(figsize=(WIDTH, ROW * height + 0.5), layout="constrained")
    grid = figure.add_gridspec(height, len(columns), width_ratios=[WIDTHS[name] for name in columns])
    if is_compared:
        _draw_shares(figure.add_subplot(grid[0, :]), rows)
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


def limits_of(rows: Sequence[Row]) -> tuple[float, float]:
    """Return the lowest and the highest score to draw, the same for all rows, so that heights compare."""
    scores = [row.curves for row in rows if row.weights is not None]
    if not scores:
        return 0.0, 0.0
    top = max(float(np.nanmax(each)) for each in scores)
    bottom = max(min(float(np.nanmin(each)) for each in scores), top - SHOWN_BELOW)
    margin = max(0.05 * (top - bottom), (MIN_RANGE - (top - bottom)) / 2)
    return bottom - margin, top + margin


def _draw_shares(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the share of attention that a query gives to keys within a distance, all contents being one."""
    for row in rows:
        if row.weights is not None:
            share = row.weights.cumsum()
            half = int(np.searchsorted(share, 0.5)) + 1
            within = f"half within {half:,}" if half <= len(share) else "less than half"
            axes.plot(share, color=row.colour, linestyle=row.stroke, label=f"{row.title}: {within}")
    axes.set(ylim=(0, 1.03), ylabel="share of attention within")
    axes.set_title("Attention where all tokens are the same", **TITLE)
    axes.legend(**LEGEND)
    _by_distance(axes, rows[0].train_length, max(row.curves.shape[-1] for row in rows))


def draw_curves(axes: Axes, row: Row, limits: tuple[float, float]) -> None:
    """Draw one curve for all heads that have the same, as far as it has a weight.

    limits: of the axis of scores.
    """
    heads: list[list[int]] = []
    for head, values in enumerate(row.curves):
        same = [group for group in heads if np.allclose(row.curves[group[0]], values, 1e-5, 1e-3, True)]
        if same:
            same[0].append(head)
        else:
            heads.append([head])
    for index, group in enumerate(heads):
        values = row.curves[group[0]]
        last = int(np.flatnonzero(np.isfinite(values))[-1]) + 1
        label = "all heads" if len(heads) == 1 else name_numbers("head", group)
        if last < len(values):
            label += f" (masked from {last:,})"
        look: dict[str, Any] = {"color": row.colour, "alpha": 1 - 0.7 * index / len(heads)}
        axes.plot(values, **look, linestyle=STROKES[index % len(STROKES)], linewidth=1.3, label=label)
    axes.set_ylabel(row.meaning)
    axes.set_title(row.heading, **TITLE, color=row.colour)
    if row.weights is not None:
        axes.set_ylim(*limits)
        axes.legend(**LEGEND)
    _by_distance(axes, row.train_length, row.curves.shape[-1])


def _by_distance(axes: Axes, train_length: int, reach: int) -> None:
    axes.set_xscale("symlog", base=2, linthresh=1, linscale=0.5)
    powers = [4**power for power in range(12) if 4**power < train_length / 2.5]
    ticks = sorted({0, *powers, train_length, reach})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlim=(0, reach), xlabel="distance (tokens)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92")
    mark_length(axes, train_length, "training length", width=0.9, offset=3)


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
    axes.set(xlabel="feature pair", ylabel="wavelength (tokens)")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_mask(axes: Axes, row: Row, mask: np.ndarray) -> None:
    reach = len(mask)
    colours = ListedColormap(["0.95", row.colour])
    axes.imshow(mask, cmap=colours, vmin=0, vmax=1, extent=(0, reach, reach, 0), interpolation="nearest")
    ticks = sorted({0, min(row.train_length, reach), reach})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_title("visible keys (coloured)", **SMALL)
    axes.set(xlabel="key", ylabel="query")


def name_numbers(noun: str, numbers: Sequence[int]) -> str:
    """Return `head 3` or `heads 0, 1, 5`."""
    return f"{noun}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
