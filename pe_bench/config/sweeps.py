"""The jobs of a sweep: overrides with several values in Hydra's grammar become a `Config` for each job."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pe_bench.config.compose import compose, compose_over, keys_given_by, refuse_unknown_launcher
from pe_bench.config.groups import OPTIONS_OF_GROUP, names_in
from pe_bench.config.overrides import (
    OVERRIDE_PREFIXES,
    Override,
    explain_hydra_errors,
    for_hydra,
    parse_override,
    quote,
)
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import MACHINE_KEYS, Config
from pe_bench.errors import require

# Keys that name a parent run; labels of jobs with these keys name the encoding too.
PARENT_KEYS = ("train.from", "train.beside")


@dataclass(frozen=True)
class PlannedJob:
    """A job that is not run yet: its configuration, and the overrides that describe it."""

    label: str  # the overrides that differ from the other jobs
    config: Config
    overrides: tuple[str, ...] = ()  # overrides with one value each, with which `train` runs this job
    given: Mapping[str, Any] = field(default_factory=dict)  # values of `plan_jobs`' overrides, by key
    swept: tuple[str, ...] = ()  # the overrides of keys that have several values in the sweep

    def with_seed(self, seed: int) -> "PlannedJob":
        """Return the job with another seed, in its configuration and in its overrides."""
        config = replace(self.config, seed=seed)
        return replace(self, config=config, overrides=(*self.overrides, f"seed={seed}"))


def plan_jobs(
    overrides: Sequence[str],
    search: Sequence[Path] = (),
    *,
    choice: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
) -> list[PlannedJob]:
    """Return the jobs that overrides describe, one for each combination of their values, without running any.

    choice: overrides before the others, such as the encoding. values: plain values of keys without an
    override, such as `train.length`. Raises `UserError` for an override that cannot be read or cannot work.
    """
    chosen = _options_of_keys(for_hydra(choice, search), search)
    options = _options_of_keys(for_hydra(overrides, search), search)
    jobs = []
    for before in itertools.product(*chosen):
        for after in itertools.product(*options):
            job = plan_job(after, search, choice=before, values=values)
            swept = (*_overrides_with_choices(before, chosen), *_overrides_with_choices(after, options))
            label = label_of(swept, job.config.encoding["name"])
            jobs.append(replace(job, label=label, given=_values_of_overrides(after), swept=swept))
    return jobs


def plan_job(
    overrides: Sequence[str],
    search: Sequence[Path] = (),
    *,
    choice: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
) -> PlannedJob:
    """Return the single job of overrides, as `plan_jobs` does. Raises `UserError` for several values."""
    values = values or {}
    composed = compose_over(values, choice, overrides, search)
    value_overrides = [f"{key}={quote(value)}" for key, value in values.items()]
    config = parse_config(composed, search, (*values, *keys_given_by(overrides)))
    return PlannedJob(config.encoding["name"], config, (*choice, *value_overrides, *overrides))


def _options_of_keys(overrides: Sequence[str], search: Sequence[Path]) -> list[list[str]]:
    """Return, for each key, its overrides with one value each; the last override of a key counts.

    Raises `UserError`.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    options_of_keys: dict[str, list[str]] = {}
    with explain_hydra_errors(overrides, search):
        for override in OverridesParser.create().parse_overrides([*overrides]):
            key = override.get_key_element()
            is_sweep = override.is_sweep_override()
            message = (
                f"{override.input_line} is no list of values, and there each value needs a job: list them"
            )
            require(not is_sweep or override.is_discrete_sweep(), message)
            options_of_keys[key] = (
                _overrides_with_one_value(override, search) if is_sweep else [str(override.input_line)]
            )
    return list(options_of_keys.values())


def _overrides_with_choices(overrides: Sequence[str], options: Sequence[Sequence[str]]) -> list[str]:
    """Return the overrides of a job whose keys have several values in the sweep.

    options: for each of `overrides`, the overrides of its key in all jobs.
    """
    choices = zip(overrides, options, strict=True)
    return [override for override, of_all_jobs in choices if len(of_all_jobs) > 1]


def _values_of_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the values of overrides with one value each, by key."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parser = OverridesParser.create()
    return {parse_override(text).key: parser.parse_override(text).value() for text in overrides}


def label_of(overrides: Sequence[str], encoding: str) -> str:
    """Return a job's label: the overrides that differ from other jobs, without the signs + and ~.

    If all of these overrides name parent runs, the label begins with the encoding.
    """
    shown = [text.lstrip(OVERRIDE_PREFIXES) for text in overrides]
    is_stage = all(parse_override(text).key in PARENT_KEYS for text in shown)
    label = " ".join([f"encoding={encoding}", *shown] if is_stage else shown)
    return label.replace("\\:", ":")  # Hydra's escape in my.py:RootBias


def overrides_by_key(overrides: Sequence[str]) -> dict[str, str]:
    """Return the text of each override by key; the last override of a key counts."""
    return {parse_override(text).key: text for text in overrides}


@dataclass(frozen=True)
class SortedOverrides:
    """The overrides of a command, sorted into settings of the launcher, of the machine and of the runs."""

    launcher_overrides: list[str]
    machine_overrides: list[str]
    run_overrides: list[str]

    @property
    def job_overrides(self) -> list[str]:
        """Return the overrides of the machine and the runs."""
        return [*self.machine_overrides, *self.run_overrides]


