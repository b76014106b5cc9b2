"""The jobs of a sweep: each in a child process, which writes its state to a small file of the sweep's folder.

The state is a file, because a launcher may run the jobs in processes of its own, or on other machines. An
error or a signal that ends a job ends no other process.
"""

import atexit
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Self

import yaml

from pe_bench.config.parse import parse_config, to_plain
from pe_bench.config.schema import Config
from pe_bench.config.sweeps import PlannedJob
from pe_bench.errors import RunError, UserError, first_line
from pe_bench.system import signals
from pe_bench.system.cost import report_cost_to
from pe_bench.system.files import TEMPORARY_PREFIX, write_text
from pe_bench.system.signals import FROM_OTHERS, FROM_TERMINAL, handling_signals

RUNNING, DONE, SKIPPED, FAILED, STOPPED = "running", "done", "skipped", "failed", "stopped"
WRITE_SECONDS = 0.25  # between two changes of a job's file
POLL_SECONDS = 0.2  # between two checks for the files that ask to stop
ALIVE_SECONDS = 1.0  # between two checks that the process that launched a worker is alive
PREEMPTED_SECONDS = 600  # the seconds that Slurm may wait before it kills a job that it has asked to end
# The seconds that a job has to finish its step and save, before a scheduler's own end of it.
SAVE_SECONDS = 60


@dataclass(frozen=True)
class JobState:
    """The state of one job of a sweep."""

    number: int
    label: str  # the overrides in which it differs from other jobs of its sweep
    state: str = RUNNING  # or `DONE`, `SKIPPED`, `FAILED`, `STOPPED`
    run: str | None = None  # the folder of its run, once it is known
    text: str = ""  # its progress; at the end, why it failed or stopped
    has_worked: bool = False  # the job trained or scored; false if all was done before
    share: float = 0.0  # the finished share of its training or its scoring
    seconds: float = 0.0  # the seconds that the job took; 0 before its end
    expected: float = 0.0  # the seconds that the job will take, by the pace of its first work; 0 if unknown
    cores: int = 0  # the cores in use; 0 for a GPU
    margin: float = 0.0  # the margin for verdicts in bits per byte, for the table at the end of the sweep
    target_hashes: Sequence[str] = ()  # the hashes of the scored target sets, for this table
    keys: Sequence[Sequence[str]] = ()  # the keys of its scored rows

    @property
    def is_at_work(self) -> bool:
        """Return whether the job trains, scores or waits for another process.

        Before that, it is only checking its values.
        """
        return self.state == RUNNING and self.text != ""


