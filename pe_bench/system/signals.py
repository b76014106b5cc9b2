"""Requests to end: Ctrl-C, SIGTERM, a lost connection, the signals of schedulers; and other processes.

Everything that pe-bench writes survives an end at any moment, so a signal ends a command at once. Only a
training step is finished and saved first, unless the signal comes twice. Child processes start quickly: they
are copies of one that has imported what they need, and done nothing. Which of the processes that train one
run this is stands in torchrun's variables; without them, it is the only one.
"""

import multiprocessing
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

# Sent to all that was started there: by Ctrl-C, and by a terminal that is closed or lost.
FROM_TERMINAL = (signal.SIGINT, signal.SIGHUP)
# Slurm sends what `sbatch --signal` names, and submitit asks for SIGUSR2.
FROM_OTHERS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
STOP_SIGNALS = (*FROM_TERMINAL, *FROM_OTHERS)
EXIT_CODE = 130
# One request may come several ways at once: from the terminal, a scheduler, and the process that waits.
DEBOUNCE_SECONDS = 0.5
# Imported once for all children.
PRELOADED = ("pe_bench.commands.train", "torch.distributed")


class Stopped(BaseException):
    """The end of a command that was asked to end; its text says what was kept.

    Not a `KeyboardInterrupt`, whose text Typer drops.
    """


INTERRUPTIONS = (Stopped, KeyboardInterrupt)  # what users' code may raise beside them is a failure of it


@dataclass
class StopRequest:
    """A handler of signals that knows whether this process was asked to end, and may finish a step first."""

    finishing: bool = False
    once: bool = False
    first: float = 0.0  # when it was asked, by a clock that only goes forward

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
        with handled(numbers, _request):
            yield
    finally:
        _request = outer


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C in a Python program end what is inside as it ends a command, with a `KeyboardInterrupt`.

    A command, or a program with a handler of its own, has chosen already and keeps its choice.
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
    """Have the first signal only make what is yielded return True; the second raises `Stopped`.

    Raise it at the end too, where nobody asked after the first.
    """
    _request.finishing = True
    try:
        yield lambda: _request.once
    finally:
        _request.finishing = False
    if _request.once:
        raise Stopped


def write_line(message: str) -> None:
    """Write a line from a signal's handler: printing may be what the signal interrupted."""
    with suppress(OSError):  # Ctrl-C ends the reader of a pipe too
        if rank() == 0:
            os.write(2, f"\n{message}\n".encode())


def detach_lost_terminal(number: int) -> None:
    """Drop output where the terminal is gone: writing there would be an error before anything is saved."""
    if number == signal.SIGHUP:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            if stat.S_ISCHR(os.fstat(standard).st_mode):  # a file or a pipe is there as before
                os.dup2(nowhere, standard)
        os.close(nowhere)


def ask_to_end() -> None:
    """Ask this process to end as SIGTERM does, from any thread; do nothing where a signal came already."""
    if not _request.once:
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def handled(
    numbers: tuple[int, ...], handler: Callable[[int, FrameType | None], Any] | signal.Handlers
) -> Iterator[None]:
    """Let `handler` have these signals inside; Python lets only the main thread choose.

    The end of the terminal stays ignored where `nohup` has this process ignore it.
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
    """Return the `multiprocessing` context of such children."""
    from multiprocessing import forkserver

    if multiprocessing.get_start_method() not in multiprocessing.get_all_start_methods():
        # Joblib's workers have a method of their own by default, which a child would not find.
        multiprocessing.set_start_method("forkserver", force=True)
    multiprocessing.set_forkserver_preload([*PRELOADED])
    # The forkserver ignores a signal that is sent to all processes: its children handle it.
    with handled(STOP_SIGNALS, signal.SIG_IGN):
        forkserver.ensure_running()
    return multiprocessing.get_context("forkserver")


def own_variables() -> dict[str, str]:
    """Return our variables for such a child: it has those of the moment when the first was started."""
    return {name: value for name, value in os.environ.items() if name.startswith("PE_BENCH_")}


def end_workers() -> None:
    """Kill the workers that a launcher started, which would outlive this process. Our own children go on."""
    ours: Any = multiprocessing.get_context("forkserver").Process
    for child in multiprocessing.active_children():
        if not isinstance(child, ours) and child.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)  # joblib's have no `kill`


def world_size() -> int:
    return int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ and "WORLD_SIZE" in os.environ else 1


def local_world_size() -> int:
    """Return how many of the processes are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if world_size() > 1 else 1


def rank() -> int:
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", 0)) if world_size() > 1 else 0
