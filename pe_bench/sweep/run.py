"""A sweep: many runs from one command, each in its own process, under any of Hydra's launchers.

All jobs are composed and checked before the first of them runs. Only a sweep's runs are kept: repeating the
command does what is missing.
"""

import math
import os
import re
import secrets
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from pe_bench.config.compose import complete_overrides, compose, multirun, parse_composed
from pe_bench.config.groups import OPTIONS_OF_GROUP, names_in
from pe_bench.config.overrides import (
    PREFIXES,
    Override,
    explain_hydra_errors,
    parse_override,
    quote,
)
from pe_bench.config.parse import parse_config, warn_unused
from pe_bench.config.schema import Config
from pe_bench.errors import UserError, first_line, require
from pe_bench.sweep.jobs import FAILED, JobState, Sweep, reason_of, run_in_child
from pe_bench.sweep.show import Summary, View
from pe_bench.system import signals
from pe_bench.system.terminal import say

MAX_CHECKED = 20  # jobs, before the first of them runs
QUEUE_SECONDS = 60  # between two looks at Slurm's queue, which forgets a job after some minutes


# Before the first job


def check_sweep(
    overrides: Sequence[str],
    search: Sequence[Path],
    check: Callable[[Config], object] | None = None,
    typed: Sequence[str] | None = None,
) -> Sweep:
    """Return the sweep. All its values are composed first, so that a mistake in the last is found now.

    check: called with the configurations of the first jobs, by default `prepare`. typed: the overrides to
    warn about if they have no effect, by default all. Raises `UserError`.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    with explain_hydra_errors(overrides, search):
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        swept = [override for override in parsed if override.is_sweep_override()]
        values = [_values(override, search) for override in swept if override.is_discrete_sweep()]
    keys = tuple(parse_override(override.get_key_element()).key for override in swept)
    texts = [parse_override(text) for text in overrides]
    for text in texts:
        message = f"{text}: a job uses one node: leave it out, or start each run with torchrun --nnodes"
        require(text.key != "hydra.launcher.nodes" or text.value == "1", message)
    plain = [str(text) for text in texts if text.key not in keys]
    combinations = _combinations(values)
    configs = []
    say("sweep: checking every value before the first job starts")
    for index, chosen in enumerate(combinations):
        configs.append(parse_config(compose([*plain, *chosen], search), search))
        if index < MAX_CHECKED:
            from pe_bench.experiment import prepare

            (check or prepare)(configs[-1])
    warn_unused(configs, [text.key for text in (texts if typed is None else map(parse_override, typed))])
    name = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{os.getpid()}-{secrets.token_hex(2)}"
    folder = Path(configs[0].results_dir).absolute() / "sweeps" / name
    return Sweep(folder, keys, math.prod(map(len, values)))


def _values(override: Any, search: Sequence[Path]) -> list[str]:
    """Return the values of a sweep as overrides of one value."""
    from hydra.core.override_parser.types import Glob

    text, pattern = parse_override(override.input_line), override.value()
    if isinstance(pattern, Glob):
        values = pattern.filter(names_in(override.key_or_group, search))
    else:
        values = list(override.sweep_string_iterator())
    require(bool(values), f"{text} gives no values: name at least one")
    return [f"{override.get_key_element()}={value}" for value in values]


def _combinations(options: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return combinations with every value once, with the first of the others."""
    first = tuple(values[0] for values in options)
    changed = [(*first[:i], value, *first[i + 1 :]) for i, values in enumerate(options) for value in values]
    return list(dict.fromkeys([first, *changed]))


def with_swept_options(overrides: Sequence[str]) -> list[str]:
    """Write options of a group that is swept as sweeps of one value.

    Hydra composes a sweep without what it sweeps over before it composes the jobs, and would
    refuse `encoding.n_buckets=8` of `encoding=t5,t5_wide` because the default has no such option.
    """
    swept = [text for text in overrides if re.match(r"(encoding|modifier|task)=(?!\[[^]]*\]$).*[,(]", text)]
    options = tuple(OPTIONS_OF_GROUP[parse_override(text).key] for text in swept)

    def adapt(override: Override) -> str:
        is_one = override.value is not None and not re.search(r"[,(]", override.value)
        is_option = is_one and override.key.startswith(options)
        return str(replace(override, value=f"choice({override.value})") if is_option else override)

    return [adapt(parse_override(text)) for text in overrides]