@dataclass(frozen=True)
class LaunchedSweep:
    """A sweep: its folder, through which its jobs and the command communicate."""

    path: Path
    jobs: int = 1  # the number of jobs
    # Facts of the command that launched the sweep: its working folder, its variables, its process.
    work: Path = field(default_factory=Path.cwd)
    variables: Mapping[str, str] = field(default_factory=signals.pe_bench_variables)
    process: int = field(default_factory=os.getpid)

    def write(self, state: JobState) -> None:
        """Write a job's state; an error of writing is ignored, because only the display needs the state."""
        target = self.file(state.number, "json")
        temporary = target.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{target.name}")
        with suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(asdict(state)), encoding="utf-8")
            os.replace(temporary, target)

    def states(self) -> list[JobState]:
        """Return the states of the jobs that began, in their order."""
        states = []
        for path in sorted((self.path / "jobs").glob("[0-9]*.json")):
            # Another machine's file system may show it late.
            with suppress(OSError, ValueError, TypeError):
                states.append(JobState(**json.loads(path.read_text(encoding="utf-8"))))
        return states

    def latest(self, state: JobState) -> JobState:
        """Return the last written state of a job, or the given state if none was written."""
        for written in self.states():
            if written.number == state.number:
                return written
        return state

    def write_job(self, number: int, job: PlannedJob) -> None:
        """Write a job for the process that will run it, as a file that a person can read."""
        file = self.file(number, "yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        search = [str(folder.absolute()) for folder in job.config.search]
        values = {"label": job.label, "search": search, "given": [*job.config.given]}
        values["config"] = to_plain(job.config)
        write_text(file, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))

    def read_job(self, number: int) -> PlannedJob:
        """Return a job that `write_job` wrote. Raises `OSError`, `YAMLError` and `UserError`."""
        values = yaml.safe_load(self.file(number, "yaml").read_text(encoding="utf-8"))
        search = [Path(folder) for folder in values["search"]]
        config = parse_config(values["config"], search, values.get("given", ()))
        return PlannedJob(values["label"], config)

    def file(self, number: int, suffix: str) -> Path:
        """Return a job's file.

        suffix: yaml for its configuration, json for its state, log for its output, stop to make it save and
        end.
        """
        return self.path / "jobs" / f"{number:04}.{suffix}"

    def ask_to_stop(self) -> None:
        """Make the running jobs save and end, and let no other job begin."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "stop").touch()

    @property
    def is_stopped(self) -> bool:
        """Return whether `ask_to_stop` was called."""
        return (self.path / "stop").exists()


def run_job(sweep: LaunchedSweep, number: int) -> None:
    """Run job `number` of a sweep; a launcher may call this in another process or on another machine."""
    try:
        job = sweep.read_job(number)
    except Exception as error:
        sweep.write(JobState(number, f"job {number}", state=FAILED, text=error_text(error)))
        return
    run_in_child(JobState(number, job.label), sweep, job.config)


def run_in_child(state: JobState, sweep: LaunchedSweep, config: Config) -> None:
    """Run a job in a child process, and write its last state; do nothing in a stopped sweep.

    A launcher calls this in a process without other work, which ends after the child.
    """
    if sweep.is_stopped:
        return
    is_worker = os.getpid() != sweep.process
    parent = os.getppid()
    stop = sweep.file(state.number, "stop")
    sweep.write(state)
    stop.unlink(missing_ok=True)
    child = signals.child_context().Process(target=_do_job, args=(state, sweep, config))
    with _let_child_save(child, stop) if is_worker else nullcontext():
        with signals.without_main_module():
            child.start()
        try:
            while child.is_alive():
                child.join(ALIVE_SECONDS)
                if is_worker and os.getppid() != parent:
                    os._exit(signals.INTERRUPTED_EXIT_CODE)  # the launcher is gone; the child saves by itself
        finally:
            child.kill()  # if it still waits or starts when the sweep is stopped
    last = sweep.latest(state)
    if last.state == RUNNING:
        last = _state_after_crash(sweep, last, child.exitcode)
        sweep.write(last)
    if is_worker and os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
        if last.state == FAILED:
            # Runs after submitit has written its result. With code 0, Slurm would call the job completed.
            atexit.register(os._exit, 1)
        if last.state == STOPPED and not sweep.is_stopped:
            time.sleep(PREEMPTED_SECONDS)  # until Slurm ends and requeues it


@contextmanager
def _let_child_save(child: Any, stop: Path) -> Iterator[None]:
    """Within the context, a signal to a launcher's worker first makes its child save, by the file `stop`.

    Then the signal has its usual effect: Submitit puts a job back into the queue at the scheduler's signal.
    Signals of a terminal are ignored here, because the command gets them too and stops the sweep. A file is
    used because the child may not handle signals yet.
    """
    handlers_before: dict[int, Any] = {number: signal.getsignal(number) for number in FROM_OTHERS}

    def save_and_pass_on(number: int, frame: FrameType | None) -> None:
        if child.is_alive():
            stop.touch()
            child.join(SAVE_SECONDS)
        if callable(handlers_before[number]):
            handlers_before[number](number, frame)

    with handling_signals(FROM_TERMINAL, signal.SIG_IGN), handling_signals(FROM_OTHERS, save_and_pass_on):
        yield


def _state_after_crash(sweep: LaunchedSweep, last: JobState, code: int) -> JobState:
    """Return the state of a job whose process was killed, crashed, or could not write its last state."""
    if code == 0:
        return replace(last, state=DONE)
    if sweep.is_stopped:
        return replace(last, state=STOPPED)
    reason = f"its process ended with exit code {code}"
    if code < 0:
        name = signal.Signals(-code).name
        reason = f"killed by {name}"
        if name == "SIGKILL":
            reason += ", by someone or for lack of memory"
    if last.text:
        reason += f", at {last.text}"
    return replace(last, state=FAILED, text=reason)


# In the child


class JobProgress:
    """A progress bar that writes a job's progress to its state file."""

    def __init__(self, sweep: LaunchedSweep, state: JobState):
        self.sweep = sweep
        self.state = state
        self.total = 1
        self._written = 0.0

    @contextmanager
    def bar(self, name: str, total: int) -> Iterator[Self]:
        """Begin a part of the job, its training or its scoring, with progress up to `total`."""
        self.total = max(1, total)
        yield self

    def show(self, done: float, text: str, line: str | None = None) -> None:
        # A stopped sweep waits for a job that is at work, which has something to save.
        is_first = not self.state.has_worked
        self.change(at_once=is_first, has_worked=True, share=done / self.total, text=text)

    def expect(self, seconds: float, cores: int) -> None:
        """Record the expected cost, unless a cost is already recorded."""
        if not self.state.expected:
            self.change(at_once=True, expected=seconds, cores=cores)

    def wait(self, reason: str) -> None:
        """Record that the job waits for another process."""
        self.change(at_once=True, text=reason)

    def change(self, *, at_once: bool = False, **changes: Any) -> None:
        """Change fields of the state, and write it unless it was written a moment ago."""
        self.state = replace(self.state, **changes)
        if at_once or time.monotonic() - self._written >= WRITE_SECONDS:
            self.sweep.write(self.state)
            self._written = time.monotonic()


