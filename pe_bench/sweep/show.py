"""What a sweep shows: a line for each job while it runs, and at its end counts, failures and tables."""

import _thread
import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pe_bench.sweep.jobs import DONE, FAILED, RUNNING, SKIPPED, STOPPED, JobState, SweepFolder
from pe_bench.system.files import write_text
from pe_bench.system.terminal import LINES_PER_RUN, bar_text, duration, say, wrap

VIEW_SECONDS = 0.2
STOPPING = "  stopping: each job saves (Ctrl-C again to quit now)"
REPEAT = "repeat.sh"


class View:
    """A thread that shows the states of the jobs while this context is entered."""

    def __init__(self, folder: SweepFolder, jobs: int, console: Console | None = None):
        self.folder, self.jobs = folder, jobs
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self.has_seen_all_end = False  # after a signal
        self._printed: dict[int, str] = {}  # how far each job was when its last line was due
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        is_over = False
        with Live(console=self.console, auto_refresh=False, transient=True) as live:
            while not is_over:
                is_over = self._over.wait(VIEW_SECONDS)
                states = self.folder.states()
                for state in states:
                    self._print_change(state)
                if self.console.is_terminal:
                    live.update(self._lines(states), refresh=True)
                is_idle = self.folder.is_stopped and not any(state.is_at_work for state in states)
                if is_idle and not is_over and not self.has_seen_all_end:
                    # End what waits or starts, and what a launcher would compose for nothing.
                    self.has_seen_all_end = True
                    _thread.interrupt_main()

    def _print_change(self, state: JobState) -> None:
        """Print a line that stays for a job that ended, and for its progress where nothing can be redrawn.

        A job that was done before has none: the line at the end counts those.
        """
        if state.state == SKIPPED or (state.state == RUNNING and not state.is_at_work):
            return
        before, fifth = self._printed.get(state.number, ""), f"{int(state.share * LINES_PER_RUN)}"
        self._printed[state.number] = fifth if state.state == RUNNING else state.state
        if state.state != RUNNING:
            line = _end(state) if before != state.state else ""
        elif self.console.is_terminal:
            line = ""
        elif not before:
            line = "begins" if state.has_worked else state.text
        else:
            line = state.text if fifth > before else ""
        if line:
            text = f"{state.label}: {line}"
            text = wrap(text, self.console.width, hanging=2) if self.console.is_terminal else text
            self.console.print(text, markup=False)

    def _lines(self, states: Sequence[JobState]) -> Group:
        running = [state for state in states if state.state == RUNNING]
        width = max((len(state.label) for state in running), default=0)
        # The total first: a terminal that is not high enough cuts at the bottom.
        lines = [self._total(states) + (STOPPING if self.folder.is_stopped else "")]
        lines += [
            f"{each.label:<{width}}  {bar_text(each.share)}  {each.text or 'starts'}" for each in running
        ]
        return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))

    def _total(self, states: Sequence[JobState]) -> str:
        """Return one line on all jobs."""
        counts = {kind: _count(states, kind) for kind in (DONE, SKIPPED, FAILED, RUNNING)}
        parts = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        ended = sum(counts.values()) - counts[RUNNING]
        return f"{ended} of {max(self.jobs, len(states))} jobs" + (f" ({parts})" if parts else "")


def _end(state: JobState) -> str:
    if state.state == STOPPED:
        return state.text or "stopped"
    return f"done in {duration(state.seconds)}" if state.state == DONE else f"failed: {state.reason}"


def _count(states: Sequence[JobState], kind: str) -> int:
    return sum(state.state == kind for state in states)


@dataclass(frozen=True)
class SweepTable:
    """Jobs whose runs fit in one table."""

    runs: Sequence[Path]
    target_hashes: Sequence[str]  # of sets; empty: all that the runs were scored on
    margin: float
    words: str  # of the command, which set these jobs apart; empty where there are no others


@dataclass(frozen=True)
class Summary:
    """The jobs that began, in their order, of `jobs` in all, and what ended the launcher, if anything did."""

    folder: Path
    states: Sequence[JobState]
    jobs: int
    problem: str
    stopped: bool

    @property
    def tables(self) -> list[SweepTable]:
        """Return one table for all scored jobs, or one for each way of scoring that the sweep has.

        A table has room for one set of targets at a length, and for one margin.
        """
        ways: dict[str, list[JobState]] = {}
        for state in self.states:
            if state.keys:
                words = [word for word in state.label.split() if word.startswith(("eval.", "report."))]
                ways.setdefault(" ".join(words), []).append(state)
        tables: dict[tuple[object, ...], SweepTable] = {}
        for words, states in ways.items():
            runs = dict.fromkeys(Path(state.run) for state in states if state.run is not None)
            hashes = sorted({target_hash for state in states for target_hash in state.target_hashes})
            key = (*hashes, states[0].margin)
            if key in tables:  # two ways have the same targets
                runs = dict.fromkeys([*tables[key].runs, *runs])
                words = f"{tables[key].words}, {words}"
            tables[key] = SweepTable(tuple(runs), hashes, states[0].margin, words if len(ways) > 1 else "")
        return list(tables.values())

    @property
    def is_done(self) -> bool:
        return self.count(DONE) + self.count(SKIPPED) == self.jobs

    @property
    def failed(self) -> list[JobState]:
        """Return the failed jobs, with those whose worker died with them where the sweep was not stopped."""
        kinds = (FAILED,) if self.stopped else (FAILED, RUNNING, STOPPED)
        return [state for state in self.states if state.state in kinds]

    def count(self, kind: str) -> int:
        return _count(self.states, kind)


def print_summary(summary: Summary) -> None:
    """Print counts, a line for each failure, and the way to retry those."""
    failed = summary.failed
    say(_counts(summary))
    if summary.problem:
        say(f"the launcher ended: {summary.problem}")
    for state in failed:
        died = state.text if state.state == STOPPED else f"its process died, at {state.text or 'its start'}"
        say(f"  failed: {state.label}: {state.reason or died}{_file_that_says_more(summary, state)}")
    if len(failed) == 1:
        say(f"to retry it: {failed[0].command}", unbroken=True)
    elif failed:
        # It works from any folder; its exit code is that of the last command that failed.
        commands = [f"{state.command} || code=$?" for state in failed]
        script = summary.folder / REPEAT
        lines = [f"cd {shlex.quote(str(Path.cwd()))} || exit", "code=0", *commands, "exit $code", ""]
        write_text(script, "\n".join(lines))
        repeat = f"sh {shlex.quote(str(script))}"
        say(f"to retry them: the same command, or one by one:\n  {repeat}", unbroken=True)


def _counts(summary: Summary) -> str:
    done, skipped, failed = summary.count(DONE), summary.count(SKIPPED), len(summary.failed)
    jobs = "1 job" if summary.jobs == 1 else f"{summary.jobs} jobs"
    if skipped == summary.jobs:
        return f"{jobs}, {'all ' if skipped > 1 else ''}done already"
    rest = summary.jobs - done - skipped - failed
    counts = {"done": done, "done already": skipped, "failed": failed, "stopped or not started": rest}
    parts = [f"{count} {what}" for what, count in counts.items() if count > 0]
    return f"{jobs}: {', '.join(parts if done or skipped else ['0 done', *parts])}"


def _file_that_says_more(summary: Summary, state: JobState) -> str:
    """Return in brackets the run's error, else the job's log."""
    files = [Path(state.run) / "error.txt"] if state.run else []
    files.append(SweepFolder(summary.folder).file(state.number, "log"))
    return next((f" ({file})" for file in files if file.is_file()), "")
