"""One encoding at one length: its seeds averaged, and its change against the training length."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pe_bench.errors import RunError
from pe_bench.results import Row
from pe_bench.scores import LEVEL_OF_PROTOCOL, load_scores, perplexity_of, score_path
from pe_bench.statistics import Interval, paired_interval, verdict


@dataclass(frozen=True)
class Difference:
    """From the table's baseline at the same length, in bits per byte; negative is better.

    verdict: better, same, worse or unclear; empty without an interval, and `missing` says why.
    """

    mean: float | None
    interval: Interval | None
    verdict: str
    missing: str


@dataclass(frozen=True)
class ContextUse:
    """What the controls at one length say of the context beyond the training length.

    uses_context: yes, no or unclear; empty where it cannot be judged, and `missing` says why.
    beats_window: yes, no or unclear; n/a where the encoding is windowed itself, empty without the control.
    swap_gain, window_gain: bits per byte that are lost when the far context is another document's, and
    when every layer sees only as many tokens as in training.
    """

    uses_context: str
    beats_window: str
    swap_gain: Interval | None
    window_gain: Interval | None
    missing: str


@dataclass(frozen=True)
class Cell:
    """What is known of an encoding at a length.

    levels: bits per byte, one for each seed, in the order of the runs' names. A number that is not
    known is None; `missing` says why there is no change, or no interval of it.
    """

    length: int
    status: str
    reason: str
    levels: tuple[float, ...]
    perplexity: float | None
    change: float | None
    interval: Interval | None
    verdict: str  # undefined without a number, empty without an interval
    missing: str
    target_hash: str
    targets: int
    documents: int
    stride: int | None
    peak_memory_mb: float | None
    baseline: Difference | None = None  # none where the table has no baseline, or this is it
    use: ContextUse | None = None  # none where no control was scored

    @property
    def bits_per_byte(self) -> float | None:
        return _mean(self.levels)


class Scored(Protocol):
    """A row, or a line of rows."""

    @property
    def encoding(self) -> str: ...
    @property
    def scored_with(self) -> str: ...


class ScoreFiles:
    """The bits per byte of single documents, read from each score file once.

    `folder_of` says where the run of a row lies.
    """

    def __init__(self, folder_of: Callable[[Row], Path]) -> None:
        self._folder_of = folder_of
        self._known: dict[Path, tuple[np.ndarray, np.ndarray]] = {}

    def by_document(self, row: Row) -> tuple[np.ndarray, np.ndarray]:
        """Document ids int64 [D] and bits per byte float64 [D]. Raises `RunError`."""
        other = row.scored_with if row.scored_with != row.encoding else None
        run = self._folder_of(row)
        path = score_path(run, row.protocol, row.length, row.control, row.target_hash, other, row.stride)
        if path not in self._known:
            self._known[path] = _read(path, row)
        return self._known[path]


def make_cell(
    rows: Sequence[Row], references: Sequence[Row], ranks: Mapping[str, Any], files: ScoreFiles
) -> Cell:
    """The cell of `rows`, the seeds of one encoding at one length.

    references: the same runs, unmodified, at their training length. ranks: of the table's sets of
    targets; of several the one that most seeds were scored on is taken, then the one ranked highest.
    """
    scored = [row for row in rows if has_number(row)]
    if not scored:
        return _empty(rows)
    seeds = Counter(row.target_hash for row in scored)
    chosen = max(seeds, key=lambda target_hash: (seeds[target_hash], ranks[target_hash]))
    scored = sorted((row for row in scored if row.target_hash == chosen), key=lambda row: row.run)
    change, interval, missing = _change(scored, [row for row in references if has_number(row)], files)
    nll = _mean([row.nll for row in scored if row.nll is not None])
    memory = [row.peak_memory_mb for row in scored if row.peak_memory_mb is not None]
    return Cell(
        length=rows[0].length,
        status="ok",
        reason="",
        levels=tuple(row.bits_per_byte for row in scored if row.bits_per_byte is not None),
        perplexity=perplexity_of(nll) if nll is not None else None,
        change=change,
        interval=interval,
        verdict=verdict(interval) if interval else "",
        missing=missing,
        target_hash=chosen,
        targets=min(row.targets for row in scored),
        documents=min(row.documents for row in scored),
        stride=scored[0].stride,
        peak_memory_mb=max(memory, default=None),
    )


def has_number(row: Row) -> bool:
    return row.status == "ok" and row.bits_per_byte is not None


def label_of(one: Scored) -> str:
    """The name to show: of the encoding, and of what it was scored with where that is another."""
    same = one.scored_with == one.encoding
    return one.encoding if same else f"{one.encoding} -> {one.scored_with}"


def _empty(rows: Sequence[Row]) -> Cell:
    first = rows[0]
    status = "undefined" if first.status == "ok" else first.status
    return Cell(
        length=first.length,
        status=status,
        reason=first.reason,
        levels=(),
        perplexity=None,
        change=None,
        interval=None,
        verdict="undefined",
        missing="",
        target_hash=first.target_hash,
        targets=0,
        documents=0,
        stride=first.stride,
        peak_memory_mb=None,
    )


def _change(
    rows: Sequence[Row], references: Sequence[Row], files: ScoreFiles
) -> tuple[float | None, Interval | None, str]:
    """The mean change, its interval, and why either is missing."""
    if not references:
        return None, None, "the training length has no score to compare with"
    reference_of = {row.run: row for row in references if row.target_hash == rows[0].target_hash}
    pairs = [(row, reference_of[row.run]) for row in rows if row.run in reference_of]
    if not pairs:
        return None, None, "scored on other targets than the training length"
    if all(row is reference for row, reference in pairs):
        return None, None, ""  # the training length itself
    try:
        interval = paired_interval(np.stack([_difference(row, reference, files) for row, reference in pairs]))
    except RunError as error:
        return _mean([_plain_difference(row, reference) for row, reference in pairs]), None, str(error)
    return interval.mean, interval, ""


def _difference(row: Row, reference: Row, files: ScoreFiles) -> np.ndarray:
    """The change of each document in bits per byte, float64 [D]."""
    documents, bits = files.by_document(row)
    same_documents, reference_bits = files.by_document(reference)
    if not np.array_equal(documents, same_documents):
        raise RunError(
            f"the scores of {row.run} at {row.length} and {reference.length} are of other documents"
        )
    if not documents.size:
        raise RunError(f"no target of {row.run} at {row.length} stands for a byte of the text")
    with np.errstate(invalid="ignore"):  # infinity less infinity: a failure, and counted as one
        return bits - reference_bits


def _plain_difference(row: Row, reference: Row) -> float:
    assert row.bits_per_byte is not None
    assert reference.bits_per_byte is not None
    return row.bits_per_byte - reference.bits_per_byte


def _read(path: Path, row: Row) -> tuple[np.ndarray, np.ndarray]:
    scores = load_scores(path)
    found = LEVEL_OF_PROTOCOL[row.protocol](scores).bits_per_byte
    assert row.bits_per_byte is not None
    if not np.isclose(found, row.bits_per_byte, rtol=1e-6, equal_nan=True):
        raise RunError(
            f"{path} does not give its row's {row.bits_per_byte:.6f} bits per byte, but {found:.6f}"
        )
    return scores.by_document()


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
