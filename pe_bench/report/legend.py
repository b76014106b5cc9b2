"""What the words of a table mean: those that are used, and what they do not judge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pe_bench.statistics import FAILURE

if TYPE_CHECKING:
    from pe_bench.report.tables import Table


def legend(table: Table) -> list[str]:
    """Whole lines."""
    return [*_of_changes(table), *_of_baseline(table), *_of_context(table)]


def _of_changes(table: Table) -> Iterator[str]:
    train_length, cells = (
        table.group.train_length,
        [cell for line in table.lines for cell in line.cells.values()],
    )
    if not any(cell.change is not None for cell in cells):
        return
    line = f"change: in bits/byte against length {train_length}, on the same targets; + is worse"
    verdicts = [cell.verdict for cell in cells if cell.length >= train_length and cell.interval is not None]
    if not verdicts:
        yield line
        return
    count = (
        "" if table.verdicts == 1 else f", corrected for the {table.verdicts} verdicts of the table (Holm)"
    )
    meanings = {
        "improves": f"improves (by more than {table.margin:g})",
        "holds": f"holds (within {table.margin:g})",
        "degrades": f"degrades (by more than {table.margin:g})",
        "fails": f"fails (by more than {FAILURE:g})",
        "unclear": "unclear",
    }
    used = ", ".join(meanings[word] for word in meanings if word in verdicts)
    yield f"{line}; verdicts by 95 % intervals{count}: {used}"


def _of_baseline(table: Table) -> Iterator[str]:
    if table.baseline:
        yield (
            f"vs {table.baseline}: bits/byte minus its own at the same length, seed and targets; - is "
            f"better; same is within {table.margin:g}; corrected for {table.comparisons} comparisons (Holm)"
        )


def _of_context(table: Table) -> Iterator[str]:
    if any(cell.use is not None for line in table.lines for cell in line.cells.values()):
        yield (
            "uses context: yes where it is better than at the training length and than with another "
            "document's far context; beats window: better than when every layer sees the training length only"
        )
