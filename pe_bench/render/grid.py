"""A table for people: built once as a grid, and drawn for a terminal, Markdown, LaTeX and a page.

The page's template draws the same grid, in `report/templates/table.html.jinja`.
"""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from rich.box import Box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pe_bench.system import terminal as outside_text
from pe_bench.system.terminal import width_of, wrap, write_out

COLUMN_GAP = 2  # blanks between columns
RULED_BOX = Box("    \n    \n -- \n" + 5 * "    \n", ascii=True)  # a rule below the headings
MISSING = "-"
Fact = str | int | float | None  # a value in a plain table
MIN_FOLDED = 10  # terminal columns: the least width of a text that may be folded
MAX_UNCUT_WORD = 24  # terminal columns: a word up to this width is not cut
ASCII_SIGNS = {
    "·": "-",
    "…": "~",
    "≤": "<=",
    "±": "+-",
}  # replacements for a stream that takes only ASCII
# LaTeX for signs in numbers.
LATEX_SIGNS = {
    "±": r"\pm",
    "inf": r"\infty",
    "∞": r"\infty",
    "nan": r"\mathrm{nan}",
    ",": "{,}",
}


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str = ""
    mark: str = ""  # a sign after the text
    verdict: str = ""  # one word for the number, such as holds
    is_best: bool = False  # the best number of its column
    value: float | None = None  # the number, for alignment, sorting and files
    colour: str = ""  # the colour on a terminal


@dataclass(frozen=True)
class Column:
    """A column of a grid."""

    heading: str  # only terminals keep its line breaks
    is_left: bool = False  # aligned to the left
    least: int = 0  # terminal columns: the least width of folded text; 0: text is not folded


@dataclass(frozen=True)
class Grid:
    """A table with columns, rows, a title and notes."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: Sequence[str] = ()  # the parts of the title
    why: str = ""  # the reason for a second table
    notes: Sequence[str] = ()  # whole lines
    # The number of first columns that name a row. Rows with the same first column are a group. A grid too
    # wide for a terminal is cut into blocks that each begin with these columns; without them, a grid is cut
    # only if it is too wide even with cut words, and its blocks begin with the first column.
    keys: int = 0

    def without_empty(self) -> "Grid":
        """Return the grid without empty columns."""
        filled_columns: set[int] = set()
        for row in self.rows:
            filled_columns.update(index for index, cell in enumerate(row) if cell.text)
        return self.with_columns(sorted(filled_columns))

    def with_columns(self, indexes: Sequence[int]) -> "Grid":
        """Return the grid with only the columns of these indexes, in this order."""

        def chosen_items(items: Sequence[Any]) -> list[Any]:
            return [items[index] for index in indexes]

        rows = [*map(chosen_items, self.rows)]
        return replace(self, columns=chosen_items(self.columns), rows=rows)

    def width(self, *, folded: bool = False) -> int:
        """Return the grid's width in terminal columns. folded: with texts folded to their least width."""
        widths = []
        for column, texts in zip(self.columns, _column_lines(self), strict=True):
            width = max(map(cell_len, texts))
            least = _least_width(column, texts) if folded else 0
            widths.append(min(width, least or width))
        return sum(widths) + COLUMN_GAP * (len(widths) - 1)

    def draw(self, width: int) -> list[RenderableType]:
        """Return the title, blocks of columns and notes, to print on a terminal of `width` columns.

        A block is wider than the terminal only if its texts may not be folded further.
        """
        drawn_parts: list[RenderableType] = [Text(line, "bold") for line in join_parts(self.title, width)]
        drawn_parts += _wrapped_lines(self.why, width, "italic")
        is_split = self.keys or _width_with_cut_words(self) > width
        for block in _blocks_that_fit(self, width) if is_split else [self]:
            keeps_words = block.width(folded=True) <= width
            if drawn_parts:
                drawn_parts.append(Text())
            drawn_parts.append(_rich_table(block, keeps_words=keeps_words))
        if any(self.notes):
            drawn_parts.append(Text())
        for note in self.notes:
            drawn_parts += _wrapped_lines(note, width, "dim")
        return drawn_parts


def plain_grid(
    headings: Sequence[str], rows: Iterable[Sequence[Cell | Fact]], notes: Sequence[str] = ()
) -> Grid:
    """Return a table of names and facts; no name in the first column is folded."""
    cells = [list(map(_plain_cell, row)) for row in rows]
    columns = [Column(headings[0], is_left=True)]
    for index, heading in enumerate(headings[1:], 1):
        texts = [row[index].text.replace(",", "") for row in cells]
        is_left = not any(map(str.isdecimal, texts))
        columns.append(Column(heading, is_left, MIN_FOLDED if is_left else 0))
    return Grid(columns, cells, notes=notes)


