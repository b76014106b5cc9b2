"""The scores of a run: the NLLs of single targets, and all that rows and verdicts are made of.

A score has a file in the run's `scores/`. `slices.safetensors` says which targets of a set are in a slice:
what a slice is, `pe_bench.scoring.slices` says. `means.safetensors` has the means by document, of all targets
and of those of each slice, so that a report reads no scores; they count only beside the level that they give.
All of these files follow from the text and the weights: `pe-bench eval RUN` makes again what is lost.
"""

import hashlib
import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from pe_bench.errors import RunError
from pe_bench.runs.rows import APART, TASK, Row, read_rows, read_text
from pe_bench.runs.untrusted import open_regular
from pe_bench.system.files import write_atomically

MIN_DOCUMENTS = 20  # for an interval over documents
MIN_SEGMENT = 64  # targets
KINDS = {"nll": np.float32, "document": np.int64, "bytes": np.int64}
ANSWERS = {"correct": np.float32}  # a fourth tensor, where targets are answers
MEANS, SLICES = "means.safetensors", "slices.safetensors"
RECALL, NOVEL, KEY = "recall", "novel", "key"
TEXT_SLICES = (RECALL, NOVEL)  # that the text alone decides
SLICES_VERSION = 1  # of the definitions: raise it when other targets belong to a slice
DAMAGE = (OSError, SafetensorError, RecursionError, OverflowError)
DAMAGE += (AttributeError, LookupError, TypeError, ValueError)
ABOUT, CHECKSUM = "about", "checksum"  # the one text in a file's header, and its key for a hash of the rest


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Write tensors and plain values to a file, with a checksum of both."""
    arrays = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    about = json.dumps({**facts, CHECKSUM: _checksum(arrays, facts)})
    write_atomically(path, lambda temporary: temporary.write_bytes(save(arrays, {ABOUT: about})))


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return what `write_tensors` wrote. Raise `RunError` where it is missing, damaged or not to be read."""
    try:
        with open_regular(path) as file:
            content = file.read()
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        facts = json.loads(header["__metadata__"][ABOUT])
        if facts.pop(CHECKSUM) != _checksum(tensors, facts):
            raise ValueError("its numbers are not those of its checksum")
    except FileNotFoundError as error:
        raise RunError(f"{path} is missing") from error
    except DAMAGE as error:
        raise RunError(f"{path} is damaged ({error})") from error
    return tensors, facts


def _checksum(tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(facts).encode())
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].tobytes())
    return digest.hexdigest()


class Clusters:
    """The division of a set's targets into documents, and into the clusters that an interval resamples.

    A cluster is a document; where there are fewer than 20, one of `segments` equally long parts of each
    document, of 64 targets or more. documents: their numbers in rising order. group, counts, sizes: the index
    of each target's document, the targets and the bytes of each document. names, index: a number for each
    cluster, and the index of each target's. rank: of each target among those of its document.
    """

    def __init__(self, document: np.ndarray, size: np.ndarray) -> None:
        self.documents, self.group, self.counts = np.unique(document, return_inverse=True, return_counts=True)
        self.sizes = np.bincount(self.group, weights=size)
        self.segments = segments_of(self.counts)
        self.names, self.index = self.documents, self.group
        if self.segments > 1:
            self.names = (self.documents[:, None] * self.segments + np.arange(self.segments)).ravel()
            self.index = self.group * self.segments + self.rank * self.segments // self.counts[self.group]

    @cached_property
    def rank(self) -> np.ndarray:
        rank = np.empty(len(self.group), np.int64)
        order = np.argsort(self.group, kind="stable")
        rank[order] = np.concatenate([np.arange(count) for count in self.counts])
        return rank

    def nats(self, nll: np.ndarray) -> np.ndarray:
        """Return the sum of each document, float64 [documents]."""
        return np.bincount(self.group, weights=nll.astype(np.float64))


@lru_cache(maxsize=4)
def _clusters(document: bytes, size: bytes) -> Clusters:
    """Return the clusters of a set, which many rows of a report have."""
    return Clusters(np.frombuffer(document, np.int64), np.frombuffer(size, np.int64))


