"""How wide text is in LaTeX, estimated from the metrics of Computer Modern: no TeX is needed to fit a table.

Signs that are not listed count as the widest of those that are, and bold as a sixth wider, which is what its
digits are; `tests/report/test_markup.py` compares the numbers with the font's own.
"""

from dataclasses import dataclass

TEXT_WIDTH = 345.0  # points: a column of the class article
WIDTHS = {  # of a sign in cmr10, in ten-thousandths of its size
    **dict.fromkeys("il.,:;!'[]", 2800),
    **dict.fromkeys("-fj ", 3350),
    **dict.fromkeys("()crstez", 4450),
    **dict.fromkeys("0123456789ago/*", 5050),
    **dict.fromkeys("bdhknpquvxyI", 5560),
    **dict.fromkeys("wJFLPSZ", 7250),
    **dict.fromkeys("=+<>ABCDEGHKNOQRTUVXY", 7850),
    **dict.fromkeys("±m_", 8350),
}
WIDEST = 10_500
BOLD = 7 / 6


@dataclass(frozen=True)
class Type:
    """A size of type, and the space to each side of a column, in points. scale: small sizes run wider."""

    command: str
    size: float
    scale: float
    column_space: float

    def width(self, text: str) -> float:
        return sum(WIDTHS.get(sign, WIDEST) for sign in text) / 10_000 * self.size * self.scale


TYPES = (
    Type(r"\normalsize", 10, 1.0, 6),
    Type(r"\small", 9, 1.028, 4),
    Type(r"\footnotesize", 8, 1.0625, 3),
)
