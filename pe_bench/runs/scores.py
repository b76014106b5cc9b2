"""The scores of a run: the NLLs of single targets, from which rows and verdicts follow.

Each score has a file in the run's `scores/`. `means.safetensors` has the means by document, of all targets
and of each slice, so that a report reads no scores; a mean is ignored if its level is not that of the row.
The file also has the mask of each slice; `pe_bench.scoring.slices` defines slices. All of these files follow
from the text and the weights: `pe-bench eval RUN` makes a lost file again.
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

MIN_DOCUMENTS = 20  # the fewest documents for an interval over documents
MIN_SEGMENT_TARGETS = 64  # targets
SCORE_DTYPES = {"nll": np.float32, "document": np.int64, "bytes": np.int64}
ANSWER_DTYPES = {"correct": np.float32}  # a fourth tensor, if targets are answers
MEANS_FILE = "means.safetensors"
RECALL, NOVEL, KEY = "recall", "novel", "key"
NO_BYTES = -1  # the bytes of a target whose text is unknown, because its tokenizer loses text
TEXT_SLICES = (RECALL, NOVEL)  # slices that follow from the text alone


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Write tensors and plain values to a file, with a checksum of both."""
    arrays = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    about = {**facts, "checksum": _checksum(arrays, facts)}
    content = save(arrays, {"about": json.dumps(about)})
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the tensors and values of `write_tensors`. Raise `RunError` for a missing or damaged file."""
    try:
        with open_regular(path) as file:
            content = file.read()
        tensors = load(content)
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
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

    A cluster is a document. If there are fewer than 20 documents, a cluster is one of `segments` equally long
    parts of a document, of 64 targets or more.
    """

    def __init__(self, document: np.ndarray, size: np.ndarray) -> None:
        """document: the number of each target's document. size: the bytes of each target."""
        # By document, in rising order: its number and its targets. By target: the index of its document.
        self.documents, self.group, self.counts = np.unique(document, return_inverse=True, return_counts=True)
        self.sizes = np.bincount(self.group, weights=size)  # the bytes of each document
        self.names = self.documents  # a number for each cluster
        self.index = self.group  # the index of each target's cluster
        self.segments = 1
        if len(self.counts) < MIN_DOCUMENTS:
            wanted = math.ceil(MIN_DOCUMENTS / len(self.counts))
            most = int(self.counts.min()) // MIN_SEGMENT_TARGETS
            self.segments = max(1, min(wanted, most))
        if self.segments > 1:
            first_names = self.documents * self.segments
            self.names = (first_names[:, None] + np.arange(self.segments)).ravel()
            segment = self.rank * self.segments // self.counts[self.group]
            self.index = self.group * self.segments + segment

    @property
    def rank(self) -> np.ndarray:
        """Return the place of each target in its document, int64 [targets]."""
        rank = np.empty(len(self.group), np.int64)
        order = np.argsort(self.group, kind="stable")
        rank[order] = np.concatenate([np.arange(count) for count in self.counts])
        return rank


