"""One job of a sweep, in a child process: what it raises, and what kills it, ends nothing else."""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

from pe_bench.config.schema import Config
from pe_bench.errors import RunError, UserError, first_line
from pe_bench.sweep.states import DONE, FAILED, SKIPPED, STOPPED, JobState, SweepFolder
from pe_bench.system.signals import (
    EXIT_CODE,
    FROM_OTHERS,
    FROM_TERMINAL,
    STOP_SIGNALS,
    Stopped,
    ask_to_end,
    child_context,
    signal_handlers,
    stop_on_signal,
)

WRITE_SECONDS = 0.25  # between two changes of a job's file
POLL_SECONDS = 0.2  # between two checks for the file that asks to stop
ALIVE_SECONDS = 1.0  # between two checks that the process that launched a worker is alive
EARLY_SHARE = 0.1  # of a part of a job, below which the time it takes is unknown
END = "end"  # what a worker sends to its child
SAVE_SECONDS = 60  # that a job has to finish its step and save, before a scheduler's own end of it
# Of PyTorch what the first step of an optimizer imports, which takes longer than a tiny run.
PRELOADED = ["pe_bench.experiment", "torch._dynamo"]


@dataclass(frozen=True)
class LaunchContext:
    """The place and the variables of the command that started a sweep, which each of its jobs gets."""

    sweep: Path
    work: Path
    variables: Mapping[str, str]
    process: int  # that launched the sweep


def launch_context(sweep: Path) -> LaunchContext:
    variables = {name: value for name, value in os.environ.items() if name.startswith("PE_BENCH_")}
    return LaunchContext(sweep.absolute(), Path.cwd(), variables, os.getpid())


def run_in_child(state: JobState, context: LaunchContext, config: Config) -> None:
    """Run a job in a child process, and write how it ended; do nothing where the sweep was stopped before.

    A launcher calls this in a process that has no other work and that the child does not outlive.
    """
    folder = SweepFolder(context.sweep)
    if folder.is_stopped:
        return
    state = replace(state, started=time.time())
    folder.write(state)
    ended, code = _wait_for_child((state, context, config), context)
    _write_surely(folder, ended or _after_crash(folder, state, code, context.work))


def _wait_for_child(arguments: tuple[Any, ...], context: LaunchContext) -> tuple[JobState | None, int | None]:
    """Do the work in a child process; return how it ended, where the child said so, and its exit code."""
    children = child_context(PRELOADED)
    ours, theirs = children.Pipe()
    child = children.Process(target=_work, args=(*arguments, theirs))
    is_worker = os.getpid() != context.process
    with _let_child_save(child, ours) if is_worker else nullcontext():
        child.start()
        theirs.close()
        try:
            ended = _receive(ours, os.getppid() if is_worker else None)
            child.join()
        except BaseException:
            child.kill()
            raise
        finally:
            ours.close()
    return ended, child.exitcode


def _write_surely(folder: SweepFolder, state: JobState) -> None:
    """Try twice: a disk that fails for a moment must not make a finished job a lost one."""
    try:
        folder.write(state)
    except OSError:
        time.sleep(WRITE_SECONDS)
        with suppress(OSError):
            folder.write(state)


def fail(folder: SweepFolder, state: JobState, error: Exception) -> None:
    """Write down that a job failed before it began, and why."""
    folder.log(state.number).parent.mkdir(parents=True, exist_ok=True)
    folder.log(state.number).write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    folder.write(replace(state, state=FAILED, reason=_reason(error), started=time.time()))


class JobProgress:
    """The progress of a job, written to its file in place of being shown."""

    def __init__(self, folder: SweepFolder, state: JobState):
        self.folder, self.state = folder, state
        self.has_worked = False
        self._written = 0.0

    @contextmanager
    def bar(self, name: str, total: int) -> Iterator["JobBar"]:
        yield JobBar(self, total)

    def change(self, *, at_once: bool = False, **changes: Any) -> None:
        self.state = replace(self.state, **changes)
        if at_once or time.monotonic() - self._written >= WRITE_SECONDS:
            with suppress(OSError):  # only the view misses it
                self.folder.write(self.state)
            self._written = time.monotonic()


class JobBar:
    """The bar of one part of a job: of its training, or of its scoring."""

    def __init__(self, progress: JobProgress, total: int):
        self.progress, self.total = progress, total
        self._began = time.time()

    def show(self, done: float, text: str, line: str | None = None) -> None:
        is_first, self.progress.has_worked = not self.progress.has_worked, True
        share = done / max(1, self.total)
        # A stopped sweep waits for a job that has begun, which has something to save.
        self.progress.change(
            at_once=is_first, has_begun=True, share=share, text=text, expected=self._expected(share)
        )

    def _expected(self, share: float) -> float:
        """Estimate the seconds of the whole job from the time so far and the share of this part that is done.

        The parts after this one are not known; an early share says little.
        """
        state, now = self.progress.state, time.time()
        if share < EARLY_SHARE:
            return max(state.expected, now - state.started) if state.expected else 0.0
        return self._began - state.started + (now - self._began) / share


