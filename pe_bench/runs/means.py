"""The means by document of a run's scores, beside its rows: all that a verdict needs, in one small file.

They follow from the files of scores. An entry counts only while its file of scores has the size and the time
that it had, and while the whole file has its checksum; else the scores themselves are read. An entry of a
slice is named by the hash of its targets, so that it is never taken for one of other targets. So nothing
depends on the moment at which a process is killed, and a lost file costs time alone.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from pe_bench.errors import RunError
from pe_bench.runs.rows import ALL, APART, TASK, Row
from pe_bench.runs.scores import (
    LEVEL_OF_PROTOCOL,
    MEANS,
    Scores,
    load_scores,
    metadata_in,
    score_file,
    write_tensors,
)
from pe_bench.runs.slices import KeptSlices
from pe_bench.runs.untrusted import open_regular

Stamp = tuple[int, int]  # the size of a file and the time of its last change


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


def means_of(scores: Scores, protocol: str) -> Means:
    names, bits = scores.by_cluster()
    return Means(names, bits, LEVEL_OF_PROTOCOL[protocol](scores).bits_per_byte, scores.clusters.segments)


def means_of_slice(scores: Scores, mask: np.ndarray) -> Means:
    """Return the means over the targets of a slice, bool [targets]; clusters without any are left out.

    A document may have one such target or hundreds, so that clusters count by their bytes: the level is that
    of all these targets together. Raise `RunError` where the mask is of another set.
    """
    if mask.shape != scores.nll.shape:
        raise RunError(f"a slice is of {len(mask)} targets, and the scores are of {len(scores.nll)}")
    clusters = scores.clusters
    place, names = (
        (clusters.group, clusters.documents) if clusters.segments == 1 else (clusters.cluster, clusters.names)
    )
    bits, sizes = (
        np.bincount(place, np.where(mask, values, 0).astype(np.float64), len(names))
        for values in (scores.nll / math.log(2), scores.bytes)
    )
    some = sizes > 0
    level = float(bits[some].sum() / sizes.sum()) if some.any() else math.nan
    return Means(names[some], bits[some] / sizes[some], level, clusters.segments, sizes[some])


def compute_means(row: Row, scores: Scores, slices: KeptSlices) -> Means:
    if row.slice == ALL:
        return means_of(scores, row.protocol)
    return means_of_slice(scores, slices.of(row.target_hash)[row.slice])


class KeptMeans:
    """The means in a run's file, by their file of scores and slice; none where it is lost or damaged."""

    def __init__(self, run: Path) -> None:
        self._entries: dict[str, tuple[Stamp, Means]] = {}
        with suppress(OSError, SafetensorError, ValueError, TypeError, KeyError, AttributeError):
            self._entries = _read(run / MEANS)

    def find(self, scores: Path, slice_hash: str = "") -> Means | None:
        """Return the means of a slice of a file of scores that is the one they were computed from."""
        stamp, means = self._entries.get(_entry(scores, slice_hash), (None, None))
        return means if stamp is not None and stamp == _stamp(scores) else None


def find_means(run: Path, row: Row, kept: KeptMeans, slices: KeptSlices) -> Means:
    """Return the means of a row's slice, from the scores where none are kept. Raise `RunError`."""
    path = score_file(run, row)
    found = kept.find(path, row.slice_hash)
    return found if found is not None else compute_means(row, load_scores(path), slices)


def keep_means(run: Path, rows: Iterable[Row]) -> None:
    """Write what is missing of the means of all rows of a run; only the holder of its lock may call this."""
    kept, slices = KeptMeans(run), KeptSlices(run)
    entries: dict[str, tuple[Stamp, Means]] = {}
    is_changed = False
    for row in rows:
        path = score_file(run, row)
        stamp = _stamp(path)
        if row.status != "ok" or row.protocol in (*APART, TASK) or stamp is None:
            continue
        names = [ALL, *sorted(slices.of(row.target_hash))]
        hash_of = {name: slices.hash_of(row.target_hash, name) for name in names}
        found = {name: kept.find(path, hash_of[name]) for name in names}
        if not all(found.values()):
            with suppress(RunError):  # a report names damaged scores, and scoring makes them again
                scores, is_changed = load_scores(path), True
                found = {name: compute_means(replace(row, slice=name), scores, slices) for name in names}
        entries |= {
            _entry(path, hash_of[name]): (stamp, means) for name, means in found.items() if means is not None
        }
    if is_changed:
        _write(run / MEANS, entries)


def _entry(scores: Path, slice_hash: str) -> str:
    return f"{scores.stem} {slice_hash}" if slice_hash else scores.stem


def _stamp(path: Path) -> Stamp | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _write(path: Path, entries: Mapping[str, tuple[Stamp, Means]]) -> None:
    tensors: dict[str, np.ndarray] = {}
    facts: dict[str, tuple[object, ...]] = {}
    known: dict[tuple[str, bytes], str] = {}  # rows of one set of targets share their clusters

    def share(tensor: np.ndarray) -> str:
        name = known.setdefault((tensor.dtype.str, tensor.tobytes()), f"shared {len(known)}")
        tensors[name] = tensor
        return name

    for stem, (stamp, means) in entries.items():
        tensors[stem] = means.bits
        of_slice = () if means.sizes is None else (share(means.sizes),)
        facts[stem] = (*stamp, share(means.names), means.segments, means.level, *of_slice)
    about = json.dumps(facts)
    header = {"entries": about, "sha256": _checksum(about, tensors)}
    write_tensors(path, tensors, header)


def _read(path: Path) -> dict[str, tuple[Stamp, Means]]:
    """Return the entries of a file. Raise an error of many kinds for one that is damaged."""
    with open_regular(path) as file:
        content = file.read()
    header, tensors = metadata_in(content), load(content)
    if header["sha256"] != _checksum(header["entries"], tensors):
        raise ValueError("its numbers are not those of its checksum")
    entries = {}
    for stem, (size, time, shared, segments, level, *of_slice) in json.loads(header["entries"]).items():
        names, bits = tensors[shared], tensors[stem]
        sizes = tensors[of_slice[0]] if of_slice else None
        kinds = [(tensor.dtype, tensor.shape) for tensor in (names, bits, bits if sizes is None else sizes)]
        if kinds != [(np.int64, bits.shape), *[(np.float64, (bits.size,))] * 2]:
            raise ValueError(f"{stem} is no row of means")
        entries[stem] = (size, time), Means(names, bits, float(level), int(segments), sizes)
    return entries


def _checksum(about: str, tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()