@dataclass(frozen=True)
class Scores:
    """One entry for each scored token, in the fixed order of the target set.

    nll: nats, float32 [targets]; document: int64 [targets]; bytes: what each token stands for in
    the text, int64 [targets] (1 for an answer of a task); correct: 1 for a target of a right answer, float32
    [targets], None where there are no answers.
    """

    nll: np.ndarray
    document: np.ndarray
    bytes: np.ndarray
    correct: np.ndarray | None = None

    @cached_property
    def clusters(self) -> Clusters:
        return _clusters(self.document.astype(np.int64).tobytes(), self.bytes.astype(np.int64).tobytes())

    def by_document(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the documents in rising order, and the bits per byte of each, float64.

        A document whose targets stand for no byte has no bits per byte, and is left out.
        """
        clusters = self.clusters
        some = clusters.sizes > 0
        return clusters.documents[some], clusters.nats(self.nll)[some] / math.log(2) / clusters.sizes[some]

    def by_cluster(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the clusters in a fixed order, and the bits per byte of each, float64 [clusters].

        The mean over a document's clusters is that of the document.
        """
        clusters = self.clusters
        sizes = np.repeat(clusters.sizes, clusters.segments) / clusters.segments
        bits = np.bincount(clusters.index, weights=self.nll.astype(np.float64)) / math.log(2)
        some = sizes > 0
        return clusters.names[some], bits[some] / sizes[some]

    def accuracy_by_document(self) -> np.ndarray:
        """Return the share of right answers in each document, in rising order, float64 [documents]."""
        assert self.correct is not None, "there are no answers"
        return np.bincount(self.clusters.group, weights=self.correct) / self.clusters.counts

    def accuracy_by_cluster(self) -> np.ndarray:
        """Return the share of right answers in each cluster, in their order, float64 [clusters]."""
        assert self.correct is not None, "there are no answers"
        index = self.clusters.index
        return np.bincount(index, weights=self.correct) / np.bincount(index)


def segments_of(counts: np.ndarray) -> int:
    """Return into how many segments each document is cut, from its number of targets int64 [documents]."""
    if len(counts) >= MIN_DOCUMENTS:
        return 1
    return int(max(1, min(-(-MIN_DOCUMENTS // len(counts)), counts.min() // MIN_SEGMENT)))


@dataclass(frozen=True)
class Level:
    """Nats per token, its exponential, and bits per byte of the text (NaN where it has no byte)."""

    nll: float
    perplexity: float
    bits_per_byte: float


def compute_level(scores: Scores, protocol: str) -> Level:
    """Return the level of a row: papers sum all nats over all tokens, and divide once.

    For `paired`, probes and tasks documents count the same, however many targets they gave.
    """
    if protocol in ("paired", "probe", "task"):
        nll = float(np.mean(scores.clusters.nats(scores.nll) / scores.clusters.counts))
        _, bits = scores.by_document()
        return Level(nll, perplexity_of(nll), float(np.mean(bits)) if bits.size else math.nan)
    nats, size = float(np.sum(scores.nll, dtype=np.float64)), int(scores.bytes.sum())
    nll = nats / len(scores.nll)
    return Level(nll, perplexity_of(nll), nats / math.log(2) / size if size else math.nan)


def perplexity_of(nll: float) -> float:
    """Return the exponential; infinity where it is beyond what a float can hold."""
    return math.inf if nll >= 700 else math.exp(nll)


def with_level(row: Row, scores: Scores) -> Row:
    """Return the row with the level that its scores give."""
    row = replace(row, **vars(compute_level(scores, row.protocol)))
    if scores.correct is None:
        return row
    if row.protocol != TASK:
        return replace(row, accuracy=float(np.mean(scores.accuracy_by_cluster())))
    right = scores.accuracy_by_document()
    # Answers of a task are no text.
    return replace(row, bits_per_byte=None, accuracy=float(right.mean()), exact=float((right == 1).mean()))


def score_file(run: Path, row: Row) -> Path:
    """Return where the run in this folder keeps the scores of a row."""
    return run.joinpath("scores", f"{score_name(row)}.safetensors")  # at once: a report does it for each row


def score_name(row: Row) -> str:
    """Return the name of the file of a row's scores, without its ending."""
    name = f"{row.protocol}-{row.length}-{row.control}-{row.target_hash}"
    name += f"-stride{row.stride}" if row.stride else ""
    if row.scored_with != row.encoding:
        # It spells options, and so may be long or hold a slash.
        other = row.scored_with + (" (forced)" if row.forced else "")
        name += f"-{hashlib.sha256(other.encode()).hexdigest()[:8]}"
    name += f"-{row.score_dtype}" if row.score_dtype != "float32" else ""
    return name


def save_scores(path: Path, scores: Scores) -> None:
    path.parent.mkdir(exist_ok=True)
    tensors = {name: getattr(scores, name) for name in (*KINDS, *ANSWERS)}
    write_tensors(path, {name: tensor for name, tensor in tensors.items() if tensor is not None}, {})


def load_scores(path: Path) -> Scores:
    """Return the scores in a file. Raise `RunError` where it is missing, damaged or not to be read."""
    tensors, _ = read_tensors(path)
    kinds, shapes = ({name: getattr(tensors[name], fact) for name in tensors} for fact in ("dtype", "shape"))
    count = tensors["nll"].size if "nll" in tensors else 0
    if kinds not in (KINDS, KINDS | ANSWERS) or {*shapes.values()} != {(count,)} or not count:
        raise RunError(f"{path} is damaged (its tensors, {kinds} and {shapes}, are no scores)")
    return Scores(**tensors)


# Slices, and means by document


@dataclass(frozen=True)
class Slice:
    """Which targets of a set are in a slice, bool [targets], and the run whose scores decided, if any did."""

    mask: np.ndarray
    judge: str = ""

    @cached_property
    def hash(self) -> str:
        return hashlib.sha256(self.mask.tobytes()).hexdigest()[:16]


Masks = Mapping[str, np.ndarray]  # by the name of a slice, bool [targets] in the order of their set


def read_slices(run: Path) -> dict[str, dict[str, Slice]]:
    """Return a run's slices by the hash of their set and by their name; none where the file is lost."""
    slices: dict[str, dict[str, Slice]] = {}
    with suppress(RunError, *DAMAGE):
        tensors, facts = read_tensors(run / SLICES)
        for words, mask in tensors.items():
            target_hash, name = words.split()
            if facts["version"] == SLICES_VERSION and mask.dtype == bool and mask.ndim == 1:
                slices.setdefault(target_hash, {})[name] = Slice(mask, str(facts["judges"].get(words, "")))
    return slices


def keep_slices(run: Path, masks: Mapping[str, Masks], judge: str = "") -> None:
    """Add slices by the hash of their set to a run's file, and write what its rows lack of means.

    judge: the run whose scores decided. Only the holder of the run's lock may call this.
    """
    slices = read_slices(run)
    for target_hash, of_set in masks.items():
        slices.setdefault(target_hash, {}).update({name: Slice(mask, judge) for name, mask in of_set.items()})
    if masks:
        parts = {f"{key} {name}": part for key, of_set in slices.items() for name, part in of_set.items()}
        judges = {words: part.judge for words, part in sorted(parts.items()) if part.judge}
        tensors = {words: part.mask for words, part in parts.items()}
        write_tensors(run / SLICES, tensors, {"version": SLICES_VERSION, "judges": judges})
    _keep_means(run, slices)


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


# By the hash of a set and the name of a slice: the number of its targets, a hash of which, and the judge.
AboutSlices = Mapping[str, tuple[int, str, str]]


@dataclass(frozen=True)
class KeptMeans:
    """What a run keeps of its scores: means by `_entry`, and what rows say of their slices."""

    means: Mapping[str, Means] = field(default_factory=dict)
    slices: AboutSlices = field(default_factory=dict)

    def of(self, row: Row) -> Means | None:
        """Return the means of a row, or of one of a slice; None where there are none of its level."""
        means, level = self.means.get(_entry(row, row.slice_hash)), row.bits_per_byte
        if means is None or level is None or not np.array_equal(means.level, level, equal_nan=True):
            return None
        return means

    def rows_of_slice(self, rows: Iterable[Row], name: str) -> Iterator[Row]:
        """Yield the rows of one slice, for rows of all targets; none where there are no means of it.

        A length without a number has a row without one.
        """
        documents: dict[str, int] = {}
        empty: list[Row] = []
        for row in rows:
            targets, slice_hash, judge = self.slices.get(f"{row.target_hash} {name}", (0, "", ""))
            if not targets:
                continue
            of_slice = replace(row, slice=name, judge=judge, slice_hash=slice_hash, targets=targets)
            means = self.means.get(_entry(row, slice_hash))
            if row.bits_per_byte is None:
                empty.append(of_slice)
            elif means is not None and means.sizes is not None and self.of(row) is not None:
                documents[row.target_hash] = means.documents
                yield _with_numbers(of_slice, means)
        for row in empty:
            if row.target_hash in documents:
                yield replace(row, documents=documents[row.target_hash])


def _with_numbers(row: Row, means: Means) -> Row:
    assert means.sizes is not None, "the means of a slice have the sizes of its clusters"
    nll = means.level * math.log(2) * float(means.sizes.sum()) / row.targets
    numbers = {"bits_per_byte": means.level, "documents": means.documents}
    return replace(row, nll=nll, perplexity=perplexity_of(nll), **numbers)


def read_means(run: Path) -> KeptMeans:
    """Return the means in a run's file; none where it is lost or damaged."""
    with suppress(RunError, *DAMAGE):
        tensors, facts = read_tensors(run / MEANS)
        means = {}
        for entry, (level, segments) in facts["means"].items():
            names, bits, *sizes = tensors[entry].astype(np.float64)
            means[entry] = Means(names.astype(np.int64), bits, float(level), int(segments), *sizes[:1])
        slices = {
            words: (int(targets), str(slice_hash), read_text(judge, "judge"))
            for words, (targets, slice_hash, judge) in facts["slices"].items()
        }
        return KeptMeans(means, slices)
    return KeptMeans()


def _keep_means(run: Path, slices: Mapping[str, Mapping[str, Slice]]) -> None:
    kept, means = read_means(run), {}
    for row in read_rows(run / "eval.csv"):
        if row.status != "ok" or row.protocol in (*APART, TASK):
            continue
        parts = {_entry(row, part.hash): part for part in slices.get(row.target_hash, {}).values()}
        parts = {_entry(row): None, **parts}
        if kept.of(row) is not None and parts.keys() <= kept.means.keys():
            means |= {entry: kept.means[entry] for entry in parts}
            continue
        with suppress(RunError):  # a report names damaged scores, and scoring makes them again
            scores = load_scores(score_file(run, row))
            means |= {entry: compute_means(scores, row.protocol, part) for entry, part in parts.items()}
    about = {
        f"{target_hash} {name}": (int(part.mask.sum()), part.hash, part.judge)
        for target_hash, of_set in slices.items()
        for name, part in of_set.items()
    }
    if about != kept.slices or any(kept.means.get(entry) is not each for entry, each in means.items()):
        _write_means(run / MEANS, means, about)


def _write_means(path: Path, means: Mapping[str, Means], about: AboutSlices) -> None:
    tensors = {}
    for entry, each in means.items():
        sizes = [] if each.sizes is None else [each.sizes]
        tensors[entry] = np.stack([each.names.astype(np.float64), each.bits, *sizes])
    levels = {entry: (each.level, each.segments) for entry, each in means.items()}
    write_tensors(path, tensors, {"means": levels, "slices": about})


def _entry(row: Row, slice_hash: str = "") -> str:
    return f"{score_name(row)} {slice_hash}".rstrip()


def has_whole_scores(run: Path, row: Row) -> bool:
    """Return whether the scores of a row can be read: what is lost or damaged is made again."""
    try:
        load_scores(score_file(run, row))
    except RunError:
        return False
    return True


def delete_scores(run: Path) -> None:
    """Delete the scores of weights that are about to be replaced."""
    for name in ("eval.csv", MEANS):
        (run / name).unlink(missing_ok=True)
    shutil.rmtree(run / "scores", ignore_errors=True)
