"""The output of a sweep: a line for each job while it runs, then counts, failures and tables."""

import _thread
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pe_bench.commands.sweep.jobs import DONE, FAILED, RUNNING, SKIPPED, STOPPED, JobState, LaunchedSweep
from pe_bench.errors import RunError
from pe_bench.system.cost import MIN_PRINTED_SECONDS, cost_text, count
from pe_bench.system.signals import Stopped
from pe_bench.system.terminal import PROGRESS_LINES_PER_RUN, bar_text, duration, say, wrap

STOPPING_NOTE = "  stopping: each job saves (Ctrl-C again to quit now)"


class SweepView(Live):
    """A live display of the states of the jobs while this context is entered."""

    def __init__(self, sweep: LaunchedSweep, console: Console | None = None):
        self.sweep = sweep
        self.has_seen_all_end = False  # after a signal
        self._printed: dict[int, tuple[str, str]] = {}  # each job's progress, and its last line
        self._has_said_cost = False
        can_move = sys.stderr.isatty()  # whatever FORCE_COLOR says: a notebook's cell cannot move the cursor
        console = console or Console(stderr=True, highlight=False, soft_wrap=True, force_terminal=can_move)
        super().__init__(console=console, transient=True, refresh_per_second=5)

    def get_renderable(self) -> Group:
        """Print lines on jobs, and return the lines to show below them on a terminal. A thread calls this."""
        states = self.sweep.states()
        for state in states:
            self._print_progress(state)
        self._say_cost(states)
        is_busy = any(state.is_at_work for state in states)
        is_idle = self.sweep.is_stopped and not is_busy
        if is_idle and self.is_started and not self.has_seen_all_end:
            # Every job at work has stopped. This ends the launcher too, which would start waiting jobs.
            self.has_seen_all_end = True
            _thread.interrupt_main()
        return self._live_lines(states)

    def _print_progress(self, state: JobState) -> None:
        """Print a line for a job that ended; without a terminal, also lines for its progress.

        A job that was done before has no line; it is counted at the end.
        """
        if state.state == SKIPPED or (state.state == RUNNING and not state.is_at_work):
            return
        before, last = self._printed.get(state.number, ("", ""))
        progress_mark: str = state.state
        if state.state == RUNNING:
            progress_mark = f"{int(state.share * PROGRESS_LINES_PER_RUN)}"
            line = state.text if before or not state.has_worked else "begins"
            is_due = progress_mark > before and line != last and not self.console.is_terminal
        else:
            done = f"done in {duration(state.seconds)}"
            line = {DONE: done, FAILED: f"failed: {state.text}"}.get(state.state, state.text or "stopped")
            is_due = before != state.state
        self._printed[state.number] = (progress_mark, line if is_due else last)
        if is_due:
            text = f"{state.label}: {line}"
            if self.console.is_terminal:
                text = wrap(text, self.console.width, hanging=2)
            self.console.print(text, markup=False)

    def _say_cost(self, states: Sequence[JobState]) -> None:
        """Print the cost of the jobs that have not ended, once, when the time of one of them is known."""
        known = [state for state in states if state.expected and state.state == RUNNING]
        if self._has_said_cost or not known:
            return
        self._has_said_cost = True
        at_work = max(1, sum(state.is_at_work for state in states))
        ended = sum(state.state != RUNNING for state in states)
        left = max(self.sweep.jobs, len(states)) - ended
        mean = sum(state.expected for state in known) / len(known)
        seconds = mean * math.ceil(left / at_work)
        if seconds >= MIN_PRINTED_SECONDS:
            text = cost_text(count(left, "run"), seconds, known[0].cores)
            if at_work > 1:
                text += f" each, {at_work} at a time"
            self.console.print(text, markup=False)

    def _live_lines(self, states: Sequence[JobState]) -> Group:
        """Return the lines of running jobs, and the counts of all jobs."""
        running = [state for state in states if state.state == RUNNING]
        width = max((len(state.label) for state in running), default=0)
        counts = {kind: _count_in_state(states, kind) for kind in (DONE, SKIPPED, FAILED, RUNNING)}
        parts = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        ended = sum(counts.values()) - counts[RUNNING]
        total = f"{ended} of {max(self.sweep.jobs, len(states))} jobs"
        if parts:
            total += f" ({parts})"
        if self.sweep.is_stopped:
            total += STOPPING_NOTE
        lines = [total]  # first: a terminal that is not high enough cuts at the bottom
        for state in running:
            lines.append(f"{state.label:<{width}}  {bar_text(state.share)}  {state.text or 'starts'}")
        return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))


