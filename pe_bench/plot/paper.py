"""Figures: where their parts lie, the file that one is written to, and the SVG that stands in a page."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from pe_bench.errors import UserError
from pe_bench.plot.style import COLOURS, DASHES, FONT, GREY, NOTE_FONT, RULE
from pe_bench.system.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Without these dates, writing a picture twice gives the same bytes.
UNDATED = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
# Text stays text: in an SVG as elements that can be searched and edited, in a PDF as embedded TrueType.
SETTINGS: dict[Any, Any] = {
    "font.size": FONT,
    "text.parse_math": False,  # a name may be a stranger's: its dollar signs are no formula
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}
DOTS_PER_INCH = 150  # of a PNG; for print there are PDF and SVG
NAME_GAP = 1.3 * FONT  # points between the middles of two names
# The page's own words for colours: it has a light and a dark theme.
THEMED = {colour.lower(): f"var(--colour{number})" for number, colour in enumerate(COLOURS)}
THEMED |= {
    "#000000": "currentColor",
    "#ffffff": "var(--paper)",
    "#595959": "var(--soft)",
    RULE: "var(--rule)",
}

Attributes = Mapping[str, str]


def picture_format(path: Path) -> str:
    """Return the format that a picture's suffix asks for. Raises `UserError` for an unknown one."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in UNDATED:
        raise UserError(f"cannot draw {path}: the name must end with .png, .svg or .pdf")
    return kind


def save_picture(draw: Callable[[], Figure], path: Path) -> None:
    """Call `draw` under the settings of all pictures, and write its figure to `path`.

    Raises `UserError` for another suffix than .png, .svg or .pdf and for a missing folder.
    """
    kind = picture_format(path)
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}")
    with _settings("pe-bench"):
        figure = draw()
        options: dict[str, Any] = {"dpi": DOTS_PER_INCH, "bbox_inches": "tight", "metadata": UNDATED[kind]}
        write_atomically(path, lambda temporary: figure.savefig(temporary, format=kind, **options))


def inline_svg(draw: Callable[[], Figure], key: str, parts: Mapping[str, Sequence[Attributes]]) -> str:
    """Return a figure as an SVG element for a page whose policy allows no inline styles.

    parts: attributes of the groups that an artist's gid names; where there are more than one, the others are
    those of the marks in them, one after the other. `key` tells the picture from others on the page.
    """
    text = io.BytesIO()
    with _settings(key):
        draw().savefig(text, format="svg", metadata={**UNDATED["svg"], "Creator": None})
    root = ElementTree.fromstring(re.sub(r"\s*\n\s*", " ", text.getvalue().decode()))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for name in list(element.attrib):
            value = element.attrib.pop(name)
            element.set(name.rpartition("}")[2], re.sub(r"(\d\.\d\d)\d+", r"\1", value))
        for declaration in filter(None, element.attrib.pop("style", "").split(";")):
            name, value = (word.strip() for word in declaration.split(":", 1))
            if name != "font-family":  # the page has its own
                element.set(name, THEMED.get(value, value))
    marks = {gid: iter(attributes[1:]) for gid, attributes in parts.items()}
    for group in root.iter("g"):
        gid = group.get("id", "")
        if gid in parts:
            _describe(group, parts[gid][0], marks[gid])
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


def _describe(group: ElementTree.Element, attributes: Attributes, marks: Iterator[Attributes]) -> None:
    """Give a group its attributes, its marks theirs, and each of them the `title` as an element."""
    for element, found in [(group, attributes), *((mark, None) for mark in group.iter("use"))]:
        values = dict(next(marks, {}) if found is None else found)
        title = values.pop("title", None)
        element.attrib.update(values)
        if title:
            ElementTree.SubElement(element, "title").text = title


@contextmanager
def _settings(salt: str) -> Iterator[None]:
    """Draw with the settings of all pictures; the salt names the parts of an SVG, and would be random."""
    import matplotlib

    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": salt}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the picture shows an empty box
        yield


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def place_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add a panel whose upper left corner lies so far from the page's; all in inches."""
    page_width, page_height = figure.get_size_inches()
    lower = page_height - top - height
    axes = figure.add_axes((left / page_width, lower / page_height, width / page_width, height / page_height))
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def place_text(figure: Figure, left: float, top: float, text: str, **style: Any) -> None:
    """Write a text so far from the page's upper left corner, in inches; by default it begins there."""
    page_width, page_height = figure.get_size_inches()
    style = {"ha": "left", "va": "top", **style}
    figure.text(left / page_width, 1 - top / page_height, text, **style)


def lines_height(text: str, size: float) -> float:
    """Return the height in inches of a text in letters of `size` points."""
    return (text.count("\n") + 1 if text else 0) * 1.25 * size / 72


def mark_length(axes: Axes, length: float, text: str = "", width: float = 1.0, offset: float = 8) -> None:
    """Draw a dashed line at a length, with a text above it."""
    axes.axvline(length, color=GREY, linewidth=width, linestyle=DASHES, zorder=0.5, gid="training length")
    share = axes.transAxes.inverted().transform(axes.transData.transform((length, axes.get_ylim()[0])))[0]
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


def name_ends(
    axes: Axes,
    names: Sequence[tuple[str, str, Any]],
    ends: Sequence[tuple[float, float]],
    height: float,
    width: float,
    beside: Sequence[float] | None = None,
    gap: float = NAME_GAP,
) -> None:
    """Write the names of curves beside where they end, as near as can be, with thin strokes between them.

    names: of each its label, its text and its colour. ends: where it ends, in shares of a panel of some width
    and height in points. beside: the share of the width at which its name begins; by default the panel's.
    """
    at = [1.0] * len(names) if beside is None else beside
    heights = height * np.array([end[1] for end in ends])
    # Names in the left half do not reach those beside the panel: the two do not push each other away.
    is_left = np.array([share < 0.5 for share in at], dtype=bool)
    for column in (is_left, ~is_left):
        if column.any():
            heights[column] = spread_apart(heights[column], gap, height)
    for (label, text, colour), end, share, place in zip(names, ends, at, heights, strict=True):
        stroke = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
        axes.annotate(
            text,
            end,
            xycoords="axes fraction",
            xytext=(share + FONT / width, place / height),
            textcoords="axes fraction",
            va="center",
            color=colour,
            annotation_clip=False,
            arrowprops={**stroke, "relpos": (0, 0.5)},
            bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1},
            gid=f"name of {label}",
        )


def spread_apart(wanted: np.ndarray, gap: float, height: float) -> np.ndarray:
    """Return places [n] from 0 to `height`, `gap` apart or more, in the order of `wanted` [n] and near it.

    Where n of them do not fit they go on beyond `height`.
    """
    from scipy.optimize import isotonic_regression  # imported here: it takes longer than a report

    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(wanted))
    nearest = np.clip(isotonic_regression(wanted[order] - steps).x, 0, max(0.0, height - steps[-1]))
    places = np.empty(len(wanted))
    places[order] = nearest + steps
    return places
