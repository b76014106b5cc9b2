"""Colours, strokes and sizes."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle, islice

# Okabe and Ito's colours, told apart by colour-blind people, without the yellow that white swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*", "d")
STROKES = ("-", "--", ":")
DASHES = (0, (4, 3))
GREY = "0.35"  # of words and marks beside the data
PALE = "0.83"  # of the other curves behind one

WIDTH = 9.0  # inches, of the page
LEFT = 0.75  # inches, left of the panels
FONT = 10  # points
NOTE_FONT = 8.5  # points


@dataclass(frozen=True)
class Style:
    colour: str
    marker: str
    stroke: str


def styles_of(labels: Iterable[str]) -> dict[str, Style]:
    """Each label's looks: the same wherever it is drawn in one picture."""
    ordered = sorted(set(labels))
    strokes = (stroke for stroke in STROKES for _ in COLOURS)
    looks = map(Style, cycle(COLOURS), cycle(MARKERS), cycle(strokes))
    return dict(zip(ordered, islice(looks, len(ordered)), strict=True))
