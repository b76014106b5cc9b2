"""The expected time of a command, printed once, when its first work has shown the speed of this machine.

A command calls `print_cost_once` with the number of its jobs, such as runs. A job that knows its own time
calls `expect`; the time of the command is this time multiplied by the number of jobs.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from pe_bench.system.terminal import say

PACE_SECONDS = 3.0  # the seconds of work after which its pace is known
MIN_PRINTED_SECONDS = 20.0  # seconds: shorter work needs no estimate

# Called with the seconds of a job and the number of its cores, 0 for a GPU. A listener can be pickled, for a
# process that does a part of the job.
CostListener = Callable[[float, int], None]
_listener: ContextVar[CostListener | None] = ContextVar("listener", default=None)


def cost_text(work: str, seconds: float, cores: int) -> str:
    """Return the expected time of some work as text: `6 runs, about 14 min on 2 cores`.

    work: such as `6 runs`. cores: 0 for a GPU.
    """
    where = f"{cores} core{'' if cores == 1 else 's'}" if cores else "the GPU"
    return f"{work}, about {_rough_time(seconds)} on {where}"


def _rough_time(seconds: float) -> str:
    """Write a time, rounded to 10 s, 1 min or, from 90 min on, 10 min: `40 s`, `14 min`, `2 h 10 min`."""
    if seconds < 90:
        return f"{math.ceil(seconds / 10) * 10} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, rest = divmod(round(minutes, -1), 60)
    return f"{hours:,} h" + (f" {rest} min" if rest else "")


def count(number: int, noun: str) -> str:
    """Return a number with a noun, in plural unless it is 1: `1 run`, `6 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@dataclass
class Cost:
    """The expected time of a command with one job or several, such as runs; it is printed once."""

    text: Callable[[int], str]  # returns the text for a number of jobs, such as `6 runs`
    jobs: int = 1
    ended: int = 0  # the number of jobs that have ended
    is_said: bool = False  # `expect` was called: the time is printed, or too short to print

    def expect(self, seconds: float, cores: int) -> None:
        """At the first call, print the time of the jobs that are left, if they take `MIN_PRINTED_SECONDS`.

        seconds: the time of one job. cores: 0 for a GPU.
        """
        left = max(1, self.jobs - self.ended)
        total = seconds * left
        if not self.is_said and total >= MIN_PRINTED_SECONDS:
            say(cost_text(self.text(left), total, cores))
        self.is_said = True


@contextmanager
def print_cost_once(text: Callable[[int], str], jobs: int = 1) -> Iterator[Cost]:
    """Within the context, print the expected time of all jobs at the first call of `expect`.

    text: returns a number of jobs as text, such as `6 runs`. Yields the `Cost`, whose user counts the `ended`
    jobs. Of nested contexts, only the outermost prints.
    """
    cost = Cost(text, jobs)
    if _listener.get() is not None:
        yield cost
        return
    with report_cost_to(cost.expect):
        yield cost


def current_listener() -> CostListener | None:
    """Return the present listener to expected times, to pass to a process that does a part of the job.

    Returns None without a listener.
    """
    return _listener.get()


@contextmanager
def report_cost_to(listener: CostListener | None) -> Iterator[None]:
    """Within the context, `expect` reports expected times to the listener `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def expect(seconds: float, cores: int) -> None:
    """Report the expected seconds of the present job, and the number of its cores, to the listener."""
    listener = _listener.get()
    if listener is not None:
        listener(seconds, cores)


@dataclass
class Pace:
    """The seconds that a unit of work takes, measured once, after `PACE_SECONDS` of work.

    Work before the first call is not counted: it warms up.
    """

    is_known: bool = False  # the pace is measured
    # The units of work that were done at the first call, and its time; None before the first call.
    _began: tuple[float, float] | None = field(default=None, repr=False)

    def seconds_per_unit(self, done: float, spent: float | None = None) -> float | None:
        """Return the pace at the first call after enough work, and None at all other calls.

        done: units of work. spent: seconds of this work so far; without it, a clock counts all time.
        """
        now = time.monotonic() if spent is None else spent
        if self._began is None:
            self._began = done, now
            return None
        units, seconds = done - self._began[0], now - self._began[1]
        if self.is_known or units <= 0 or seconds < PACE_SECONDS:
            return None
        self.is_known = True
        return seconds / units