def sort_by_use(overrides: Sequence[str]) -> SortedOverrides:
    """Sort the overrides of a command into those of the launcher, the machine and the runs."""
    typed = SortedOverrides([], [], [])
    for text in overrides:
        key = parse_override(text).key
        if key.startswith(("hydra/", "hydra.")):
            typed.launcher_overrides.append(text)
        elif key in MACHINE_KEYS:
            typed.machine_overrides.append(text)
        else:
            typed.run_overrides.append(text)
    return typed


def check_launcher(overrides: Sequence[str]) -> None:
    """Raise `UserError` for overrides that are unknown to all launchers, without launching or writing."""
    _refuse_several_nodes(overrides)
    if overrides:
        refuse_unknown_launcher(overrides)


def _refuse_several_nodes(overrides: Sequence[str]) -> None:
    """Raise `UserError` for overrides that give a job several nodes of a cluster."""
    for override in map(parse_override, overrides):
        message = f"{override}: a job uses one node: leave it out, or start each run with torchrun --nnodes"
        has_several = override.key == "hydra.launcher.nodes" and override.value != "1"
        require(not has_several, message)


# A sweep of Hydra itself: `train -m`


@dataclass(frozen=True)
class HydraSweep:
    """A sweep of `train -m`, by overrides in Hydra's grammar: its keys, number of jobs and configurations."""

    keys: tuple[str, ...]  # the keys with several values
    jobs: int  # the number of combinations of values
    configs: Iterator[Config]  # the configurations of combinations that have every value at least once
    override_keys: tuple[str, ...]  # the keys of all overrides


def read_sweep(overrides: Sequence[str], search: Sequence[Path]) -> HydraSweep:
    """Return the sweep that overrides describe. Raises `UserError`, also when its `configs` are iterated.

    The iterator `configs` composes each configuration when it is needed.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    with explain_hydra_errors(overrides, search):
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        swept = [override for override in parsed if override.is_sweep_override()]
        sweepers = ("hydra/sweeper", "hydra.sweeper._target_")  # other sweepers draw values from an interval
        has_own_sweeper = any(override.key_or_group.startswith(sweepers) for override in parsed)
        for override in swept:
            message = f"{override.input_line} has no list of values to train: name them with commas, as in "
            example = f"{override.get_key_element()}=VALUE,VALUE"
            require(override.is_discrete_sweep() or has_own_sweeper, message + example)
        values = [
            _overrides_with_one_value(override, search) for override in swept if override.is_discrete_sweep()
        ]
    _refuse_several_nodes(overrides)
    keys = tuple(parse_override(override.get_key_element()).key for override in swept)
    texts = [parse_override(text) for text in overrides]
    plain = [str(text) for text in texts if text.key not in keys]
    combinations = [[*plain, *chosen] for chosen in _each_value_once(values)]
    configs = (parse_config(compose(job, search), search, keys_given_by(job)) for job in combinations)
    jobs = math.prod(map(len, values))
    return HydraSweep(keys, jobs, configs, tuple(text.key for text in texts))


def _overrides_with_one_value(override: Any, search: Sequence[Path]) -> list[str]:
    """Split an override with several values into overrides with one value each.

    override: as Hydra's parser returns it. Raises `UserError` for an override without values.
    """
    from hydra.core.override_parser.types import Glob

    pattern = override.value()
    if isinstance(pattern, Glob):
        values = pattern.filter(names_in(override.key_or_group, search))
    else:
        values = list(override.sweep_string_iterator())
    require(bool(values), f"{parse_override(override.input_line)} gives no values: name at least one")
    return [f"{override.get_key_element()}={value}" for value in values]


def _each_value_once(options: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return combinations of one value for each key: each value once beside the first values of other keys.

    options: the values of each key.
    """
    first = tuple(values[0] for values in options)
    combinations = [first]
    for place, values in enumerate(options):
        before = first[:place]
        after = first[place + 1 :]
        combinations += [(*before, value, *after) for value in values]
    return list(dict.fromkeys(combinations))


def with_swept_options(overrides: Sequence[str]) -> list[str]:
    """Return overrides in which each option of a swept group is a sweep of one value.

    Hydra first composes the configuration without swept keys, and would refuse `encoding.n_buckets=8` of
    `encoding=t5,t5_wide`, an option that the default encoding lacks.
    """
    swept = [text for text in overrides if re.match(r"(encoding|modifier|task)=(?!\[[^]]*\]$).*[,(]", text)]
    options = tuple(OPTIONS_OF_GROUP[parse_override(text).key] for text in swept)

    def as_choice(override: Override) -> str:
        if override.value is None or re.search(r"[,(]", override.value):
            return str(override)
        if override.key.startswith(options):
            override = replace(override, value=f"choice({override.value})")
        return str(override)

    return [as_choice(parse_override(text)) for text in overrides]


def without_launcher(overrides: Sequence[str]) -> list[str]:
    """Return the overrides without those of the launcher."""
    launcher = ("hydra/launcher", "hydra.launcher.")
    return [text for text in overrides if not parse_override(text).key.startswith(launcher)]


def label_of_composed(keys: Sequence[str]) -> str:
    """Return the label of Hydra's current job, in a sweep over these keys."""
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    overrides: list[str] = hydra.overrides.task
    swept = [text for text in overrides if parse_override(text).key in keys]
    return label_of(swept, hydra.runtime.choices["encoding"])
