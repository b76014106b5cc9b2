"""The text of the page's cells, and of the points of curves."""

from collections.abc import Iterator

from pe_bench.report.cell_text import answers_texts, number_text, verdict_of
from pe_bench.report.statistics import Interval
from pe_bench.report.tables.cells import Cell, ContextUse, Difference
from pe_bench.report.tables.lines import Line
from pe_bench.report.tables.table import Table


def signed(value: float) -> str:
    """Return the value with a sign, and with a minus of its full width."""
    return number_text(value, "+").replace("-", "\N{MINUS SIGN}")


def perplexity_text(value: float | None) -> str:
    """Return four digits, or a power of ten where it is large."""
    if value is None:
        return ""
    return f"{value:.4g}" if value < 10_000 else f"{value:.1e}"


def interval_text(interval: Interval) -> str:
    return f"{signed(interval.low)} to {signed(interval.high)}"


def status_of(cell: Cell) -> str:
    return cell.status.replace("_", " ")


def difference_text(difference: Difference) -> str:
    """Return `−0.120 better`; empty without a number."""
    return "" if difference.mean is None else f"{signed(difference.mean)} {difference.verdict}".rstrip()


def use_texts(use: ContextUse) -> list[str]:
    """Return what the controls found, without what cannot be judged."""
    answers = {"uses context": use.uses_context, "beats window": use.beats_window}
    return [f"{question}: {answer}" for question, answer in answers.items() if answer]


def point_text(line: Line, cell: Cell, table: Table) -> str:
    """Return all that is known at a point of a curve, a line each; the first names it."""
    return "\n".join([f"{line.label} at {cell.length} tokens", *_facts(cell, table)])


def _facts(cell: Cell, table: Table) -> Iterator[str]:
    if cell.answers is not None and cell.level is not None:
        low, high, accuracy = answers_texts(cell)
        yield f"{number_text(cell.level)} exact (95 %: {low} to {high}), accuracy {accuracy}"
    if cell.bits_per_byte is not None:
        yield f"{number_text(cell.bits_per_byte)} bits/byte, perplexity {perplexity_text(cell.perplexity)}"
    if cell.length == table.key.train_length:
        yield "the training length"
    if cell.change is not None:
        yield f"change {signed(cell.change)}{_in_brackets(cell.interval)}"
    if verdict_of(cell, table):
        yield verdict_of(cell, table)
    if cell.baseline is not None and cell.baseline.mean is not None:
        difference = difference_text(cell.baseline)
        yield f"vs {table.baseline} {difference}{_in_brackets(cell.baseline.interval)}"
    if cell.use is not None:
        yield from use_texts(cell.use)


def _in_brackets(interval: Interval | None) -> str:
    return f" (95 %: {interval_text(interval)})" if interval else ""
