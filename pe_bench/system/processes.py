"""Child processes that start quickly: copies of one that has imported what they need, and done nothing."""

import multiprocessing
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pe_bench.system.signals import STOP_SIGNALS, signal_handlers


def start_method() -> str:
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def child_context(preloaded: Sequence[str]) -> Any:
    """Return the `multiprocessing` context of such children, which find the modules `preloaded` imported."""
    if multiprocessing.get_start_method() not in multiprocessing.get_all_start_methods():
        # Joblib's workers have a method of their own by default, which a child would not find.
        multiprocessing.set_start_method(start_method(), force=True)
    if start_method() == "forkserver":
        from multiprocessing import forkserver

        multiprocessing.set_forkserver_preload(list(preloaded))
        # What they are copied from leaves a signal that is sent to all processes to the children.
        with signal_handlers(STOP_SIGNALS, signal.SIG_IGN):
            forkserver.ensure_running()
    return multiprocessing.get_context(start_method())


def end_workers() -> None:
    """Kill those that a launcher started, which would outlive this process; children of ours go on."""
    # Joblib's workers have no `kill`; nor has Windows.
    number = getattr(signal, "SIGKILL", signal.SIGTERM)
    context: Any = multiprocessing.get_context(start_method())
    for child in multiprocessing.active_children():
        if not isinstance(child, context.Process) and child.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(child.pid, number)