def _plain_cell(value: Cell | Fact) -> Cell:
    """Return a value as a cell: text on one line, whole numbers with commas, others with three decimals."""
    if value is None or isinstance(value, Cell):
        return value or Cell()
    if isinstance(value, str):
        return Cell(outside_text.one_line(value))
    if isinstance(value, int):
        return Cell(f"{value:,}")
    return Cell(f"{value:.3f}")


# A terminal


def show(
    tables: Iterable[Callable[[int], Iterable[RenderableType]]],
    console: Console | None = None,
    hint: str = "",
) -> None:
    """Print tables with a blank line between them.

    tables: functions from a width to the parts of a table, such as `Grid.draw`. console: where to print; by
    default standard output, in characters of its encoding. A pipe gets `PIPED_WIDTH` columns, and no blanks
    at ends of lines. hint: a sentence to print below the tables, such as the command that shows more.
    """
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = width_of(console.file)
    parts: list[RenderableType] = []
    for table in tables:
        if parts:
            parts.append(Text())
        parts += table(console.width)
    parts += _wrapped_lines(hint, console.width, "dim")
    with console.capture() as captured:
        console.print(Group(*parts), highlight=False, soft_wrap=True)
    text = captured.get()
    if not console.is_terminal:
        lines = [line.rstrip() for line in text.splitlines()]
        text = "".join(f"{line}\n" for line in lines)
    try:
        text.encode(console.encoding)
    except UnicodeEncodeError:
        text = text.translate(str.maketrans(ASCII_SIGNS))
    write_out(text, console.file)


def printed_text(print_on: Callable[[Console], object]) -> str:
    """Return the text that `print_on` prints on the console that it is given, without colours."""
    text = io.StringIO()
    print_on(Console(file=text, color_system=None, force_terminal=False, force_jupyter=False))
    return text.getvalue()


def _wrapped_lines(text: str, width: int, style: str) -> list[Text]:
    """Return a sentence in lines of this width; no line for an empty text."""
    if not text:
        return []
    return [Text(line, style) for line in wrap(text, width).split("\n")]


def join_parts(parts: Sequence[str], width: int) -> list[str]:
    """Join the parts with ` · ` into few lines; a part is broken only if it is wider than a line."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]} · {part}" if lines else ""
        if lines and cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines += wrap(part, width).split("\n")
    return lines


def _blocks_that_fit(grid: Grid, width: int) -> list[Grid]:
    """Cut a grid into as few grids as fit the width; each begins with the columns that name a row."""
    keys = list(range(grid.keys or 1))
    blocks = [keys]
    for index in range(len(keys), len(grid.columns)):
        longer = grid.with_columns([*blocks[-1], index])
        is_too_wide = longer.width(folded=True) > width
        if is_too_wide and blocks[-1] != keys:
            blocks.append(keys)
        blocks[-1] = [*blocks[-1], index]
    return [grid.with_columns(block) for block in blocks]


def _width_with_cut_words(grid: Grid) -> int:
    """Return the least width of a grid in terminal columns, with words cut where texts may be folded."""
    widths = []
    for column, texts in zip(grid.columns, _column_lines(grid), strict=True):
        width = max(map(cell_len, texts))
        widths.append(min(width, column.least or width))
    return sum(widths) + COLUMN_GAP * (len(widths) - 1)


def _column_lines(grid: Grid) -> list[list[str]]:
    """Return the lines of text of each column: its heading, then its cells with their marks.

    A number without a mark has blanks in place of the mark.

    Lines aligned to the right are padded here, because rich strips blanks from ends of texts.
    """
    columns = []
    for index, column in enumerate(grid.columns):
        cells = [row[index] for row in grid.rows]
        width_of_marks = max((len(cell.mark) for cell in cells), default=0)
        lines = column.heading.split("\n")
        for cell in cells:
            mark = cell.mark if cell.value is None else cell.mark.ljust(width_of_marks)
            lines.append(cell.text + mark)
        width = 0 if column.is_left else max(map(cell_len, lines))
        columns.append([_right_aligned(line, width) for line in lines])
    return columns


def _right_aligned(line: str, width: int) -> str:
    return " " * (width - cell_len(line)) + line


def _least_width(column: Column, texts: Sequence[str]) -> int:
    """Return the least width of folded texts in terminal columns; 0: texts are not folded."""
    if not column.least:
        return 0
    words = " ".join(texts).split()
    widths = [width for width in map(cell_len, words) if width <= MAX_UNCUT_WORD]
    return max([column.least, *widths])


def _rich_table(grid: Grid, *, keeps_words: bool) -> Table:
    """Return the grid as a table of rich; of neighbouring rows with the same name, only the first shows it.

    keeps_words: fold texts only between words, unless a word is too long.
    """
    box = RULED_BOX if grid.title else None
    padding = COLUMN_GAP - 1 if grid.title else COLUMN_GAP  # a box has blanks between columns
    table = Table(box=box, show_edge=False, pad_edge=False, padding=(0, 0, 0, padding))
    columns = []
    for column, texts in zip(grid.columns, _column_lines(grid), strict=True):
        height = column.heading.count("\n") + 1
        least = 0
        if column.is_left:
            least = _least_width(column, texts) if keeps_words else column.least
        widest = max(map(cell_len, texts))
        sizes = {"min_width": min(least, widest), "no_wrap": not least}
        heading = "\n".join(texts[:height])
        table.add_column(Text(heading), overflow="fold", **sizes)
        columns.append(texts[height:])
    name = ""
    rows = zip(*columns, strict=True)
    for cells, (first, *texts) in zip(grid.rows, rows, strict=True):
        shown = "" if grid.keys and first == name else first
        colours = [cell.colour for cell in cells]
        table.add_row(*map(Text, [shown, *texts], colours))
        name = first
    return table


# Documents


def to_markdown(grids: Iterable[Grid]) -> str:
    """Return grids as tables of GitHub's Markdown, each with its title and notes."""
    parts = chain.from_iterable(map(_markdown_parts, grids))
    return "\n\n".join(filter(None, parts)) + "\n"


