"""Paired differences between rows that scored the same targets, from the files of their scores."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from pe_bench.errors import RunError
from pe_bench.report.statistics import Interval, difference_of_shares, paired_interval
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.means import Means, compute_means
from pe_bench.runs.rows import ALL, TASK, Row
from pe_bench.runs.scores import Clusters, load_scores, score_file


class Paired(NamedTuple):
    """A mean difference in bits per byte, its interval, and why either is missing.

    segments: into how many each document was cut for the interval. of_models: the interval for these models
    alone, whatever other seeds would give; None for one seed, whose interval is that already. of_seeds: that
    of each model; empty for one seed. target_hash, targets: the set that it is of.
    """

    mean: float | None
    interval: Interval | None
    missing: str
    segments: int = 1
    of_models: Interval | None = None
    of_seeds: tuple[Interval, ...] = ()
    target_hash: str = ""
    targets: int = 0


class ScoreFiles:
    """The bits per byte of single documents, or segments of them, read from each score file once.

    folder_of: by the name of a run.
    """

    def __init__(self, folder_of: Callable[[str], RunFolder]) -> None:
        self._folder_of = folder_of
        self._known: dict[Row, Means] = {}
        self._clusters: dict[str, Clusters] = {}

    def by_cluster(self, row: Row) -> tuple[np.ndarray, np.ndarray]:
        """Clusters int64 [U] and bits per byte float64 [U]. Raises `RunError`."""
        means = self._means(row)
        return means.names, means.bits

    def segments(self, row: Row) -> int:
        """Return into how many segments each document of a row is cut. Raises `RunError`."""
        return self._means(row).segments

    def sizes(self, row: Row) -> np.ndarray | None:
        """Return by what the clusters of a row count; None where all count the same. Raises `RunError`."""
        return self._means(row).sizes

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
        by_run: dict[str, list[Row]] = {}
        for row in rows:
            by_run.setdefault(row.run, []).append(row)
        return [row for run, own in by_run.items() for row in self._folder_of(run).rows_of_slice(own, name)]

    def _means(self, row: Row) -> Means:
        found = self._known.get(row)
        if found is None:
            found = self._known[row] = self._read(row)
        return found

    def _read(self, row: Row) -> Means:
        """Return the means that the run keeps, or those of the scores themselves."""
        folder = self._folder_of(row.run)
        path = score_file(folder.path, row)
        found = folder.means.find(path, row.slice_hash)
        if row.protocol == TASK:
            right = self.answers(row)
            found = Means(np.arange(len(right)), (right == 1).astype(float), level_of(row), 1)
        if found is None:
            scores = load_scores(path).sharing(self._clusters.get(row.target_hash))
            self._clusters[row.target_hash] = scores.clusters
            found = compute_means(row, scores, folder.slices)
        if not _agree(found.level, level_of(row)):
            raise RunError(
                f"{path} does not give its row's {level_of(row):.6f} bits per byte, but {found.level:.6f}"
            )
        return found


def paired(pairs: Sequence[tuple[Row, Row]], files: ScoreFiles) -> Paired:
    """Return the first of each pair minus the second; a pair for each seed, all on one set of targets."""
    first, targets = pairs[0][0], min(row.targets for row, _ in pairs)
    try:
        differences = np.stack([_difference(*pair, files) for pair in pairs])
        sizes = files.sizes(first)
    except RunError as error:
        mean = float(np.mean([level_of(row) - level_of(other) for row, other in pairs]))
        return Paired(mean, None, str(error), target_hash=first.target_hash, targets=targets)

    def interval_of(differences: np.ndarray) -> Interval:
        if first.protocol == TASK:
            return difference_of_shares(differences, differences.shape[1])
        return paired_interval(differences, sizes)

    interval = interval_of(differences)
    several = len(pairs) > 1
    return Paired(
        interval.mean,
        interval,
        missing="",
        segments=files.segments(first),
        of_models=interval_of(differences.mean(axis=0, keepdims=True)) if several else None,
        of_seeds=tuple(interval_of(of_seed[None, :]) for of_seed in differences) if several else (),
        target_hash=first.target_hash,
        targets=targets,
    )


def paired_changes(
    changes: Sequence[tuple[Row, Row]], others: Sequence[tuple[Row, Row]], files: ScoreFiles
) -> Paired:
    """Return the first changes minus the others; both are pairs of a row and its reference, seed by seed."""
    try:
        differences = np.stack(
            [
                _difference(*pair, files) - _difference(*other, files)
                for pair, other in zip(changes, others, strict=True)
            ]
        )
        interval = paired_interval(differences, files.sizes(changes[0][0]))
    except RunError as error:
        return Paired(None, None, str(error))
    return Paired(interval.mean, interval, "")


def pairs_by_run(rows: Sequence[Row], others: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return rows with the other of the same run on the same targets, where there is one."""
    return _pairs(rows, others, lambda row: row.run)


def pairs_by_seed(rows: Sequence[Row], others: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return rows with the other of the same seed: of the same decoder weights and batches."""
    return _pairs(rows, others, lambda row: row.seed)


def _pairs(rows: Sequence[Row], others: Sequence[Row], key: Callable[[Row], object]) -> list[tuple[Row, Row]]:
    """Return rows with the other of the same key on the same targets."""
    other_of = {(key(row), row.target_hash, row.slice_hash): row for row in others if has_number(row)}
    keyed = [
        (row, other_of.get((key(row), row.target_hash, row.slice_hash))) for row in rows if has_number(row)
    ]
    return [(row, other) for row, other in keyed if other is not None]


def of_one_set(pairs: Sequence[tuple[Row, Row]]) -> list[tuple[Row, Row]]:
    """Return the pairs on the set of targets that most pairs share; of several such sets, the largest."""
    chosen = largest_set([row for row, _ in pairs])
    return [pair for pair in pairs if pair[0].target_hash == chosen]


def largest_set(rows: Sequence[Row]) -> str:
    """Return the hash of the set of targets that most rows share; of several such sets, the largest."""
    sets = Counter((row.targets, row.target_hash) for row in rows)
    return max(sets, key=lambda one: (sets[one], one), default=(0, ""))[1]


def has_number(row: Row) -> bool:
    return row.status == "ok" and _level(row) is not None


def _difference(row: Row, other: Row, files: ScoreFiles) -> np.ndarray:
    """Return the difference of each cluster in bits per byte, float64 [U]."""
    clusters, bits = files.by_cluster(row)
    same_clusters, other_bits = files.by_cluster(other)
    sizes = [files.sizes(either) for either in (row, other)]
    if not np.array_equal(clusters, same_clusters) or not _are_same(*sizes):
        raise RunError(
            f"{row.run} at {row.length} and {other.run} at {other.length} have scores of other documents"
        )
    if not clusters.size:
        raise RunError(f"no target of {row.run} at {row.length} stands for a byte of the text")
    with np.errstate(invalid="ignore"):  # infinity less infinity: a failure, and counted as one
        return bits - other_bits


def _are_same(sizes: np.ndarray | None, others: np.ndarray | None) -> bool:
    return np.array_equal(sizes, others) if sizes is not None and others is not None else sizes is others


def level_of(row: Row) -> float:
    """Return the bits per byte of a row that has a number, or of a task the share of right examples."""
    level = _level(row)
    assert level is not None
    return level


def _level(row: Row) -> float | None:
    return row.exact if row.protocol == TASK else row.bits_per_byte


def _agree(found: float, claimed: float) -> bool:
    return math.isclose(found, claimed, rel_tol=1e-6) or (math.isnan(found) and math.isnan(claimed))
