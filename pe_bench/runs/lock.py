"""The lock of a run, on which one process works at a time, and the file of its last error."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from pe_bench.errors import RunError
from pe_bench.runs.untrusted import check_files
from pe_bench.system.files import write_text

ERROR = "error.txt"


@contextmanager
def locked(run: Path, *, waits: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the run. Where another process does, call `waits` with that and wait; without it raise `RunError`.

    Raise `RunError` also for a run that is not safe to write to.
    """
    check_files(run)
    lock = FileLock(run / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        if waits is None:
            raise RunError(f"another process is working on {run}: wait for it, or stop it") from error
        waits(f"waits for another process that is working on {run}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def record_error(run: Path) -> Iterator[None]:
    """Write what fails inside to `error.txt`, which success deletes; only the lock's holder may use this."""
    try:
        yield
    except Exception as error:
        write_error(run, "".join(traceback.format_exception(error)))
        raise
    (run / ERROR).unlink(missing_ok=True)


def write_error(run: Path, text: str) -> None:
    """Write `error.txt`; where the disk takes no more, the error is only printed."""
    with suppress(RunError, OSError):
        write_text(run / ERROR, f"{text.rstrip()}\n")
