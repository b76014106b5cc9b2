"""Colours, sizes and settings of all pictures; writing a picture to a file or into a page."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, TypeVar
from xml.etree import ElementTree
from zlib import crc32

from pe_bench.errors import UserError
from pe_bench.system.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind people can tell apart, without yellow, which white swallows.
COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#0072B2", "#CC79A7", "#000000", "#D55E00")
MARKERS = ("P", "<", "o", ">", "s", "D", "v", "^")  # a cross marks break points
STROKES = ("-", "--", ":")
COMMON_LABELS = ("rope", "alibi", "sinusoidal", "t5", "nope", "kerple_log", "learned")  # compared most often
COLOUR_SALT = 178926  # chosen by trial, so that COMMON_LABELS get different colours
DASH_PATTERN = (0, (4, 3))
GREY = "0.35"  # the colour of text and of marks that are no data
RULE = "#e5e5e5"  # the colour of the grid
MARGIN_BAND = "0.94"  # the colour of the band of changes within the margin

WIDTH = 9.0  # inches, of the page
LEFT = 0.75  # inches, left of the panels
FONT = 11  # points
NOTE_FONT = 9.5  # points
MAX_NOTE_LINE = 80  # characters of a note
# Without these dates, writing a picture twice gives the same bytes.
UNDATED = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
# Text stays text: in an SVG as elements that can be searched and edited, in a PDF as embedded TrueType.
SETTINGS: dict[Any, Any] = {
    "font.size": FONT,
    "text.parse_math": False,  # a name may be a stranger's: its dollar signs are no formula
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}
DOTS_PER_INCH = 150  # the resolution of a PNG; for print there are PDF and SVG
# The page's variables for colours, which differ in its light and its dark theme.
THEME_VARIABLES = {colour.lower(): f"var(--colour{number})" for number, colour in enumerate(COLOURS)}
THEME_VARIABLES |= {
    "#000000": "currentColor",
    "#ffffff": "var(--paper)",
    "#595959": "var(--soft)",
    "#f0f0f0": "var(--raised)",  # MARGIN_BAND, as SVG has it
    RULE: "var(--rule)",
}

Attributes = Mapping[str, str]
Choice = TypeVar("Choice")


# Lines


@dataclass(frozen=True)
class Style:
    """The colour, marker and stroke of a line."""

    colour: str
    marker: str
    stroke: str


def styles_of(labels: Iterable[str]) -> dict[str, Style]:
    """Return a different style for each label, with a colour and a marker that follow from its name.

    If there are enough colours, labels with the same colour get the next free colour in alphabetical order;
    the labels in COMMON_LABELS come first and keep their colours. A colour that is used again gets another
    stroke and marker.
    """
    styles: dict[str, Style] = {}
    alphabetical = sorted(set(labels))
    ordered = sorted(alphabetical, key=lambda label: label not in COMMON_LABELS)
    for label in ordered:
        number = crc32(f"{COLOUR_SALT}{label}".encode())
        colours = [style.colour for style in styles.values()]
        taken = colours if len(ordered) <= len(COLOURS) else []
        colour = _least_used(COLOURS, taken, number % len(COLOURS))
        stroke = STROKES[colours.count(colour) % len(STROKES)]
        same_colour = [style for style in styles.values() if style.colour == colour]
        # Markers of the same colour and stroke count more than markers of the same colour.
        same_stroke = [style for style in same_colour if style.stroke == stroke]
        used = [style.marker for style in same_stroke] * len(ordered)
        used += [style.marker for style in same_colour]
        marker_number = number // len(COLOURS)
        marker = _least_used(MARKERS, used, marker_number % len(MARKERS))
        styles[label] = Style(colour, marker, stroke)
    return styles


def _least_used(choices: Sequence[Choice], used: Sequence[Choice], first: int) -> Choice:
    """Return the choice that occurs least often in `used`; of several, the first from index `first` on."""
    rotated = [*choices[first:], *choices[:first]]
    return min(rotated, key=used.count)


def shortened(label: str, characters: int) -> str:
    """Return a label of at most this number of characters, with `...` for its middle."""
    if len(label) <= characters:
        return label
    end = characters // 3
    beginning = label[: characters - end - 3]
    return f"{beginning}...{label[-end:]}"


def wrapped(sentences: Iterable[str], width: int = MAX_NOTE_LINE) -> str:
    """Return the sentences in lines of at most `width` characters."""
    return fill(" ".join(sentences), width, break_long_words=False)


# Files and pages


def picture_format(path: Path) -> str:
    """Return the format of a picture by its suffix. Raises `UserError` for an unknown suffix."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in UNDATED:
        raise UserError(f"cannot draw {path}: the name must end with .png, .svg or .pdf")
    return kind


