"""The means by document of a run's scores, beside its rows: all that a verdict needs, in one small file.

They follow from the files of scores. An entry counts only while its file of scores has the size and the time
that it had, and while the whole file has its checksum; else the scores themselves are read. So nothing
depends on the moment at which a process is killed, and a lost file costs time alone.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from pe_bench.errors import RunError
from pe_bench.runs.rows import POSITIONS, Row
from pe_bench.runs.scores import (
    LEVEL_OF_PROTOCOL,
    MEANS,
    Scores,
    load_scores,
    metadata_in,
    score_file,
    write_tensors,
)
from pe_bench.runs.untrusted import open_regular

Stamp = tuple[int, int]  # the size of a file and the time of its last change


@dataclass(frozen=True)
class Means:
    """The scores of a row, as far as a verdict needs them.

    names: of the clusters, int64 [clusters]. bits: bits per byte of each, float64 [clusters]. level: their
    row's bits per byte. segments: into how many each document is cut.
    """

    names: np.ndarray
    bits: np.ndarray
    level: float
    segments: int


def means_of(scores: Scores, protocol: str) -> Means:
    names, bits = scores.by_cluster()
    return Means(names, bits, LEVEL_OF_PROTOCOL[protocol](scores).bits_per_byte, scores.clusters.segments)


class KeptMeans:
    """The means in a run's file, by the name of their file of scores; none where it is lost or damaged."""

    def __init__(self, run: Path) -> None:
        self._entries: dict[str, tuple[Stamp, Means]] = {}
        with suppress(OSError, SafetensorError, ValueError, TypeError, KeyError, AttributeError):
            self._entries = _read(run / MEANS)

    def find(self, scores: Path) -> Means | None:
        """Return the means of a file of scores that is the one they were computed from."""
        stamp, means = self._entries.get(scores.stem, (None, None))
        return means if stamp is not None and stamp == _stamp(scores) else None


def keep_means(run: Path, rows: Iterable[Row]) -> None:
    """Write what is missing of the means of all rows of a run; only the holder of its lock may call this."""
    kept = KeptMeans(run)
    entries: dict[str, tuple[Stamp, Means]] = {}
    is_changed = False
    for row in rows:
        path = score_file(run, row)
        if row.status != "ok" or row.protocol == POSITIONS:
            continue
        stamp, means = _stamp(path), kept.find(path)
        if means is None and stamp is not None:
            with suppress(RunError):  # a report names damaged scores, and scoring makes them again
                means, is_changed = means_of(load_scores(path), row.protocol), True
        if means is not None and stamp is not None:
            entries[path.stem] = stamp, means
    if is_changed:
        _write(run / MEANS, entries)


def _stamp(path: Path) -> Stamp | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _write(path: Path, entries: Mapping[str, tuple[Stamp, Means]]) -> None:
    tensors: dict[str, np.ndarray] = {}
    facts: dict[str, tuple[int, int, str, int, float]] = {}
    names_of: dict[bytes, str] = {}  # rows of one set of targets share their clusters
    for stem, (stamp, means) in entries.items():
        shared = names_of.setdefault(means.names.tobytes(), f"names {len(names_of)}")
        tensors[shared], tensors[stem] = means.names, means.bits
        facts[stem] = (*stamp, shared, means.segments, means.level)
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
    for stem, (size, time, shared, segments, level) in json.loads(header["entries"]).items():
        names, bits = tensors[shared], tensors[stem]
        if (names.dtype, bits.dtype, names.shape) != (np.int64, np.float64, bits.shape) or bits.ndim != 1:
            raise ValueError(f"{stem} is no row of means")
        entries[stem] = (size, time), Means(names, bits, float(level), int(segments))
    return entries


def _checksum(about: str, tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()
