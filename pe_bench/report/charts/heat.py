"""The contents of heat maps: how often spans are found, by length and by depth; a map for each line.

The PNG and the page draw the same maps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pe_bench.report.probes import percent, title_of
from pe_bench.report.tables.probes import Found, ProbeLine, ProbeTable

LENGTHS, DEPTHS = "context length (tokens)", "depth of the span"


@dataclass(frozen=True)
class HeatCell:
    """A length and a depth, by their places on the axes.

    share: from the accuracy without the span, 0, to all answers being right, 1; None without a number.
    """

    column: int
    row: int
    share: float | None
    text: str
    meaning: str


@dataclass(frozen=True)
class HeatMap:
    """The cells of one line."""

    label: str
    cells: tuple[HeatCell, ...]


@dataclass(frozen=True)
class HeatChart:
    """The maps of a table; lengths go to the right and depths down, from the start of the window."""

    title: str
    lengths: tuple[str, ...]
    depths: tuple[str, ...]
    maps: tuple[HeatMap, ...]
    note: str


def heat_chart(table: ProbeTable) -> HeatChart:
    return HeatChart(
        f"{title_of(table)}\nspans that are found, by length and depth",
        tuple(f"{length:,}" for length in table.lengths),
        tuple(_depth(depth) for depth in table.depths),
        tuple(HeatMap(line.label, tuple(_cells(line, table))) for line in table.lines),
        f"Numbers: accuracy in percent; guessing: {100 * table.chance:.3g}. Colour: from the accuracy where "
        "the span is replaced (white) to all answers being right.",
    )


def _depth(depth: float) -> str:
    ends = {0.0: "start", 1.0: "end"}
    return ends.get(depth, f"{100 * depth:.3g} %")


def _cells(line: ProbeLine, table: ProbeTable) -> Sequence[HeatCell]:
    cells = []
    for (length, depth), found in line.by_depth.items():
        place = table.lengths.index(length), table.depths.index(depth)
        where = f"{line.label} at {length:,} tokens, depth {_depth(depth)}"
        if isinstance(found, Found):
            share, text = found.by_span, f"{100 * found.accuracy.mean:.0f}"
            meaning = (
                f"{where}\naccuracy {percent(found.accuracy.mean)}, without the span "
                f"{percent(found.without)}\ngain {found.gain.mean:+.3f} bits per byte\n{found.verdict}"
            )
        else:
            share, text, meaning = None, "-", f"{where}\n{found}"
        cells.append(HeatCell(*place, share, text, meaning))
    return cells
