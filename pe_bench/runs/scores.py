"""The NLLs of single targets: kept in a file, and summed to the numbers of a row."""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from pe_bench.errors import RunError
from pe_bench.runs.commands import eval_command
from pe_bench.runs.rows import TASK, Row
from pe_bench.runs.untrusted import open_regular, unreadable
from pe_bench.system.files import write_atomically

MIN_DOCUMENTS = 20  # for an interval over documents
MIN_SEGMENT = 64  # targets
KINDS = {"nll": np.float32, "document": np.int64, "bytes": np.int64}
ANSWERS = {"correct": np.float32}  # a fourth tensor, where targets are answers
MEANS = "means.safetensors"  # see `pe_bench.runs.means`
DAMAGE = (OSError, SafetensorError, RecursionError, AttributeError, LookupError, TypeError, ValueError)
ABOUT, CHECKSUM = "about", "checksum"  # the one text in a file's header, and its key for a hash of the rest


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Write tensors and plain values to a file, with a checksum of both."""
    arrays = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    about = json.dumps({**facts, CHECKSUM: _checksum(arrays, facts)})
    write_atomically(path, lambda temporary: temporary.write_bytes(save(arrays, {ABOUT: about})))


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return what `write_tensors` wrote. Raise `RunError` where it is missing, damaged or not to be read.

    A file without this checksum, which an older version wrote, is read as it is.
    """
    try:
        with open_regular(path) as file:
            content = file.read()
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        facts = json.loads(header.get("__metadata__", {}).get(ABOUT, "{}"))
        checksum = facts.pop(CHECKSUM, None)
        if checksum not in (None, _checksum(tensors, facts)):
            raise ValueError("its numbers are not those of its checksum")
    except PermissionError as error:
        raise RunError(unreadable(error)) from error
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
    name = f"{row.protocol}-{row.length}-{row.control}-{row.target_hash}"
    name += f"-stride{row.stride}" if row.stride else ""
    if row.scored_with != row.encoding:
        # It spells options, and so may be long or hold a slash.
        other = row.scored_with + (" (forced)" if row.forced else "")
        name += f"-{hashlib.sha256(other.encode()).hexdigest()[:8]}"
    name += f"-{row.score_dtype}" if row.score_dtype != "float32" else ""
    return run.joinpath("scores", f"{name}.safetensors")  # at once, because a report does it for each row


def save_scores(path: Path, scores: Scores) -> None:
    path.parent.mkdir(exist_ok=True)
    tensors = {name: getattr(scores, name) for name in (*KINDS, *ANSWERS)}
    write_tensors(path, {name: tensor for name, tensor in tensors.items() if tensor is not None}, {})


def load_scores(path: Path) -> Scores:
    """Return the scores in a file. Raise `RunError` where it is missing, damaged or not to be read."""
    tensors, _ = read_tensors(path)
    kinds = {name: tensor.dtype for name, tensor in tensors.items()}
    if kinds not in (KINDS, KINDS | ANSWERS):
        raise RunError(f"{path} is damaged ({_spelled(kinds)}, where scores have {_spelled(KINDS)})")
    shapes = {tensor.shape for tensor in tensors.values()}
    if len(shapes) != 1 or min(shapes) == (0,) or len(min(shapes)) != 1:
        raise RunError(f"{path} is damaged (shapes {sorted(shapes)}, not all of [targets])")
    return Scores(**tensors)


def _spelled(kinds: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {np.dtype(kind)}" for name, kind in sorted(kinds.items()))


def has_whole_scores(run: Path, row: Row) -> bool:
    """Return whether the scores of a row can be read: what is lost or damaged is made again."""
    try:
        load_scores(score_file(run, row))
    except RunError:
        return False
    return True


def lengths_without_scores(run: Path, rows: Iterable[Row]) -> list[int]:
    """Return the lengths of the rows of a run whose files of scores are not there."""
    files = set(os.listdir(run / "scores")) if (run / "scores").is_dir() else set()
    scored = (row for row in rows if row.status == "ok")
    return sorted({row.length for row in scored if score_file(run, row).name not in files})


def explain_lost_scores(run: Path, lengths: Iterable[int]) -> str:
    """Return what is missing of a run's scores, and the command that makes it again."""
    named = ",".join(map(str, lengths))
    again = eval_command(run, f" --lengths {named}")
    return f"its files of scores at {named.replace(',', ', ')} are missing: make them again with {again}"


def delete_scores(run: Path) -> None:
    """Delete the scores of weights that are about to be replaced."""
    for name in ("eval.csv", MEANS):
        (run / name).unlink(missing_ok=True)
    shutil.rmtree(run / "scores", ignore_errors=True)
