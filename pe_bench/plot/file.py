"""The file that a picture is written to: PNG, SVG or PDF."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.errors import UserError
from pe_bench.plot.style import FONT
from pe_bench.system.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Without these dates, writing a picture twice gives the same bytes.
UNDATED = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
# The salt names the parts of an SVG, and would be random. Text stays text: in an SVG as elements that can be
# searched and edited, in a PDF as embedded TrueType.
SETTINGS: dict[Any, Any] = {
    "font.size": FONT,
    "text.parse_math": False,  # a name may be a stranger's: its dollar signs are no formula
    "svg.hashsalt": "pe-bench",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}
DOTS_PER_INCH = 300


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
    import matplotlib

    kind = picture_format(path)
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}")
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the picture shows an empty box
        figure = draw()
        write_atomically(
            path,
            lambda temporary: figure.savefig(
                temporary, format=kind, dpi=DOTS_PER_INCH, bbox_inches="tight", metadata=UNDATED[kind]
            ),
        )
