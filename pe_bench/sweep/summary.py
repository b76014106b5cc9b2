"""How a sweep ended: what is done, what failed and why, and the command that repeats only that."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pe_bench.files import write_text
from pe_bench.sweep.states import DONE, FAILED, RUNNING, SKIPPED, STOPPED, JobState, SweepFolder
from pe_bench.terminal import say

REPEAT = "repeat.sh"
MOST_SHOWN = 10


@dataclass(frozen=True)
class Summary:
    """The jobs that began, in their order, of `jobs` in all; and what stopped the launcher, if anything."""

    folder: Path
    states: Sequence[JobState]
    jobs: int
    problem: str
    stopped: bool

    @property
    def runs(self) -> list[Path]:
        """Those that are finished."""
        return [Path(state.run) for state in self._in(DONE, SKIPPED) if state.run is not None]

    @property
    def margin(self) -> float:
        return next((state.margin for state in self._in(DONE, SKIPPED)), 0.0)

    @property
    def is_done(self) -> bool:
        return len(self._in(DONE, SKIPPED)) == self.jobs

    @property
    def failed(self) -> list[JobState]:
        """With those whose worker died with them, if it was not told to stop."""
        return self._in(FAILED, *(() if self.stopped else (RUNNING, STOPPED)))

    def count(self, state: str) -> int:
        return len(self._in(state))

    def _in(self, *wanted: str) -> list[JobState]:
        return [state for state in self.states if state.state in wanted]


def summarize(folder: SweepFolder, jobs: int, problem: str) -> Summary:
    """`jobs` are those that the command's words make; a configuration may sweep over more."""
    states = folder.states()
    return Summary(folder.path, states, max(jobs, len(states)), problem, folder.is_stopped)


def print_summary(summary: Summary) -> None:
    """Counts, a line for each failure, and the way to repeat those; nothing is left to do: one line."""
    say(_counts(summary))
    if summary.problem:
        say(f"the launcher ended: {summary.problem}")
    for state in summary.failed[:MOST_SHOWN]:
        say(f"  failed: {state.label}: {_reason(state)}{_place(summary, state)}")
    more = len(summary.failed) - MOST_SHOWN
    if more > 0:
        say(f"  and {more} more: see {summary.folder / 'jobs'}")
    _tell_repeat(summary)


def _counts(summary: Summary) -> str:
    done, skipped = summary.count(DONE), summary.count(SKIPPED)
    parts = [f"{done} done"]
    if skipped:
        parts.append(f"{skipped} skipped, for {'it was' if skipped == 1 else 'they were'} done before")
    if summary.failed:
        parts.append(f"{len(summary.failed)} failed")
    rest = summary.jobs - done - skipped - len(summary.failed)
    if rest > 0:
        parts.append(f"{rest} stopped or not begun")
    return f"{summary.jobs} {'job' if summary.jobs == 1 else 'jobs'}: {', '.join(parts)}"


def _reason(state: JobState) -> str:
    return state.reason or state.text or "its process ended without a word"


def _place(summary: Summary, state: JobState) -> str:
    """The file that says more."""
    error = Path(state.run) / "error.txt" if state.run else None
    log = summary.folder / "jobs" / f"{state.number:04}.log"
    found = next((path for path in (error, log) if path is not None and path.is_file()), None)
    return f" ({found})" if found else ""


def _tell_repeat(summary: Summary) -> None:
    failed = summary.failed
    if len(failed) == 1:
        say(f"repeat only that: {failed[0].command}")
    elif failed:
        script = summary.folder / REPEAT
        write_text(script, "".join(f"{state.command}\n" for state in failed))
        say(f"repeat only those: sh {shlex.quote(str(script))}")