@dataclass(frozen=True)
class Scores:
    """The scores of a set of targets: the NLL, document and bytes of each target, in the order of the set."""

    nll: np.ndarray  # nats, float32 [targets]
    document: np.ndarray  # the number of each target's document, int64 [targets]
    # The bytes of the token in the text, int64 [targets]; 1 for an answer of a task; or `NO_BYTES`.
    bytes: np.ndarray
    correct: np.ndarray | None = None  # 1 for a target of a right answer, float32 [targets]; None for text

    @cached_property
    def has_bytes(self) -> bool:
        """Return whether the bytes of all targets are known."""
        return not bool((self.bytes == NO_BYTES).any())

    @property
    def sizes(self) -> np.ndarray:
        """Return the bytes of each target, or 1 for each target if bytes are unknown, int64 [targets]."""
        return self.bytes if self.has_bytes else np.ones_like(self.bytes)

    @property
    def unit(self) -> float:
        """Return the nats in one unit of the level: ln 2 for bits, 1 if bytes are unknown."""
        return math.log(2) if self.has_bytes else 1.0

    @cached_property
    def clusters(self) -> Clusters:
        return Clusters(self.document, self.sizes)

    def by_cluster(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the clusters in a fixed order, and their levels, float64 [clusters].

        Levels are in bits per byte, or in nats per token where the bytes are unknown. The mean level of a
        document's clusters is the level of the document.
        """
        clusters = self.clusters
        sizes = np.repeat(clusters.sizes, clusters.segments) / clusters.segments
        nats = np.bincount(clusters.index, weights=self.nll.astype(np.float64))
        bits = nats / self.unit
        some = sizes > 0
        return clusters.names[some], bits[some] / sizes[some]

    def accuracy(self, index: np.ndarray) -> np.ndarray:
        """Return the share of right answers in each group of targets, float64. index: each target's group."""
        assert self.correct is not None, "there are no answers"
        return np.bincount(index, weights=self.correct) / np.bincount(index)


def compute_level(scores: Scores, protocol: str) -> dict[str, float | None]:
    """Return the columns `nll`, `perplexity` and `bits_per_byte` of scores under a protocol.

    For `paired`, probes and tasks, all documents count the same, however many targets they have. For other
    protocols, as in papers, the NLL is the sum of all nats over the number of tokens, while changes still
    weight documents equally (`compute_means`). Bits per byte are NaN if the targets have no bytes, and None
    if their bytes are unknown.
    """
    bits: float | None
    if protocol in ("paired", "probe", "task"):
        clusters = scores.clusters
        nats_of_documents = np.bincount(clusters.group, weights=scores.nll.astype(np.float64))
        nll = float(np.mean(nats_of_documents / clusters.counts))
        some = clusters.sizes > 0
        bits_of_documents = nats_of_documents[some] / math.log(2)
        bits = math.nan
        if some.any():
            bits = float(np.mean(bits_of_documents / clusters.sizes[some]))
    else:
        nats = float(np.sum(scores.nll, dtype=np.float64))
        size = int(scores.bytes.sum())
        nll = nats / len(scores.nll)
        bits = nats / math.log(2) / size if size else math.nan
    return _level_columns(nll, bits if scores.has_bytes else None)


def _level_columns(nll: float, bits: float | None) -> dict[str, float | None]:
    return {"nll": nll, "perplexity": perplexity_of(nll), "bits_per_byte": bits}


def perplexity_of(nll: float) -> float:
    """Return the exponential of an NLL; infinity if it is too large for a float."""
    return math.inf if nll >= 700 else math.exp(nll)


def with_level(row: Row, scores: Scores) -> Row:
    """Return the row with its NLL, perplexity, bits per byte and shares of right answers from its scores."""
    row = replace(row, **compute_level(scores, row.protocol))
    if scores.correct is None:
        return row
    if row.protocol != TASK:
        accuracy = scores.accuracy(scores.clusters.index)
        return replace(row, accuracy=float(np.mean(accuracy)))
    right = scores.accuracy(scores.clusters.group)
    exact = float((right == 1).mean())
    # Answers of a task are no text.
    return replace(row, bits_per_byte=None, accuracy=float(right.mean()), exact=exact)


def score_file(run: Path, row: Row) -> Path:
    """Return the path of the scores of a row in a run's folder."""
    return run.joinpath("scores", f"{score_name(row)}.safetensors")  # at once: a report does it for each row


def score_name(row: Row) -> str:
    """Return the name of the file of a row's scores, without its ending."""
    name = f"{row.protocol}-{row.length}-{row.control}-{row.target_hash}"
    name += f"-stride{row.stride}" if row.stride else ""
    if row.scored_with != row.encoding:
        # A label has options, so it may be long or contain a slash.
        other = row.scored_with + (" (forced)" if row.forced else "")
        digest = hashlib.sha256(other.encode()).hexdigest()
        name += f"-{digest[:8]}"
    if row.score_dtype != "float32":
        name += f"-{row.score_dtype}"
    return name


def save_scores(path: Path, scores: Scores) -> None:
    """Write scores to a file, and make its folder if needed."""
    path.parent.mkdir(exist_ok=True)
    tensors: dict[str, np.ndarray] = {}
    for name in (*SCORE_DTYPES, *ANSWER_DTYPES):
        tensor = getattr(scores, name)
        if tensor is not None:
            tensors[name] = tensor
    write_tensors(path, tensors, {})


def load_scores(path: Path) -> Scores:
    """Read the scores in a file. Raise `RunError` for a missing or damaged file."""
    tensors, _ = read_tensors(path)
    kinds = {name: tensor.dtype for name, tensor in tensors.items()}
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    count = tensors["nll"].size if "nll" in tensors else 0
    has_kinds = kinds in (SCORE_DTYPES, SCORE_DTYPES | ANSWER_DTYPES)
    has_shapes = count > 0 and {*shapes.values()} == {(count,)}
    if not (has_kinds and has_shapes):
        raise RunError(f"{path} is damaged (its tensors, {kinds} and {shapes}, are no scores)")
    return Scores(**tensors)


def has_whole_scores(run: Path, row: Row) -> bool:
    """Return whether the scores of a row can be read. Lost and damaged scores are made again."""
    try:
        load_scores(score_file(run, row))
    except RunError:
        return False
    return True


# Slices, and means by document


Masks = Mapping[str, np.ndarray]  # keys: the name of a slice; bool [targets] in the order of the target set


def keep_slices(run: Path, masks: Mapping[str, Masks], judge: str = "") -> None:
    """Add slices to a run's `means.safetensors`, and write the means of the scored text there.

    masks: the slices of each target set, by the hash of the set. judge: the run whose scores chose the
    targets. Only the holder of the run's lock may call this.
    """
    kept = read_means(run)
    new_masks: dict[str, np.ndarray] = {}
    for target_hash, slices in masks.items():
        for name, mask in slices.items():
            new_masks[f"{target_hash} {name}"] = mask
    scored = [row for row in read_rows(run / "eval.csv") if row.status == "ok"]
    rows = [row for row in scored if row.protocol not in (*APART, TASK)]
    if new_masks or any(kept.of(row) is None for row in rows):
        judges = {**kept.judges, **dict.fromkeys(new_masks, judge)}
        _write_means(run, rows, {**kept.slices, **new_masks}, judges)


@dataclass(frozen=True)
class Means:
    """The level of a row's scores in each cluster (a document or a part of one), for intervals."""

    names: np.ndarray  # the names of the clusters, int64 [clusters]
    # Bits per byte, or nats per token if a tokenizer loses text; of a task, 1 for an example without a wrong
    # answer, else 0. float64 [clusters].
    bits: np.ndarray
    level: float  # the level of the row, in the same unit
    segments: int  # the number of segments of each document
    # Bytes of each cluster, its weight, float64 [clusters]; None: equal weights.
    sizes: np.ndarray | None = None
    targets: int = 0  # the number of targets in the slice
    slice_hash: str = ""  # as in `Row`
    judge: str = ""  # the run whose scores chose the slice's targets


def compute_means(scores: Scores, protocol: str, mask: np.ndarray | None = None) -> Means:
    """Return the means of all targets, or of a slice without the clusters that have none of its targets.

    A document may have one target of a slice or hundreds, so clusters of a slice are weighted by their bytes:
    the level of the slice counts all its bytes the same. mask: the slice, bool [targets]; None: all targets.
    Raise `RunError` for a mask of another target set.
    """
    clusters = scores.clusters
    if mask is None:
        level = compute_level(scores, protocol)["bits_per_byte" if scores.has_bytes else "nll"]
        assert level is not None
        return Means(*scores.by_cluster(), level, clusters.segments)
    if mask.shape != scores.nll.shape:
        raise RunError(f"a slice is of {len(mask)} targets, and the scores are of {len(scores.nll)}")

    def cluster_sums(values: np.ndarray) -> np.ndarray:
        chosen = np.where(mask, values, 0).astype(np.float64)
        return np.bincount(clusters.index, chosen, len(clusters.names))

    bits = cluster_sums(scores.nll / scores.unit)
    sizes = cluster_sums(scores.sizes)
    some = sizes > 0
    level = float(bits[some].sum() / sizes.sum()) if some.any() else math.nan
    return Means(
        names=clusters.names[some],
        bits=bits[some] / sizes[some],
        level=level,
        segments=clusters.segments,
        sizes=sizes[some],
        targets=int(mask.sum()),
        slice_hash=hashlib.sha256(mask.tobytes()).hexdigest()[:16],
    )


@dataclass(frozen=True)
class KeptMeans:
    """The contents of a run's `means.safetensors`."""

    means: Mapping[str, Means] = field(default_factory=dict)  # keys: the names of a score and a slice
    # By the hash of a target set and the name of a slice.
    slices: Masks = field(default_factory=dict)
    # The run that chose the targets of each of the `slices`, by the same keys; empty without such a run.
    judges: Mapping[str, str] = field(default_factory=dict)

    def of(self, row: Row) -> Means | None:
        """Return the means of a row of all targets or of a slice; None without means of the row's level."""
        means = self.means.get(f"{score_name(row)} {row.slice}")
        level = level_of(row)
        if means is None or level is None:
            return None
        return means if np.array_equal(means.level, level, equal_nan=True) else None

    def rows_of_slice(self, rows: Sequence[Row], name: str) -> Iterator[Row]:
        """Yield the rows of one slice; nothing without means of the slice.

        rows: the rows of all targets. A row without a number gives a row of the slice without a number.
        """
        shared: dict[str, dict[str, Any]] = {}  # for each target set, the values in all its rows
        for row in rows:
            means = self.means.get(f"{score_name(row)} {name}")
            if means is None or means.sizes is None or not means.targets:
                continue
            if self.of(row) is None:
                continue
            documents = np.unique(means.names // means.segments)
            facts = {fact: getattr(means, fact) for fact in ("targets", "slice_hash", "judge")}
            facts["documents"] = len(documents)
            shared[row.target_hash] = facts
            yield replace(row, slice=name, **facts, **_level_of_slice(row, means))
        for row in rows:
            if level_of(row) is None and row.target_hash in shared:
                yield replace(row, slice=name, **shared[row.target_hash])


def _level_of_slice(row: Row, means: Means) -> dict[str, float | None]:
    """Return the columns of the level of a slice. means: the means of the slice."""
    assert means.sizes is not None
    if row.loses_text:
        return _level_columns(means.level, None)
    nats = means.level * math.log(2) * float(means.sizes.sum())
    return _level_columns(nats / means.targets, means.level)


def read_means(run: Path) -> KeptMeans:
    """Read a run's `means.safetensors`; empty for a lost or damaged file."""
    with suppress(Exception):  # a stranger may have written anything
        tensors, facts = read_tensors(run / MEANS_FILE)
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
        # Masks are left, under the hash of a target set and the name of a slice.
        names = [name for name in tensors if len(name.split()) == 2]
        slices = {name: tensors[name].astype(bool) for name in names}
        judges = {name: str(facts["judges"][name]) for name in names}
        return KeptMeans(means, slices, judges)
    return KeptMeans()


def _write_means(run: Path, rows: Iterable[Row], slices: Masks, judges: Mapping[str, str]) -> None:
    """Write the means of rows, of all their targets and of each slice.

    slices, judges: the fields of `KeptMeans`.
    """
    tensors = dict(slices)
    facts: dict[str, tuple[object, ...]] = {}
    for row in rows:
        keys_of_slices: dict[str, str] = {}
        for key in slices:
            target_hash, name = key.split()
            if target_hash == row.target_hash:
                keys_of_slices[name] = key
        with suppress(RunError):  # a report names damaged scores, and scoring makes them again
            scores = load_scores(score_file(run, row))
            for name, key in {ALL: "", **keys_of_slices}.items():
                means = compute_means(scores, row.protocol, slices.get(key))
                columns = [means.names.astype(np.float64), means.bits]
                if means.sizes is not None:
                    columns.append(means.sizes)
                entry = f"{score_name(row)} {name}"
                tensors[entry] = np.stack(columns)
                about = means.targets, means.slice_hash, judges.get(key, "")
                facts[entry] = means.level, means.segments, *about
    if tensors:
        write_tensors(run / MEANS_FILE, tensors, {"means": facts, "judges": judges})