def _markdown_parts(grid: Grid) -> list[str]:
    def markdown_row(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def shown(cell: Cell) -> str:
        text = outside_text.markdown(cell.text + cell.mark)
        return f"**{text}**" if cell.is_best else text

    title = outside_text.markdown(" · ".join(grid.title))
    headings = map(outside_text.markdown, _one_line_headings(grid))
    sides = ["---" if column.is_left else "---:" for column in grid.columns]
    table = [markdown_row(headings), markdown_row(sides)]
    table += [markdown_row(map(shown, cells)) for cells in grid.rows]
    notes = [f"- {_markdown_note(note)}" for note in grid.notes]
    bold_title = f"**{title}**" if title else ""
    return [bold_title, outside_text.markdown(grid.why), "\n".join(table), "\n".join(notes)]


def _one_line_headings(grid: Grid) -> list[str]:
    return [column.heading.replace("\n", " ") for column in grid.columns]


def _markdown_note(note: str) -> str:
    """Return a note in Markdown; a command at its end becomes code, without escapes."""
    before, begin, command = note.partition(": pe-bench ")
    if not begin or "`" in command:
        return outside_text.markdown(note)
    return f"{outside_text.markdown(before)}: `pe-bench {command}`"


def to_latex(grids: Sequence[Grid]) -> str:
    r"""Return grids as tables for `\usepackage{booktabs,graphicx}`, each at most as wide as a column of text.

    Notes are comments before a table, and the first is in its caption. Labels are numbers: `tab:pe-bench-1`.
    """
    tables = [_latex_table(grid, number) for number, grid in enumerate(grids, 1)]
    return "\n\n".join(tables) + "\n"


def _latex_table(grid: Grid, number: int) -> str:
    """Return a grid as a LaTeX table with the label `tab:pe-bench-NUMBER`."""

    def latex_row(cells: Iterable[str]) -> str:
        return " & ".join(cells) + r" \\"

    notes = filter(None, (grid.why, *grid.notes))
    comments = [f"% {outside_text.one_line(note)}" for note in notes]
    title = ", ".join(grid.title)
    caption = outside_text.escape_latex(". ".join((title, *grid.notes[:1])))
    sides = "".join("l" if column.is_left else "r" for column in grid.columns)
    headings = map(outside_text.escape_latex, _one_line_headings(grid))
    lines = [
        *comments,
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}.}}",
        rf"\label{{tab:pe-bench-{number}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}{sides}@{{}}}}",
        r"\toprule",
        latex_row(headings),
        r"\midrule",
        *(latex_row(map(_latex_cell, cells)) for cells in grid.rows),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _latex_cell(cell: Cell) -> str:
    r"""Return a number in math mode, with a proper minus and bold digits by `\mathbf`; else escaped text."""
    is_number = cell.value is not None and " to " not in cell.text  # a range has a value for sorting
    if cell.text == MISSING and not is_number:
        return "--"
    if not is_number:
        return outside_text.escape_latex(cell.text + cell.mark)
    number = cell.text
    for sign, code in LATEX_SIGNS.items():
        number = number.replace(sign, code)
    number = rf"\mathbf{{{number}}}" if cell.is_best else number
    return f"${number}${outside_text.escape_latex(cell.mark)}"
