"""A table of a study as lines of text that fit a terminal."""

from collections.abc import Iterator, Sequence

GAP, NARROW_GAP = "  ", " "


def table_lines(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, keys: int, left: int = 1
) -> Iterator[str]:
    """Yield the lines of a table; if it is wider than `width`, of several tables, one below the other.

    keys: the number of first columns that name a row; each of the tables begins with them. left: the number
    of first columns that are aligned to the left; all others are aligned to the right.
    """
    table = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    whole = sum(widths) + len(GAP) * (len(widths) - 1)
    gap = GAP if whole <= width else NARROW_GAP
    for number, columns in enumerate(_columns_of_tables(widths, width, keys, gap)):
        if number:
            yield ""
        for row in table:
            cells = []
            for column in columns:
                align = "<" if column < left else ">"
                cells.append(f"{row[column]:{align}{widths[column]}}")
            yield gap.join(cells).rstrip()


def _columns_of_tables(widths: Sequence[int], width: int, keys: int, gap: str) -> list[list[int]]:
    """Return, for each table, the numbers of the columns that fit `width`.

    widths: of all columns. keys: as in `table_lines`. gap: the text between columns.
    """
    names = list(range(keys))
    blocks = [names]
    for column in range(keys, len(widths)):
        block = blocks[-1]
        longer = [*block, column]
        taken = sum(widths[each] for each in longer) + len(gap) * len(block)
        if taken > width and len(block) > keys:
            blocks.append([*names, column])
        else:
            blocks[-1] = longer
    return blocks
