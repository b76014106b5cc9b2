"""The jobs of a sweep: each in a child process, which writes its state to a small file of the sweep's folder.

Files, because a launcher may run the jobs in processes of its own, or on other machines. What a job raises,
and what kills it, ends nothing else.
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from pe_bench.config.schema import Config
from pe_bench.errors import RunError, UserError, first_line
from pe_bench.system.files import TEMPORARY
from pe_bench.system.signals import (
    EXIT_CODE,
    FROM_OTHERS,
    FROM_TERMINAL,
    STOP_SIGNALS,
    Stopped,
    ask_to_end,
    child_context,
    own_variables,
    signal_handlers,
    stop_on_signal,
)

RUNNING, DONE, SKIPPED, FAILED, STOPPED = "running", "done", "skipped", "failed", "stopped"
WRITE_SECONDS = 0.25  # between two changes of a job's file
POLL_SECONDS = 0.2  # between two checks for the files that ask to stop
ALIVE_SECONDS = 1.0  # between two checks that the process that launched a worker is alive
PREEMPTED_SECONDS = 600  # that Slurm may wait before it kills a job that it has asked to end
SAVE_SECONDS = 60  # that a job has to finish its step and save, before a scheduler's own end of it
# An optimizer's first step imports torch._dynamo, which takes longer than a tiny run.
PRELOADED = ["pe_bench.experiment", "torch._dynamo"]


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
    has_worked: bool = False  # it trained or scored: not all was done before
    share: float = 0.0  # of its training, or of its scoring, that is done
    started: float = 0.0  # seconds of the system's clock
    seconds: float = 0.0  # that it took
    margin: float = 0.0  # bits per byte, of the table that the sweep ends with
    target_hashes: Sequence[str] = ()  # of the sets that it scored, which that table shows
    keys: Sequence[Sequence[str]] = ()  # of the rows that it scored or found scored


class SweepFolder:
    """The folder through which the jobs of a sweep and the command that launched them communicate."""

    def __init__(self, path: Path):
        self.path, self._jobs = path, path / "jobs"

    def write(self, state: JobState) -> None:
        """Write a job's state, not flushed to the disk: nothing is lost with it but what a person sees."""
        target = self._file(state.number, "json")
        temporary = target.with_name(f"{TEMPORARY}{os.getpid()}-{target.name}")
        self._jobs.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(asdict(state)), encoding="utf-8")
        os.replace(temporary, target)

    def write_surely(self, state: JobState) -> None:
        """Try twice: a disk that fails for a moment must not make a finished job a failed one."""
        try:
            self.write(state)
        except OSError:
            time.sleep(WRITE_SECONDS)
            with suppress(OSError):
                self.write(state)

    def states(self) -> list[JobState]:
        """Return the states of the jobs that began, in their order."""
        states = []
        for path in self._jobs.glob("[0-9]*.json"):
            # Another machine's file system may show it late.
            with suppress(OSError, ValueError, TypeError):
                states.append(JobState(**json.loads(path.read_text(encoding="utf-8"))))
        return sorted(states, key=lambda state: state.number)

    def latest(self, state: JobState) -> JobState:
        """Return what was last written of a job."""
        return next((written for written in self.states() if written.number == state.number), state)

    def log(self, number: int) -> Path:
        """Return the file of what a job wrote to standard output and standard error."""
        return self._file(number, "log")

    def ask_to_stop(self) -> None:
        """Have the jobs that run save and end, and no other begin."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "stop").touch()

    @property
    def is_stopped(self) -> bool:
        return (self.path / "stop").exists()

    def stop_of(self, number: int) -> Path:
        """Return the file that has one job save and end."""
        return self._file(number, "stop")

    def _file(self, number: int, suffix: str) -> Path:
        return self._jobs / f"{number:04}.{suffix}"


@dataclass(frozen=True)
class LaunchContext:
    """The place and the variables of the command that started a sweep, which each of its jobs gets."""

    sweep: Path
    work: Path
    variables: Mapping[str, str]
    process: int  # that launched the sweep


def launch_context(sweep: Path) -> LaunchContext:
    return LaunchContext(sweep.absolute(), Path.cwd(), own_variables(), os.getpid())


def run_in_child(state: JobState, context: LaunchContext, config: Config) -> None:
    """Run a job in a child process, and write how it ended; do nothing where the sweep was stopped before.

    A launcher calls this in a process that has no other work and that the child does not outlive.
    """
    folder, is_worker = SweepFolder(context.sweep), os.getpid() != context.process
    if folder.is_stopped:
        return
    state = replace(state, started=time.time())
    folder.write(state)
    folder.stop_of(state.number).unlink(missing_ok=True)
    child = child_context(PRELOADED).Process(target=_work, args=(state, context, config))
    with _let_child_save(child, folder.stop_of(state.number)) if is_worker else nullcontext():
        child.start()
        try:
            _wait(child, os.getppid() if is_worker else None)
        except BaseException:
            child.kill()
            raise
    last = folder.latest(state)
    if last.state == RUNNING:
        last = _after_crash(folder, last, child.exitcode, context.work)
        folder.write_surely(last)
    if is_worker and os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
        _end_as_slurm_expects(last.state, is_stopped=folder.is_stopped)


def _end_as_slurm_expects(state: str, *, is_stopped: bool) -> None:
    """End a failed job with exit code 1, and keep a preempted one alive until Slurm ends and requeues it."""
    if state == FAILED:
        atexit.register(_exit_failed)
    if state == STOPPED and not is_stopped:
        time.sleep(PREEMPTED_SECONDS)


def _exit_failed() -> None:
    """Exit with code 1 after submitit has written its result: with 0 Slurm would call the job completed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _wait(child: Any, parent: int | None) -> None:
    """Wait for the child. A launcher's worker whose `parent` is gone ends too; its child saves by itself."""
    while child.is_alive():
        child.join(ALIVE_SECONDS)
        if parent is not None and os.getppid() != parent:
            os._exit(EXIT_CODE)


