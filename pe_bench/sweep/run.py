"""A sweep: many runs from one command, each in its own process, under any of Hydra's launchers.

Only a sweep's runs are kept: repeating the command does what is missing.
"""

import os
import secrets
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from pe_bench.config.compose import call_hydra, config_flags, parse_composed
from pe_bench.config.groups import SEARCH_PATH
from pe_bench.config.overrides import parse_override, quote
from pe_bench.errors import UserError, first_line
from pe_bench.sweep.grid import Swept, cores_each, require_one_start, with_swept_options
from pe_bench.sweep.job import LaunchContext, fail, launch_context, run_in_child
from pe_bench.sweep.states import JobState, Summary, SweepFolder, summarize
from pe_bench.sweep.view import View
from pe_bench.system.signals import (
    DEBOUNCE_SECONDS,
    EXIT_CODE,
    STOP_SIGNALS,
    Stopped,
    detach_lost_terminal,
    end_workers,
    restore_stopped,
    signal_handlers,
    write_line,
)

SWEEP_DIR = "hydra.sweep.dir"


def run_sweep(overrides: Sequence[str], search: Sequence[Path], swept: Swept) -> Summary:
    """Launch every job that overrides ask for, show their progress, and summarize how they ended.

    A signal stops all jobs, which save; a second one leaves at once.
    """
    folder = SweepFolder(_new_folder(overrides, swept))
    task = _Task(launch_context(folder.path), swept, tuple(config_flags(search))).function()
    launched = with_swept_options(_with_folder(overrides, folder.path))
    problem = ""
    try:
        with View(folder, swept.jobs) as view, _stopped_by_signals(folder, view), restore_stopped():
            call_hydra(launched, search, ["--multirun"], task)
    except Stopped:
        folder.ask_to_stop()
    except UserError:
        raise
    except Exception as error:  # a launcher's own: a worker that the system killed, a cluster that is gone
        if isinstance(error, OSError) and not folder.path.exists():
            raise UserError(f"{folder.path} cannot be made: {first_line(error)}") from error
        problem = f"{type(error).__name__}: {first_line(error)}"
    return summarize(folder, swept.jobs, problem)


@dataclass(frozen=True)
class _Task:
    """A function that a launcher calls for each job, in this process or in another one, maybe elsewhere."""

    context: LaunchContext
    swept: Swept
    flags: tuple[str, ...]

    def function(self) -> Any:
        def task(composed: Any) -> None:
            self(composed)

        return task  # Hydra asks a task for the file that it was written in, which only functions have

    def __call__(self, composed: Any) -> None:
        from hydra.core.hydra_config import HydraConfig

        hydra = HydraConfig.get()
        # Where the files of a job's overrides may lie is one of Hydra's own.
        searched = [text for text in hydra.overrides.hydra if parse_override(text).key == SEARCH_PATH]
        overrides = [*searched, *hydra.overrides.task]
        state = self._state(int(hydra.job.num), overrides)
        try:
            require_one_start(hydra.launcher)
            config = parse_composed(composed)
        except Exception as error:
            fail(SweepFolder(self.context.sweep), state, error)
            return
        if config.threads == "auto":
            config = replace(config, threads=cores_each(hydra, self.swept.jobs))
        run_in_child(state, self.context, config)

    def _state(self, number: int, overrides: list[str]) -> JobState:
        swept = [text for text in overrides if parse_override(text).key in self.swept.keys]
        return JobState(number, " ".join(swept) or f"job {number}", self._command(overrides))

    def _command(self, overrides: Sequence[str]) -> str:
        return shlex.join(["pe-bench", "train", *overrides, *self.flags])


@contextmanager
def _stopped_by_signals(folder: SweepFolder, view: View) -> Iterator[None]:
    first = 0.0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal first
        detach_lost_terminal(number)
        if first and view.has_seen_all_end:
            raise Stopped
        if first and time.monotonic() - first >= DEBOUNCE_SECONDS:
            # A launcher would wait for its workers. The jobs find that this process is gone, and end.
            end_workers()
            view.give_back_terminal()
            write_line("quitting; jobs will finish their step, save and exit")
            os._exit(EXIT_CODE)
        if not first:
            first = time.monotonic()
            folder.ask_to_stop()
            write_line("stopping: each job finishes its step and saves (Ctrl-C again to quit now)")

    with signal_handlers(STOP_SIGNALS, stop):
        yield


def _new_folder(overrides: Sequence[str], swept: Swept) -> Path:
    """Return a new folder below `results_dir`, or below the one that the overrides name."""
    now = time.strftime("%Y-%m-%d_%H-%M-%S")
    return _parent(overrides, swept) / f"{now}-{os.getpid()}-{secrets.token_hex(2)}"


def _parent(overrides: Sequence[str], swept: Swept) -> Path:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    named = [text for text in overrides if _names_folder(text)]
    if not named:
        return swept.results_dir / "sweeps"
    value = str(OverridesParser.create().parse_override(named[-1]).value())
    if "${" in value:
        raise UserError(f"{named[-1]}: name the folder as it is, without ${{...}}")
    return Path(value)


def _with_folder(overrides: Sequence[str], folder: Path) -> list[str]:
    """Name the folder: an interpolation, resolved anew in each process, would find another."""
    others = [text for text in overrides if not _names_folder(text)]
    return [*others, f"{SWEEP_DIR}={quote(str(folder.absolute()))}"]


def _names_folder(override: str) -> bool:
    return parse_override(override).key == SWEEP_DIR
