"""A sweep: many runs from one command, each in its own process, under any of Hydra's launchers.

All jobs are composed and checked before the first of them runs. A repeated command does only the missing
work.

`launch` writes the configurations of its jobs to the sweep's folder. It runs them one after the other, or
gives their numbers to a launcher. `train -m` is Hydra's own sweep, because Hydra's other sweepers choose the
values of a job only when earlier jobs have ended.
"""

import os
import secrets
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from types import FrameType
from typing import Any

from pe_bench.commands.sweep.jobs import FAILED, JobState, LaunchedSweep, error_text, run_in_child, run_job
from pe_bench.commands.sweep.show import SweepSummary, SweepView
from pe_bench.config.compose import (
    call_by_number,
    complete_overrides,
    multirun,
    parse_composed,
)
from pe_bench.config.parse import to_plain, warn_unused
from pe_bench.config.schema import Config
from pe_bench.config.sweeps import (
    PlannedJob,
    check_launcher,
    label_of_composed,
    read_sweep,
    with_swept_options,
    without_launcher,
)
from pe_bench.errors import UserError, first_line
from pe_bench.runs.folder import flat
from pe_bench.system import signals
from pe_bench.system.terminal import say

MAX_CHECKED_JOBS = 20  # the most jobs that are checked before the first of them runs
QUEUE_SECONDS = 60  # between two looks at Slurm's queue, which forgets a job after some minutes
CHECKING_MESSAGE = "sweep: checking every value before the first job starts"


# Before the first job


def check_sweep(
    overrides: Sequence[str], search: Sequence[Path], check: Callable[[Config], object] | None = None
) -> tuple[LaunchedSweep, tuple[str, ...]]:
    """Check all jobs of overrides; return their sweep, and the keys with several values.

    check: called with the configurations of the first jobs; None: prepare each, and describe its text.
    Raises `UserError`.
    """
    swept = read_sweep(overrides, search)
    say(CHECKING_MESSAGE)
    configs = []
    described_texts: set[str] = set()
    for config in swept.configs:
        if len(configs) < MAX_CHECKED_JOBS and check is not None:
            check(config)
        elif len(configs) < MAX_CHECKED_JOBS:
            _check_and_describe(config, described_texts)
        configs.append(config)
    warn_unused(configs, swept.override_keys)
    return _new_sweep(configs[0], swept.jobs), swept.keys


def _check_and_describe(config: Config, described: set[str]) -> None:
    """Raise `UserError` for a job that cannot work, and describe the text that it trains on once.

    described: the hashes of the texts already described.
    """
    from pe_bench.commands.job import describe_data
    from pe_bench.commands.train import prepare

    job, _ = prepare(config)
    if job.data.hash not in described:
        described.add(job.data.hash)
        say(describe_data(job))


def _with_new_values(jobs: Sequence[PlannedJob]) -> Iterator[Config]:
    """Yield the configuration of each job with a value that no earlier job has for the same key."""
    seen_values: set[tuple[str, str]] = set()
    for job in jobs:
        config = flat(to_plain(job.config))
        values = {(key, str(value)) for key, value in config.items()}
        if values - seen_values:
            yield job.config
        seen_values |= values


def _new_sweep(config: Config, jobs: int) -> LaunchedSweep:
    name = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{os.getpid()}-{secrets.token_hex(2)}"
    return LaunchedSweep(Path(config.results_dir).absolute() / "sweeps" / name, jobs)


# From the first job to the last


def launch(jobs: Sequence[PlannedJob], launcher: Sequence[str] = ()) -> SweepSummary:
    """Run jobs, show their progress, and return the last state of each.

    launcher: overrides of Hydra's own keys. A signal stops all jobs, which save; a second signal ends this
    process at once. Raises `UserError` before the first write.
    """
    check_launcher(launcher)
    say(CHECKING_MESSAGE)
    described_texts: set[str] = set()
    for config in islice(_with_new_values(jobs), MAX_CHECKED_JOBS):
        _check_and_describe(config, described_texts)
    configs = [job.config for job in jobs]
    warn_unused(configs, list(chain.from_iterable(job.given for job in jobs)))
    sweep = _new_sweep(configs[0], len(jobs))
    for number, job in enumerate(jobs):
        sweep.write_job(number, job)
    return _run_and_summarize(sweep, launcher, partial(_run_jobs, sweep, launcher))


