"""Signals that ask a command to end, and the processes that a command starts.

The signals are those of Ctrl-C, a lost terminal and schedulers, and SIGTERM. All files of pe-bench survive an
end at any moment, so a signal ends a command at once. Only a training step is finished and saved first,
unless the signal comes twice. Child processes start quickly: they are copies of a process that has only
imported their modules. The rank of a process in the training of a run comes from torchrun's environment;
without it this is the only process.
"""

import multiprocessing
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

# Sent to all processes of a terminal: by Ctrl-C, and when the terminal is closed or lost.
FROM_TERMINAL = (signal.SIGINT, signal.SIGHUP)
# Slurm sends the signal of `sbatch --signal`, and submitit asks for SIGUSR2.
FROM_OTHERS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
STOP_SIGNALS = (*FROM_TERMINAL, *FROM_OTHERS)
INTERRUPTED_EXIT_CODE = 130
# One request may come in several ways at once: from the terminal, a scheduler, and a waiting process.
DEBOUNCE_SECONDS = 0.5
# Imported once for all children.
PRELOADED_MODULES = ("pe_bench.commands.train", "torch.distributed")


class Stopped(BaseException):
    """The end of a command at a user's or scheduler's request; the text says what is saved.

    It is no `KeyboardInterrupt`, because Typer drops the text of that.
    """


INTERRUPTIONS = (Stopped, KeyboardInterrupt)  # any other exception of a user's code is a failure of the code


@dataclass
class StopRequest:
    """A signal handler that raises `Stopped`.

    While `finishing` is set, the first signal only sets `once`, so that the step can end; the second raises.
    """

    finishing: bool = False  # the current step may end before `Stopped` is raised
    once: bool = False  # a signal has come
    first: float = 0.0  # the time of the first signal, by a clock that only goes forward

    def __call__(self, number: int, frame: FrameType | None) -> None:
        detach_lost_terminal(number)
        now = time.monotonic()
        if self.once and now - self.first < DEBOUNCE_SECONDS:
            return
        again, self.once = self.once, True
        self.first = self.first or now
        if again or not self.finishing:
            raise Stopped
        write_line("stopping after this step (Ctrl-C again to quit now)")


_request = StopRequest()


@contextmanager
def stop_on_signal(numbers: tuple[int, ...] = STOP_SIGNALS) -> Iterator[None]:
    """Raise `Stopped` in the main thread at signals that ask for an end."""
    global _request
    outer, _request = _request, StopRequest()
    try:
        with handling_signals(numbers, _request):
            yield
    finally:
        _request = outer


@contextmanager
def interruptible() -> Iterator[None]:
    """Make Ctrl-C in a Python program end the code within the context, with a `KeyboardInterrupt`.

    A command, or a program with a signal handler of its own, keeps its handler.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    try:
        with stop_on_signal((signal.SIGINT,)):
            yield
    except Stopped as stopped:
        raise KeyboardInterrupt(str(stopped)) from stopped


@contextmanager
def finish_step_on_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether a signal has come; the second signal raises `Stopped`.

    After a first signal, the end of the context raises `Stopped` too.
    """
    _request.finishing = True
    try:
        yield lambda: _request.once
    finally:
        _request.finishing = False
    if _request.once:
        raise Stopped


def write_line(message: str) -> None:
    """Write a line on standard error from a signal handler.

    `print` cannot be used, because the signal may have interrupted it.
    """
    with suppress(OSError):  # Ctrl-C ends the reader of a pipe too
        if rank() == 0:
            os.write(2, f"\n{message}\n".encode())


def detach_lost_terminal(number: int) -> None:
    """Drop output to a terminal if `number` is SIGHUP, the signal of a lost terminal.

    Writing would be an error before the run is saved.
    """
    if number == signal.SIGHUP:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            if stat.S_ISCHR(os.fstat(standard).st_mode):  # a terminal, and no file or pipe
                os.dup2(nowhere, standard)
        os.close(nowhere)


def send_sigterm_to_self() -> None:
    """Ask this process to end, by SIGTERM, unless a signal has come before; any thread may call this."""
    if not _request.once:
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def handling_signals(
    numbers: tuple[int, ...], handler: Callable[[int, FrameType | None], Any] | signal.Handlers
) -> Iterator[None]:
    """Within the context, handle the signals `numbers` by `handler`.

    Outside the main thread nothing is changed, because Python allows no handler there.

    SIGHUP stays ignored in a process that `nohup` started.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    chosen = [number for number in numbers if not (is_ignored and number == signal.SIGHUP)]
    before = {number: signal.signal(number, handler) for number in chosen}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous if previous is not None else signal.SIG_DFL)


def child_context() -> Any:
    """Return the `multiprocessing` context for child processes that start quickly."""
    from multiprocessing import forkserver

    if multiprocessing.get_start_method() not in multiprocessing.get_all_start_methods():
        # Joblib's workers have a start method of their own by default, which a child would not know.
        multiprocessing.set_start_method("forkserver", force=True)
    multiprocessing.set_forkserver_preload([*PRELOADED_MODULES])
    # The forkserver ignores a signal that is sent to all processes: its children handle it.
    with handling_signals(STOP_SIGNALS, signal.SIG_IGN):
        forkserver.ensure_running()
    return multiprocessing.get_context("forkserver")


_main_module_lock = threading.Lock()  # of two threads, the second would keep the first one's empty module


@contextmanager
def without_main_module() -> Iterator[None]:
    """Within the context, child processes start without the program's main module.

    A child would run a user's script once more, with its trainings, if the script has no
    `if __name__ == "__main__"`. pe-bench's child processes need nothing of the script.
    """
    with _main_module_lock:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def pe_bench_variables() -> dict[str, str]:
    """Return the present `PE_BENCH_*` variables, to hand to a child process.

    The fork server otherwise gives each child the values it had when the first child started.
    """
    return {name: value for name, value in os.environ.items() if name.startswith("PE_BENCH_")}


def kill_launcher_workers() -> None:
    """Kill the worker processes of a launcher such as joblib's, which would outlive this process.

    pe-bench's own child processes go on.
    """
    own_process_class: Any = multiprocessing.get_context("forkserver").Process
    for child in multiprocessing.active_children():
        if not isinstance(child, own_process_class) and child.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)  # joblib's have no `kill`


def world_size() -> int:
    """Return the number of processes that train one run."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    return 1


def local_world_size() -> int:
    """Return the number of processes on this machine that train one run."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if world_size() > 1 else 1


def rank() -> int:
    """Return this process's number among the processes that train one run."""
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def local_rank() -> int:
    """Return this process's number among the processes on this machine that train one run."""
    return int(os.environ.get("LOCAL_RANK", 0)) if world_size() > 1 else 0
