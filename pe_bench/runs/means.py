"""The slices of a run's targets, and the means by document of its scores: all that a verdict needs.

A file of slices follows from the text and from other scores, so a lost or damaged one is as if there were
none: `pe-bench eval RUN` writes it again. What a slice is, `pe_bench.scoring.slices` says.

Means follow from the files of scores. An entry counts only while its file of scores has the size and the
time that it had, and while the whole file has its checksum; else the scores themselves are read. An entry of
a slice is named by the hash of its targets, so that it is never taken for one of other targets. So nothing
depends on the moment at which a process is killed, and a lost file costs time alone.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from pe_bench.errors import RunError
from pe_bench.runs.rows import ALL, APART, TASK, Row, read_text
from pe_bench.runs.scores import (
    LEVEL_OF_PROTOCOL,
    MEANS,
    Scores,
    load_scores,
    metadata_in,
    perplexity_of,
    score_file,
    write_tensors,
)
from pe_bench.runs.untrusted import open_regular

RECALL, NOVEL, KEY = "recall", "novel", "key"
TEXT_SLICES = (RECALL, NOVEL)  # that the text alone decides
NAMES = (ALL, *TEXT_SLICES, KEY)
SLICES = "slices.safetensors"
SLICES_VERSION = 1  # of the definitions: raise it when other targets belong to a slice

Masks = Mapping[str, np.ndarray]  # by the name of a slice, bool [targets] in the order of their set


class KeptSlices:
    """The slices in a run's file, by the hash of their set of targets; none where it is lost or damaged."""

    def __init__(self, run: Path) -> None:
        self._masks: dict[str, Masks] = {}
        self._judges: dict[tuple[str, str], str] = {}
        with suppress(OSError, SafetensorError, ValueError, TypeError, KeyError, AttributeError):
            self._masks, self._judges = _read_masks(run / SLICES)
        self._hashes = {
            (target_hash, name): hash_of_mask(mask)
            for target_hash, masks in self._masks.items()
            for name, mask in masks.items()
        }

    def of(self, target_hash: str) -> Masks:
        return self._masks.get(target_hash, {})

    def judge(self, target_hash: str, name: str) -> str:
        """Return the run whose scores decided which targets are in a slice; empty where the text did."""
        return self._judges.get((target_hash, name), "")

    def hash_of(self, target_hash: str, name: str) -> str:
        """Return a hash of which targets are in a slice that is kept; empty for all targets."""
        return "" if name == ALL else self._hashes[target_hash, name]

    @property
    def sets(self) -> list[str]:
        return list(self._masks)

    @property
    def names(self) -> list[str]:
        """Return the slices that any set has."""
        return sorted({name for masks in self._masks.values() for name in masks})


def keep_slices(run: Path, masks: Mapping[str, Masks], judge: str = "") -> None:
    """Add slices by the hash of their set to a run's file; only the holder of its lock may call this.

    judge: the run whose scores decided.
    """
    kept = KeptSlices(run)
    present = _flat_masks({target_hash: kept.of(target_hash) for target_hash in kept.sets})
    new = _flat_masks(masks)
    judges = {words: kept.judge(*words.split()) for words in present}
    if all(
        words in present and np.array_equal(present[words], mask) and judges[words] == judge
        for words, mask in new.items()
    ):
        return
    tensors = dict(sorted((present | new).items()))
    named = {words: name for words, name in sorted({**judges, **dict.fromkeys(new, judge)}.items()) if name}
    about = {"version": SLICES_VERSION, "judges": named, "sha256": _digest_of_masks(tensors, named)}
    # One text, because the order of several in a header is left to chance.
    write_tensors(run / SLICES, tensors, {"about": json.dumps(about)})


def hash_of_mask(mask: np.ndarray) -> str:
    return hashlib.sha256(mask.tobytes()).hexdigest()[:16]


def _flat_masks(masks: Mapping[str, Masks]) -> dict[str, np.ndarray]:
    """Return the masks by the names that they have in a file."""
    return {
        f"{target_hash} {name}": mask
        for target_hash, of_set in masks.items()
        for name, mask in of_set.items()
    }


def _read_masks(path: Path) -> tuple[dict[str, Masks], dict[tuple[str, str], str]]:
    """Return the masks and the judges in a file. Raise an error of many kinds for one that is damaged."""
    with open_regular(path) as file:
        content = file.read()
    about, tensors = json.loads(metadata_in(content)["about"]), load(content)
    if about["version"] != SLICES_VERSION or about["sha256"] != _digest_of_masks(tensors, about["judges"]):
        raise ValueError("it is of another version, or its numbers are not those of its checksum")
    masks: dict[str, dict[str, np.ndarray]] = {}
    judges: dict[tuple[str, str], str] = {}
    for words, mask in tensors.items():
        target_hash, name = words.split()
        if mask.dtype != bool or mask.ndim != 1:
            raise ValueError(f"{words} says of no target whether it is in a slice")
        masks.setdefault(target_hash, {})[name] = mask
        judges[target_hash, name] = read_text(about["judges"].get(words, ""), "judge")
        read_text(name, "slice")
    return dict(masks), judges


