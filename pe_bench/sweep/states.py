"""The folder of a sweep, a small file for each job, and its summary: what is done, what failed and why."""

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path

from pe_bench.system.files import TEMPORARY, write_text
from pe_bench.system.terminal import say

RUNNING, DONE, SKIPPED, FAILED, STOPPED = "running", "done", "skipped", "failed", "stopped"


@dataclass(frozen=True)
class JobState:
    """The state of one job of a sweep."""

    number: int
    label: str  # the overrides that make it another than the rest of its sweep
    command: str  # that makes this run alone
    state: str = RUNNING
    run: str | None = None  # its directory, once it is known
    reason: str = ""  # why it failed
    has_rows: bool = False  # it was scored; a job that failed at some lengths was too
    text: str = ""  # step, loss, tokens per second, time left; or what is being scored
    has_begun: bool = False  # to train, to score, or to wait for another process: more than its checks
    share: float = 0.0  # of its training, or of its scoring, that is done
    started: float = 0.0  # seconds of the system's clock
    seconds: float = 0.0  # that it took
    expected: float = 0.0  # seconds that it may take in all, as far as it knows while it runs
    margin: float = 0.0  # bits per byte, of the table that the sweep ends with
    target_hashes: Sequence[str] = ()  # of the sets that it scored, which that table shows
    keys: Sequence[Sequence[str]] = ()  # of the rows that it scored or found scored


