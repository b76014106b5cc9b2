"""The scores of a run: the NLLs of single targets, and all that rows and verdicts are made of.

A score has a file in the run's `scores/`. `means.safetensors` has the means by document, of all targets and
of those of each slice, so that a report reads no scores; they count only beside the level that they give. It
also says which targets of a set are in a slice: what a slice is, `pe_bench.scoring.slices` says.
All of these files follow from the text and the weights: `pe-bench eval RUN` makes again what is lost.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from pe_bench.errors import RunError
from pe_bench.runs.rows import ALL, APART, TASK, Row, level_of, read_cell, read_rows
from pe_bench.runs.untrusted import open_regular
from pe_bench.system.files import write_atomically

MIN_DOCUMENTS = 20  # for an interval over documents
MIN_SEGMENT = 64  # targets
KINDS = {"nll": np.float32, "document": np.int64, "bytes": np.int64}
ANSWERS = {"correct": np.float32}  # a fourth tensor, where targets are answers
MEANS = "means.safetensors"
RECALL, NOVEL, KEY = "recall", "novel", "key"
NO_BYTES = -1  # for a target: its tokenizer loses text, so that what the target stands for is not known
TEXT_SLICES = (RECALL, NOVEL)  # that the text alone decides


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Write tensors and plain values to a file, with a checksum of both."""
    arrays = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    content = save(arrays, {"about": json.dumps({**facts, "checksum": _checksum(arrays, facts)})})
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return what `write_tensors` wrote. Raise `RunError` where it is missing, damaged or not to be read."""
    try:
        with open_regular(path) as file:
            content = file.read()
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        facts = json.loads(header["__metadata__"]["about"])
        if facts.pop("checksum") != _checksum(tensors, facts):
            raise ValueError("its numbers are not those of its checksum")
    except FileNotFoundError as error:
        raise RunError(f"{path} is missing") from error
    except Exception as error:  # a stranger may have written anything
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
        self.names = self.documents
        self.index = self.group
        self.segments = 1
        if len(self.counts) < MIN_DOCUMENTS:
            most = self.counts.min() // MIN_SEGMENT
            self.segments = int(max(1, min(-(-MIN_DOCUMENTS // len(self.counts)), most)))
        if self.segments > 1:
            self.names = (self.documents[:, None] * self.segments + np.arange(self.segments)).ravel()
            self.index = self.group * self.segments + self.rank * self.segments // self.counts[self.group]

    @property
    def rank(self) -> np.ndarray:
        rank = np.empty(len(self.group), np.int64)
        order = np.argsort(self.group, kind="stable")
        rank[order] = np.concatenate([np.arange(count) for count in self.counts])
        return rank


@dataclass(frozen=True)
class Scores:
    """One entry for each scored token, in the fixed order of the target set.

    nll: nats, float32 [targets]; document: int64 [targets]; bytes: what each token stands for in
    the text, int64 [targets] (1 for an answer of a task, -1 where that is not known); correct: 1 for a target
    of a right answer, float32 [targets], None where there are no answers.
    """

    nll: np.ndarray
    document: np.ndarray
    bytes: np.ndarray
    correct: np.ndarray | None = None

    @cached_property
    def has_bytes(self) -> bool:
        return not bool((self.bytes == NO_BYTES).any())

    @property
    def sizes(self) -> np.ndarray:
        """Return what levels are per: the bytes of each target, or 1 for each, int64 [targets]."""
        return self.bytes if self.has_bytes else np.ones_like(self.bytes)

    @property
    def unit(self) -> float:
        """Return how many nats a unit of a level has: a bit per byte, or a nat per token."""
        return math.log(2) if self.has_bytes else 1.0

    @cached_property
    def clusters(self) -> Clusters:
        return Clusters(self.document, self.sizes)

    def by_cluster(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the clusters in a fixed order, and their levels (bits per byte), float64 [clusters].

        The mean over a document's clusters is that of the document.
        """
        clusters = self.clusters
        sizes = np.repeat(clusters.sizes, clusters.segments) / clusters.segments
        bits = np.bincount(clusters.index, weights=self.nll.astype(np.float64)) / self.unit
        some = sizes > 0
        return clusters.names[some], bits[some] / sizes[some]

    def accuracy(self, index: np.ndarray) -> np.ndarray:
        """Return the share of right answers in each group of targets, float64. index: each target's group."""
        assert self.correct is not None, "there are no answers"
        return np.bincount(index, weights=self.correct) / np.bincount(index)


