"""Runs with their scores, and paired differences between rows that scored the same targets."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import TypeVar, cast

import numpy as np

from pe_bench.errors import RunError
from pe_bench.report.records import Paired
from pe_bench.report.statistics import Interval, difference_of_shares, paired_interval
from pe_bench.runs.find import RunValues
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.gather import StoredAnchors
from pe_bench.runs.rows import ALL, TASK, Row
from pe_bench.runs.scores import Means, load_scores, score_file

Pair = tuple[Row, Row]
Key = TypeVar("Key")

BY_RUN, BY_SEED = attrgetter("run"), attrgetter("seed")  # the same weights; the same batches


class ScoredRuns(RunValues):
    """The runs of a folder of results with their configurations, their scores, and the anchors beside them.

    Each score file is read once for the bits per byte of its documents, or of segments of them.
    """

    def __init__(self, folder_of: Callable[[str], RunFolder], anchors: StoredAnchors) -> None:
        """folder_of: returns the folder of a run, by its name."""
        super().__init__(lambda name: anchors.folders.get(name) or folder_of(name))
        self.anchors = anchors
        self._means: dict[Row, Means] = {}

    def means(self, row: Row) -> Means:
        """Return the means that the run keeps, or those of the scores themselves. Raises `RunError`."""
        if row in self._means:
            return self._means[row]
        if row.protocol == TASK:
            right = self.answers(row)
            means = Means(np.arange(len(right)), (right == 1).astype(float), level_of(row), 1)
        else:
            folder = self.folder_of(row.run)
            means = folder.means_of(row)
            if not np.isclose(means.level, level_of(row), rtol=1e-6, atol=0, equal_nan=True):
                raise RunError(
                    f"{score_file(folder.path, row)} does not give its row's {level_of(row):.6f} bits per "
                    f"byte, but {means.level:.6f}"
                )
        self._means[row] = means
        return means

    def answers(self, row: Row) -> np.ndarray:
        """Return the share of right answers of each example, float64 [examples]. Raises `RunError`."""
        path = score_file(self.folder_of(row.run).path, row)
        scores = load_scores(path)
        right = scores.accuracy(scores.clusters.group)
        if not np.isclose((right == 1).mean(), level_of(row), rtol=1e-6, atol=0):
            raise RunError(f"{path} does not give its row's share of right examples, {level_of(row):.6f}")
        return right

    def of_slice(self, rows: Iterable[Row], name: str) -> list[Row]:
        """Return the rows of a slice for rows of all targets, run by run; none for runs without the slice."""
        if name == ALL:
            return list(rows)
        return [
            row
            for run, of_run in grouped(rows, BY_RUN).items()
            for row in self.folder_of(run).means.rows_of_slice(of_run, name)
        ]


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Return the rows by what `key` says of them, in the order of the first ones."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def has_number(row: Row) -> bool:
    return row.status == "ok" and level_of(row) is not None


def level_of(row: Row) -> float:
    """Return the bits per byte of a row that has a number, or of a task the share of right examples."""
    return cast(float, row.exact if row.protocol == TASK else row.bits_per_byte)


def pairs_of(rows: Sequence[Row], others: Sequence[Row], key: Callable[[Row], object] = BY_RUN) -> list[Pair]:
    """Return rows with the other of the same run, or other key, on the same targets, where there is one."""
    other_of = {(key(row), row.target_hash, row.slice_hash): row for row in others if has_number(row)}
    return [
        (row, other)
        for row in rows
        if has_number(row) and (other := other_of.get((key(row), row.target_hash, row.slice_hash)))
    ]


def largest_set(rows: Sequence[Row]) -> str:
    """Return the hash of the set of targets that most rows share; of several such sets, the largest."""
    sets = Counter((row.targets, row.target_hash) for row in rows)
    return max(sets, key=lambda one: (sets[one], one), default=(0, ""))[1]


def paired(pairs: Sequence[Pair], runs: ScoredRuns, missing: str = "") -> Paired:
    """Return the first row of each pair minus the second; there is a pair for each seed.

    Of several sets of targets, the one that most pairs have is used. missing: why there is no difference if
    there is no pair.
    """
    chosen = largest_set([row for row, _ in pairs])
    pairs = [pair for pair in pairs if pair[0].target_hash == chosen]
    if not pairs:
        return Paired(missing=missing)
    first, targets = pairs[0][0], min(row.targets for row, _ in pairs)
    try:
        differences = np.stack([_difference(*pair, runs) for pair in pairs])
        means = runs.means(first)
    except RunError as error:
        mean = float(np.mean([level_of(row) - level_of(other) for row, other in pairs]))
        return Paired(mean, missing=str(error), target_hash=chosen, targets=targets)

    interval_of: Callable[[np.ndarray], Interval] = partial(paired_interval, sizes=means.sizes)
    if first.protocol == TASK:
        interval_of = partial(difference_of_shares, count=differences.shape[1])
    interval, several = interval_of(differences), len(pairs) > 1
    return Paired(
        interval.mean,
        interval,
        segments=means.segments,
        of_models=interval_of(differences.mean(axis=0, keepdims=True)) if several else None,
        of_seeds=tuple(interval_of(of_seed[None, :]) for of_seed in differences) if several else (),
        target_hash=chosen,
        targets=targets,
    )


def paired_changes(changes: Sequence[Pair], others: Sequence[Pair], runs: ScoredRuns) -> Paired:
    """Return the first changes minus the others; both are pairs of a row and its reference, seed by seed."""
    try:
        first, second = (np.stack([_difference(*pair, runs) for pair in part]) for part in (changes, others))
        interval = paired_interval(first - second, runs.means(changes[0][0]).sizes)
    except RunError as error:
        return Paired(missing=str(error))
    return Paired(interval.mean, interval)


def _difference(row: Row, other: Row, runs: ScoredRuns) -> np.ndarray:
    """Return the difference of each cluster in bits per byte, float64 [U]."""
    first, second = runs.means(row), runs.means(other)
    if not np.array_equal(first.names, second.names) or not np.array_equal(
        cast(np.ndarray, first.sizes), cast(np.ndarray, second.sizes)
    ):
        raise RunError(
            f"{row.run} at {row.length} and {other.run} at {other.length} have scores of other documents"
        )
    if not first.names.size:
        raise RunError(f"no target of {row.run} at {row.length} stands for a byte of the text")
    with np.errstate(invalid="ignore"):  # infinity less infinity: a failure, and counted as one
        return first.bits - second.bits