def save_picture(draw: Callable[[], Figure], path: Path) -> None:
    """Call `draw` under the settings of all pictures, and write its figure to `path`.

    Raises `UserError` for another suffix than .png, .svg or .pdf.
    """
    kind = picture_format(path)
    with _drawing_settings("pe-bench"):
        figure = draw()
        options: dict[str, Any] = {"dpi": DOTS_PER_INCH, "bbox_inches": "tight", "metadata": UNDATED[kind]}
        write_atomically(path, lambda temporary: figure.savefig(temporary, format=kind, **options))


def inline_svg(draw: Callable[[], Figure], picture_id: str, parts: Mapping[str, Sequence[Attributes]]) -> str:
    """Return the figure that `draw` returns as an SVG element, for a page without inline styles.

    picture_id: a name that differs from other pictures on the page. parts: for the group of each artist, by
    its gid, the attributes of the group, and then of the marks in it.
    """
    text = io.BytesIO()
    with _drawing_settings(picture_id):
        draw().savefig(text, format="svg", metadata={**UNDATED["svg"], "Creator": None})
    root = ElementTree.fromstring(re.sub(r"\s*\n\s*", " ", text.getvalue().decode()))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for name in list(element.attrib):
            value = element.attrib.pop(name)
            rounded = re.sub(r"(\d\.\d\d)\d+", r"\1", value)
            element.set(name.rpartition("}")[2], rounded)
        for declaration in filter(None, element.attrib.pop("style", "").split(";")):
            name, value = (word.strip() for word in declaration.split(":", 1))
            if name != "font-family":  # the page has its own
                element.set(name, THEME_VARIABLES.get(value, value))
    marks = {gid: iter(attributes[1:]) for gid, attributes in parts.items()}
    for group in root.iter("g"):
        gid = group.get("id", "")
        if gid in parts:
            _describe_group(group, parts[gid][0], marks[gid])
    used = set(re.findall(r"#(\w+)", ElementTree.tostring(root, "unicode")))
    for element in root.iter():
        if element.get("id") not in used:
            element.attrib.pop("id", None)
    for element in root.findall("metadata") + root.findall("defs"):
        if element.find("style") is not None or element.tag == "metadata":
            root.remove(element)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    return ElementTree.tostring(root, "unicode")


def _describe_group(group: ElementTree.Element, attributes: Attributes, marks: Iterator[Attributes]) -> None:
    """Set the attributes of a group and of its marks; the attribute `title` becomes a child element."""
    _set_attributes(group, attributes)
    for mark in list(group.iter("use")):
        _set_attributes(mark, next(marks, {}))


def _set_attributes(element: ElementTree.Element, attributes: Attributes) -> None:
    """Set the attributes of an element; the attribute `title` becomes a child element."""
    values = dict(attributes)
    title = values.pop("title", None)
    element.attrib.update(values)
    if title:
        ElementTree.SubElement(element, "title").text = title


@contextmanager
def _drawing_settings(salt: str) -> Iterator[None]:
    """Set matplotlib's settings for all pictures while the context is open; `salt` decides ids in an SVG."""
    import matplotlib

    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": salt}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the picture shows an empty box
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this width and height, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def place_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add a panel at a distance from the left and the top of the page; all in inches."""
    page_width, page_height = figure.get_size_inches()
    lower = page_height - top - height
    corner = (left / page_width, lower / page_height)
    axes = figure.add_axes((*corner, width / page_width, height / page_height))
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def place_text(figure: Figure, left: float, top: float, text: str, **style: Any) -> None:
    """Write a text at a distance from the left and the top of the page, in inches."""
    page_width, page_height = figure.get_size_inches()
    style = {"ha": "left", "va": "top", **style}
    x = left / page_width
    y = 1 - top / page_height
    figure.text(x, y, text, **style)


def lines_height(text: str, size: float) -> float:
    """Return the height in inches of a text in letters of `size` points."""
    lines = text.count("\n") + 1 if text else 0
    return lines * 1.25 * size / 72


def mark_length(axes: Axes, length: float, text: str = "", width: float = 1.0, offset: float = 8) -> None:
    """Draw a dashed line at a length, with a text above it.

    width: of the line. offset: of the text above the axes. Both are in points.
    """
    axes.axvline(
        length, color=GREY, linewidth=width, linestyle=DASH_PATTERN, zorder=0.5, gid="training length"
    )
    bottom, _ = axes.get_ylim()
    pixels = axes.transData.transform((length, bottom))
    share, _ = axes.transAxes.inverted().transform(pixels)
    if text:
        axes.annotate(
            text,
            (length, 1),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, offset),
            textcoords="offset points",
            ha="center" if share > 0.1 else "left",
            color=GREY,
            fontsize=FONT if offset > 5 else NOTE_FONT,
        )