def _digest_of_masks(tensors: Mapping[str, np.ndarray], judges: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(judges).encode())
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].tobytes())
    return digest.hexdigest()


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
    index, names = (
        (clusters.group, clusters.documents) if clusters.segments == 1 else (clusters.cluster, clusters.names)
    )
    bits, sizes = (
        np.bincount(index, np.where(mask, values, 0).astype(np.float64), len(names))
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
            self._entries = _read_means(run / MEANS)

    def find(self, scores: Path, slice_hash: str = "") -> Means | None:
        """Return the means of a slice of a file of scores that is the one they were computed from."""
        stamp, means = self._entries.get(_entry(scores, slice_hash), (None, None))
        return means if stamp is not None and stamp == _stamp(scores) else None


def find_means(run: Path, row: Row, kept: KeptMeans, slices: KeptSlices) -> Means:
    """Return the means of a row's slice, from the scores where none are kept. Raise `RunError`."""
    path = score_file(run, row)
    means = kept.find(path, row.slice_hash)
    return means if means is not None else compute_means(row, load_scores(path), slices)


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
        means_of_name = {name: kept.find(path, hash_of[name]) for name in names}
        if not all(means_of_name.values()):
            with suppress(RunError):  # a report names damaged scores, and scoring makes them again
                scores, is_changed = load_scores(path), True
                means_of_name = {
                    name: compute_means(replace(row, slice=name), scores, slices) for name in names
                }
        entries |= {
            _entry(path, hash_of[name]): (stamp, means)
            for name, means in means_of_name.items()
            if means is not None
        }
    if is_changed:
        _write_means(run / MEANS, entries)


def _entry(scores: Path, slice_hash: str) -> str:
    return f"{scores.stem} {slice_hash}" if slice_hash else scores.stem


def _stamp(path: Path) -> Stamp | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _write_means(path: Path, entries: Mapping[str, tuple[Stamp, Means]]) -> None:
    tensors: dict[str, np.ndarray] = {}
    facts: dict[str, tuple[object, ...]] = {}
    shared: dict[tuple[str, bytes], str] = {}  # rows of one set of targets share their clusters

    def share(tensor: np.ndarray) -> str:
        name = shared.setdefault((tensor.dtype.str, tensor.tobytes()), f"shared {len(shared)}")
        tensors[name] = tensor
        return name

    for stem, (stamp, means) in entries.items():
        tensors[stem] = means.bits
        of_slice = () if means.sizes is None else (share(means.sizes),)
        facts[stem] = (*stamp, share(means.names), means.segments, means.level, *of_slice)
    about = json.dumps(facts)
    header = {"entries": about, "sha256": _digest_of_means(about, tensors)}
    write_tensors(path, tensors, header)


def _read_means(path: Path) -> dict[str, tuple[Stamp, Means]]:
    """Return the entries of a file. Raise an error of many kinds for one that is damaged."""
    with open_regular(path) as file:
        content = file.read()
    header, tensors = metadata_in(content), load(content)
    if header["sha256"] != _digest_of_means(header["entries"], tensors):
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


def _digest_of_means(about: str, tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()


def rows_of_slice(
    rows: Iterable[Row], name: str, slices: KeptSlices, means_of: Callable[[Row], Means]
) -> Iterator[Row]:
    """Yield the rows of one slice of a run, for its rows of all targets; none for a set without the slice.

    A length without a number has a row without one. means_of: of a row of the slice; where it raises
    `RunError`, the scores are lost or damaged, and there is no row.
    """
    documents: dict[str, int] = {}
    empty: list[Row] = []
    for row in rows:
        mask = slices.of(row.target_hash).get(name)
        if mask is None or not mask.any():
            continue
        of_slice = replace(
            row,
            slice=name,
            judge=slices.judge(row.target_hash, name),
            slice_hash=slices.hash_of(row.target_hash, name),
            targets=int(mask.sum()),
        )
        if row.bits_per_byte is None:
            empty.append(of_slice)
            continue
        try:
            means = means_of(of_slice)
        except RunError:
            continue
        documents[row.target_hash] = means.documents
        yield _with_numbers(of_slice, means)
    for row in empty:
        if row.target_hash in documents:
            yield replace(row, documents=documents[row.target_hash])


def _with_numbers(row: Row, means: Means) -> Row:
    assert means.sizes is not None, "the means of a slice have the sizes of its clusters"
    nll = means.level * math.log(2) * float(means.sizes.sum()) / row.targets
    return replace(
        row,
        nll=nll,
        perplexity=perplexity_of(nll),
        bits_per_byte=means.level,
        documents=means.documents,
    )
