"""How passes are timed: which, in turns with the reference, after one that warms up."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from pe_bench.encodings import LengthError
from pe_bench.errors import text_of
from pe_bench.inspection.resolve import ResolvedEncoding
from pe_bench.inspection.speed.passes import Pass, ScoringPass, TrainingPass, dtype_of
from pe_bench.inspection.speed.rows import Row
from pe_bench.model.checks import describe_user_code_error
from pe_bench.system.machine import (
    PeakMemory,
    device_name,
    give_back_free_memory,
    is_out_of_memory,
    package_version,
    processor_name,
    today,
)
from pe_bench.system.signals import INTERRUPTIONS
from pe_bench.training.trainer import NonFiniteError

REPEATS = 5  # of a pass, at least
MAX_REPEATS = 25
SHORT = 0.5  # seconds: a pass is repeated for so long if that is not more often than `MAX_REPEATS`
LONG = 20.0  # seconds: none begins after so long, though there be fewer than `REPEATS`


@dataclass(frozen=True)
class Bench:
    """The facts that all rows of a command share."""

    setting: str
    train: bool
    repeats: int | None
    device: torch.device
    threads: int

    def rows(
        self,
        lengths: Sequence[int],
        choose: Callable[[int], Sequence[ResolvedEncoding]],
        watch: Callable[[str], None],
    ) -> Iterator[Row]:
        """Time short lengths first, and at each the reference, whose pass is timed with all others."""
        with suppress(Exception):  # the same pass is about to be measured, and says what is wrong
            self._pass(
                choose(lengths[0])[0], lengths[0]
            )()  # the first loads libraries, which cost no encoding
        for length in lengths:
            reference: Pass | None = None
            subjects = choose(length)
            for number, subject in enumerate(subjects):
                watch(f"{length:,} tokens, {number + 1} of {len(subjects)}: {subject.label}")
                row, timed = self.row(subject, length, reference, is_reference=number == 0)
                reference = timed if number == 0 else reference
                yield row

    def row(
        self, subject: ResolvedEncoding, length: int, reference: Pass | None, *, is_reference: bool = False
    ) -> tuple[Row, Pass | None]:
        """Time one encoding; return its row, and the pass if there is one."""
        row, timed = self._empty_row(subject, length), None
        try:
            timed = self._pass(subject, length)
            row = replace(row, batch=timed.batch, path=timed.path, dtype=_name(timed.dtype))
            timing = time_pass(timed, timed if is_reference else reference, self.repeats)
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            outcome = outcome_of(error)
            if outcome is None:
                raise
            status, reason = outcome
            return replace(row, status=status, reason=reason), None
        low, high = timing.middle_half or (None, None)
        numbers = {
            "milliseconds": timing.median,
            "milliseconds_min": min(timing.milliseconds),
            "milliseconds_max": max(timing.milliseconds),
            "tokens_per_second": timed.batch * length / timing.median * 1e3,
            "relative": timing.relative,
            "relative_low": low,
            "relative_high": high,
            "peak_memory_mb": timing.peak_memory_mb,
            "gflops_per_second": timed.flops / timing.median / 1e6,
        }
        rounded = {name: None if value is None else round(value, 4) for name, value in numbers.items()}
        return replace(row, repeats=len(timing.milliseconds), **rounded), timed

    def _pass(self, subject: ResolvedEncoding, length: int) -> Pass:
        kind = TrainingPass if self.train else ScoringPass
        return kind(subject.config, subject.spec, length, self.device)

    def _empty_row(self, subject: ResolvedEncoding, length: int) -> Row:
        return Row(
            encoding=subject.label,
            setting=self.setting,
            model=subject.config.model.name,
            length=length,
            kind="train" if self.train else "score",
            device=device_name(self.device),
            processor=processor_name(),
            dtype=_name(dtype_of(subject.config, self.train)),
            threads=self.threads,
            torch=torch.__version__,
            pe_bench=package_version(),
            date=today(),
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
