"""A table of a study as lines of text that fit a terminal."""

from collections.abc import Iterator, Sequence

GAP, NARROW_GAP = "  ", " "


def table_lines(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, keys: int, left: int = 1
) -> Iterator[str]:
    """Yield the lines of a table; where it is wider than `width`, those of several tables.

    keys: how many of the first columns name a row; each of the tables begins with these. left: how many of
    the first columns stand to the left; all others stand to the right.
    """
    table = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    gap = GAP if len(GAP.join(" " * each for each in widths)) <= width else NARROW_GAP
    for number, columns in enumerate(_blocks(widths, width, keys, gap)):
        if number:
            yield ""
        for row in table:
            cells = []
            for column in columns:
                is_left = column < left
                cells.append(f"{row[column]:{'<' if is_left else '>'}{widths[column]}}")
            yield gap.join(cells).rstrip()


def _blocks(widths: Sequence[int], width: int, keys: int, gap: str) -> list[list[int]]:
    """Return the columns of each table, by number."""
    names = list(range(keys))
    blocks = [names]
    for column in range(keys, len(widths)):
        longer = [*blocks[-1], column]
        taken = sum(widths[each] + len(gap) for each in longer) - len(gap)
        if taken > width and len(blocks[-1]) > keys:
            blocks.append([*names, column])
        else:
            blocks[-1] = longer
    return blocks
