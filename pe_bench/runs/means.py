"""The slices of a run's targets, and the means by document of its scores: all that a verdict needs.

A file of slices follows from the text and from other scores, so a lost or damaged one is as if there were
none: `pe-bench eval RUN` writes it again. What a slice is, `pe_bench.scoring.slices` says.

Means spare a report the reading of all scores. An entry counts only while its file of scores has the size and
the time that it had, and it names the hash of its slice: a lost or an old file of means costs time alone.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from pe_bench.errors import RunError
from pe_bench.runs.rows import ALL, APART, TASK, Row, read_text
from pe_bench.runs.scores import (
    MEANS,
    Scores,
    compute_level,
    load_scores,
    perplexity_of,
    read_tensors,
    score_file,
    write_tensors,
)

RECALL, NOVEL, KEY = "recall", "novel", "key"
TEXT_SLICES = (RECALL, NOVEL)  # that the text alone decides
NAMES = (ALL, *TEXT_SLICES, KEY)
SLICES = "slices.safetensors"
SLICES_VERSION = 1  # of the definitions: raise it when other targets belong to a slice

Masks = Mapping[str, np.ndarray]  # by the name of a slice, bool [targets] in the order of their set


@dataclass(frozen=True)
class Slice:
    """Which targets of a set are in a slice, bool [targets], and the run whose scores decided, if any did."""

    mask: np.ndarray
    judge: str = ""

    @cached_property
    def hash(self) -> str:
        return hashlib.sha256(self.mask.tobytes()).hexdigest()[:16]


Slices = Mapping[str, Mapping[str, Slice]]  # by the hash of their set, and by their name


def read_slices(run: Path) -> Slices:
    """Return the slices in a run's file; none where it is lost, damaged or of another version."""
    slices: dict[str, dict[str, Slice]] = {}
    with suppress(RunError, ValueError, AttributeError, LookupError, TypeError):
        tensors, facts = read_tensors(run / SLICES)
        for words, mask in tensors.items():
            target_hash, name = words.split()
            if facts["version"] != SLICES_VERSION or mask.dtype != bool or mask.ndim != 1:
                return {}
            judge = read_text(facts["judges"].get(words, ""), "judge")
            slices.setdefault(target_hash, {})[read_text(name, "slice")] = Slice(mask, judge)
        return slices
    return {}


def keep_slices(run: Path, masks: Mapping[str, Masks], judge: str = "") -> None:
    """Add slices by the hash of their set to a run's file; only the holder of its lock may call this.

    judge: the run whose scores decided.
    """
    if not masks:
        return
    slices = {target_hash: dict(of_set) for target_hash, of_set in read_slices(run).items()}
    for target_hash, of_set in masks.items():
        new = {name: Slice(mask, judge) for name, mask in of_set.items()}
        slices[target_hash] = slices.get(target_hash, {}) | new
    by_words = {f"{key} {name}": part for key, of_set in slices.items() for name, part in of_set.items()}
    tensors = {words: part.mask for words, part in by_words.items()}
    judges = {words: part.judge for words, part in sorted(by_words.items()) if part.judge}
    write_tensors(run / SLICES, tensors, {"version": SLICES_VERSION, "judges": judges})


