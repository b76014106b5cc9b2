"""Child processes that start quickly: copies of one that has imported what they need, and done nothing."""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pe_bench.system.signals import STOP_SIGNALS, signal_handlers

PR_SET_PDEATHSIG = 1  # of Linux: the signal that a process gets when its parent ends
# The forkserver, from which children are copied, would wait for all of them, and a stopped one never ends.
ENDS_WITH_PARENT = "pe_bench.system.bound_to_parent"


def start_method() -> str:
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def child_context(preloaded: Sequence[str]) -> Any:
    """Return the `multiprocessing` context of such children, which find the modules `preloaded` imported."""
    if multiprocessing.get_start_method() not in multiprocessing.get_all_start_methods():
        # Joblib's workers have a method of their own by default, which a child would not find.
        multiprocessing.set_start_method(start_method(), force=True)
    if start_method() == "forkserver":
        from multiprocessing import forkserver

        multiprocessing.set_forkserver_preload([ENDS_WITH_PARENT, *preloaded])
        # The forkserver ignores a signal that is sent to all processes: its children handle it.
        with signal_handlers(STOP_SIGNALS, signal.SIG_IGN):
            forkserver.ensure_running()
    return multiprocessing.get_context(start_method())


def end_with_parent() -> None:
    """Have the system kill this process when its parent ends, even while it is stopped.

    Linux alone can. Elsewhere a process has to watch for that itself, which a stopped one does not.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped, as by SIGSTOP. Known on Linux alone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def is_alive(pid: int) -> bool:
    """Return whether there is such a process; on Windows, where a signal would end it, say yes."""
    if os.name == "nt":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def kill(pid: int) -> None:
    """Kill a process, even a stopped one; nothing happens if it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))  # Windows has only the latter


def end_workers() -> None:
    """Kill those that a launcher started, which would outlive this process; children of ours go on."""
    context: Any = multiprocessing.get_context(start_method())
    for child in multiprocessing.active_children():
        if not isinstance(child, context.Process) and child.pid is not None:
            kill(child.pid)  # joblib's workers have no `kill`
