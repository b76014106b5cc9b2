"""The text of a table's cells, the same for the terminal, Markdown, LaTeX and the page."""

from pe_bench.report.tables.break_point import BreakPoint
from pe_bench.report.tables.cells import Cell
from pe_bench.report.tables.lines import Line
from pe_bench.report.tables.ranking import memory_at
from pe_bench.report.tables.table import Table

MAX_PLAIN = 1e6  # bits per byte


def of_model(line: Line, text: str) -> str:
    """Return the text of a trained model's fact; nothing for an anchor, which has none."""
    return "" if line.is_anchor else text


def number_text(value: float, sign: str = "") -> str:
    """Return bits per byte with three decimals, as a power of ten where that would be no number to read."""
    return f"{value:{sign}.3f}" if not abs(value) >= MAX_PLAIN else f"{value:{sign}.2e}"


def level_text(line: Line, cell: Cell) -> str:
    """Return the level, and the number of seeds where it is not all of the encoding's."""
    seeds = len(cell.levels)
    level = "" if cell.level is None else number_text(cell.level)
    return level + (f" (n={seeds})" if seeds != line.seeds else "")


def answers_texts(cell: Cell) -> list[str]:
    """Return the interval of a task's right examples, and the share of right answers; none for text."""
    if cell.answers is None:
        return []
    interval = cell.answers.intervals.exact
    return [number_text(number) for number in (interval.low, interval.high, cell.answers.accuracy)]


def change_text(change: float | None) -> str:
    return "" if change is None else number_text(change, "+")


def verdict_of(cell: Cell, table: Table) -> str:
    """Return the verdict, empty below the training length, where less context costs by nature."""
    return cell.verdict if cell.length >= table.key.train_length else ""


def memory_text(line: Line, length: int) -> str:
    memory = memory_at(line, length)
    return "" if memory is None else f"{memory:,.0f}"


def pairs_text(line: Line, cell: Cell) -> str:
    """Return the number of seeds that are compared with the baseline, where it is not all of the line's."""
    interval = cell.baseline.interval if cell.baseline is not None else None
    return f" (n={interval.seeds})" if interval is not None and interval.seeds != line.seeds else ""


def break_text(found: BreakPoint) -> str:
    texts = {
        "at": f"{found.length}",
        "by": f"≤ {found.length}",
        "unclear": f"none; unclear from {found.length}",
        "none": f"none up to {found.length}",
        "unknown": "unknown",
    }
    return texts[found.kind]


def context_answers(line: Line, question: str) -> list[tuple[int, str]]:
    """Return the lengths with controls, and there the answers to `uses_context` or `beats_window`."""
    return [
        (length, getattr(cell.use, question) or "-")
        for length, cell in sorted(line.cells.items())
        if cell.use
    ]