@dataclass(frozen=True)
class Means:
    """The scores of a row, as far as a verdict needs them.

    names: of the clusters, int64 [clusters]. bits: bits per byte of each, float64 [clusters]. level: their
    row's bits per byte. segments: into how many each document is cut. sizes: bytes of each cluster's targets,
    float64 [clusters], where clusters count by them; None where all count the same.
    """

    names: np.ndarray
    bits: np.ndarray
    level: float
    segments: int
    sizes: np.ndarray | None = None

    @property
    def documents(self) -> int:
        return len(np.unique(self.names // self.segments))


def compute_means(scores: Scores, protocol: str, part: Slice | None = None) -> Means:
    """Return the means of all targets, or of those of a slice; clusters without any are left out.

    A document may have one target of a slice or hundreds, so that clusters count by their bytes: the level is
    that of all these targets together. Raise `RunError` for a slice of another set.
    """
    clusters = scores.clusters
    if part is None:
        names, bits = scores.by_cluster()
        return Means(names, bits, compute_level(scores, protocol).bits_per_byte, clusters.segments)
    if part.mask.shape != scores.nll.shape:
        raise RunError(f"a slice is of {len(part.mask)} targets, and the scores are of {len(scores.nll)}")
    bits, sizes = (
        np.bincount(clusters.index, np.where(part.mask, values, 0).astype(np.float64), len(clusters.names))
        for values in (scores.nll / math.log(2), scores.bytes)
    )
    some = sizes > 0
    level = float(bits[some].sum() / sizes.sum()) if some.any() else math.nan
    return Means(clusters.names[some], bits[some] / sizes[some], level, clusters.segments, sizes[some])


Stamp = tuple[int, int]  # the size of a file and the time of its last change
KeptMeans = Mapping[str, tuple[Stamp, Means]]  # by the name of a file of scores and the hash of a slice


def read_means(run: Path) -> KeptMeans:
    """Return the means in a run's file; none where it is lost or damaged."""
    entries: dict[str, tuple[Stamp, Means]] = {}
    with suppress(RunError, ValueError, AttributeError, LookupError, TypeError):
        tensors, facts = read_tensors(run / MEANS)
        for entry, (size, time, level, segments) in facts.items():
            names, bits, *sizes = tensors[entry].astype(np.float64)
            means = Means(names.astype(np.int64), bits, float(level), int(segments), *sizes[:1])
            entries[entry] = (size, time), means
        return entries
    return {}


def find_means(run: Path, row: Row, kept: KeptMeans, slices: Slices) -> Means:
    """Return the means of a row's slice, from the scores where none are kept. Raise `RunError`."""
    path = score_file(run, row)
    stamp, means = kept.get(_entry(path, row.slice_hash), (None, None))
    if means is not None and stamp == _stamp(path):
        return means
    part = None if row.slice == ALL else slices[row.target_hash][row.slice]
    return compute_means(load_scores(path), row.protocol, part)


def keep_means(run: Path, rows: Iterable[Row]) -> None:
    """Write what is missing of the means of all rows of a run; only the holder of its lock may call this."""
    kept, slices = read_means(run), read_slices(run)
    entries: dict[str, tuple[Stamp, Means]] = {}
    for row in rows:
        path = score_file(run, row)
        stamp = _stamp(path)
        if row.status != "ok" or row.protocol in (*APART, TASK) or stamp is None:
            continue
        parts = {_entry(path, part.hash): part for part in slices.get(row.target_hash, {}).values()}
        parts = {_entry(path, ""): None, **parts}
        if all(entry in kept and kept[entry][0] == stamp for entry in parts):
            entries |= {entry: kept[entry] for entry in parts}
            continue
        with suppress(RunError):  # a report names damaged scores, and scoring makes them again
            scores = load_scores(path)
            computed = {entry: compute_means(scores, row.protocol, part) for entry, part in parts.items()}
            entries |= {entry: (stamp, means) for entry, means in computed.items()}
    if any(kept.get(entry) is not value for entry, value in entries.items()):
        _write_means(run / MEANS, entries)


def _write_means(path: Path, entries: KeptMeans) -> None:
    tensors, facts = {}, {}
    for entry, (stamp, means) in entries.items():
        sizes = [] if means.sizes is None else [means.sizes]
        tensors[entry] = np.stack([means.names.astype(np.float64), means.bits, *sizes])
        facts[entry] = [*stamp, means.level, means.segments]
    write_tensors(path, tensors, facts)


def _entry(scores: Path, slice_hash: str) -> str:
    return f"{scores.stem} {slice_hash}".rstrip()


def _stamp(path: Path) -> Stamp | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def rows_of_slice(
    rows: Iterable[Row], name: str, slices: Slices, means_of: Callable[[Row], Means]
) -> Iterator[Row]:
    """Yield the rows of one slice of a run, for its rows of all targets; none for a set without the slice.

    A length without a number has a row without one. means_of: of a row of the slice; where it raises
    `RunError`, the scores are lost or damaged, and there is no row.
    """
    documents: dict[str, int] = {}
    empty: list[Row] = []
    for row in rows:
        part = slices.get(row.target_hash, {}).get(name)
        if part is None or not part.mask.any():
            continue
        targets = int(part.mask.sum())
        row = replace(row, slice=name, judge=part.judge, slice_hash=part.hash, targets=targets)
        if row.bits_per_byte is None:
            empty.append(row)
            continue
        with suppress(RunError):
            means = means_of(row)
            documents[row.target_hash] = means.documents
            yield _with_numbers(row, means)
    for row in empty:
        if row.target_hash in documents:
            yield replace(row, documents=documents[row.target_hash])


def _with_numbers(row: Row, means: Means) -> Row:
    assert means.sizes is not None, "the means of a slice have the sizes of its clusters"
    nll = means.level * math.log(2) * float(means.sizes.sum()) / row.targets
    numbers = {"bits_per_byte": means.level, "documents": means.documents}
    return replace(row, nll=nll, perplexity=perplexity_of(nll), **numbers)
