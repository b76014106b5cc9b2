"""The table of a measurement: the cheapest encoding at the longest length first, with all its lengths."""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from pe_bench.inspection.speed.rows import Row
from pe_bench.plot.paper import (
    NAME_GAP,
    lines_height,
    name_ends,
    new_figure,
    place_axes,
    place_text,
    save_picture,
)
from pe_bench.plot.scale import scale_of_lengths, scale_of_ratios, set_lengths, set_values
from pe_bench.plot.style import DASHES, FONT, GREY, LEFT, RULE, WIDTH, fitting, styles_of
from pe_bench.system.grid import MIN_FOLDED, Cell, Column, Grid

COLUMNS = ("encoding", "tokens", "attention", "ms", "tokens/s", "x {}", "spread", "MB")
WORDS = ("encoding", "attention")  # columns of words
# Passes of one encoding that differ by this factor were not alone on the machine.
NOISE = 4.0
OF_PASS = {"score": "scoring one window", "train": "a training step"}


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Put the cheapest encoding at the longest length first, and those without a number there last."""
    longest = max(row.length for row in rows)
    cost = {row.encoding: row.relative for row in rows if row.length == longest}

    def place(row: Row) -> tuple[float, str, int]:
        found = cost.get(row.encoding)
        return (math.inf if found is None else found, row.encoding, row.length)

    return sorted(rows, key=place)


def title(rows: Sequence[Row]) -> str:
    """Say what was timed, with what, and where."""
    first = rows[0]
    machine = first.processor if first.device == "cpu" else first.device
    dtype = next((row.dtype for row in rows if row.dtype), "")
    threads = "1 thread" if first.threads == 1 else f"{first.threads} threads"
    words = (word.removeprefix("model.") for word in first.setting.split() if word.startswith("model."))
    sizes = " ".join(words)
    return (
        f"{OF_PASS[first.kind]}, {first.model} model{sizes and f' with {sizes}'}, random bytes, {dtype}\n"
        f"{machine}, {threads}, torch {first.torch}, pe-bench {first.pe_bench}"
    )


def grid_of(rows: Sequence[Row]) -> Grid:
    """Return the table with its title and notes."""
    reference = rows[0].encoding
    columns = [
        Column(column.format(reference), is_left=column in WORDS, least=MIN_FOLDED if column in WORDS else 0)
        for column in COLUMNS
    ]
    times = {row.length: row.milliseconds for row in rows if row.encoding == reference}
    cells = [[Cell(row.encoding), *map(Cell, _cells(row, times))] for row in ordered(rows)]
    return Grid(columns, cells, title(rows).split("\n"), notes=_notes(rows), keys=2)


def _cells(row: Row, times: Mapping[int, float | None]) -> list[str]:
    """Return a row's cells; its time is that of the reference times the ratio, which load hardly moves."""
    if row.milliseconds is None:
        return [f"{row.length:,}", row.status.replace("_", " "), "", "", "", "", ""]
    milliseconds = (times.get(row.length) or 0) * (row.relative or 0) or row.milliseconds
    tokens_per_second = (row.tokens_per_second or 0.0) * row.milliseconds / milliseconds
    return [
        f"{row.length:,}",
        row.path,
        number(milliseconds),
        f"{tokens_per_second:,.0f}",
        "" if row.relative is None else f"{row.relative:.2f}",
        _spread(row),
        "" if row.peak_memory_mb is None else f"{row.peak_memory_mb:,.0f}",
    ]


def _spread(row: Row) -> str:
    """Return the percentage around the median within which half of the ratios lie."""
    if not row.relative or row.relative_low is None or row.relative_high is None:
        return ""
    return f"{max(row.relative - row.relative_low, row.relative_high - row.relative) / row.relative:.0%}"