def compute_level(scores: Scores, protocol: str) -> dict[str, float | None]:
    """Return the columns of a row's level: as in papers, the sum of all nats over that of all tokens.

    For `paired`, probes and tasks, all documents count the same, however many targets they have. Bits per
    byte are NaN if the targets have no bytes, and None where their bytes are not known.
    """
    bits: float | None
    if protocol in ("paired", "probe", "task"):
        clusters = scores.clusters
        nats_of_documents = np.bincount(clusters.group, weights=scores.nll.astype(np.float64))
        nll = float(np.mean(nats_of_documents / clusters.counts))
        some = clusters.sizes > 0
        bits_of_documents = nats_of_documents[some] / math.log(2) / clusters.sizes[some]
        bits = float(np.mean(bits_of_documents)) if some.any() else math.nan
    else:
        nats = float(np.sum(scores.nll, dtype=np.float64))
        size = int(scores.bytes.sum())
        nll = nats / len(scores.nll)
        bits = nats / math.log(2) / size if size else math.nan
    bits = bits if scores.has_bytes else None
    return {"nll": nll, "perplexity": perplexity_of(nll), "bits_per_byte": bits}


def perplexity_of(nll: float) -> float:
    """Return the exponential; infinity where it is beyond what a float can hold."""
    return math.inf if nll >= 700 else math.exp(nll)


def with_level(row: Row, scores: Scores) -> Row:
    """Return the row with the level that its scores give."""
    row = replace(row, **compute_level(scores, row.protocol))
    if scores.correct is None:
        return row
    if row.protocol != TASK:
        return replace(row, accuracy=float(np.mean(scores.accuracy(scores.clusters.index))))
    right = scores.accuracy(scores.clusters.group)
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
    return name + (f"-{row.score_dtype}" if row.score_dtype != "float32" else "")


def save_scores(path: Path, scores: Scores) -> None:
    path.parent.mkdir(exist_ok=True)
    tensors = {name: getattr(scores, name) for name in (*KINDS, *ANSWERS)}
    write_tensors(path, {name: tensor for name, tensor in tensors.items() if tensor is not None}, {})


def load_scores(path: Path) -> Scores:
    """Return the scores in a file. Raise `RunError` where it is missing, damaged or not to be read."""
    tensors, _ = read_tensors(path)
    kinds = {name: tensor.dtype for name, tensor in tensors.items()}
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    count = tensors["nll"].size if "nll" in tensors else 0
    if kinds not in (KINDS, KINDS | ANSWERS) or {*shapes.values()} != {(count,)} or not count:
        raise RunError(f"{path} is damaged (its tensors, {kinds} and {shapes}, are no scores)")
    return Scores(**tensors)


def has_whole_scores(run: Path, row: Row) -> bool:
    """Return whether the scores of a row can be read: what is lost or damaged is made again."""
    try:
        load_scores(score_file(run, row))
    except RunError:
        return False
    return True


# Slices, and means by document


Masks = Mapping[str, np.ndarray]  # by the name of a slice, bool [targets] in the order of their set


def keep_slices(run: Path, masks: Mapping[str, Masks], judge: str = "") -> None:
    """Add slices by the hash of their set to what a run keeps, and write the means of its rows.

    judge: the run whose scores chose the targets. Only the holder of the run's lock may call this.
    """
    kept = read_means(run)
    new: dict[str, np.ndarray] = {}
    for target_hash, masks_of_set in masks.items():
        new.update({f"{target_hash} {name}": mask for name, mask in masks_of_set.items()})
    rows = [
        row
        for row in read_rows(run / "eval.csv")
        if row.status == "ok" and row.protocol not in (*APART, TASK)
    ]
    if new or any(kept.of(row) is None for row in rows):
        _write_means(run, rows, {**kept.slices, **new}, {**kept.judges, **dict.fromkeys(new, judge)})


@dataclass(frozen=True)
class Means:
    """The scores of a row, as far as a verdict needs them.

    names: of the clusters, int64 [clusters]. bits: bits per byte of each, float64 [clusters], or nats per
    token where a tokenizer loses text. level: their row's, in the same unit. segments: into how many each
    document is cut. sizes: bytes of each cluster's targets, float64 [clusters], where clusters count by them;
    None where all count the same. targets, slice_hash, judge: of a slice.
    """

    names: np.ndarray
    bits: np.ndarray
    level: float
    segments: int
    sizes: np.ndarray | None = None
    targets: int = 0
    slice_hash: str = ""
    judge: str = ""