def _count_in_state(states: Sequence[JobState], kind: str) -> int:
    return sum(state.state == kind for state in states)


@dataclass(frozen=True)
class SweepTable:
    """Jobs whose runs fit in one table."""

    runs: Sequence[Path]
    target_hashes: Sequence[str]  # the hashes of target sets; empty for all sets that the runs were scored on
    margin: float | None  # None: the margin of the runs


@dataclass(frozen=True)
class SweepSummary:
    """The end of a sweep: the last states of its jobs, their tables and failures."""

    sweep: LaunchedSweep
    states: Sequence[JobState]  # the states of the jobs that began, in their order
    problem: str = ""  # the problem that ended the launcher

    @property
    def tables(self) -> list[SweepTable]:
        """Return one table for all scored jobs, or one for each way of scoring in the sweep.

        A table has one set of targets at a length, and one margin.
        """
        jobs_by_scoring: dict[tuple[object, ...], list[JobState]] = {}
        for state in self.states:
            if state.keys:
                key = (*state.target_hashes, state.margin) if _scoring_overrides(state) else ()
                jobs_by_scoring.setdefault(key, []).append(state)
        tables = []
        for states in jobs_by_scoring.values():
            runs = dict.fromkeys(Path(state.run) for state in states if state.run is not None)
            hashes = set().union(*(state.target_hashes for state in states))
            tables.append(SweepTable([*runs], sorted(hashes), states[0].margin))
        return tables

    @property
    def failed(self) -> list[JobState]:
        """Return the failed jobs and, unless the sweep was stopped, jobs that ended without a result."""
        kinds = (FAILED,) if self.sweep.is_stopped else (FAILED, RUNNING, STOPPED)
        return [state for state in self.states if state.state in kinds]

    def end(self) -> None:
        """Print counts and a line for each failure. Raises `Stopped` or `RunError` for missing jobs."""
        total = max(self.sweep.jobs, len(self.states))  # a configuration may sweep over more than the command
        done, skipped = _count_in_state(self.states, DONE), _count_in_state(self.states, SKIPPED)
        jobs = "1 job" if total == 1 else f"{total} jobs"
        if skipped == total:
            say(f"{jobs}, all done already" if skipped > 1 else f"{jobs}, done already")
            return
        missing = total - done - skipped
        failed = len(self.failed)
        counts = {"done already": skipped, "failed": failed, "stopped or not started": missing - failed}
        parts = [f"{number} {ending}" for ending, number in counts.items() if number]
        if done or not skipped:
            parts.insert(0, f"{done} done")
        say(f"{jobs}: {', '.join(parts)}")
        if self.problem:
            say(f"the launcher ended: {self.problem}")
        for state in self.failed:
            reason = state.text
            if state.state == RUNNING:
                reason = f"its process died, at {state.text or 'its start'}"
            log = self.sweep.file(state.number, "log")
            say(f"  failed: {state.label}: {reason} ({log})")
        if self.sweep.is_stopped and missing:
            raise Stopped("stopped; the same command does what is missing")
        if missing:
            first = "fix what failed, then " if failed else ""
            raise RunError(f"the sweep is not done; {first}the same command does what is missing")


def _scoring_overrides(state: JobState) -> str:
    """Return the overrides in a job's label that decide its scoring: keys of `eval` and `report`."""
    words = [word for word in state.label.split() if word.startswith(("eval.", "report."))]
    return " ".join(words)