# From the first job to the last


def launch(overrides: Sequence[str], search: Sequence[Path], typed: Sequence[str] | None = None) -> Summary:
    """Run the sweep that overrides ask for, show its jobs' progress, and summarize how they ended.

    A signal stops all jobs, which save; a second one leaves at once. typed: of `check_sweep`. Raise
    `UserError` before anything is written.
    """
    overrides = complete_overrides(overrides, search)
    sweep, problem = check_sweep(overrides, search, typed=typed), ""
    sweep.path.mkdir(parents=True)
    if "hydra/launcher=submitit_slurm" in overrides:
        _ask_slurm_in_time()
    try:
        with View(sweep) as view, _stopped_by_signals(sweep, view):
            multirun(_in_folder(overrides, sweep.path), search, _job_runner(sweep))
    except signals.Stopped:
        sweep.ask_to_stop()
    except UserError:
        raise
    except Exception as error:  # a launcher's own: a worker that the system killed, a cluster that is gone
        # An end that was asked for may come anywhere in a library, whose cleaning up then fails.
        problem = "" if sweep.is_stopped else f"{type(error).__name__}: {first_line(error)}"
    return Summary(sweep, sweep.states(), problem)


def _ask_slurm_in_time() -> None:
    """Have submitit ask Slurm for a minute at most how jobs ended: its queue where it keeps no accounts."""
    from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

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


def _in_folder(overrides: Sequence[str], folder: Path) -> list[str]:
    """Name the folder: an interpolation, resolved anew in each process, would find another."""
    return [*with_swept_options(overrides), f"hydra.sweep.dir={quote(str(folder))}"]


def plan_sweep(overrides: Sequence[str], search: Sequence[Path]) -> list[str]:
    """Return the command of each job that overrides ask for, which a launcher elsewhere may run."""
    from hydra.core.hydra_config import HydraConfig

    commands: list[str] = []

    def note(composed: Any) -> None:
        parse_composed(composed)
        flags = [word for folder in search for word in ("--config-dir", str(folder))]
        words = [*HydraConfig.get().overrides.task, *flags]
        commands.append(shlex.join(["pe-bench", "train", *words]))

    launcher = ("hydra/launcher", "hydra.launcher.")
    plain = [text for text in overrides if not parse_override(text).key.startswith(launcher)]
    with tempfile.TemporaryDirectory() as folder:
        multirun(_in_folder(plain, Path(folder)), search, note)
    return commands


def _job_runner(sweep: Sweep) -> Callable[[Any], None]:
    """Return what a launcher calls for each job, in this process or in another one, maybe elsewhere."""

    def run(composed: Any) -> None:
        from hydra.core.hydra_config import HydraConfig

        hydra = HydraConfig.get()
        encoding = hydra.runtime.choices["encoding"]
        state = JobState(int(hydra.job.num), label_of(hydra.overrides.task, sweep.keys, encoding))
        try:
            config = parse_composed(composed)
        except Exception as error:
            sweep.write(replace(state, state=FAILED, text=reason_of(error)))
            return
        run_in_child(state, sweep, config)

    return run


def label_of(overrides: Sequence[str], keys: Sequence[str], encoding: str) -> str:
    """Return the words that tell a job from the others; for a later stage, the encoding too."""
    words = [text.lstrip(PREFIXES) for text in overrides if parse_override(text).key in keys]
    is_stage = all(word.startswith(("train.from=", "train.beside=")) for word in words)
    label = " ".join([*([f"encoding={encoding}"] if is_stage else []), *words])
    return label.replace("\\:", ":")  # which Hydra needs in my.py:RootBias, and nobody typed


@contextmanager
def _stopped_by_signals(sweep: Sweep, view: View) -> Iterator[None]:
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
            signals.end_workers()
            view.console.show_cursor(True)
            signals.write_line("quitting; jobs will finish their step, save and exit")
            os._exit(signals.EXIT_CODE)

    with signals.handled(signals.STOP_SIGNALS, stop):
        yield
