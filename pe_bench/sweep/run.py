"""A sweep: many runs from one command, each in its own process, under any of Hydra's launchers.

All jobs are composed and checked before the first of them runs. Only a sweep's runs are kept: repeating the
command does what is missing.
"""

import math
import os
import re
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from pe_bench.config.compose import complete_overrides, compose, config_flags, multirun, parse_composed
from pe_bench.config.groups import OPTIONS_OF_GROUP, names_in
from pe_bench.config.overrides import (
    explain_hydra_errors,
    name_job_in_error,
    parse_override,
    quote,
    takes_list,
)
from pe_bench.config.parse import parse_config, warn_unused
from pe_bench.config.schema import Config
from pe_bench.errors import RunError, UserError, first_line, require
from pe_bench.runs.gather import gather_and_warn, results_file
from pe_bench.sweep.jobs import FAILED, JobState, SweepFolder, reason_of, run_in_child
from pe_bench.sweep.show import Summary, View
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
from pe_bench.system.terminal import progress_bar

MAX_CHECKED = 20  # jobs, before the first of them runs
QUEUE_SECONDS = 60  # between two looks at Slurm's queue, which forgets a job after some minutes


# Before the first job


@dataclass(frozen=True)
class Swept:
    """The facts of a sweep before its first job runs."""

    keys: tuple[str, ...]  # that are swept over
    jobs: int
    results_dir: Path  # of its first job


def check_sweep(
    overrides: Sequence[str],
    search: Sequence[Path],
    check: Callable[[Config], None],
    typed: Sequence[str] | None = None,
) -> Swept:
    """Compose a sweep's values one by one, so that a mistake in the last is found before the first runs.

    `check` is called with the first of the jobs. typed: the overrides that a user typed, who is told which of
    them have no effect; by default all. Raises `UserError`.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    with explain_hydra_errors(overrides, search):
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        swept = [override for override in parsed if override.is_sweep_override()]
        discrete = [override for override in swept if override.is_discrete_sweep()]
        _refuse_parts_of_lists([override.input_line or "" for override in discrete])
        values = [_values(override, search) for override in discrete]
    plain = [text for text, override in zip(overrides, parsed, strict=True) if override not in swept]
    ranges = [override.is_range_sweep() for override in discrete]
    combinations = _combinations([v[:MAX_CHECKED] if r else v for v, r in zip(values, ranges, strict=True)])
    configs = []
    with progress_bar("sweep", len(combinations)) as bar:
        for index, chosen in enumerate(combinations):
            first = "checking every value before the first job starts" if index == 0 else None
            bar.show(index, f"checking {' '.join(chosen)}", first)
            with name_job_in_error([value for value in chosen if value not in combinations[0]] or chosen):
                configs.append(parse_config(compose([*plain, *chosen], search), search))
                if index < MAX_CHECKED:
                    check(configs[-1])
    warn_unused(configs, [parse_override(text).key for text in (overrides if typed is None else typed)])
    keys = tuple(override.get_key_element() for override in swept)
    return Swept(keys, math.prod(map(len, values)), Path(configs[0].results_dir))


def check_job(config: Config) -> None:
    """Raise `UserError` for a job that cannot begin."""
    from pe_bench.experiment import prepare

    check_folder(config.results_dir, "results_dir", is_written=True)
    prepare(config)


def _refuse_parts_of_lists(overrides: Sequence[str]) -> None:
    """Raise `UserError` for `eval.lengths=64,128`: a sweep would score one run at 64, and one at 128."""
    for text in overrides:
        override = parse_override(text)
        key, value = override.key, override.value
        is_part = takes_list(key) and not re.search(r"[\[(]", value or "")
        message = f"{text} with -m makes a run for each value, and {key} takes a list: "
        require(
            not is_part, f"{message}say '{key}=[{value}]' for one list, '{key}=[...],[...]' for several", key
        )


def _values(override: Any, search: Sequence[Path]) -> list[str]:
    """Return the values of a sweep as overrides of one value."""
    from hydra.core.override_parser.types import Glob

    pattern = override.value()
    is_glob = isinstance(pattern, Glob)
    names = pattern.filter(names_in(override.key_or_group, search)) if is_glob else []
    values = names if is_glob else list(override.sweep_string_iterator())
    require(bool(values), f"{override.input_line} gives no values: name at least one")
    return [f"{override.get_key_element()}={value}" for value in values]


def _combinations(options: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return combinations with every value once, with the first of the others."""
    first = tuple(values[0] for values in options)
    changed = [
        (*first[:index], value, *first[index + 1 :])
        for index, values in enumerate(options)
        for value in values
    ]
    return list(dict.fromkeys([first, *changed]))


def with_swept_options(overrides: Sequence[str]) -> tuple[str, ...]:
    """Write options of a group that is swept as sweeps of one value.

    Hydra composes a sweep without what it sweeps over before it composes the jobs, and would
    refuse `encoding.n_buckets=8` of `encoding=t5,t5_wide` because the default has no such option.
    """
    swept = [text for text in overrides if re.match(r"(encoding|modifier|task)=(?!\[[^]]*\]$).*[,(]", text)]
    options = tuple(OPTIONS_OF_GROUP[parse_override(text).key] for text in swept)

    def adapt(text: str) -> str:
        override = parse_override(text)
        is_one = override.value is not None and not re.search(r"[,(]", override.value)
        if not (options and is_one and override.key.startswith(options)):
            return text
        return str(replace(override, value=f"choice({override.value})"))

    return tuple(map(adapt, overrides))


