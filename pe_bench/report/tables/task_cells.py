"""A task at a length: the share of its examples that are right, and the verdict on it.

Each length has examples of its own, so that there is no change to judge, but each level by itself. Models
that have not surely learned the task at their training length have no verdict past it: what they show there
is how little they have learned.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pe_bench.errors import RunError
from pe_bench.report.tables.break_point import BreakPoint, find_break_point
from pe_bench.report.tables.cells import AnswerScores, Cell, empty_cell
from pe_bench.report.tables.differences import ScoreFiles, has_number, level_of
from pe_bench.report.task_statistics import AnswerIntervals, answer_intervals, judge_answers
from pe_bench.runs.rows import Row

AS_CHANGES = {"solves": "holds", "partial": "degrades", "chance": "fails"}  # for the break point


def make_task_cell(rows: Sequence[Row], ranks: Mapping[str, Any], files: ScoreFiles) -> Cell:
    """Return the cell of `rows`, the seeds of one encoding at one length; see `make_cell`."""
    scored = [row for row in rows if has_number(row)]
    if not scored:
        return empty_cell(rows)
    sets = Counter(row.target_hash for row in scored)
    chosen = max(sets, key=lambda target_hash: (sets[target_hash], ranks[target_hash]))
    scored = sorted((row for row in scored if row.target_hash == chosen), key=lambda row: row.run)
    memory = [row.peak_memory_mb for row in scored if row.peak_memory_mb is not None]
    cell = Cell(
        length=rows[0].length,
        status="ok",
        reason="",
        levels=tuple(map(level_of, scored)),
        perplexity=None,
        change=None,
        interval=None,
        verdict="",
        missing="",
        target_hash=chosen,
        targets=scored[0].targets,
        documents=scored[0].documents,
        stride=None,
        peak_memory_mb=max(memory, default=None),
    )
    try:
        right = np.stack([files.answers(row) for row in scored])
    except RunError as error:
        return replace(cell, missing=str(error))
    exact = (right == 1).astype(float)
    of_models = answer_intervals(right.mean(0, keepdims=True), exact.mean(0, keepdims=True))
    answers = AnswerScores(
        float(right.mean()),
        scored[0].chance or 0.0,
        answer_intervals(right, exact),
        of_models if len(scored) > 1 else None,
        tuple(map(_of_seed, right)) if len(scored) > 1 else (),
    )
    return replace(cell, answers=answers)


def _of_seed(right: np.ndarray) -> AnswerIntervals:
    """Return the intervals of one model; right: the share of right answers of each example."""
    return answer_intervals(right[None, :], (right == 1).astype(float)[None, :])


def is_unlearned(own_rows: Sequence[Row], files: ScoreFiles) -> bool:
    """Return whether the weights have not surely learned their task at the training length."""
    trained = [row for row in own_rows if row.length == row.train_length]
    cell = make_task_cell(trained, Counter(), files) if trained else None
    return cell is not None and cell.answers is not None and _judged(cell).verdict != "solves"


def judge_task(
    cells: Mapping[int, Cell], train_length: int, *, is_unlearned: bool
) -> tuple[dict[int, Cell], BreakPoint]:
    """Return the cells with their verdicts, from the training length on, and the break point."""
    judged = {
        length: cell if length < train_length or (is_unlearned and length > train_length) else _judged(cell)
        for length, cell in cells.items()
    }
    if is_unlearned:
        return judged, BreakPoint()
    as_changes = {
        length: replace(
            cell,
            verdict=_as_change(cell.verdict),
            verdict_of_models=_as_change(cell.verdict_of_models),
            verdicts_of_seeds=tuple(map(_as_change, cell.verdicts_of_seeds)),
        )
        for length, cell in judged.items()
    }
    return judged, find_break_point(as_changes, train_length)


def _judged(cell: Cell) -> Cell:
    found = cell.answers
    if found is None:
        return cell
    return replace(
        cell,
        verdict=judge_answers(found.intervals, found.chance),
        verdict_of_models="" if found.of_models is None else judge_answers(found.of_models, found.chance),
        verdicts_of_seeds=tuple(judge_answers(of_seed, found.chance) for of_seed in found.of_seeds),
    )


def _as_change(verdict: str) -> str:
    return AS_CHANGES.get(verdict, verdict)