def _do_job(state: JobState, sweep: LaunchedSweep, config: Config) -> None:
    """Train and score the run of a job in this child process, write the job's last state, and exit."""
    os.chdir(sweep.work)
    os.environ.update(sweep.variables)
    with sweep.file(state.number, "log").open("ab") as log:
        for standard in (1, 2):  # from C++ too: the sweep shows one line a job
            os.dup2(log.fileno(), standard)
    progress = JobProgress(sweep, state)
    began = time.time()
    with handling_signals(FROM_TERMINAL, signal.SIG_IGN), signals.stop_on_signal(FROM_OTHERS):
        try:
            _watch_for_end(sweep, sweep.file(state.number, "stop"))
            with report_cost_to(progress.expect):
                end = _train_and_score(progress, config)
        except signals.Stopped as stopped:
            end = {"state": STOPPED, "text": str(stopped)}
        except Exception as error:
            traceback.print_exc()
            end = {"state": FAILED, "text": error_text(error)}
    last = replace(progress.state, **end, seconds=time.time() - began)
    sweep.write(last)
    sys.exit(last.state not in (DONE, SKIPPED))


def _train_and_score(progress: JobProgress, config: Config) -> dict[str, Any]:
    """Train and score the run of a job; return the fields of its last state."""
    from pe_bench.commands.train import finish, prepare
    from pe_bench.runs.rows import describe_failures

    job, plans = prepare(config)
    progress.change(at_once=True, run=str(job.folder))
    rows = finish(job, plans, progress.bar, waits=progress.wait)
    # In a run of several processes, another process may have worked and written the state.
    has_worked = progress.sweep.latest(progress.state).has_worked
    failure = describe_failures(rows)
    state = DONE if has_worked else SKIPPED
    if failure:
        state = FAILED
    return {
        "state": state,
        "text": failure,
        "margin": config.report.margin,
        "target_hashes": sorted({plan.target_hash for plan in plans}),
        "keys": [row.key for row in rows],
    }


def _watch_for_end(sweep: LaunchedSweep, stop: Path) -> None:
    """End this process when the sweep or this job is stopped, or when its parent process has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        while parent.is_alive() and not sweep.is_stopped and not stop.exists():
            parent.join(POLL_SECONDS)
        signals.send_sigterm_to_self()

    threading.Thread(target=end_with_parent, daemon=True).start()


def error_text(error: Exception) -> str:
    """Return the first line of an error, after its type unless the error is written for people."""
    text = first_line(error)
    if isinstance(error, (UserError, RunError, OSError)):
        return text
    return f"{type(error).__name__}: {text}"