def _run_jobs(sweep: LaunchedSweep, launcher: Sequence[str]) -> None:
    """Run all jobs: one after the other from this process, unless `launcher` chooses a launcher of Hydra.

    Without a launcher, the first error of a job is raised after the last job.
    """
    run = partial(run_job, sweep)
    if launcher:
        call_by_number(sweep.jobs, launcher, run, sweep.path)
        return
    errors: list[Exception] = []
    for number in range(sweep.jobs):
        try:
            run(number)
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def launch_overrides(overrides: Sequence[str], search: Sequence[Path]) -> SweepSummary:
    """Run the sweep of `train -m`, as `launch` runs jobs."""
    overrides = complete_overrides(overrides, search)
    sweep, keys = check_sweep(overrides, search)
    sweep.path.mkdir(parents=True)
    task = _task_of_hydra(sweep, keys)
    swept = with_swept_options(overrides)
    return _run_and_summarize(sweep, overrides, lambda: multirun(swept, search, task, sweep.path))


def _run_and_summarize(
    sweep: LaunchedSweep, overrides: Sequence[str], start: Callable[[], None]
) -> SweepSummary:
    """Call `start`, which runs the jobs; return the state of each job, and any error of the launcher.

    overrides: include the choice of a launcher. Raises `UserError`, if `start` raises it.
    """
    problem = ""
    if "hydra/launcher=submitit_slurm" in overrides:
        _ask_slurm_in_time()
    try:
        with SweepView(sweep) as view, _stopped_by_signals(sweep, view):
            start()
    except signals.Stopped:
        sweep.ask_to_stop()
    except UserError:
        raise
    except Exception as error:  # a launcher's own: a worker that the system killed, a cluster that is gone
        # An end that was asked for may come anywhere in a library, whose cleaning up then fails.
        problem = "" if sweep.is_stopped else f"{type(error).__name__}: {first_line(error)}"
    return SweepSummary(sweep, sweep.states(), problem)


def _ask_slurm_in_time() -> None:
    """Make submitit ask Slurm once a minute, its accounting or else its queue, each for a minute at most."""
    from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

    ask_accounts = SlurmInfoWatcher._make_command

    def limited_query(self: Any) -> list[str] | None:
        command = ask_accounts(self)
        if command is None:
            return None
        jobs = ",".join(command[5::2])  # after each -j
        accounts = f"timeout 60 {shlex.join(command)} 2>/dev/null"
        queue = f"timeout 60 squeue --noheader --array --states=all --format='%i|%T|%N' --jobs={jobs}"
        return ["sh", "-c", f"{accounts} || {{ echo 'JobID|State|NodeList'; {queue}; }} || true"]

    SlurmInfoWatcher._make_command = limited_query
    SlurmJob.watcher._delay_s = QUEUE_SECONDS


def commands_of_sweep(overrides: Sequence[str], search: Sequence[Path]) -> list[str]:
    """Return the command of each job of overrides, for a launcher elsewhere."""
    from hydra.core.hydra_config import HydraConfig

    commands: list[str] = []

    def note_command(composed: Any) -> None:
        parse_composed(composed)
        words = [*HydraConfig.get().overrides.task]
        for folder in search:
            words += ["--config-dir", str(folder)]
        commands.append(shlex.join(["pe-bench", "train", *words]))

    plain = with_swept_options(without_launcher(overrides))
    with tempfile.TemporaryDirectory() as folder:
        multirun(plain, search, note_command, Path(folder))
    return commands


def _task_of_hydra(sweep: LaunchedSweep, keys: Sequence[str]) -> Callable[[Any], None]:
    """Return the function that a launcher calls for each job, in this process or in another process.

    keys: the keys with several values, which name a job.
    """

    def run_composed_job(composed: Any) -> None:
        from hydra.core.hydra_config import HydraConfig

        state = JobState(int(HydraConfig.get().job.num), label_of_composed(keys))
        try:
            config = parse_composed(composed)
        except Exception as error:
            sweep.write(replace(state, state=FAILED, text=error_text(error)))
            return
        run_in_child(state, sweep, config)

    return run_composed_job


@contextmanager
def _stopped_by_signals(sweep: LaunchedSweep, view: SweepView) -> Iterator[None]:
    """Within the context, a signal stops all jobs, which save; a later one ends this process."""
    first = 0.0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal first
        signals.detach_lost_terminal(number)
        if not first:
            first = time.monotonic()
            sweep.ask_to_stop()
            signals.write_line("stopping: each job finishes its step and saves (Ctrl-C again to quit now)")
        elif view.has_seen_all_end:
            raise signals.Stopped
        elif time.monotonic() - first >= signals.DEBOUNCE_SECONDS:
            # A launcher would wait for its workers. The jobs find that this process is gone, and end.
            signals.kill_launcher_workers()
            view.console.show_cursor(True)
            signals.write_line("quitting; jobs will finish their step, save and exit")
            os._exit(signals.INTERRUPTED_EXIT_CODE)

    with signals.handling_signals(signals.STOP_SIGNALS, stop):
        yield
