"""Paired differences between rows that scored the same targets, from the files of their scores."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from pe_bench.errors import RunError
from pe_bench.report.statistics import Interval, difference_of_shares, paired_interval
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.rows import ALL, TASK, Row
from pe_bench.runs.scores import Means, load_scores, score_file

Pair = tuple[Row, Row]
Key = TypeVar("Key")


@dataclass(frozen=True)
class Paired:
    """A mean difference in bits per byte, its interval, and why either is missing.

    segments: into how many each document was cut for the interval. of_models: the interval for these models
    alone, whatever other seeds would give; None for one seed, whose interval is that already. of_seeds: that
    of each model; empty for one seed. target_hash, targets: the set that it is of. verdict: on a difference
    from a baseline: better, same, worse or unclear; empty without an interval.
    """

    mean: float | None
    interval: Interval | None
    missing: str
    segments: int = 1
    of_models: Interval | None = None
    of_seeds: tuple[Interval, ...] = ()
    target_hash: str = ""
    targets: int = 0
    verdict: str = ""


class ScoreFiles:
    """The bits per byte of single documents, or segments of them, read from each score file once.

    folder_of: by the name of a run.
    """

    def __init__(self, folder_of: Callable[[str], RunFolder]) -> None:
        self._folder_of = folder_of
        self._means: dict[Row, Means] = {}

    def first_run(self, run: str) -> str:
        """Return the first stage of a run's family, which may be the run itself."""
        first = self._folder_of(run).first_stage
        return run if first is None else first.run

    def means(self, row: Row) -> Means:
        """Return the means that the run keeps, or those of the scores themselves. Raises `RunError`."""
        if row not in self._means:
            self._means[row] = self._read(row)
        return self._means[row]

    def answers(self, row: Row) -> np.ndarray:
        """Return the share of right answers of each example, float64 [examples]. Raises `RunError`."""
        path = score_file(self._folder_of(row.run).path, row)
        right = load_scores(path).accuracy_by_document()
        if not _agree(float((right == 1).mean()), level_of(row)):
            raise RunError(f"{path} does not give its row's share of right examples, {level_of(row):.6f}")
        return right

    def of_slice(self, rows: Iterable[Row], name: str) -> list[Row]:
        """Return the rows of a slice for rows of all targets, run by run; none for runs without the slice."""
        if name == ALL:
            return list(rows)
        return [
            row
            for run, of_run in grouped(rows, lambda row: row.run).items()
            for row in self._folder_of(run).means.rows_of_slice(of_run, name)
        ]

    def _read(self, row: Row) -> Means:
        folder = self._folder_of(row.run)
        path = score_file(folder.path, row)
        if row.protocol == TASK:
            right = self.answers(row)
            return Means(np.arange(len(right)), (right == 1).astype(float), level_of(row), 1)
        means = folder.means_of(row)
        if not _agree(means.level, level_of(row)):
            raise RunError(
                f"{path} does not give its row's {level_of(row):.6f} bits per byte, but {means.level:.6f}"
            )
        return means


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Return the rows by what `key` says of them, in the order of the first ones."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def paired(pairs: Sequence[Pair], files: ScoreFiles, missing: str = "") -> Paired:
    """Return the first of each pair minus the second; a pair for each seed, all on one set of targets.

    missing: why there is no difference where there is no pair.
    """
    if not pairs:
        return Paired(None, None, missing)
    first, targets = pairs[0][0], min(row.targets for row, _ in pairs)
    try:
        differences = np.stack([_difference(*pair, files) for pair in pairs])
        means = files.means(first)
    except RunError as error:
        mean = float(np.mean([level_of(row) - level_of(other) for row, other in pairs]))
        return Paired(mean, None, str(error), target_hash=first.target_hash, targets=targets)

    def interval_of(differences: np.ndarray) -> Interval:
        if first.protocol == TASK:
            return difference_of_shares(differences, differences.shape[1])
        return paired_interval(differences, means.sizes)

    interval, several = interval_of(differences), len(pairs) > 1
    return Paired(
        interval.mean,
        interval,
        missing="",
        segments=means.segments,
        of_models=interval_of(differences.mean(axis=0, keepdims=True)) if several else None,
        of_seeds=tuple(interval_of(of_seed[None, :]) for of_seed in differences) if several else (),
        target_hash=first.target_hash,
        targets=targets,
    )


