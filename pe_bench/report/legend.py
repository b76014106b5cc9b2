"""The legend of a table: what the terms in it mean, and what they do not judge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pe_bench.report.statistics import FAILURE
from pe_bench.report.tables.ranking import memory_at
from pe_bench.report.task_statistics import NEAR_CHANCE, SOLVED

if TYPE_CHECKING:
    from pe_bench.report.tables.lines import Line
    from pe_bench.report.tables.table import Table


def legend(table: Table) -> list[str]:
    """Return what the terms of the detailed form mean, in whole lines."""
    return [
        *_of_changes(table),
        *_of_answers(table),
        *_of_baseline(table),
        *_of_context(table),
        *_of_memory(table),
        *_of_anchors(table),
    ]


def _of_changes(table: Table) -> Iterator[str]:
    train_length = table.key.train_length
    cells = [cell for line in table.lines for cell in line.cells.values()]
    if not any(cell.change is not None for cell in cells):
        return
    own = " with the run's own encoding" if any(_is_another(line) for line in table.lines) else ""
    yield f"change: in bits/byte against length {train_length}{own}, on the same targets; + is worse"
    verdicts = [cell.verdict for cell in cells if cell.length >= train_length and cell.interval is not None]
    if not verdicts:
        return
    meanings = {
        "improves": f"improves (by more than {table.margin:g})",
        "holds": f"holds (at most {table.margin:g} worse)",
        "degrades": f"degrades (by more than {table.margin:g})",
        "fails": f"fails (by more than {FAILURE:g})",
        "unclear": f"unclear (at the margin of {table.margin:g})",
    }
    yield "verdict (from the 95 % interval): " + ", ".join(
        meanings[word] for word in meanings if word in verdicts
    )


def _of_answers(table: Table) -> Iterator[str]:
    """Yield what the numbers of a task are."""
    cells = [cell for line in table.lines for cell in line.cells.values() if cell.answers]
    if not cells:
        return
    counts = sorted({cell.documents for cell in cells})
    chance = max(cell.answers.chance for cell in cells if cell.answers)
    yield (
        f"exact: the share of the {' or '.join(map(str, counts))} examples at a length all of whose answers "
        f"are right; accuracy: of all answers ({chance:.3g} by guessing); given the right answers before"
    )
    yield (
        f"verdict (from the 95 % intervals): solves (exact above {SOLVED:g}), chance (accuracy less than "
        f"{NEAR_CHANCE:g} above guessing), partial (exact below {SOLVED:g}, and not chance), unclear"
    )


def _is_another(line: Line) -> bool:
    return line.scored_with != line.encoding


def _of_baseline(table: Table) -> Iterator[str]:
    if table.baseline:
        yield (
            f"vs {table.baseline}: {table.measure.name} minus its own at the same length, seed and targets; "
            f"{'+' if table.measure.higher_is_better else '-'} is better; same is within {table.margin:g}; "
            "those at one length are corrected together (Holm)"
        )


def _of_context(table: Table) -> Iterator[str]:
    uses = [cell.use for line in table.lines for cell in line.cells.values() if cell.use is not None]
    if not uses:
        return
    yield (
        "uses context: yes = better than at the training length, and hurt when far context comes from "
        f"another document; no = hurt by less than {table.margin:g}"
        + ("; - = cannot be judged" if any(not use.uses_context for use in uses) else "")
    )
    yield (
        "beats window: better than sliding-window attention of the training length in every layer"
        + ("; n/a = windowed itself" if any(use.beats_window == "n/a" for use in uses) else "")
    )


def _of_memory(table: Table) -> Iterator[str]:
    longest = table.lengths[-1:]
    if any(memory_at(line, length) is not None for line in table.lines for length in longest):
        yield (
            f"MB at {longest[0]}: the most that the whole process held while scoring that length (on a GPU, "
            "PyTorch's tensors alone); jobs of a sweep and a single run hold different amounts beside the "
            "model, so compare within one command"
        )


def _of_anchors(table: Table) -> Iterator[str]:
    # A checkpoint was trained elsewhere, in no steps of ours.
    if table.lines and not table.anchors and table.key.steps and not table.is_task:
        yield "no trigram of the same training tokens to compare with: pe-bench eval RUN... adds it"
