"""The NLLs of single targets: kept in a file, and summed to the numbers of a row."""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save_file

from pe_bench.errors import RunError
from pe_bench.runs.commands import eval_command
from pe_bench.runs.rows import TASK, Row
from pe_bench.runs.untrusted import open_regular, unreadable
from pe_bench.system.files import usual_permissions, write_atomically

MIN_DOCUMENTS = 20  # for an interval over documents
MIN_SEGMENT = 64  # targets
MEANS = "means.safetensors"  # see `pe_bench.runs.means`
CHECKSUM = "sha256"  # of the three tensors, in the file's header
TENSORS = {"nll": np.float32, "document": np.int64, "bytes": np.int64}
ANSWERS = {"correct": np.float32}  # a fourth tensor, where targets are answers


@dataclass(frozen=True)
class Clusters:
    """The division of a set's targets into documents, and into the clusters that an interval resamples.

    document, bytes: as in `Scores`.
    """

    document: np.ndarray
    bytes: np.ndarray

    def by_document(self, nll: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the documents in rising order, and the bits per byte of each, float64.

        A document whose targets stand for no byte has no bits per byte, and is left out.
        """
        some = self.sizes > 0
        return self.documents[some], self.nats(nll)[some] / math.log(2) / self.sizes[some]

    def by_cluster(self, nll: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the clusters in a fixed order, and the bits per byte of each, float64 [clusters].

        A cluster is a document; where there are fewer than 20, one of equally many segments of each document,
        of 64 targets or more. The mean over a document's segments is that of the document.
        """
        if self.segments == 1:
            return self.by_document(nll)
        sizes = np.repeat(self.sizes, self.segments) / self.segments
        bits = np.bincount(self.cluster, weights=nll.astype(np.float64)) / math.log(2)
        some = sizes > 0
        return self.names[some], bits[some] / sizes[some]

    def nats(self, nll: np.ndarray) -> np.ndarray:
        """Return the sum of each document, float64 [documents]."""
        return np.bincount(self.group, weights=nll.astype(np.float64))

    @cached_property
    def _grouped(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        documents, group, counts = np.unique(self.document, return_inverse=True, return_counts=True)
        return documents, group, counts

    @property
    def documents(self) -> np.ndarray:
        return self._grouped[0]

    @property
    def group(self) -> np.ndarray:
        """Return the place of each target's document among `documents`, int64 [targets]."""
        return self._grouped[1]

    @property
    def counts(self) -> np.ndarray:
        """Return the number of targets of each document."""
        return self._grouped[2]

    @cached_property
    def sizes(self) -> np.ndarray:
        """Return the number of bytes of each document's targets."""
        return np.bincount(self.group, weights=self.bytes)

    @cached_property
    def segments(self) -> int:
        return segments_of(self.counts)

    @cached_property
    def cluster(self) -> np.ndarray:
        """Return the place of each target's segment among `names`, int64 [targets]."""
        return self.group * self.segments + self.place * self.segments // self.counts[self.group]

    @cached_property
    def place(self) -> np.ndarray:
        """Return the place of each target among those of its document, int64 [targets]."""
        place = np.empty(len(self.group), np.int64)
        order = np.argsort(self.group, kind="stable")
        place[order] = np.concatenate([np.arange(count) for count in self.counts])
        return place

    @cached_property
    def names(self) -> np.ndarray:
        """Return a number for each segment, int64 [clusters]."""
        segment = np.tile(np.arange(self.segments), len(self.documents))
        return np.repeat(self.documents, self.segments) * self.segments + segment


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
        return Clusters(self.document, self.bytes)

    def sharing(self, clusters: Clusters | None) -> "Scores":
        """Take the clusters of other scores where they are of the same targets, only to save time."""
        same = clusters is not None and all(
            np.array_equal(*pair)
            for pair in ((clusters.document, self.document), (clusters.bytes, self.bytes))
        )
        if same:
            self.__dict__["clusters"] = clusters
        return self

    def by_cluster(self) -> tuple[np.ndarray, np.ndarray]:
        return self.clusters.by_cluster(self.nll)

    def by_document(self) -> tuple[np.ndarray, np.ndarray]:
        return self.clusters.by_document(self.nll)

    def accuracy_by_document(self) -> np.ndarray:
        """Return the share of right answers in each document, in rising order, float64 [documents]."""
        assert self.correct is not None, "there are no answers"
        return np.bincount(self.clusters.group, weights=self.correct) / self.clusters.counts

    def accuracy_by_cluster(self) -> np.ndarray:
        """Return the share of right answers in each cluster, in their order, float64 [clusters]."""
        assert self.correct is not None, "there are no answers"
        place = self.clusters.group if self.clusters.segments == 1 else self.clusters.cluster
        return np.bincount(place, weights=self.correct) / np.bincount(place)


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


def mean_over_documents(scores: Scores) -> Level:
    """Average over documents, which count the same however many targets they gave: for `paired`."""
    nll = float(np.mean(scores.clusters.nats(scores.nll) / scores.clusters.counts))
    _, bits_per_byte = scores.by_document()
    return Level(nll, perplexity_of(nll), float(np.mean(bits_per_byte)) if bits_per_byte.size else math.nan)


def mean_over_tokens(scores: Scores) -> Level:
    """Average as papers do: all nats over all tokens, summed in float64 and divided once."""
    nats = float(np.sum(scores.nll, dtype=np.float64))
    nll = nats / len(scores.nll)
    size = int(scores.bytes.sum())
    return Level(nll, perplexity_of(nll), nats / math.log(2) / size if size else math.nan)


LEVEL_OF_PROTOCOL: dict[str, Callable[[Scores], Level]] = {
    "paired": mean_over_documents,
    "nonoverlapping": mean_over_tokens,
    "sliding": mean_over_tokens,
    "positions": mean_over_tokens,
    "probe": mean_over_documents,
    "task": mean_over_documents,
}


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


def lengths_without_scores(run: Path, rows: Iterable[Row]) -> list[int]:
    """Return the lengths of the rows of a run whose files of scores are not there."""
    try:
        files = set(os.listdir(run / "scores"))
    except OSError:
        files = set()
    return sorted(
        {row.length for row in rows if row.status == "ok" and score_file(run, row).name not in files}
    )


def explain_lost_scores(run: Path, lengths: Iterable[int]) -> str:
    """Return what is missing of a run's scores, and the command that makes it again."""
    named = ",".join(map(str, lengths))
    again = eval_command(run, f" --lengths {named}")
    return f"its files of scores at {named.replace(',', ', ')} are missing: make them again with {again}"


def save_scores(path: Path, scores: Scores) -> None:
    path.parent.mkdir(exist_ok=True)
    names = [name for name in (*TENSORS, *ANSWERS) if getattr(scores, name) is not None]
    tensors = {name: np.ascontiguousarray(getattr(scores, name)) for name in names}
    about = {CHECKSUM: _checksum(tensors)}
    write_tensors(path, tensors, about)


def write_tensors(path: Path, tensors: dict[str, np.ndarray], about: dict[str, str]) -> None:
    def write(temporary: Path) -> None:
        with usual_permissions(temporary):
            save_file(tensors, temporary, about)

    write_atomically(path, write)


def load_scores(path: Path) -> Scores:
    """Return the scores in a file. Raise `RunError` where it is missing, damaged or not to be read."""
    try:
        with open_regular(path) as file:
            content = file.read()
        tensors = load(content)
        scores = Scores(**tensors)
    except PermissionError as error:
        raise RunError(unreadable(error)) from error
    except (OSError, SafetensorError, TypeError, KeyError, ValueError) as error:
        reason = "missing" if isinstance(error, FileNotFoundError) else f"damaged ({error})"
        raise RunError(f"{path} is {reason}") from error
    expected = TENSORS | ANSWERS
    kinds = {name: str(tensor.dtype) for name, tensor in tensors.items() if tensor.dtype != expected[name]}
    if kinds:
        raise RunError(f"{path} is damaged ({kinds}, not the kinds of numbers that scores are)")
    if metadata_in(content).get(CHECKSUM) not in (None, _checksum(tensors)):
        raise RunError(f"{path} is damaged (its numbers are not those of its checksum)")
    shapes = {tensor.shape for tensor in tensors.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        raise RunError(f"{path} is damaged (shapes {sorted(shapes)}, not all of [targets])")
    if not len(scores.nll):
        raise RunError(f"{path} is damaged (it has no target)")
    return scores


def has_whole_scores(run: Path, row: Row) -> bool:
    """Return whether the scores of a row can be read: what is lost or damaged is made again."""
    try:
        load_scores(score_file(run, row))
    except RunError:
        return False
    return True


def with_level(row: Row, scores: Scores) -> Row:
    """Return the row with the level that its scores give."""
    level = LEVEL_OF_PROTOCOL[row.protocol](scores)
    row = replace(row, nll=level.nll, perplexity=level.perplexity, bits_per_byte=level.bits_per_byte)
    if scores.correct is None:
        return row
    if row.protocol != TASK:
        return replace(row, accuracy=float(np.mean(scores.accuracy_by_cluster())))
    right = scores.accuracy_by_document()
    # Answers of a task are no text.
    return replace(row, bits_per_byte=None, accuracy=float(right.mean()), exact=float((right == 1).mean()))


def _checksum(tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in (*TENSORS, *ANSWERS):
        if name in tensors:
            digest.update(tensors[name].tobytes())
    return digest.hexdigest()


def metadata_in(content: bytes) -> dict[str, str]:
    """Return the texts in the header of a file of tensors; none where it was written without."""
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]).get("__metadata__", {})


def perplexity_of(nll: float) -> float:
    """Return the exponential; infinity where it is beyond what a float can hold."""
    return math.inf if nll >= 700 else math.exp(nll)


def delete_scores(run: Path) -> None:
    """Delete the scores of weights that are about to be replaced."""
    for name in ("eval.csv", MEANS):
        (run / name).unlink(missing_ok=True)
    shutil.rmtree(run / "scores", ignore_errors=True)
