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

from pe_bench.sweep.jobs import DONE, FAILED, RUNNING, SKIPPED, STOPPED, JobState, SweepFolder
from pe_bench.sweep.summary import all_done_before
from pe_bench.system.progress import LINES_PER_RUN, bar_text, duration

POLL_SECONDS = 0.2
STOPPING = "  stopping: each job saves (Ctrl-C again to quit now)"
WIDTH_WITH_BAR = 70  # columns beside a job's label: below, the numbers need them more than a bar
MAX_CHECK_SECONDS = 10  # that a job may take to find that all of it was done before


class View:
    """A thread that shows the states of the jobs while this context is entered."""

    def __init__(self, folder: SweepFolder, jobs: int, console: Console | None = None):
        self.folder, self.jobs = folder, jobs
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self.has_seen_all_end = False  # after a signal
        self._printed: dict[int, tuple[str, int]] = {}
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

    def give_back_terminal(self) -> None:
        """Show the cursor again, where this process ends without leaving the view."""
        if self.console.is_terminal:
            self.console.show_cursor(True)

    def _watch(self) -> None:
        if not self.console.is_terminal:
            self._show_until_over(None)
            return
        with Live(console=self.console, auto_refresh=False, transient=True) as live:
            self._show_until_over(live)

    def _show_until_over(self, live: Live | None) -> None:
        is_over = False
        while not is_over:
            is_over = self._over.wait(POLL_SECONDS)
            states = self.folder.states()
            for state in states:
                self._print_changes(state, is_live=live is not None)
            if live is not None:
                live.update(self._lines(states), refresh=True)
            has_to_save = any(state.state == RUNNING and state.has_begun for state in states)
            if not is_over and self.folder.is_stopped and not has_to_save and not self.has_seen_all_end:
                # End what waits or starts, and what a launcher would compose for nothing.
                self.has_seen_all_end = True
                _thread.interrupt_main()

    def _print_changes(self, state: JobState, *, is_live: bool) -> None:
        """Print a line that stays for a job that ended, and for its progress where nothing can be redrawn.

        A job that was done before has none: the line at the end counts those.
        """
        if state.state == SKIPPED or _may_be_done(state):
            return
        fifth = int(state.share * LINES_PER_RUN)
        before, fifth_before = self._printed.get(state.number, ("", 0))
        self._printed[state.number] = (state.state, fifth)
        line = ""
        if state.state != RUNNING:
            line = _end(state) if before in ("", RUNNING) else ""
        elif not is_live and not before:
            line = (state.text if not state.share else "") or "begins"
        elif not is_live and fifth > fifth_before:
            line = state.text
        if line:
            self.console.print(f"{state.label}: {line}", markup=False)

    def _lines(self, states: Sequence[JobState]) -> Group:
        running = [state for state in states if state.state == RUNNING]
        width = max((len(state.label) for state in running), default=0)
        has_room = self.console.width - width >= WIDTH_WITH_BAR
        # The total first: a terminal that is not high enough cuts at the bottom.
        lines = [self.total(states) + (STOPPING if self.folder.is_stopped else "")]
        for state in running:
            bar = bar_text(state.share) if has_room else ""
            lines.append(f"{state.label:<{width}}  {bar}  {state.text or 'starts'}")
        return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))

    def total(self, states: Sequence[JobState]) -> str:
        """Return one line on all jobs, with the time left where one is finished."""
        kinds = [state.state for state in states]
        counts = {kind: kinds.count(kind) for kind in (DONE, SKIPPED, FAILED, RUNNING)}
        jobs = max(self.jobs, len(states))
        parts = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        left = self._seconds_left(states)
        text = f"{sum(counts.values()) - counts[RUNNING]} of {jobs} jobs" + (f" ({parts})" if parts else "")
        return text + (f"  about {duration(left)} left" if left else "")

    def _seconds_left(self, states: Sequence[JobState]) -> float:
        """Estimate the time left from the median of the finished jobs, with as many at a time as run now."""
        running = [time.time() - state.started for state in states if state.state == RUNNING]
        finished = [state.seconds for state in states if state.state == DONE]
        if not finished:
            return 0.0
        usual, waiting = median(finished), max(0, self.jobs - len(states))
        left = [max(0.0, usual - seconds) for seconds in running]
        return (sum(left) + usual * waiting) / max(1, len(running))


def _may_be_done(state: JobState) -> bool:
    """Return whether a job that has just begun may turn out to be done already."""
    since = time.time() - state.started
    return state.state == RUNNING and not state.has_begun and since < MAX_CHECK_SECONDS


def _end(state: JobState) -> str:
    if state.state == STOPPED:
        return state.text or "stopped"
    return f"done in {duration(state.seconds)}" if state.state == DONE else f"failed: {state.reason}"
