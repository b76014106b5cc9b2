"""How many threads compute: with `threads=auto`, as many as other processes leave cores free.

Threads of OpenMP meet several times in each layer, and wait there without sleeping. Where another process
takes one of their cores, each meeting lasts until its slice of time ends: two runs with two threads each on
two cores compute a fraction of what two runs with one thread do. Shorter waiting would slow a run that is
alone. Losses with one thread and with two were equal to the last digit where that was tried.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from pe_bench.system.machine import available_cores

STAT = Path("/proc/stat")
INTERVAL = 0.5  # seconds from one look at the other processes to the next, at least
# Of a core's counts in /proc/stat: user, nice, system, irq, softirq and steal, but not idle and iowait.
BUSY = (1, 2, 3, 6, 7, 8)


@dataclass(frozen=True)
class Look:
    """Seconds since some beginning: of the clock, of this process, and of all processes on its cores."""

    clock: float
    process: float
    all: float


class SharedCores:
    """The cores that this process may use, which others may use too."""

    def __init__(self, threads: int):
        self.most = threads
        self.last = look()

    def update(self) -> None:
        """Set the number of threads by what other processes have computed since the last update."""
        if time.monotonic() - self.last.clock < INTERVAL:
            return
        now = look()
        torch.set_num_threads(free_cores(self.last, now, self.most))
        self.last = now


def free_cores(before: Look, after: Look, most: int) -> int:
    """Return how many cores others left free between two looks: at least one, and at most `most`."""
    seconds = after.clock - before.clock
    elsewhere = (after.all - before.all - (after.process - before.process)) / seconds
    return max(1, min(most, round(len(_cores()) - elsewhere)))


def look(stat: Path = STAT) -> Look:
    """Return the times of now; where the system does not tell those of all processes, they are this one's."""
    process = time.process_time()
    try:
        lines = [line.split() for line in stat.read_text(encoding="ascii").splitlines()]
        counts = {line[0]: sum(int(line[index]) for index in BUSY) for line in lines if line[0] in _cores()}
        busy = sum(counts.values()) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        busy = process
    return Look(time.monotonic(), process, busy)


def _cores() -> set[str]:
    """Return the names in /proc/stat of the cores that this process may use."""
    numbers = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return {f"cpu{number}" for number in numbers}


_shared: SharedCores | None = None


def set_threads(threads: str | int) -> int:
    """Use this many cores, or with `auto` those that others leave free, and return how many at most."""
    global _shared
    count = threads if isinstance(threads, int) else auto_threads(available_cores())
    torch.set_num_threads(count)
    _shared = SharedCores(count) if threads == "auto" and count > 1 else None
    return count


def auto_threads(cores: int) -> int:
    """Return the threads for so many cores: as many, or OMP_NUM_THREADS where that is less."""
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return max(1, min(cores, int(limit)) if limit.isdecimal() else cores)


def share_cores() -> None:
    """Leave cores to others, or take them back; it is called after each piece of work, and costs nothing."""
    if _shared is not None:
        _shared.update()
