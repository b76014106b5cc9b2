"""How a sweep ended: what is done, what failed and why, and which of its runs fit in one table."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from pe_bench.sweep.jobs import DONE, FAILED, RUNNING, SKIPPED, STOPPED, JobState
from pe_bench.system.files import write_text
from pe_bench.system.terminal import say

REPEAT = "repeat.sh"
MAX_SHOWN = 10

# How a job scores its run: on which sets of targets, and the margin of its verdicts.
Scoring = tuple[frozenset[str], float]


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
        """Return one table for all scored jobs, or one for each way in which some run was scored.

        A table has room for one set of targets at a length, and for one margin.
        """
        scored = [state for state in self.states if state.has_rows]
        tables = []
        for group in _groups_of_scorings(scored):
            inside = [state for state in scored if _scoring_of(state) in group]
            outside = [state for state in scored if _scoring_of(state) not in group]
            runs = dict.fromkeys(Path(state.run) for state in inside if state.run is not None)
            hashes = sorted({target_hash for state in inside for target_hash in state.target_hashes})
            tables.append(SweepTable(tuple(runs), hashes, inside[0].margin, _words_of(inside, outside)))
        return tables

    @property
    def is_done(self) -> bool:
        return self.count(DONE) + self.count(SKIPPED) == self.jobs

    @property
    def failed(self) -> list[JobState]:
        """Return the failed jobs, with those whose worker died with them where the sweep was not stopped."""
        kinds = (FAILED,) if self.stopped else (FAILED, RUNNING, STOPPED)
        return [state for state in self.states if state.state in kinds]

    def count(self, kind: str) -> int:
        return sum(state.state == kind for state in self.states)


def _scoring_of(state: JobState) -> Scoring:
    return frozenset(state.target_hashes), state.margin


def _groups_of_scorings(states: Sequence[JobState]) -> list[list[Scoring]]:
    """Return the scorings of these jobs in groups, one for each table, and as few as this allows.

    Jobs that scored the same run in conflicting ways go to different tables. Two scorings that differ only in
    what one has in addition, such as longer lengths, do not conflict.
    """
    of_run: dict[str | None, set[Scoring]] = {}
    for state in states:
        of_run.setdefault(state.run, set()).add(_scoring_of(state))
    conflicting = {
        (one, other)
        for scorings in of_run.values()
        for one, other in permutations(scorings, 2)
        if one[1] != other[1] or not (one[0] <= other[0] or other[0] <= one[0])
    }
    groups: list[list[Scoring]] = []
    for scoring in dict.fromkeys(map(_scoring_of, states)):
        fitting = [group for group in groups if not conflicting & {(scoring, other) for other in group}]
        if fitting:
            fitting[0].append(scoring)
        else:
            groups.append([scoring])
    return groups


def _words_of(states: Sequence[JobState], rest: Sequence[JobState]) -> str:
    """Return the words that all labels of `states` share, or else those that no label of `rest` has."""
    if not rest:
        return ""
    labels = [state.label.split() for state in states]
    common = [word for word in labels[0] if all(word in label for label in labels)]
    elsewhere = {word for state in rest for word in state.label.split()}
    words = dict.fromkeys(word for label in labels for word in label if word not in elsewhere)
    return " ".join(common) or ", ".join(words)


def print_summary(summary: Summary) -> None:
    """Print counts, a line for each failure, and the way to retry those.

    A sweep that had nothing to do was counted by its view, before the table.
    """
    failed = summary.failed
    if not all_done_before(summary.states, summary.jobs):
        say(_counts(summary))
    if summary.problem:
        say(f"the launcher ended: {summary.problem}")
    for state in failed[:MAX_SHOWN]:
        died = state.text if state.state == STOPPED else f"its process died, at {state.text or 'its start'}"
        say(f"  failed: {state.label}: {state.reason or died}{_file_that_says_more(summary, state)}")
    if len(failed) > MAX_SHOWN:
        say(f"  and {len(failed) - MAX_SHOWN} more: see {summary.folder / 'jobs'}")
    if len(failed) == 1:
        say(f"to retry it: {failed[0].command}", unbroken=True)
    elif failed:
        # It works from any folder; its exit code is that of the last command that failed.
        lines = [f"cd {shlex.quote(str(Path.cwd()))} || exit", "code=0"]
        lines += [*(f"{state.command} || code=$?" for state in failed), "exit $code", ""]
        script = summary.folder / REPEAT
        write_text(script, "\n".join(lines))
        repeat = f"sh {shlex.quote(str(script))}"
        say(f"to retry them: the same command, or one by one: {repeat}", unbroken=True)


def all_done_before(states: Sequence[JobState], jobs: int) -> str:
    """Return the one line of a sweep that had nothing to do; empty for any other."""
    skipped = sum(state.state == SKIPPED for state in states)
    is_all = skipped and skipped == max(jobs, len(states))
    return f"{_jobs(skipped)}, {'all ' if skipped > 1 else ''}done already" if is_all else ""


def _counts(summary: Summary) -> str:
    done, skipped, failed = summary.count(DONE), summary.count(SKIPPED), len(summary.failed)
    rest = summary.jobs - done - skipped - failed
    parts = [f"{done} done"] if done or not skipped else []
    parts += [f"{skipped} done already"] if skipped else []
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{rest} stopped or not started"] if rest > 0 else []
    return f"{_jobs(summary.jobs)}: {', '.join(parts)}"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _file_that_says_more(summary: Summary, state: JobState) -> str:
    """Return in brackets the run's error, else the job's log."""
    error = Path(state.run) / "error.txt" if state.run else None
    log = summary.folder / "jobs" / f"{state.number:04}.log"
    file = next((path for path in (error, log) if path is not None and path.is_file()), None)
    return f" ({file})" if file else ""