def paired_changes(changes: Sequence[Pair], others: Sequence[Pair], files: ScoreFiles) -> Paired:
    """Return the first changes minus the others; both are pairs of a row and its reference, seed by seed."""
    try:
        first, second = (np.stack([_difference(*pair, files) for pair in part]) for part in (changes, others))
        differences = first - second
        interval = paired_interval(differences, files.means(changes[0][0]).sizes)
    except RunError as error:
        return Paired(None, None, str(error))
    return Paired(interval.mean, interval, "")


def pairs_by_run(rows: Sequence[Row], others: Sequence[Row]) -> list[Pair]:
    """Return rows with the other of the same run on the same targets, where there is one."""
    return _pairs(rows, others, lambda row: row.run)


def pairs_with_trained(rows: Sequence[Row], trained: Sequence[Row], files: ScoreFiles) -> list[Pair]:
    """Return rows with those of their run's training length, or with those of their first stage's."""
    runs = {row.run for row in trained}
    return _pairs(rows, trained, lambda row: row.run if row.run in runs else files.first_run(row.run))


def pairs_by_seed(rows: Sequence[Row], others: Sequence[Row]) -> list[Pair]:
    """Return rows with the other of the same seed: of the same decoder weights and batches."""
    return _pairs(rows, others, lambda row: row.seed)


def _pairs(rows: Sequence[Row], others: Sequence[Row], key: Callable[[Row], object]) -> list[Pair]:
    other_of = {(key(row), row.target_hash, row.slice_hash): row for row in others if has_number(row)}
    return [
        (row, other)
        for row in rows
        if has_number(row) and (other := other_of.get((key(row), row.target_hash, row.slice_hash)))
    ]


def of_one_set(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs on the set of targets that most pairs share; of several such sets, the largest."""
    chosen = largest_set([row for row, _ in pairs])
    return [pair for pair in pairs if pair[0].target_hash == chosen]


def largest_set(rows: Sequence[Row]) -> str:
    """Return the hash of the set of targets that most rows share; of several such sets, the largest."""
    sets = Counter((row.targets, row.target_hash) for row in rows)
    return max(sets, key=lambda one: (sets[one], one), default=(0, ""))[1]


def has_number(row: Row) -> bool:
    return row.status == "ok" and _level(row) is not None


def level_of(row: Row) -> float:
    """Return the bits per byte of a row that has a number, or of a task the share of right examples."""
    level = _level(row)
    assert level is not None
    return level


def _difference(row: Row, other: Row, files: ScoreFiles) -> np.ndarray:
    """Return the difference of each cluster in bits per byte, float64 [U]."""
    first, second = files.means(row), files.means(other)
    is_alike = np.array_equal(first.names, second.names) and np.array_equal(_sizes(first), _sizes(second))
    if not is_alike:
        raise RunError(
            f"{row.run} at {row.length} and {other.run} at {other.length} have scores of other documents"
        )
    if not first.names.size:
        raise RunError(f"no target of {row.run} at {row.length} stands for a byte of the text")
    with np.errstate(invalid="ignore"):  # infinity less infinity: a failure, and counted as one
        return first.bits - second.bits


def _sizes(means: Means) -> np.ndarray:
    return np.zeros(0) if means.sizes is None else means.sizes


def _level(row: Row) -> float | None:
    return row.exact if row.protocol == TASK else row.bits_per_byte


def _agree(computed: float, claimed: float) -> bool:
    return math.isclose(computed, claimed, rel_tol=1e-6) or (math.isnan(computed) and math.isnan(claimed))
