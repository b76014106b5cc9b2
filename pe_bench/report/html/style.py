"""How a line is drawn on the page: as in the pictures, by classes and the path of a marker."""

from collections.abc import Mapping
from dataclasses import dataclass

from pe_bench.plot.style import Style
from pe_bench.report.charts.draw import class_of

# Paths around (0, 0), 8 units wide, by the names that matplotlib has for them.
MARKER_PATHS = {
    "o": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "s": "M-3.5-3.5h7v7h-7z",
    "^": "M0-4.5L4.3 3.5H-4.3z",
    "D": "M0-4.8L4.8 0L0 4.8L-4.8 0z",
    "v": "M0 4.5L4.3-3.5H-4.3z",
    "P": "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "<": "M-4.5 0L3.5-4.3V4.3z",
    ">": "M4.5 0L-3.5-4.3V4.3z",
}


@dataclass(frozen=True)
class LineStyle:
    """The classes of colour and stroke, which style.css has, and the path of the marker."""

    classes: str
    marker: str


ANCHOR = LineStyle("anchor", "")  # a thin grey stroke without markers


def line_styles(styles: Mapping[str, Style]) -> dict[str, LineStyle]:
    """Return how each label's line is drawn on the page."""
    return {
        label: LineStyle(
            class_of(style),
            MARKER_PATHS[style.marker],
        )
        for label, style in styles.items()
    }