def compute_means(scores: Scores, protocol: str, mask: np.ndarray | None = None) -> Means:
    """Return the means of all targets, or of those of a slice; clusters without any are left out.

    A document may have one target of a slice or hundreds, so that clusters count by their bytes: the level is
    that of all these targets together. Raise `RunError` for a slice of another set.
    """
    clusters = scores.clusters
    if mask is None:
        level = compute_level(scores, protocol)["bits_per_byte" if scores.has_bytes else "nll"]
        assert level is not None
        return Means(*scores.by_cluster(), level, clusters.segments)
    if mask.shape != scores.nll.shape:
        raise RunError(f"a slice is of {len(mask)} targets, and the scores are of {len(scores.nll)}")
    bits, sizes = (
        np.bincount(clusters.index, np.where(mask, values, 0).astype(np.float64), len(clusters.names))
        for values in (scores.nll / scores.unit, scores.sizes)
    )
    some = sizes > 0
    level = float(bits[some].sum() / sizes.sum()) if some.any() else math.nan
    slice_hash = hashlib.sha256(mask.tobytes()).hexdigest()[:16]
    means = Means(clusters.names[some], bits[some] / sizes[some], level, clusters.segments, sizes[some])
    return replace(means, targets=int(mask.sum()), slice_hash=slice_hash)


@dataclass(frozen=True)
class KeptMeans:
    """What a run keeps of its scores: their means, by the name of a score and that of a slice.

    slices, judges: masks, and the runs that chose them if any, by the hash of a set and the name of a slice.
    """

    means: Mapping[str, Means] = field(default_factory=dict)
    slices: Masks = field(default_factory=dict)
    judges: Mapping[str, str] = field(default_factory=dict)

    def of(self, row: Row) -> Means | None:
        """Return the means of a row, or of one of a slice; None where there are none of its level."""
        means = self.means.get(f"{score_name(row)} {row.slice}")
        level = level_of(row)
        if means is None or level is None:
            return None
        return means if np.array_equal(means.level, level, equal_nan=True) else None

    def rows_of_slice(self, rows: Sequence[Row], name: str) -> Iterator[Row]:
        """Yield the rows of one slice, for rows of all targets; none where there are no means of it.

        A length without a number has a row without one.
        """
        shared: dict[str, dict[str, Any]] = {}  # what the rows of a set of targets share
        for row in rows:
            means = self.means.get(f"{score_name(row)} {name}")
            if means is None or means.sizes is None or not means.targets or self.of(row) is None:
                continue
            level = _level_of_slice(row, means)
            shared[row.target_hash] = {
                **{fact: getattr(means, fact) for fact in ("targets", "slice_hash", "judge")},
                "documents": len(np.unique(means.names // means.segments)),
            }
            yield replace(row, slice=name, **shared[row.target_hash], **level)
        for row in rows:
            if level_of(row) is None and row.target_hash in shared:
                yield replace(row, slice=name, **shared[row.target_hash])


def _level_of_slice(row: Row, means: Means) -> dict[str, float | None]:
    """Return the columns of the level of a slice, whose targets have means by the bytes of clusters."""
    assert means.sizes is not None
    if row.loses_text:
        return {"nll": means.level, "perplexity": perplexity_of(means.level), "bits_per_byte": None}
    nll = means.level * math.log(2) * float(means.sizes.sum()) / means.targets
    return {"nll": nll, "perplexity": perplexity_of(nll), "bits_per_byte": means.level}


def read_means(run: Path) -> KeptMeans:
    """Return the means in a run's file; none where it is lost or damaged."""
    with suppress(Exception):  # a stranger may have written anything
        tensors, facts = read_tensors(run / MEANS)
        means = {}
        for entry, (level, segments, targets, slice_hash, judge) in facts["means"].items():
            names, bits, *sizes = tensors.pop(entry).astype(np.float64)
            means[entry] = Means(
                names=names.astype(np.int64),
                bits=bits,
                level=float(level),
                segments=int(segments),
                sizes=sizes[0] if sizes else None,
                targets=int(targets),
                slice_hash=str(slice_hash),
                judge=read_cell("judge", judge),
            )
        slices = {words: mask.astype(bool) for words, mask in tensors.items() if len(words.split()) == 2}
        return KeptMeans(means, slices, {words: str(facts["judges"][words]) for words in slices})
    return KeptMeans()


def _write_means(run: Path, rows: Iterable[Row], slices: Masks, judges: Mapping[str, str]) -> None:
    """Write the means of rows, of all their targets and of each slice. slices, judges: as in `KeptMeans`."""
    tensors = dict(slices)
    facts: dict[str, tuple[object, ...]] = {}
    for row in rows:
        keys = {key.split()[1]: key for key in slices if key.split()[0] == row.target_hash}
        with suppress(RunError):  # a report names damaged scores, and scoring makes them again
            scores = load_scores(score_file(run, row))
            for name, key in {ALL: "", **keys}.items():
                means = compute_means(scores, row.protocol, slices.get(key))
                columns = [means.names.astype(np.float64), means.bits]
                if means.sizes is not None:
                    columns.append(means.sizes)
                entry = f"{score_name(row)} {name}"
                tensors[entry] = np.stack(columns)
                about = means.targets, means.slice_hash, judges.get(key, "")
                facts[entry] = means.level, means.segments, *about
    if tensors:
        write_tensors(run / MEANS, tensors, {"means": facts, "judges": judges})
