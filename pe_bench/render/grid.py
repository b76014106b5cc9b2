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

GAP = 2  # blanks between columns
RULED = Box("    \n    \n -- \n" + 5 * "    \n", ascii=True)  # a rule below the headings alone
MISSING = "-"
Fact = str | int | float | None  # of a plain table
MIN_FOLDED = 10  # columns of a terminal that a text which may be folded has at least
LONGEST_WHOLE = 24  # columns of a terminal: a word up to this width is not cut
ASCII = {"·": "-", "…": "~", "≤": "<=", "±": "+-"}  # where a stream cannot be written to in more


@dataclass(frozen=True)
class Cell:
    """What stands at one place of a table.

    mark: a sign after the text. verdict: the word that judges it. is_best: the best number of its column.
    value: its number, by which it lines up and is sorted, and which a file has in its place. colour: on a
    terminal.
    """

    text: str = ""
    mark: str = ""
    verdict: str = ""
    is_best: bool = False
    value: float | None = None
    colour: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a grid.

    heading: a line break in it holds on a terminal alone. is_left: its text stands to the left. least: to how
    many columns of a terminal its text may be folded; 0 for none. A word that is not too long stays whole.
    """

    heading: str
    is_left: bool = False
    least: int = 0


@dataclass(frozen=True)
class Grid:
    """A table with its title, in parts, and notes, in whole lines.

    why: why this is not the only table. keys: how many of the first columns name a row, where rows that share
    the first are a group; one too wide for a terminal is cut into blocks that each begin with these.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: Sequence[str] = ()
    why: str = ""
    notes: Sequence[str] = ()
    keys: int = 0

    def without_empty(self) -> "Grid":
        """Return the grid without columns in which no row has a text."""
        filled: set[int] = set()
        for row in self.rows:
            filled.update(index for index, cell in enumerate(row) if cell.text)
        return self.chosen(sorted(filled))

    def chosen(self, indexes: Sequence[int]) -> "Grid":
        """Return the grid with these of its columns."""

        def chosen_items(items: Sequence[Any]) -> list[Any]:
            return [items[index] for index in indexes]

        return replace(self, columns=chosen_items(self.columns), rows=[*map(chosen_items, self.rows)])

    def width(self, *, folded: bool = False) -> int:
        """Return how many columns of a terminal it takes, with its texts folded as far as they may be."""
        widths = []
        for column, texts in zip(self.columns, _texts(self), strict=True):
            width = max(map(cell_len, texts))
            least = _least_width(column, texts) if folded else 0
            widths.append(min(width, least or width))
        return sum(widths) + GAP * (len(widths) - 1)

    def draw(self, width: int) -> list[RenderableType]:
        """Return its parts for a terminal, at most so wide where its texts may be folded to that."""
        parts: list[RenderableType] = [Text(line, "bold") for line in join_parts(self.title, width)]
        parts += _wrapped(self.why, width, "italic")
        for block in _blocks(self, width) if self.keys else [self]:
            keeps_words = block.width(folded=True) <= width
            parts += [*([Text()] if parts else []), _table(block, keeps_words=keeps_words)]
        if any(self.notes):
            parts.append(Text())
        for note in self.notes:
            parts += _wrapped(note, width, "dim")
        return parts


def plain_grid(
    headings: Sequence[str], rows: Iterable[Sequence[Cell | Fact]], notes: Sequence[str] = ()
) -> Grid:
    """Return a table of names and facts that breaks no name of the first column."""
    cells = [list(map(_plain_cell, row)) for row in rows]
    columns = [Column(headings[0], is_left=True)]
    for index, heading in enumerate(headings[1:], 1):
        is_left = not any(row[index].text.replace(",", "").isdecimal() for row in cells)
        columns.append(Column(heading, is_left, MIN_FOLDED))
    return Grid(columns, cells, notes=notes)


def _plain_cell(value: Cell | Fact) -> Cell:
    if value is None or isinstance(value, Cell):
        return value or Cell()
    if isinstance(value, str):
        return Cell(outside_text.one_line(value))
    return Cell(f"{value:,}" if isinstance(value, int) else f"{value:.3f}")


# A terminal


def show(
    tables: Iterable[Callable[[int], Iterable[RenderableType]]],
    console: Console | None = None,
    hint: str = "",
) -> None:
    """Print what is drawn for a width, as by `Grid.draw`, with a blank line between and `hint` below.

    They go to standard output by default, in signs that it can take. A pipe gets `PIPED_WIDTH` columns, and
    no blanks at the ends of lines.
    """
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = width_of(console.file)
    parts: list[RenderableType] = []
    for table in tables:
        parts += [*([Text()] if parts else []), *table(console.width)]
    with console.capture() as captured:
        console.print(Group(*parts, *_wrapped(hint, console.width, "dim")), highlight=False, soft_wrap=True)
    text = captured.get()
    if not console.is_terminal:
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    try:
        text.encode(console.encoding)
    except UnicodeEncodeError:
        text = text.translate(str.maketrans(ASCII))
    write_out(text, console.file)


def text_of(print_on: Callable[[Console], object]) -> str:
    """Return what a function prints on a console, as plain text."""
    text = io.StringIO()
    print_on(Console(file=text, color_system=None, force_terminal=False, force_jupyter=False))
    return text.getvalue()


def _wrapped(text: str, width: int, style: str) -> list[Text]:
    """Return a sentence in lines of this width; none where it is empty."""
    return [Text(line, style) for line in wrap(text, width).split("\n") if text]


