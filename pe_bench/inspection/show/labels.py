"""The labels right of a panel: what they say, and where they lie."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from pe_bench.plot.paper import spread_apart

FONT = 9  # points
LABEL_GAP = 1.2 * FONT  # points between the middles of two labels

Labels = list[tuple[Any, float]]  # texts right of a panel, and the values that they belong to
Labelled = tuple[Axes, Labels]


def draw_label(axes: Axes, text: str, values: np.ndarray, colour: Any) -> tuple[Any, float]:
    """Write a label right of the panel, and return it with the value at which its curve ends."""
    end = float(values[np.flatnonzero(np.isfinite(values))[-1]])
    drawn = axes.annotate(
        text, (1.015, 0.5), xycoords="axes fraction", va="center", color=colour, annotation_clip=False
    )
    return drawn, end


def describe_end(values: np.ndarray, bottom: float) -> str:
    """Return what the panel does not show of a curve's end."""
    finite = np.flatnonzero(np.isfinite(values))
    end = values[finite[-1]]
    remarks = []
    if finite[-1] < len(values) - 1:
        remarks.append(f"masked from {finite[-1] + 1:,}")
    if end < bottom - 1e-6:
        remarks.append(f"to \N{MINUS SIGN}{-end:,.0f}" if end > -9_999 else "to no weight")
    return f" ({', '.join(remarks)})" if remarks else ""


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


def name_numbers(noun: str, numbers: Sequence[int]) -> str:
    """Return `head 3` or `heads 0-2, 5`."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ]
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}\N{EN DASH}{run[-1]}" for run in runs)
    return f"{noun} {shown}" if len(numbers) == 1 else f"{noun}s {shown}"
