"""Which passes are timed, in which order, and what each row says."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from pe_bench.inspection.resolve import ResolvedEncoding
from pe_bench.inspection.speed.measure import outcome_of, time_pass
from pe_bench.inspection.speed.passes import Pass, ScoringPass, TrainingPass, dtype_of
from pe_bench.inspection.speed.rows import Row
from pe_bench.system.machine import processor_name
from pe_bench.system.signals import INTERRUPTIONS
from pe_bench.system.versions import device_name, package_version, today

# The encodings of one length, the reference first.
Choose = Callable[[int], Sequence[ResolvedEncoding]]
# Called before each measurement with a description of it.
PassWatcher = Callable[[str], None]


@dataclass(frozen=True)
class Bench:
    """The facts that all rows of a command share."""

    setting: str
    train: bool
    repeats: int | None
    device: torch.device
    threads: int
    matmul_rate: float  # operations a second

    def rows(self, lengths: Sequence[int], choose: Choose, watch: PassWatcher) -> Iterator[Row]:
        """Time short lengths first, and at each the reference, whose pass is timed with all others."""
        self._load_kernels(choose(lengths[0])[0], lengths[0])
        for length in lengths:
            reference: Pass | None = None
            subjects = choose(length)
            for place, subject in enumerate(subjects):
                watch(f"{length:,} tokens, {place + 1} of {len(subjects)}: {subject.label}")
                row, timed = self.row(subject, length, reference, is_reference=place == 0)
                reference = timed if place == 0 else reference
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
        row = replace(
            row,
            milliseconds=round(timing.median, 3),
            milliseconds_min=round(min(timing.milliseconds), 3),
            milliseconds_max=round(max(timing.milliseconds), 3),
            tokens_per_second=round(timed.batch * length / timing.median * 1e3, 1),
            relative=None if timing.relative is None else round(timing.relative, 4),
            relative_low=None if timing.middle_half is None else round(timing.middle_half[0], 4),
            relative_high=None if timing.middle_half is None else round(timing.middle_half[1], 4),
            peak_memory_mb=None if timing.peak_memory_mb is None else round(timing.peak_memory_mb, 1),
            share_of_matmul_rate=round(timed.flops / self.matmul_rate / timing.median * 1e3, 4),
            repeats=len(timing.milliseconds),
        )
        return row, timed

    def _load_kernels(self, subject: ResolvedEncoding, length: int) -> None:
        """Run one pass: the first loads libraries, whose memory and time belong to no encoding."""
        with suppress(Exception):  # the same pass is about to be measured, and says what is wrong
            self._pass(subject, length)()

    def _pass(self, subject: ResolvedEncoding, length: int) -> Pass:
        return self._kind(subject.config, subject.spec, length, self.device)

    @property
    def _kind(self) -> type[ScoringPass] | type[TrainingPass]:
        return TrainingPass if self.train else ScoringPass

    def _empty_row(self, subject: ResolvedEncoding, length: int) -> Row:
        return Row(
            encoding=subject.label,
            setting=self.setting,
            model=subject.config.model.name,
            length=length,
            kind=self._kind.kind,
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