def join_parts(parts: Sequence[str], width: int) -> list[str]:
    """Return the parts on as few lines as hold them, none cut that has a line's room."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]} · {part}" if lines else ""
        if lines and cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines += wrap(part, width).split("\n")
    return lines


def _blocks(grid: Grid, width: int) -> list[Grid]:
    """Return as few grids as fit, which each begin with the columns that name a row."""
    keys = list(range(grid.keys))
    blocks = [keys]
    for index in range(grid.keys, len(grid.columns)):
        longer = grid.chosen([*blocks[-1], index])
        if blocks[-1] != keys and longer.width(folded=True) > width:
            blocks.append(keys)
        blocks[-1] = [*blocks[-1], index]
    return [grid.chosen(block) for block in blocks]


def _texts(grid: Grid) -> list[list[str]]:
    """Return the texts of each column below its heading, where numbers have their mark, or a blank for it.

    Those that stand to the right are filled with blanks here, for rich strips what ends with some.
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
        columns.append([" " * (width - cell_len(line)) + line for line in lines])
    return columns


def _least_width(column: Column, texts: Sequence[str]) -> int:
    """Return to how many columns of a terminal texts may be folded; 0 for none."""
    if not column.least:
        return 0
    words = [cell_len(word) for text in texts for word in text.split() if cell_len(word) <= LONGEST_WHOLE]
    return max([column.least, *words])


def _table(grid: Grid, *, keeps_words: bool) -> Table:
    """Return the grid for rich; of rows that share a name, the first has it.

    keeps_words: whether texts are folded between words alone, as far as these are not too long.
    """
    box, padding = (RULED, GAP - 1) if grid.title else (None, GAP)  # a box has blanks between columns
    table = Table(box=box, show_edge=False, pad_edge=False, padding=(0, 0, 0, padding))
    columns = []
    for column, texts in zip(grid.columns, _texts(grid), strict=True):
        height = column.heading.count("\n") + 1
        least = 0
        if column.is_left:
            least = _least_width(column, texts) if keeps_words else column.least
        sizes = {"min_width": min(least, max(map(cell_len, texts))), "no_wrap": not least}
        table.add_column(Text("\n".join(texts[:height])), overflow="fold", **sizes)
        columns.append(texts[height:])
    name = ""
    for cells, (first, *texts) in zip(grid.rows, zip(*columns, strict=True), strict=True):
        shown = "" if grid.keys and first == name else first
        table.add_row(*map(Text, [shown, *texts], [cell.colour for cell in cells]))
        name = first
    return table


# Documents


def to_markdown(grids: Iterable[Grid]) -> str:
    """Return grids as tables of GitHub's Markdown, one below the other, each with its title and notes."""
    parts = chain.from_iterable(map(_markdown_parts, grids))
    return "\n\n".join(filter(None, parts)) + "\n"


def _markdown_parts(grid: Grid) -> list[str]:
    def row(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def shown(cell: Cell) -> str:
        text = outside_text.markdown(cell.text + cell.mark)
        return f"**{text}**" if cell.is_best else text

    title = outside_text.markdown(" · ".join(grid.title))
    headings = [outside_text.markdown(column.heading.replace("\n", " ")) for column in grid.columns]
    sides = ["---" if column.is_left else "---:" for column in grid.columns]
    table = [row(headings), row(sides), *(row(map(shown, cells)) for cells in grid.rows)]
    notes = "\n".join(f"- {_markdown_note(note)}" for note in grid.notes)
    return [f"**{title}**" if title else "", outside_text.markdown(grid.why), "\n".join(table), notes]


def _markdown_note(note: str) -> str:
    """Return a note in Markdown; a command at its end stays as it is to be typed."""
    before, begin, command = note.partition(": pe-bench ")
    if not begin or "`" in command:
        return outside_text.markdown(note)
    return f"{outside_text.markdown(before)}: `pe-bench {command}`"


def to_latex(grids: Sequence[Grid]) -> str:
    r"""Return grids as tables for `\usepackage{booktabs,graphicx}`, each at most as wide as a column of text.

    Notes are comments before a table, and the first is in its caption. Labels are numbers: `tab:pe-bench-1`.
    """
    return "\n\n".join(_latex_table(grid, number) for number, grid in enumerate(grids, 1)) + "\n"


def _latex_table(grid: Grid, number: int) -> str:
    def row(cells: Iterable[str]) -> str:
        return " & ".join(cells) + r" \\"

    comments = [f"% {outside_text.one_line(note)}" for note in (grid.why, *grid.notes) if note]
    caption = outside_text.latex(". ".join((", ".join(grid.title), *grid.notes[:1])))
    sides = "".join("l" if column.is_left else "r" for column in grid.columns)
    headings = [outside_text.latex(column.heading.replace("\n", " ")) for column in grid.columns]
    lines = [
        *comments,
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}.}}",
        rf"\label{{tab:pe-bench-{number}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}{sides}@{{}}}}",
        r"\toprule",
        row(headings),
        r"\midrule",
        *(row(map(_latex_cell, cells)) for cells in grid.rows),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _latex_cell(cell: Cell) -> str:
    r"""Return a number in math, where a minus is one; `\mathbf` is what makes digits bold there."""
    is_number = cell.value is not None and " to " not in cell.text  # which has a value, to be sorted by
    if not is_number:
        return "--" if cell.text == MISSING else outside_text.latex(cell.text + cell.mark)
    number = cell.text
    for sign, code in (
        ("±", r"\pm"),
        ("inf", r"\infty"),
        ("∞", r"\infty"),
        ("nan", r"\mathrm{nan}"),
        (",", "{,}"),
    ):
        number = number.replace(sign, code)
    number = rf"\mathbf{{{number}}}" if cell.is_best else number
    return f"${number}${outside_text.latex(cell.mark)}"
