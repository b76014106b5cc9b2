"""How a pass is timed: in turns with the reference, after a pass of each that warms up."""

import gc
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from pe_bench.encodings import LengthError
from pe_bench.errors import text_of
from pe_bench.inspection.speed.passes import Pass
from pe_bench.model.checks import describe_user_code_error
from pe_bench.system.memory import PeakMemory, give_back_free_memory, is_out_of_memory
from pe_bench.training.trainer import NonFiniteError

REPEATS = 5  # of a pass, at least
MAX_REPEATS = 25
SHORT = 0.5  # seconds: a pass is repeated for so long if that is not more often than `MAX_REPEATS`
LONG = 20.0  # seconds: none begins after so long, though there be fewer than `REPEATS`


@dataclass(frozen=True)
class Timing:
    """The milliseconds of each timed pass, and the ratios of each to the reference's pass just before it."""

    milliseconds: list[float]
    ratios: list[float]
    peak_memory_mb: float | None

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)

    @property
    def relative(self) -> float | None:
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def middle_half(self) -> tuple[float, float] | None:
        """Return the quartiles of the ratios; None for fewer than two."""
        if len(self.ratios) < 2:
            return None
        low, _, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return low, high


def time_pass(timed: Pass, reference: Pass | None, repeats: int | None = None) -> Timing:
    """Time `repeats` passes, or as many as are needed. The reference may be the pass itself, or missing."""
    memory = peak_of(timed)
    with timed.in_use():
        if reference is not None and reference is not timed:
            reference()
        pairs = list(_pairs(timed, reference, repeats))
    milliseconds = [taken * 1e3 for taken, _ in pairs]
    return Timing(milliseconds, [taken / before for taken, before in pairs if before is not None], memory)


def _pairs(timed: Pass, reference: Pass | None, repeats: int | None) -> Iterator[tuple[float, float | None]]:
    """Yield the seconds of each pass, and of the reference's just before."""
    began, done = time.perf_counter(), 0
    while is_due(done, time.perf_counter() - began, repeats):
        before = _seconds(reference) if reference is not None and reference is not timed else None
        taken = _seconds(timed)
        yield taken, taken if reference is timed else before
        done += 1


def outcome_of(error: BaseException) -> tuple[str, str] | None:
    """Return the status and reason of a row without numbers; None if the error is our fault."""
    reason = " ".join(text_of(error).split())
    if isinstance(error, LengthError):
        return "undefined", reason
    if isinstance(error, NonFiniteError):
        return "not_finite", reason
    if is_out_of_memory(error):
        return "out_of_memory", reason
    description = describe_user_code_error(error)
    return None if description is None else ("failed", description)


def is_due(done: int, elapsed: float, repeats: int | None) -> bool:
    """Return whether one more pass is timed, after so many in so many seconds."""
    if repeats is not None:
        return done < repeats
    if done == 0 or elapsed > LONG:
        return done == 0
    return done < REPEATS or (done < MAX_REPEATS and elapsed < SHORT)


def peak_of(first: Pass) -> float | None:
    """Measure the megabytes that a first pass needs above what was held before it, such as the weights.

    On a GPU of PyTorch's tensors, else of the whole process; None where the system cannot tell. What a first
    pass loads and later ones find is counted too, and is a few megabytes.
    """
    gc.collect()
    give_back_free_memory()
    with PeakMemory(first.device) as before:
        pass
    with PeakMemory(first.device) as peak:
        first()
    return None if peak.mb is None or before.mb is None else max(0.0, peak.mb - before.mb)


def _seconds(timed: Pass) -> float:
    began = time.perf_counter()
    timed()
    return time.perf_counter() - began