class SweepFolder:
    """The folder through which the jobs of a sweep and the command that launched them communicate.

    Files, because a launcher may run the jobs in processes of its own, or on other machines.
    """

    def __init__(self, path: Path):
        self.path = path

    def write(self, state: JobState) -> None:
        """Write a job's state, not flushed to the disk: nothing is lost with it but what a person sees."""
        target = self._file(state.number, "json")
        temporary = target.with_name(f"{TEMPORARY}{os.getpid()}-{target.name}")
        self._jobs.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(asdict(state)), encoding="utf-8")
        os.replace(temporary, target)

    def states(self) -> list[JobState]:
        """Return the states of the jobs that began, in their order."""
        return sorted(self._read(), key=lambda state: state.number)

    def log(self, number: int) -> Path:
        """Return the file of what a job wrote to standard output and standard error."""
        return self._file(number, "log")

    def ask_to_stop(self) -> None:
        """Have the jobs that run save and end, and no other begin."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._stop.touch()

    @property
    def is_stopped(self) -> bool:
        return self._stop.exists()

    @property
    def _jobs(self) -> Path:
        return self.path / "jobs"

    @property
    def _stop(self) -> Path:
        return self.path / "stop"

    def _file(self, number: int, suffix: str) -> Path:
        return self._jobs / f"{number:04}.{suffix}"

    def _read(self) -> Iterator[JobState]:
        for path in self._jobs.glob("[0-9]*.json"):
            try:
                yield JobState(**json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError):
                continue  # another machine's file system may show it late


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
        groups = _conflict_free_groups(scored)
        jobs = [[state for state in scored if _scoring_of(state) in group] for group in groups]
        return [
            _table_of(of_table, [state for state in scored if state not in of_table]) for of_table in jobs
        ]

    @property
    def is_done(self) -> bool:
        return len(self._in(DONE, SKIPPED)) == self.jobs

    @property
    def failed(self) -> list[JobState]:
        """Return the failed jobs, with those whose worker died with them where the sweep was not stopped."""
        return self._in(FAILED, *(() if self.stopped else (RUNNING, STOPPED)))

    def count(self, state: str) -> int:
        return len(self._in(state))

    def _in(self, *names: str) -> list[JobState]:
        return [state for state in self.states if state.state in names]


def _scoring_of(state: JobState) -> Scoring:
    return frozenset(state.target_hashes), state.margin


def _conflict_free_groups(states: Sequence[JobState]) -> list[list[Scoring]]:
    """Return the scorings of these jobs in groups, one for each table, and as few as this allows.

    Jobs that scored the same run in conflicting ways go to different tables. Two scorings that differ only in
    what one has in addition, such as longer lengths, do not conflict.
    """
    of_run: dict[str | None, set[Scoring]] = {}
    for state in states:
        of_run.setdefault(state.run, set()).add(_scoring_of(state))
    conflicting = {
        pair for scorings in of_run.values() for pair in permutations(scorings, 2) if not _nested(*pair)
    }
    groups: list[list[Scoring]] = []
    for scoring in dict.fromkeys(map(_scoring_of, states)):
        fitting = [group for group in groups if not conflicting & {(scoring, other) for other in group}]
        if fitting:
            fitting[0].append(scoring)
        else:
            groups.append([scoring])
    return groups


def _nested(first: Scoring, second: Scoring) -> bool:
    return first[1] == second[1] and (first[0] <= second[0] or second[0] <= first[0])


def _table_of(states: Sequence[JobState], elsewhere: Sequence[JobState]) -> SweepTable:
    runs = dict.fromkeys(Path(state.run) for state in states if state.run is not None)
    hashes = sorted({target_hash for state in states for target_hash in state.target_hashes})
    return SweepTable(
        tuple(runs), hashes, states[0].margin, _words_of(states, elsewhere) if elsewhere else ""
    )


def _words_of(states: Sequence[JobState], rest: Sequence[JobState]) -> str:
    """Return what all labels of the states have, or else what no label of the others has."""
    labels = [state.label.split() for state in states]
    common = [word for word in labels[0] if all(word in label for label in labels)]
    elsewhere = {word for state in rest for word in state.label.split()}
    words = dict.fromkeys(word for label in labels for word in label if word not in elsewhere)
    return " ".join(common) or ", ".join(words)


def summarize(folder: SweepFolder, jobs: int, problem: str) -> Summary:
    """Summarize a sweep of `jobs`, as the command line counts them; a configuration may sweep over more."""
    states = folder.states()
    return Summary(folder.path, states, max(jobs, len(states)), problem, folder.is_stopped)


def print_summary(summary: Summary) -> None:
    """Print counts, a line for each failure, and the way to retry those.

    A sweep that had nothing to do was counted by its view, before the table.
    """
    if not all_done_before(summary.states, summary.jobs):
        say(_counts(summary))
    if summary.problem:
        say(f"the launcher ended: {summary.problem}")
    for state in summary.failed[:MAX_SHOWN]:
        say(f"  failed: {state.label}: {_reason(state)}{_place(summary, state)}")
    more = len(summary.failed) - MAX_SHOWN
    if more > 0:
        say(f"  and {more} more: see {summary.folder / 'jobs'}")
    _say_retry(summary)


def all_done_before(states: Sequence[JobState], jobs: int) -> str:
    """Return the one line of a sweep that had nothing to do; empty for any other."""
    skipped = sum(state.state == SKIPPED for state in states)
    is_all = skipped and skipped == max(jobs, len(states))
    return f"{_jobs(skipped)}, {'all ' if skipped > 1 else ''}done already" if is_all else ""


def _counts(summary: Summary) -> str:
    done, skipped = summary.count(DONE), summary.count(SKIPPED)
    parts = [f"{done} done"] if done or not skipped else []
    if skipped:
        parts.append(f"{skipped} done already")
    if summary.failed:
        parts.append(f"{len(summary.failed)} failed")
    rest = summary.jobs - done - skipped - len(summary.failed)
    if rest > 0:
        parts.append(f"{rest} stopped or not started")
    return f"{_jobs(summary.jobs)}: {', '.join(parts)}"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _reason(state: JobState) -> str:
    return state.reason or "its process died" + (f", at {state.text}" if state.text else "")


def _place(summary: Summary, state: JobState) -> str:
    """Return the file that says more, in brackets."""
    error = Path(state.run) / "error.txt" if state.run else None
    log = summary.folder / "jobs" / f"{state.number:04}.log"
    file = next((path for path in (error, log) if path is not None and path.is_file()), None)
    return f" ({file})" if file else ""


def _say_retry(summary: Summary) -> None:
    failed = summary.failed
    if len(failed) == 1:
        say(f"to retry it: {failed[0].command}", unbroken=True)
    elif failed:
        script = summary.folder / REPEAT
        write_text(script, _script(state.command for state in failed))
        say(
            f"to retry them: the same command, or one by one: sh {shlex.quote(str(script))}",
            unbroken=True,
        )


def _script(commands: Iterable[str]) -> str:
    """Return a script that works from any folder; its exit code is that of the last command that failed."""
    lines = [f"{command} || code=$?" for command in commands]
    return "\n".join([f"cd {shlex.quote(str(Path.cwd()))} || exit", "code=0", *lines, "exit $code", ""])
