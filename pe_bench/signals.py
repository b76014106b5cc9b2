"""Being asked to end: by Ctrl-C, by SIGTERM, or by what a scheduler sends before it takes a machine back.

Everything that pe-bench writes survives an end at any moment, so a signal ends a command at once, but
for a training step: that is finished and saved, unless the signal comes twice.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# Slurm sends what `sbatch --signal` names, and submitit asks for SIGUSR2. Windows has the first two alone.
ASKING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)
EXIT_CODE = 130


class Stopped(BaseException):
    """The command ends because it was asked to; its text says what was kept.

    Not a `KeyboardInterrupt`, whose text Typer drops.
    """


class _Asked:
    """Whether this process was asked to end, and whether it may finish a step first."""

    def __init__(self) -> None:
        self.once = False
        self.finishing = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        again, self.once = self.once, True
        if again or not self.finishing:
            raise Stopped
        # Not `print`, which may be what the signal interrupted.
        os.write(2, b"\nstopping after this step; a second time leaves at once\n")


_asked = _Asked()


@contextmanager
def signals_heard() -> Iterator[None]:
    """In here the signals that ask for an end raise `Stopped` in the main thread."""
    _asked.once = False
    with handled(ASKING, _asked):
        yield


@contextmanager
def steps_finished() -> Iterator[Callable[[], bool]]:
    """In here the first signal only makes what is yielded return True; the second raises `Stopped`."""
    _asked.finishing = True
    try:
        yield lambda: _asked.once
    finally:
        _asked.finishing = False


def ask_to_end() -> None:
    """As SIGTERM would, from any thread; nothing where a signal came already."""
    if not _asked.once:
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def handled(
    numbers: tuple[int, ...], handler: Callable[[int, FrameType | None], Any] | signal.Handlers
) -> Iterator[None]:
    """Let `handler` have these signals; Python lets only the main thread choose."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous if previous is not None else signal.SIG_DFL)
