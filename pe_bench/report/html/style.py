"""How a line looks: the same in every table and picture of a page, and never by its colour alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from pe_bench.report.html.element import Html, element
from pe_bench.report.tables.build import Table

COLOURS = 7  # style.css has them
STROKES = 3
# Paths around (0, 0), 8 units wide: circle, square, triangles, diamond, plus and cross.
MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.5-3.5h7v7h-7z",
    "M0-4.5L4.3 3.5H-4.3z",
    "M0-4.8L4.8 0L0 4.8L-4.8 0z",
    "M0 4.5L4.3-3.5H-4.3z",
    "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "M-4.2-2.1L-2.1-4.2L0-2.1L2.1-4.2L4.2-2.1L2.1 0L4.2 2.1L2.1 4.2L0 2.1L-2.1 4.2L-4.2 2.1L-2.1 0z",
    "M-4.5 0L3.5-4.3V4.3z",
    "M4.5 0L-3.5-4.3V4.3z",
)


@dataclass(frozen=True)
class Look:
    """The classes of colour and stroke, and the path of the marker."""

    classes: str
    marker: str


def looks_of(tables: Sequence[Table]) -> dict[str, Look]:
    """The look of each label, in the order of the labels."""
    labels = sorted({line.label for table in tables for line in table.lines})
    return {
        label: Look(f"colour{i % COLOURS} stroke{i // COLOURS % STROKES}", MARKERS[i % len(MARKERS)])
        for i, label in enumerate(labels)
    }


def swatch(look: Look) -> Html:
    """A piece of the line with its marker, to stand before its name."""
    return element(
        "svg",
        element("path", class_="curve", d="M0 6H26"),
        element("path", class_="marker", d=look.marker, transform="translate(13 6)"),
        class_=f"swatch {look.classes}",
        viewBox="0 0 26 12",
        aria_hidden="true",
    )