@contextmanager
def _let_child_save(child: Any, stop: Path) -> Iterator[None]:
    """Have the child of a launcher's worker save before a signal does what it would do with the worker.

    Submitit puts a job back into the queue when it gets the scheduler's signal. What a terminal sends came to
    the command too, which stops the sweep. A file asks the child, which may not hear signals yet.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number in FROM_OTHERS and child.is_alive():
            stop.touch()
            child.join(SAVE_SECONDS)
        previous = before[number]
        # Python's own handler of Ctrl-C would raise here, while the child saves.
        if callable(previous) and previous is not signal.default_int_handler:
            previous(number, frame)

    with signal_handlers(STOP_SIGNALS, pass_on):
        yield


def _after_crash(folder: SweepFolder, last: JobState, code: int | None, work: Path) -> JobState:
    """Return the state of a job whose process was killed or crashed."""
    if folder.is_stopped:
        return replace(last, state=STOPPED)
    reason = _describe_exit(code) + (f", at {last.text}" if last.text else "")
    if last.run is not None and (work / last.run).is_dir():
        from pe_bench.runs.folder import write_error

        write_error(work / last.run, reason)
    return replace(last, state=FAILED, reason=reason, seconds=time.time() - last.started)


def _describe_exit(code: int | None) -> str:
    number = -(code or 0)
    if number not in list(signal.Signals):
        return f"its process ended with exit code {code}"
    name = signal.Signals(number).name
    return f"killed by {name}" + (", by someone or for lack of memory" if name == "SIGKILL" else "")


def fail(folder: SweepFolder, state: JobState, error: Exception) -> None:
    """Write down that a job failed before it began, and why."""
    folder.write(replace(state, state=FAILED, reason=_reason(error), started=time.time()))
    folder.log(state.number).write_text("".join(traceback.format_exception(error)), encoding="utf-8")


# In the child


class JobProgress:
    """The progress of a job, written to its file in place of being shown."""

    def __init__(self, folder: SweepFolder, state: JobState):
        self.folder, self.state = folder, state
        self._written = 0.0

    @contextmanager
    def bar(self, name: str, total: int) -> Iterator["JobBar"]:
        yield JobBar(self, total)

    def wait(self, reason: str) -> None:
        self.change(at_once=True, has_begun=True, text=reason)

    def change(self, *, at_once: bool = False, **changes: Any) -> None:
        self.state = replace(self.state, **changes)
        if at_once or time.monotonic() - self._written >= WRITE_SECONDS:
            with suppress(OSError):  # only the view misses it
                self.folder.write(self.state)
            self._written = time.monotonic()

    def reload(self) -> None:
        """Take up what was written by the process that worked, where that was one of several."""
        self.state = self.folder.latest(self.state)


@dataclass(frozen=True)
class JobBar:
    """The bar of one part of a job: of its training, or of its scoring."""

    progress: JobProgress
    total: int

    def show(self, done: float, text: str, line: str | None = None) -> None:
        # A stopped sweep waits for a job that has begun, which has something to save.
        is_first, share = not self.progress.state.has_worked, done / max(1, self.total)
        self.progress.change(at_once=is_first, has_begun=True, has_worked=True, share=share, text=text)


def _work(state: JobState, context: LaunchContext, config: Config) -> None:
    """Do the job in the child process, and write how it ended."""
    folder = SweepFolder(context.sweep)
    os.chdir(context.work)
    os.environ.update(context.variables)
    _write_output_to(folder.log(state.number))
    progress = JobProgress(folder, state)
    with signal_handlers(FROM_TERMINAL, signal.SIG_IGN), stop_on_signal(FROM_OTHERS):
        try:
            _watch_for_end(folder, state.number)
            end = _run(progress, config)
        except Stopped as stopped:
            end = {"state": STOPPED, "text": str(stopped)}
        except Exception as error:
            traceback.print_exc()
            end = {"state": FAILED, "reason": _reason(error)}
    progress.reload()
    folder.write_surely(replace(progress.state, **end, seconds=time.time() - state.started))


def _run(progress: JobProgress, config: Config) -> dict[str, Any]:
    from pe_bench.experiment import describe_failures, finish, prepare
    from pe_bench.system.files import check_folder

    check_folder(config.results_dir, "results_dir", is_written=True)
    job, plans = prepare(config)
    hashes = sorted({plan.target_hash for plan in plans})
    about = {"run": str(job.folder), "margin": config.report.margin, "target_hashes": hashes}
    progress.change(at_once=True, **about)
    rows = finish(job, plans, progress.bar, waits=progress.wait)
    progress.reload()
    progress.change(at_once=True, has_rows=True, keys=[row.key for row in rows])
    if failure := describe_failures(rows):
        return {"state": FAILED, "reason": failure}
    return {"state": DONE if progress.state.has_worked else SKIPPED}


def _watch_for_end(folder: SweepFolder, number: int) -> None:
    """End this process when the sweep or this job is stopped, or the process that waits for it is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        while parent.is_alive() and not folder.is_stopped and not folder.stop_of(number).exists():
            parent.join(POLL_SECONDS)
        ask_to_end()

    threading.Thread(target=watch, daemon=True).start()


def _reason(error: Exception) -> str:
    text = first_line(error)
    return text if isinstance(error, (UserError, RunError, OSError)) else f"{type(error).__name__}: {text}"


def _write_output_to(path: Path) -> None:
    """Send all that this process writes to a file, from C++ too: the sweep shows one line a job."""
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
