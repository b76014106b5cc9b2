"""Encodings as one picture: a row for each, and what can be laid over each other in one panel above.

Letters: H heads, T distances.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter, NullLocator

from pe_bench.inspection.resolve import ResolvedEncoding
from pe_bench.inspection.show import curves
from pe_bench.inspection.show.curves import MASK_REACH, REACH, Kind, Scores, describe_end, name_numbers
from pe_bench.plot.paper import mark_length, save_picture, spread_apart
from pe_bench.plot.style import DASHES, GREY, STROKES, styles_of, wrapped

ROW = 2.7  # inches
WIDTH = 10.0  # inches
MAX_NOTE = 150  # characters of a line
WIDTHS = {"curve": 4.4, "wavelengths": 2.4, "mask": 2.0}  # of the panels, against each other
MIN_RANGE = 1.0  # of scores in a panel, so that small changes appear small
SHOWN_BELOW = 20.0  # what lies further below the largest score weighs less than e^-20
FONT = 9  # points
LABEL_GAP = 1.2 * FONT  # points between the middles of two labels
NOTE = (
    "Scores: the mean over contents from N(0, 1) that the query and the key share, with biases, "
    "at the initial values of parameters."
)
WAVELENGTH_NOTE = "Wavelengths: in a window of the largest distance."
MASK_NOTE = "A query sees all keys before it where no picture shows others."


Labels = list[tuple[Any, float]]  # texts right of a panel, and the values that they belong to
Labelled = tuple[Axes, Labels]


@dataclass(frozen=True)
class PanelRow:
    """A row of panels: the layers of one kind, or the inputs. mask: of visible keys, if not all before."""

    title: str
    subject: ResolvedEncoding
    colour: str
    reach: int
    scores: Scores | None = None
    products: tuple[np.ndarray, bool] | None = None
    wavelengths: Sequence[np.ndarray] = ()
    mask: np.ndarray | None = None
    mask_reach: int = 0

    @property
    def train_length(self) -> int:
        return self.subject.config.train.length


def draw_subjects(subjects: Sequence[ResolvedEncoding], path: Path) -> None:
    """Draw the encodings into the file `path`; its suffix is the format."""
    save_picture(lambda: draw(rows_of(subjects)), path)


def rows_of(subjects: Sequence[ResolvedEncoding]) -> list[PanelRow]:
    styles = styles_of(subject.label for subject in subjects)
    return [row for subject in subjects for row in _rows(subject, styles[subject.label].colour)]


def draw(rows: Sequence[PanelRow]) -> Figure:
    """Return a figure with a row of panels for each of `rows`, below what can be laid over each other."""
    compared = [row for row in rows if row.scores is not None]
    with_all = len(compared) > 1
    heights = [ROW + 0.3, ROW * len(rows)] if with_all else [ROW * len(rows)]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    *above, below = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    labelled = _draw_all(above[0], rows) if above else []
    has_wavelengths, has_masks = (
        any(row.wavelengths for row in rows),
        any(row.mask is not None for row in rows),
    )
    columns = {"curve": True, "wavelengths": has_wavelengths and not with_all, "mask": has_masks}
    labelled += _draw_rows(below, rows, [name for name, is_drawn in columns.items() if is_drawn])
    notes = {NOTE: True, WAVELENGTH_NOTE: has_wavelengths, MASK_NOTE: any(row.mask is None for row in rows)}
    note = wrapped([note for note, is_needed in notes.items() if is_needed], MAX_NOTE)
    below.supxlabel(note, fontsize=FONT - 1.5, color=GREY, x=0.01, ha="left")
    # Labels are spaced in points, which are known once the panels have their places.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes, labels in labelled:
        spread_labels(axes, labels)
    return figure


def _rows(subject: ResolvedEncoding, colour: str) -> list[PanelRow]:
    reach, mask_reach = (curves.length_within(subject, times) for times in (REACH, MASK_REACH))
    products = curves.input_products(subject, reach)
    kinds = curves.kinds(subject)
    drawn = [kind for kind in kinds if not (kind.is_neutral and products is not None and len(kinds) == 1)]
    rows = [_row_of_kind(subject, kind, len(kinds), colour, reach, mask_reach) for kind in drawn]
    if products is not None:
        values = (products[0].numpy(), products[1])
        mask = None if drawn else _mask(subject, kinds[0], mask_reach)
        title = f"{subject.label}: the input"
        rows.append(
            PanelRow(title, subject, colour, reach, products=values, mask=mask, mask_reach=mask_reach)
        )
    return rows


def _row_of_kind(
    subject: ResolvedEncoding, kind: Kind, n_kinds: int, colour: str, reach: int, mask_reach: int
) -> PanelRow:
    return PanelRow(
        title=subject.label if n_kinds == 1 else f"{subject.label}, {name_numbers('layer', kind.numbers)}",
        subject=subject,
        colour=colour,
        reach=reach,
        scores=curves.scores_by_distance(subject, kind.layer, reach),
        wavelengths=[found.numpy() for found in curves.wavelengths(kind.layer, reach)],
        mask=_mask(subject, kind, mask_reach),
        mask_reach=mask_reach,
    )


def _mask(subject: ResolvedEncoding, kind: Kind, reach: int) -> np.ndarray | None:
    """Return which keys each query sees; None where it sees all before it, which needs no picture."""
    mask = curves.mask(subject, kind.layer, reach).numpy()
    return None if np.array_equal(mask, np.tril(np.ones_like(mask))) else mask


def _draw_all(figure: SubFigure, rows: Sequence[PanelRow]) -> list[Labelled]:
    """Draw what the rows have in common, over each other."""
    turning = [row for row in rows if row.wavelengths]
    widths = [WIDTHS["curve"], *([WIDTHS["wavelengths"]] if turning else [])]
    panels = figure.subplots(1, len(widths), squeeze=False, gridspec_kw={"width_ratios": widths})[0]
    labelled = [_draw_shares(panels[0], rows)]
    if turning:
        labelled.append(_draw_wavelengths(panels[1], turning))
    return labelled


def _draw_rows(figure: SubFigure, rows: Sequence[PanelRow], columns: Sequence[str]) -> list[Labelled]:
    widths = [WIDTHS[name] for name in columns]
    grid = figure.add_gridspec(len(rows), len(columns), width_ratios=widths)
    labelled = []
    for place, row in enumerate(rows):
        cells = {name: grid[place, column] for column, name in enumerate(columns)}
        axes = figure.add_subplot(cells["curve"])
        axes.set_title(row.title, loc="left", fontsize=FONT + 1, fontweight="bold", color=row.colour, pad=14)
        labelled.append(_draw_scores(axes, row) if row.scores is not None else _draw_products(axes, row))
        if row.wavelengths and "wavelengths" in cells:
            labelled.append(_draw_wavelengths(figure.add_subplot(cells["wavelengths"]), [row]))
        if row.mask is not None:
            _draw_mask(figure.add_subplot(cells["mask"]), row)
    return labelled


# Curves by distance


def _draw_scores(axes: Axes, row: PanelRow) -> Labelled:
    assert row.scores is not None
    scores = row.scores.scores.numpy()
    groups = _equal_heads(scores)
    top = float(np.nanmax(scores))
    low = float(np.nanmin(scores))
    bottom = max(low, top - SHOWN_BELOW)
    margin = max(0.05 * (top - bottom), (MIN_RANGE - (top - bottom)) / 2)
    axes.set_ylim(bottom - margin, top + margin)
    labels = []
    for place, heads in enumerate(groups):
        values = scores[heads[0]]
        colour = _shade(row.colour, place, len(groups))
        axes.plot(values, color=colour, linestyle=STROKES[place % len(STROKES)], linewidth=1.3)
        all_heads = len(heads) == len(scores)
        name = "all heads" if all_heads else name_numbers("head", heads)
        labels.append(draw_label(axes, f"{name}{describe_end(values, bottom)}", values, colour))
    axes.set_ylabel("log of expected weight" if row.scores.is_weight else "expected score")
    _by_distance(axes, row.train_length, row.reach)
    return axes, labels


def _draw_products(axes: Axes, row: PanelRow) -> Labelled:
    assert row.products is not None
    values, of_contents = row.products
    axes.plot(values, color=row.colour, linewidth=1.5)
    axes.set_ylabel("product of embedded contents" if of_contents else "p_i · p_j of what is added")
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    margin = 0.05 * max(high - low, 1e-3)
    axes.set_ylim(low - margin, high + margin)
    _by_distance(axes, row.train_length, row.reach)
    return axes, []


def _draw_shares(axes: Axes, rows: Sequence[PanelRow]) -> Labelled:
    """Draw the share of attention that a query gives to keys within a distance, all contents being one."""
    subjects = dict.fromkeys(row.subject.label for row in rows)
    rows = [row for row in rows if row.scores is not None]
    left_out = [label for label in subjects if label not in {row.subject.label for row in rows}]
    shares = [row.scores.weights.numpy().mean(0).cumsum() for row in rows if row.scores is not None]
    halves = [int(np.searchsorted(share, 0.5)) + 1 for share in shares]
    # In the order in which the curves cross one half, and there they are read best.
    for order, place in enumerate(np.argsort(halves, kind="stable")):
        within = f"half within {halves[place]:,}" if halves[place] <= len(shares[place]) else "less than half"
        row, label = rows[place], f"{rows[place].title}: {within}"
        width = 0.4 + _width(order, len(rows))
        axes.plot(shares[place], color=row.colour, linestyle=_stroke(row, rows), linewidth=width, label=label)
    for label in left_out:
        axes.plot([], [], linestyle="none", color=GREY, label=f"{label}: changes inputs, not scores")
    axes.set_ylim(0, 1.03)
    axes.set_ylabel("share of attention within")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, labelcolor="linecolor")
    axes.set_title(
        "Attention where all tokens are the same", loc="left", fontsize=FONT + 1, fontweight="bold", pad=14
    )
    _by_distance(axes, rows[0].train_length, max(row.reach for row in rows))
    return axes, []


def _by_distance(axes: Axes, train_length: int, reach: int) -> None:
    whole = REACH * train_length
    axes.set_xscale("symlog", base=2, linthresh=1, linscale=0.5)
    axes.set_xlim(0, whole)
    powers = [4**power for power in range(12) if 4**power < whole / 2.5]
    apart = [tick for tick in powers if not train_length / 2.5 < tick < train_length * 2.5]
    ticks = sorted({0, *apart, train_length, whole})
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([f"{tick:,}" for tick in ticks])
    axes.set_xlabel("distance (tokens)", labelpad=1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92")
    mark_length(axes, train_length, "training length", width=0.9, offset=3)
    if reach < whole:
        axes.axvspan(reach, whole, color="0.95", zorder=0, linewidth=0)
        middle = (math.sqrt(reach * whole), 0.5)
        axes.annotate(
            "undefined",
            middle,
            xycoords=axes.get_xaxis_transform(),
            ha="center",
            color=GREY,
            rotation=90,
            va="center",
        )


def _finite(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]


def _equal_heads(scores: np.ndarray) -> list[list[int]]:
    """Return groups of heads with the same curve."""
    groups: list[list[int]] = []
    for head, values in enumerate(scores):
        same = [group for group in groups if np.allclose(scores[group[0]], values, atol=1e-3, equal_nan=True)]
        if same:
            same[0].append(head)
        else:
            groups.append([head])
    return groups


# Wavelengths and masks


def _draw_wavelengths(axes: Axes, rows: Sequence[PanelRow]) -> Labelled:
    """Draw 2 pi / theta of each feature pair, with how many turn fully within the training length."""
    labels = []
    for place, row in enumerate(rows):
        width, stroke = _width(place, len(rows)), _stroke(row, rows)
        for values in row.wavelengths:
            axes.plot(
                values,
                color=row.colour,
                linestyle=stroke,
                marker="o",
                markersize=1.5 + width,
                linewidth=width,
            )
        within = sum(int((values <= row.train_length).sum()) for values in row.wavelengths)
        share = f"{within} of {sum(values.size for values in row.wavelengths)}"
        text = share if len(rows) == 1 else f"{row.title}: {share}"
        labels.append(draw_label(axes, text, np.log10(_finite(row.wavelengths[-1])), row.colour))
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")  # matplotlib's own is a formula
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.axhline(rows[0].train_length, color=GREY, linewidth=0.9, linestyle=DASHES, zorder=1)
    axes.annotate(
        "training length",
        (1, rows[0].train_length),
        xycoords=axes.get_yaxis_transform(),
        xytext=(0, -3),
        textcoords="offset points",
        ha="right",
        va="top",
        color=GREY,
        fontsize=FONT - 1.5,
    )
    title = "feature pairs that turn fully\nwithin the training length"
    axes.set_title(title, fontsize=FONT - 0.5, color="0.3")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel("feature pair", labelpad=1)
    axes.set_ylabel("wavelength (tokens)")
    axes.spines[["top", "right"]].set_visible(False)
    return axes, labels


def _draw_mask(axes: Axes, row: PanelRow) -> None:
    assert row.mask is not None
    length, reach = row.train_length, row.mask_reach
    colours = ListedColormap(["0.95", _blend(row.colour, 1.0, 0.4)])
    axes.imshow(row.mask, cmap=colours, vmin=0, vmax=1, extent=(0, reach, reach, 0), interpolation="nearest")
    for line in (axes.axvline, axes.axhline):
        if length < reach:
            line(length, color="0.35", linewidth=0.9, linestyle=DASHES)
    ticks = [0, length, reach] if length < reach else [0, reach]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_title("visible keys (coloured)", fontsize=FONT - 0.5, color="0.3")
    axes.set_xlabel("key", labelpad=1)
    axes.set_ylabel("query", labelpad=1)


# Names and colours


def _stroke(row: PanelRow, rows: Sequence[PanelRow]) -> Any:
    """Return another stroke for each row that shares its colour with one before."""
    before = rows[: [other is row for other in rows].index(True)]
    return STROKES[sum(other.colour == row.colour for other in before) % len(STROKES)]


def _width(place: int, count: int) -> float:
    """Return the width of a line in points: the first are wider, to be seen where another lies on them."""
    return 1.0 + min(3.0, 1.2 * (count - 1 - place))


def _shade(colour: str, place: int, count: int) -> tuple[float, float, float]:
    """Return a shade from dark to light around `colour`, for heads of one encoding."""
    if count == 1:
        return to_rgb(colour)
    share = place / (count - 1)
    return _blend(colour, 0.0, 0.5 - share) if share < 0.5 else _blend(colour, 1.0, 0.6 * (share - 0.5))


def _blend(colour: str, target: float, weight: float) -> tuple[float, float, float]:
    """Return `colour` with some black (target 0) or white (target 1)."""
    red, green, blue = (channel + weight * (target - channel) for channel in to_rgb(colour))
    return red, green, blue


# Labels right of the panels


def draw_label(axes: Axes, text: str, values: np.ndarray, colour: Any) -> tuple[Any, float]:
    """Write a label right of the panel, and return it with the value at which its curve ends."""
    end = float(values[np.flatnonzero(np.isfinite(values))[-1]])
    drawn = axes.annotate(
        text, (1.015, 0.5), xycoords="axes fraction", va="center", color=colour, annotation_clip=False
    )
    return drawn, end


def spread_labels(axes: Axes, labels: Labels) -> None:
    """Move labels right of the panel apart, each as near as can be to where its curve ends."""
    if not labels:
        return
    height = axes.get_window_extent().height * 72 / axes.figure.dpi
    low, high = axes.get_ylim() if axes.get_yscale() == "linear" else np.log10(axes.get_ylim())
    wanted = np.array([(np.clip(end, low, high) - low) / (high - low) * height for _, end in labels])
    for (text, _), place in zip(labels, spread_apart(wanted, LABEL_GAP, height), strict=True):
        text.xy = (1.015, place / height)
        text.set_position((1.015, place / height))
