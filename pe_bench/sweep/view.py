"""The progress of a sweep's jobs: one line for each on a terminal, a few plain lines elsewhere."""

import _thread
import threading
import time
from collections.abc import Sequence
from statistics import median
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pe_bench.sweep.states import (
    DONE,
    FAILED,
    RUNNING,
    SKIPPED,
    STOPPED,
    JobState,
    SweepFolder,
    all_done_before,
)
from pe_bench.system.progress import LINES_PER_RUN, bar_text, duration

POLL_SECONDS = 0.2
STARTS = "starts"
STOPPING = "  stopping: each job saves (Ctrl-C again to quit now)"
WIDTH_WITH_BAR = 70  # columns beside a job's label: below, the numbers need them more than a bar
SMOOTH_SECONDS = 10  # how long a new estimate of the time left takes to replace the old one
MAX_CHECK_SECONDS = 10  # that a job may take to find that all of it was done before


class View:
    """A thread that shows the states of the jobs while this context is entered."""

    def __init__(self, folder: SweepFolder, jobs: int, console: Console | None = None):
        self.folder, self.jobs = folder, jobs
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._printed: dict[int, tuple[str, int]] = {}
        self.has_seen_all_end = False  # after a signal
        self._side_by_side = 0  # the most jobs that have run at a time
        self._estimated: tuple[float, float] | None = None  # when, and the end that was estimated
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if line := all_done_before(self.folder.states(), self.jobs):
            self.console.print(line, markup=False)

    def _watch(self) -> None:
        if self.console.is_terminal:
            with Live(console=self.console, auto_refresh=False, transient=True) as live:
                self._show_until_over(live)
        else:
            self._show_until_over(None)

    def _show_until_over(self, live: Live | None) -> None:
        while True:
            over = self._over.wait(POLL_SECONDS)
            states = self.folder.states()
            for state in states:
                self._print_changes(state, changes_are_seen=live is not None)
            if live is not None:
                live.update(self._lines(states), refresh=True)
            if over:
                return
            has_to_save = any(state.state == RUNNING and state.has_begun for state in states)
            if self.folder.is_stopped and not has_to_save and not self.has_seen_all_end:
                # All have saved: end what waits or starts, and what a launcher would compose for nothing.
                self.has_seen_all_end = True
                _thread.interrupt_main()

    def _print_changes(self, state: JobState, *, changes_are_seen: bool) -> None:
        """Print a line that stays for a job that ended, and for its progress where nothing can be redrawn.

        A job that was done before has none: the line at the end counts those.
        """
        if state.state == SKIPPED or _may_be_done(state):
            return
        fifth = int(state.share * LINES_PER_RUN)
        printed = self._printed.get(state.number)
        self._printed[state.number] = (state.state, fifth)
        if state.state != RUNNING:
            if printed is None or printed[0] == RUNNING:
                self.console.print(_ended(state), markup=False)
        elif not changes_are_seen and printed is None:
            waits = state.text if not state.share else ""
            self.console.print(f"{state.label}: {waits or 'begins'}", markup=False)
        elif not changes_are_seen and printed is not None and fifth > printed[1] and state.text:
            self.console.print(f"{state.label}: {state.text}", markup=False)

    def give_back_terminal(self) -> None:
        """Show the cursor again, where this process ends without leaving the view."""
        if self.console.is_terminal:
            self.console.show_cursor(True)

    def _lines(self, states: Sequence[JobState]) -> Group:
        running = [state for state in states if state.state == RUNNING]
        width = max((len(state.label) for state in running), default=0)
        has_room = self.console.width - width >= WIDTH_WITH_BAR
        lines = []
        for state in running:
            bar = bar_text(state.share) if has_room else ""
            line = f"{state.label:<{width}}  {bar}  {state.text or STARTS}"
            lines.append(Text(line, no_wrap=True, overflow="ellipsis"))
        # The total first: a terminal that is not high enough cuts at the bottom.
        total = self.total(states) + (STOPPING if self.folder.is_stopped else "")
        return Group(Text(total, no_wrap=True, overflow="ellipsis"), *lines)

    def total(self, states: Sequence[JobState]) -> str:
        """Return one line on all jobs, with the time left as estimated from the finished ones."""
        counts = {
            name: sum(state.state == name for state in states) for name in (DONE, SKIPPED, FAILED, RUNNING)
        }
        ended = counts[DONE] + counts[SKIPPED] + counts[FAILED]
        jobs = max(self.jobs, len(states))
        parts = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        text = f"{ended} of {jobs} jobs" + (f" ({parts})" if parts else "")
        left = self._seconds_left(states) if ended < jobs else None
        return text + (f"  about {duration(left)} left" if left is not None else "")

    def _seconds_left(self, states: Sequence[JobState]) -> float | None:
        """Estimate the time left; a new estimate replaces the old one bit by bit, in `SMOOTH_SECONDS`."""
        left, now = self._estimate(states), time.time()
        if left is None:
            return None
        at, end = self._estimated or (now, now + left)
        end += (now + left - end) * min(1.0, (now - at) / SMOOTH_SECONDS)
        self._estimated = now, end
        return max(0.0, end - now)

    def _estimate(self, states: Sequence[JobState]) -> float | None:
        """Estimate the time left from the median of the finished jobs, with as many at a time as there were.

        Before one is done, the median is that of the running jobs' estimates, which leave out their scoring
        while they train.
        """
        running = [state for state in states if state.state == RUNNING]
        self._side_by_side = max(self._side_by_side, len(running))
        took = [state.seconds for state in states if state.state == DONE]
        took = took or [state.expected for state in running if state.expected]
        if not took:
            return None
        usual, now = median(took), time.time()
        left = [max(0.0, max(usual, state.expected) - (now - state.started)) for state in running]
        waiting = max(0, self.jobs - len(states))
        return max((sum(left) + usual * waiting) / max(1, self._side_by_side), *left, 0.0)


def _may_be_done(state: JobState) -> bool:
    """Return whether a job that has just begun may turn out to be done already."""
    since = time.time() - state.started
    return state.state == RUNNING and not state.has_begun and since < MAX_CHECK_SECONDS


def _ended(state: JobState) -> str:
    texts = {
        DONE: f"done in {duration(state.seconds)}",
        FAILED: f"failed: {state.reason}",
        STOPPED: state.text or "stopped",
    }
    return f"{state.label}: {texts[state.state]}"