# From the first job to the last


def launch(overrides: Sequence[str], search: Sequence[Path], typed: Sequence[str] | None = None) -> Summary:
    """Run the sweep that overrides ask for, show its jobs' progress, and summarize how they ended.

    A signal stops all jobs, which save; a second one leaves at once. typed: of `check_sweep`. Raise
    `UserError` before anything is written.
    """
    overrides = complete_overrides(overrides, search)
    swept = check_sweep(overrides, search, check_job, typed)
    if results_file(swept.results_dir).exists():
        gather_and_warn(swept.results_dir)  # what a job says of it stands in its log alone
    name = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{os.getpid()}-{secrets.token_hex(2)}"
    folder, problem = SweepFolder((swept.results_dir / "sweeps" / name).absolute()), ""
    task = _job_runner(folder, swept, config_flags(search))
    if shutil.which("sacct"):
        _ask_slurm_in_time()
    try:
        with View(folder, swept.jobs) as view, _stopped_by_signals(folder, view), restore_stopped():
            multirun(_launched(overrides, folder.path), search, task)
    except Stopped:
        folder.ask_to_stop()
    except UserError:
        raise
    except Exception as error:  # a launcher's own: a worker that the system killed, a cluster that is gone
        if isinstance(error, OSError) and not folder.path.exists():
            reason = f"cannot be made ({first_line(error)}): name another results_dir"
            raise UserError(f"{folder.path} {reason}") from error
        problem = f"{type(error).__name__}: {first_line(error)}"
    states = folder.states()
    # A configuration may sweep over more than the command line.
    return Summary(folder.path, states, max(swept.jobs, len(states)), problem, folder.is_stopped)


def require_done(summary: Summary) -> None:
    """Raise `Stopped` or `RunError` for a sweep with jobs that are not done."""
    if summary.stopped and not summary.is_done:
        raise Stopped("stopped; the same command does what is missing")
    if not summary.is_done:
        first = "fix what failed, then " if summary.failed else ""
        raise RunError(f"the sweep is not done; {first}the same command does what is missing")


def _ask_slurm_in_time() -> None:
    """Have submitit ask Slurm for a minute at most how jobs ended: its queue where it keeps no accounts."""
    try:
        from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob
    except ImportError:
        return
    ask_accounts = SlurmInfoWatcher._make_command

    def ask(self: Any) -> list[str] | None:
        command = ask_accounts(self)
        if command is None:
            return None
        jobs = ",".join(command[5::2])  # after each -j
        accounts = f"timeout 60 {shlex.join(command)} 2>/dev/null"
        queue = f"timeout 60 squeue --noheader --array --states=all --format='%i|%T|%N' --jobs={jobs}"
        return ["sh", "-c", f"{accounts} || {{ echo 'JobID|State|NodeList'; {queue}; }} || true"]

    SlurmInfoWatcher._make_command = ask
    SlurmJob.watcher._delay_s = QUEUE_SECONDS


def plan_sweep(overrides: Sequence[str], search: Sequence[Path]) -> list[str]:
    """Return the command of each job that overrides ask for, which a launcher elsewhere may run."""
    commands: list[str] = []

    def note(composed: Any) -> None:
        parse_composed(composed)
        commands.append(_command(_overrides_of_job(), config_flags(search)))

    launcher = ("hydra/launcher", "hydra.launcher.")
    plain = [text for text in overrides if not parse_override(text).key.startswith(launcher)]
    with tempfile.TemporaryDirectory() as folder:
        multirun(_launched(plain, Path(folder)), search, note)
    return commands


def _job_runner(folder: SweepFolder, swept: Swept, flags: Sequence[str]) -> Callable[[Any], None]:
    """Return what a launcher calls for each job, in this process or in another one, maybe elsewhere."""

    def run(composed: Any) -> None:
        from hydra.core.hydra_config import HydraConfig

        hydra, overrides = HydraConfig.get(), _overrides_of_job()
        number, encoding = int(hydra.job.num), f"encoding={hydra.runtime.choices['encoding']}"
        words = [text for text in overrides if parse_override(text).key in swept.keys]
        state = JobState(number, " ".join(words) or encoding, _command(overrides, flags))
        try:
            config = parse_composed(composed)
        except Exception as error:
            folder.write(replace(state, state=FAILED, reason=reason_of(error), started=time.time()))
            return
        run_in_child(state, folder, config)

    return run


def _overrides_of_job() -> list[str]:
    from hydra.core.hydra_config import HydraConfig

    return [*HydraConfig.get().overrides.task]


def _command(overrides: Sequence[str], flags: Sequence[str]) -> str:
    return shlex.join(["pe-bench", "train", *overrides, *flags])


def _launched(overrides: Sequence[str], folder: Path) -> list[str]:
    """Name the folder: an interpolation, resolved anew in each process, would find another."""
    return list(with_swept_options([*overrides, f"hydra.sweep.dir={quote(str(folder))}"]))


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
            view.console.show_cursor(True)
            write_line("quitting; jobs will finish their step, save and exit")
            os._exit(EXIT_CODE)
        if not first:
            first = time.monotonic()
            folder.ask_to_stop()
            write_line("stopping: each job finishes its step and saves (Ctrl-C again to quit now)")

    with signal_handlers(STOP_SIGNALS, stop):
        yield
