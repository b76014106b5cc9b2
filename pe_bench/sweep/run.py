"""A sweep: many runs from one command, each in its own process, under any of Hydra's launchers.

Only a sweep's runs are kept: repeating the command does what is missing.
"""

import os
import secrets
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from pe_bench.config.compose import call_hydra, complete_overrides, config_flags, parse_composed
from pe_bench.config.groups import SEARCH_PATH
from pe_bench.config.overrides import parse_override, quote
from pe_bench.config.schema import Config
from pe_bench.errors import RunError, UserError, first_line
from pe_bench.runs.gather import gather_and_warn, results_file
from pe_bench.sweep.check import Swept, check_sweep, with_swept_options
from pe_bench.sweep.jobs import JobState, SweepFolder, fail, launch_context, run_in_child
from pe_bench.sweep.summary import Summary
from pe_bench.sweep.view import View
from pe_bench.system.files import check_folder
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

QUEUE_SECONDS = 60  # between two looks at Slurm's queue, which forgets a job after some minutes


def launch(overrides: Sequence[str], search: Sequence[Path]) -> Summary:
    """Run the sweep that overrides ask for. Raise `UserError` before anything is written."""
    overrides = complete_overrides(overrides, search)
    swept = check_sweep(overrides, search, check_job)
    if results_file(swept.results_dir).exists():
        gather_and_warn(swept.results_dir)  # what a job says of it stands in its log alone
    return run_sweep(overrides, search, swept)


def require_done(summary: Summary) -> None:
    """Raise `Stopped` or `RunError` for a sweep with jobs that are not done."""
    if summary.stopped and not summary.is_done:
        raise Stopped("stopped; the same command does what is missing")
    if not summary.is_done:
        first = "fix what failed, then " if summary.failed else ""
        raise RunError(f"the sweep is not done; {first}the same command does what is missing")


def check_job(config: Config) -> None:
    """Raise `UserError` for a job that cannot begin."""
    from pe_bench.experiment import prepare

    check_folder(config.results_dir, "results_dir", is_written=True)
    prepare(config)


def run_sweep(overrides: Sequence[str], search: Sequence[Path], swept: Swept) -> Summary:
    """Launch every job that overrides ask for, show their progress, and summarize how they ended.

    A signal stops all jobs, which save; a second one leaves at once.
    """
    folder = SweepFolder(_new_folder(swept.results_dir))
    task = _job_runner(folder, swept, config_flags(search))
    _ask_queue_without_accounts()
    problem = ""
    try:
        with View(folder, swept.jobs) as view, _stopped_by_signals(folder, view), restore_stopped():
            call_hydra(_launched(overrides, folder.path), search, ["--multirun"], task)
    except Stopped:
        folder.ask_to_stop()
    except UserError:
        raise
    except Exception as error:  # a launcher's own: a worker that the system killed, a cluster that is gone
        if isinstance(error, OSError) and not folder.path.exists():
            raise UserError(f"{folder.path} cannot be made: {first_line(error)}") from error
        problem = f"{type(error).__name__}: {first_line(error)}"
    states = folder.states()
    # A configuration may sweep over more than the command line.
    return Summary(folder.path, states, max(swept.jobs, len(states)), problem, folder.is_stopped)


def _ask_queue_without_accounts() -> None:
    """Have submitit ask Slurm's queue about its jobs where sacct, which it calls, finds no accounts."""
    if shutil.which("sacct") is None or subprocess.run(["sacct"], capture_output=True).returncode == 0:
        return
    try:
        from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob
    except ImportError:
        return
    ask_accounts = SlurmInfoWatcher._make_command

    def ask_queue(self: Any) -> list[str] | None:
        jobs = ",".join((ask_accounts(self) or [])[5::2])  # after each -j
        ask = f"squeue --noheader --array --states=all --format='%i|%T|%N' --jobs={jobs} || true"
        return ["sh", "-c", f"echo 'JobID|State|NodeList'; {ask}"] if jobs else None

    SlurmInfoWatcher._make_command = ask_queue
    SlurmJob.watcher._delay_s = QUEUE_SECONDS


def plan_sweep(overrides: Sequence[str], search: Sequence[Path]) -> list[str]:
    """Return the command of each job that overrides ask for, which a launcher elsewhere may run."""
    commands: list[str] = []

    def note(composed: Any) -> None:
        parse_composed(composed)
        commands.append(_command(_overrides_of_job(), config_flags(search)))

    plain = [
        text
        for text in overrides
        if not parse_override(text).key.startswith(("hydra/launcher", "hydra.launcher."))
    ]
    with tempfile.TemporaryDirectory() as folder:
        call_hydra(_launched(plain, Path(folder)), search, ["--multirun"], note)
    return commands


def _job_runner(folder: SweepFolder, swept: Swept, flags: Sequence[str]) -> Callable[[Any], None]:
    """Return what a launcher calls for each job, in this process or in another one, maybe elsewhere."""
    context = launch_context(folder.path)

    def run(composed: Any) -> None:
        from hydra.core.hydra_config import HydraConfig

        number, overrides = int(HydraConfig.get().job.num), _overrides_of_job()
        words = [text for text in overrides if parse_override(text).key in swept.keys]
        state = JobState(number, " ".join(words) or f"job {number}", _command(overrides, flags))
        try:
            config = parse_composed(composed)
        except Exception as error:
            fail(SweepFolder(context.sweep), state, error)
            return
        run_in_child(state, context, config)

    return run


def _overrides_of_job() -> list[str]:
    from hydra.core.hydra_config import HydraConfig

    overrides = HydraConfig.get().overrides
    # The search path of configurations is one of Hydra's own overrides.
    return [*(text for text in overrides.hydra if parse_override(text).key == SEARCH_PATH), *overrides.task]


def _command(overrides: Sequence[str], flags: Sequence[str]) -> str:
    return shlex.join(["pe-bench", "train", *overrides, *flags])


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


def _new_folder(results_dir: Path) -> Path:
    return (
        results_dir / "sweeps" / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{os.getpid()}-{secrets.token_hex(2)}"
    )


def _launched(overrides: Sequence[str], folder: Path) -> list[str]:
    """Name the folder: an interpolation, resolved anew in each process, would find another."""
    return list(with_swept_options([*overrides, f"hydra.sweep.dir={quote(str(folder.absolute()))}"]))
