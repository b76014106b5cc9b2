"""One encoding at one length: its seeds averaged, and its change against the training length."""

import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pe_bench.report.statistics import Interval
from pe_bench.report.tables.differences import (
    Paired,
    ScoreFiles,
    has_number,
    level_of,
    of_one_set,
    paired,
    pairs_by_run,
)
from pe_bench.report.task_statistics import AnswerIntervals
from pe_bench.runs.rows import Row
from pe_bench.runs.scores import perplexity_of


@dataclass(frozen=True)
class Difference:
    """A difference from the table's baseline at the same length, in bits per byte; negative is better.

    verdict: better, same, worse or unclear; empty without an interval, and `missing` says why. target_hash,
    targets: of the largest set that both have.
    """

    mean: float | None
    interval: Interval | None
    verdict: str
    missing: str
    target_hash: str = ""
    targets: int = 0


@dataclass(frozen=True)
class ContextUse:
    """The answers of the controls at one length about the context beyond the training length.

    uses_context: yes, no or unclear; empty where it cannot be judged, and `missing` says why.
    beats_window: yes, no or unclear; n/a where the encoding is windowed itself, empty without the control.
    swap_gain, window_gain: bits per byte that are lost when the far context is another document's, and
    when every layer sees only as many tokens as in training.
    """

    uses_context: str
    beats_window: str
    swap_gain: Interval | None
    window_gain: Interval | None
    missing: str


@dataclass(frozen=True)
class AnswerScores:
    """The scores of a task's answers at a length.

    accuracy: the share of right answers, and chance what guessing gets. of_models: the intervals for these
    models alone, and of_seeds those of each; none for one seed.
    """

    accuracy: float
    chance: float
    intervals: AnswerIntervals
    of_models: AnswerIntervals | None
    of_seeds: tuple[AnswerIntervals, ...] = ()


@dataclass(frozen=True)
class Cell:
    """An encoding at a length: its levels, and the change with its verdict.

    levels: bits per byte, or the share of a task's examples that are right, one for each seed, in the order
    of the runs' names. A number that is not known is None; `missing` says why there is no change, or no
    interval of it. of_models: the interval for these models alone, with verdict_of_models; of_seeds and
    verdicts_of_seeds: those of each model. One seed has none of these.
    """

    length: int
    status: str
    reason: str
    levels: tuple[float, ...]
    perplexity: float | None
    change: float | None
    interval: Interval | None
    verdict: str  # undefined without a number, empty without an interval or below the training length
    missing: str
    target_hash: str  # of the levels
    targets: int
    documents: int
    stride: int | None
    peak_memory_mb: float | None
    segments: int = 1  # of each document, in the interval of the change
    of_models: Interval | None = None
    verdict_of_models: str = ""
    of_seeds: tuple[Interval, ...] = ()
    verdicts_of_seeds: tuple[str, ...] = ()
    changes: tuple[float, ...] = ()  # of each seed, where there is a change
    change_hash: str = ""  # of the set that the change is of: the largest that all seeds have
    change_targets: int = 0
    baseline: Difference | None = None  # none where the table has no baseline, or this is it
    use: ContextUse | None = None  # none where no control was scored
    answers: AnswerScores | None = None  # of a task

    @property
    def level(self) -> float | None:
        return _mean(self.levels)

    @property
    def bits_per_byte(self) -> float | None:
        return None if self.answers is not None else self.level


class Labelled(typing.Protocol):
    """A row or a line, by what `label_of` reads of it."""

    @property
    def encoding(self) -> str: ...
    @property
    def scored_with(self) -> str: ...
    @property
    def forced(self) -> bool: ...


def make_cell(
    rows: Sequence[Row], own_at_train_length: Sequence[Row], ranks: Mapping[str, Any], files: ScoreFiles
) -> Cell:
    """Return the cell of `rows`, the seeds of one encoding at one length.

    own_at_train_length: of the same runs with their own encoding. ranks: of the table's sets of targets; of
    several the levels are of that which most seeds were scored on, then of that ranked highest. The change is
    of a set that no other line has a part in choosing.
    """
    scored = [row for row in rows if has_number(row)]
    if not scored:
        return empty_cell(rows)
    compared = of_one_set(pairs_by_run(scored, own_at_train_length))
    change = _change(compared, own_at_train_length, files)
    seeds = Counter(row.target_hash for row in scored)
    chosen = max(seeds, key=lambda target_hash: (seeds[target_hash], ranks[target_hash]))
    scored = sorted((row for row in scored if row.target_hash == chosen), key=lambda row: row.run)
    nll = _mean([row.nll for row in scored if row.nll is not None])
    memory = [row.peak_memory_mb for row in scored if row.peak_memory_mb is not None]
    return Cell(
        length=rows[0].length,
        status="ok",
        reason="",
        levels=tuple(row.bits_per_byte for row in scored if row.bits_per_byte is not None),
        perplexity=perplexity_of(nll) if nll is not None else None,
        change=change.mean,
        interval=change.interval,
        verdict="",  # see `judge`
        missing=change.missing,
        segments=change.segments,
        of_models=change.of_models,
        of_seeds=change.of_seeds,
        target_hash=chosen,
        targets=min(row.targets for row in scored),
        documents=min(row.documents for row in scored),
        stride=scored[0].stride,
        peak_memory_mb=max(memory, default=None),
        changes=tuple(level_of(row) - level_of(reference) for row, reference in compared),
        change_hash=change.target_hash,
        change_targets=change.targets,
    )


def label_of(labelled: Labelled) -> str:
    """Return the name to show: of the encoding, and of what it was scored with where that is another."""
    if labelled.scored_with == labelled.encoding:
        return labelled.encoding
    return f"{labelled.encoding} -> {labelled.scored_with}" + (" (forced)" if labelled.forced else "")


def empty_cell(rows: Sequence[Row]) -> Cell:
    """Return the cell of rows without a number."""
    first = rows[0]
    status = "undefined" if first.status == "ok" else first.status
    return Cell(
        length=first.length,
        status=status,
        reason=first.reason,
        levels=(),
        perplexity=None,
        change=None,
        interval=None,
        verdict="undefined",
        missing="",
        target_hash=first.target_hash,
        targets=0,
        documents=0,
        stride=first.stride,
        peak_memory_mb=None,
    )


def _change(
    pairs: Sequence[tuple[Row, Row]], own_at_train_length: Sequence[Row], files: ScoreFiles
) -> Paired:
    if not any(map(has_number, own_at_train_length)):
        return Paired(None, None, "the training length has no score to compare with")
    if not pairs:
        return Paired(None, None, "scored on other targets than the training length")
    if all(row is reference for row, reference in pairs):
        return Paired(None, None, "")  # the training length itself
    return paired(pairs, files)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