def number(value: float) -> str:
    """Spell a number with three digits, or with all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _notes(rows: Sequence[Row]) -> list[str]:
    """Explain the columns, and rows without numbers."""
    first, counts = rows[0], [row.repeats for row in rows if row.repeats]
    name = first.encoding
    notes = [f"x {name}: median of the ratios to a pass of {name} just before"]
    if any(row.relative_low is not None for row in rows):
        notes.append("spread: half of these ratios lie within this much of the median")
    if counts:
        several = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(counts[0])
        passes = "pass" if max(counts) == 1 else "passes"
        notes.append(
            f"ms: of {name}, the median of {several} {passes} after a warm-up pass; of the others, "
            "that times their ratio"
        )
    notes += _on_noise(rows)
    rates = [
        (row.length, row.gflops_per_second) for row in rows if row.encoding == name and row.gflops_per_second
    ]
    if rates:
        notes.append(f"{name}: {number(rates[-1][1])} GFLOP/s at {rates[-1][0]:,} tokens")
    if any(row.peak_memory_mb is not None for row in rows):
        notes.append("MB: peak memory above what was in use before the first pass")
    reasons = {f"{row.encoding} at {row.length:,}: {row.reason}" for row in rows if row.reason}
    return [*notes, *sorted(reasons)]


def _on_noise(rows: Sequence[Row]) -> list[str]:
    """Return a line if the passes of one row differ by more than encodings do."""
    spreads = [
        (row.milliseconds_max / row.milliseconds_min, row)
        for row in rows
        if row.milliseconds_max is not None and row.milliseconds_min
    ]
    worst, row = max(spreads, key=lambda one: one[0], default=(0.0, None))
    if row is None or worst < NOISE:
        return []
    advice = "; try threads=1" if row.threads > 1 else ""
    return [
        f"noisy: passes of {row.encoding} at {row.length:,} took {number(row.milliseconds_min or 0)} to "
        f"{number(row.milliseconds_max or 0)} ms, as happens on a busy machine{advice}"
    ]


PANEL_WIDTH, PANEL_HEIGHT = 4.9, 3.1  # inches
TICK_GAP, MAX_TICKS = 36, 7  # points between two lengths; ticks of ratios
MAX_NAME = 24  # characters

Curves = dict[str, list[tuple[int, float]]]  # the lengths of each encoding, and its times as ratios


def draw_rows(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draw rows into the file `path`, whose suffix is the format; nothing where no row has a number."""
    curves = curves_of(rows)
    if curves:
        save_picture(lambda: draw(curves, rows[0].encoding, title), path)


def curves_of(rows: Sequence[Row]) -> Curves:
    """Return a curve for each encoding, where it has a number, at rising lengths."""
    points = sorted((row.encoding, row.length, row.relative) for row in rows if row.relative is not None)
    grouped = groupby(points, key=lambda point: point[0])
    return {label: [(length, ratio) for _, length, ratio in group] for label, group in grouped}


def draw(curves: Curves, reference: str, title: str) -> Figure:
    top, height = lines_height(title, FONT) + 0.15, max(PANEL_HEIGHT, NAME_GAP / 72 * len(curves))
    figure = new_figure(WIDTH, top + height + 0.55)
    place_text(figure, LEFT, 0.0, title)
    axes = place_axes(figure, LEFT, top, PANEL_WIDTH, height)
    points = [point for curve in curves.values() for point in curve]
    lengths = sorted({length for length, _ in points}, reverse=True)
    x, y = scale_of_lengths(lengths), scale_of_ratios([ratio for _, ratio in points])
    set_lengths(axes, x, lengths, 72 * PANEL_WIDTH, TICK_GAP)
    set_values(axes, y, MAX_TICKS)
    axes.set_xlabel("length (tokens)")
    axes.set_ylabel(f"time, relative to {reference}, log scale")
    axes.grid(axis="y", color=RULE)
    axes.axhline(1.0, color=GREY, linewidth=0.9, linestyle=DASHES, zorder=1)
    styles, short = styles_of(curves), fitting([*curves], MAX_NAME)
    for label, curve in curves.items():
        style = styles[label]
        look: dict[str, Any] = {"color": style.colour, "marker": style.marker, "linestyle": style.stroke}
        axes.plot(*zip(*curve, strict=True), linewidth=1.4, markersize=4, **look)
    names = [
        (label, f"{short[label]} {curve[-1][1]:.3g}", styles[label].colour) for label, curve in curves.items()
    ]
    ends = [(x.share(curve[-1][0]), y.share(curve[-1][1])) for curve in curves.values()]
    name_ends(axes, names, ends, 72 * height, 72 * PANEL_WIDTH)
    return figure
