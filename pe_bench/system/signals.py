"""Being asked to end: by Ctrl-C, by SIGTERM, by a connection that is lost, or by what a scheduler sends.

Everything that pe-bench writes survives an end at any moment, so a signal ends a command at once, but
for a training step: that is finished and saved, unless the signal comes twice.
"""

import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any


def _here(*names: str) -> tuple[signal.Signals, ...]:
    """Windows has the first of each alone."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


# Sent to all that was started there: by Ctrl-C, and by a terminal that is closed or lost.
FROM_TERMINAL = _here("SIGINT", "SIGHUP")
# Slurm sends what `sbatch --signal` names, and submitit asks for SIGUSR2.
FROM_OTHERS = _here("SIGTERM", "SIGUSR1", "SIGUSR2")
ASKING = (*FROM_TERMINAL, *FROM_OTHERS)
EXIT_CODE = 130
# One request may come several ways at once: from the terminal, a scheduler, and the process that waits.
TWICE_SECONDS = 0.5


class Stopped(BaseException):
    """The command ends because it was asked to; its text says what was kept.

    Not a `KeyboardInterrupt`, whose text Typer drops.
    """


class _Asked:
    """Whether this process was asked to end, and whether it may finish a step first."""

    def __init__(self) -> None:
        self.finishing = False
        self.forget()

    def forget(self) -> None:
        self.once, self._heard = False, 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        heed_lost_terminal(number)
        now = time.monotonic()
        if self.once and now - self._heard < TWICE_SECONDS:
            return
        again, self.once = self.once, True
        self._heard = self._heard or now
        if again or not self.finishing:
            raise Stopped
        tell("stopping after this step; a second time leaves at once")


_asked = _Asked()


@contextmanager
def signals_heard(numbers: tuple[int, ...] = ASKING) -> Iterator[None]:
    """In here the signals that ask for an end raise `Stopped` in the main thread."""
    _asked.forget()
    with handled(numbers, _asked):
        yield


@contextmanager
def steps_finished() -> Iterator[Callable[[], bool]]:
    """In here the first signal only makes what is yielded return True; the second raises `Stopped`.

    Raises it at the end too, where nobody looked after the first.
    """
    _asked.finishing = True
    try:
        yield lambda: _asked.once
    finally:
        _asked.finishing = False
    if _asked.once:
        raise Stopped


def tell(message: str) -> None:
    """A line from a signal's handler: not printed, which may be what the signal interrupted."""
    with suppress(OSError):  # Ctrl-C ends the reader of a pipe too
        os.write(2, f"\n{message}\n".encode())


def heed_lost_terminal(number: int) -> None:
    """What is written to a terminal that is gone would be an error, before anything is saved."""
    if number == getattr(signal, "SIGHUP", None):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            if stat.S_ISCHR(os.fstat(standard).st_mode):  # a file or a pipe is there as before
                os.dup2(nowhere, standard)
        os.close(nowhere)


def ask_to_end() -> None:
    """As SIGTERM would, from any thread; nothing where a signal came already."""
    if not _asked.once:
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def handled(
    numbers: tuple[int, ...], handler: Callable[[int, FrameType | None], Any] | signal.Handlers
) -> Iterator[None]:
    """Let `handler` have these signals; Python lets only the main thread choose.

    But for the terminal's end, where `nohup` has this process ignore that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    chosen = [number for number in numbers if not _is_kept_from(number)]
    before = {number: signal.signal(number, handler) for number in chosen}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous if previous is not None else signal.SIG_DFL)


def _is_kept_from(number: int) -> bool:
    return number == getattr(signal, "SIGHUP", None) and signal.getsignal(number) is signal.SIG_IGN