def _work(state: JobState, context: LaunchContext, config: Config, pipe: Connection) -> None:
    """Do the job in the child process, and send how it ended."""
    folder = SweepFolder(context.sweep)
    os.chdir(context.work)
    os.environ.update(context.variables)
    _write_output_to(folder.log(state.number))
    progress = JobProgress(folder, state)
    with signal_handlers(FROM_TERMINAL, signal.SIG_IGN), stop_on_signal(FROM_OTHERS):
        try:
            _watch_for_end(folder, pipe)
            ended = _run(progress, config)
        except Stopped as stopped:
            ended = {"state": STOPPED, "text": str(stopped)}
        except Exception as error:
            traceback.print_exc()
            ended = {"state": FAILED, "reason": _reason(error)}
    with suppress(OSError):  # the one that would read it is gone
        pipe.send(replace(progress.state, **ended, seconds=time.time() - state.started))


def _run(progress: JobProgress, config: Config) -> dict[str, Any]:
    from pe_bench.experiment import describe_failures, finish, prepare
    from pe_bench.system.files import check_folder

    check_folder(config.results_dir, "results_dir", is_written=True)
    job, plans = prepare(config)
    hashes = sorted({plan.target_hash for plan in plans})
    progress.change(run=str(job.folder), margin=config.report.margin, target_hashes=hashes)
    rows = finish(
        job, plans, progress.bar, waits=lambda why: progress.change(at_once=True, has_begun=True, text=why)
    )
    progress.change(has_rows=True, keys=[row.key for row in rows])
    if failure := describe_failures(rows):
        return {"state": FAILED, "reason": failure}
    return {"state": DONE if progress.has_worked else SKIPPED}


def _watch_for_end(folder: SweepFolder, pipe: Connection) -> None:
    """End this process when the sweep is stopped, and when the process that waits for it says so or is gone.

    A signal would be lost where it came before this process hears any.
    """

    def watch() -> None:
        while not folder.is_stopped:
            try:
                if pipe.poll(POLL_SECONDS):  # it says END, or its end is closed
                    break
            except OSError:
                break
        ask_to_end()

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _let_child_save(child: Any, pipe: Connection) -> Iterator[None]:
    """Have the child of a launcher's worker save before a signal does what it would do with the worker.

    Submitit puts a job back into the queue when it gets the scheduler's signal. What a terminal sends came to
    the command too, which stops the sweep.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number in FROM_OTHERS and child.is_alive():
            with suppress(OSError):  # it has just ended
                pipe.send(END)
            child.join(SAVE_SECONDS)
        previous = before[number]
        # Python's own handler of Ctrl-C would raise here, while the child saves.
        if callable(previous) and previous is not signal.default_int_handler:
            previous(number, frame)

    with signal_handlers(STOP_SIGNALS, pass_on):
        yield


def _receive(pipe: Connection, parent: int | None) -> JobState | None:
    """Return how the child says that it ended; None where it was killed.

    A launcher's worker whose `parent` is gone ends too; its child saves, and the run is free for the command
    that goes on.
    """
    try:
        while not pipe.poll(ALIVE_SECONDS):
            if parent is not None and os.getppid() != parent:
                pipe.close()
                os._exit(EXIT_CODE)
        return pipe.recv()
    except (EOFError, OSError):
        return None


def _after_crash(folder: SweepFolder, state: JobState, code: int | None, work: Path) -> JobState:
    """Return the state of a job whose process was killed or crashed."""
    last = next((written for written in folder.states() if written.number == state.number), state)
    if folder.is_stopped:
        return replace(last, state=STOPPED)
    reason = _describe_exit(code) + (f", at {last.text}" if last.text else "")
    if last.run is not None and (work / last.run).is_dir():
        from pe_bench.runs.folder import write_error

        write_error(work / last.run, reason)
    return replace(last, state=FAILED, reason=reason, seconds=time.time() - state.started)


def _describe_exit(code: int | None) -> str:
    number = -(code or 0)
    if number not in list(signal.Signals):
        return f"its process ended with exit code {code}"
    name = signal.Signals(number).name
    return f"killed by {name}" + (", by someone or for lack of memory" if name == "SIGKILL" else "")


def _reason(error: Exception) -> str:
    text = first_line(error)
    return text if isinstance(error, (UserError, RunError, OSError)) else f"{type(error).__name__}: {text}"


def _write_output_to(path: Path) -> None:
    """Send all that this process writes to a file, from C++ too: the sweep shows one line a job."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
