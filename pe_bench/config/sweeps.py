"""The jobs of a sweep: Hydra's grammar of several values is read here, and each job is a `Config`."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pe_bench.config.compose import compose, compose_launcher, compose_over
from pe_bench.config.groups import OPTIONS_OF_GROUP, names_in
from pe_bench.config.overrides import (
    PREFIXES,
    Override,
    explain_hydra_errors,
    for_hydra,
    parse_override,
    quote,
)
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import MACHINE_KEYS, Config
from pe_bench.errors import require

# A later stage is told from others by its encoding too.
PARENT_KEYS = ("train.from", "train.beside")


@dataclass(frozen=True)
class Planned:
    """A job that overrides ask for.

    label: the words that tell it from the other jobs. words: the overrides, with one value each, that ask
    `train` for the same job. given: the values of the keys that the overrides name. swept: the words of keys
    that have several values.
    """

    label: str
    config: Config
    words: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    swept: tuple[str, ...] = ()

    def with_seed(self, seed: int) -> "Planned":
        return replace(self, config=replace(self.config, seed=seed), words=(*self.words, f"seed={seed}"))


def planned(
    overrides: Sequence[str],
    search: Sequence[Path] = (),
    *,
    choice: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
) -> list[Planned]:
    """Return the jobs that overrides ask for, one for each combination of their values.

    choice: overrides before the others, such as the encoding. values: plain values of keys such as
    `train.length`, which hold where no override names the key. Raises `UserError`.
    """
    chosen = _options(for_hydra(choice, search), search)
    options = _options(for_hydra(overrides, search), search)
    jobs = []
    for before in itertools.product(*chosen):
        for after in itertools.product(*options):
            job = planned_job(after, search, choice=before, values=values)
            swept = (*_swept(before, chosen), *_swept(after, options))
            label = label_of(swept, job.config.encoding["name"])
            jobs.append(replace(job, label=label, given=_given(after), swept=swept))
    return jobs


def planned_job(
    overrides: Sequence[str],
    search: Sequence[Path] = (),
    *,
    choice: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
) -> Planned:
    """Return the one job that overrides ask for, as `planned` does. Raises `UserError` for several values."""
    values = values or {}
    composed = compose_over(values, choice, overrides, search)
    words_of_values = (f"{key}={quote(value)}" for key, value in values.items())
    config = parse_config(composed, search)
    return Planned(config.encoding["name"], config, (*choice, *words_of_values, *overrides))


def _options(overrides: Sequence[str], search: Sequence[Path]) -> list[list[str]]:
    """Return for each override those of one value that it stands for. Of a key that comes twice, the last."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    options: dict[str, list[str]] = {}
    with explain_hydra_errors(overrides, search):
        for override in OverridesParser.create().parse_overrides([*overrides]):
            key = override.get_key_element()
            is_sweep = override.is_sweep_override()
            message = (
                f"{override.input_line} is no list of values, and there each value needs a job: list them"
            )
            require(not is_sweep or override.is_discrete_sweep(), message)
            options[key] = _values(override, search) if is_sweep else [str(override.input_line)]
    return list(options.values())


def _swept(words: Sequence[str], options: Sequence[Sequence[str]]) -> list[str]:
    """Return the words that have others in their place in other jobs."""
    return [word for word, others in zip(words, options, strict=True) if len(others) > 1]


def _given(words: Sequence[str]) -> dict[str, Any]:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parser = OverridesParser.create()
    return {parse_override(word).key: parser.parse_override(word).value() for word in words}


def label_of(words: Sequence[str], encoding: str) -> str:
    """Return the words that tell a job from the others; for a later stage, the encoding too."""
    shown = [word.lstrip(PREFIXES) for word in words]
    is_stage = all(parse_override(word).key in PARENT_KEYS for word in shown)
    label = " ".join([f"encoding={encoding}", *shown] if is_stage else shown)
    return label.replace("\\:", ":")  # which Hydra needs in my.py:RootBias, and nobody typed


def by_key(overrides: Sequence[str]) -> dict[str, str]:
    """Return overrides by the keys that they name."""
    return {parse_override(text).key: text for text in overrides}


@dataclass(frozen=True)
class Typed:
    """The overrides of a command, by what they change: the launcher, the machine, or the runs."""

    launcher: list[str]
    machine: list[str]
    runs: list[str]

    @property
    def job_overrides(self) -> list[str]:
        """Return all but those of the launcher."""
        return [*self.machine, *self.runs]


def sorted_by_use(overrides: Sequence[str]) -> Typed:
    """Return the overrides of a command, by what they change."""
    typed = Typed([], [], [])
    for text in overrides:
        key = parse_override(text).key
        if key.startswith(("hydra/", "hydra.")):
            typed.launcher.append(text)
        elif key in MACHINE_KEYS:
            typed.machine.append(text)
        else:
            typed.runs.append(text)
    return typed


def check_launcher(overrides: Sequence[str]) -> None:
    """Raise `UserError` for overrides that no launcher has. Nothing is launched or written."""
    _check_nodes(overrides)
    if overrides:
        compose_launcher(overrides)


def _check_nodes(overrides: Sequence[str]) -> None:
    for override in map(parse_override, overrides):
        message = f"{override}: a job uses one node: leave it out, or start each run with torchrun --nnodes"
        require(override.key != "hydra.launcher.nodes" or override.value == "1", message)


# A sweep that Hydra itself makes: `train -m`


@dataclass(frozen=True)
class Swept:
    """What overrides sweep over.

    keys: those with several values. jobs: how many combinations there are. configs: of combinations that
    have every value once. named: the keys that the overrides name.
    """

    keys: tuple[str, ...]
    jobs: int
    configs: Iterator[Config]
    named: tuple[str, ...]


def read_sweep(overrides: Sequence[str], search: Sequence[Path]) -> Swept:
    """Return what overrides sweep over; `configs` composes as it goes. Raises `UserError`."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    with explain_hydra_errors(overrides, search):
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        swept = [override for override in parsed if override.is_sweep_override()]
        values = [_values(override, search) for override in swept if override.is_discrete_sweep()]
    _check_nodes(overrides)
    keys = tuple(parse_override(override.get_key_element()).key for override in swept)
    texts = [parse_override(text) for text in overrides]
    plain = [str(text) for text in texts if text.key not in keys]
    configs = (
        parse_config(compose([*plain, *chosen], search), search) for chosen in _each_value_once(values)
    )
    return Swept(keys, math.prod(map(len, values)), configs, tuple(text.key for text in texts))


def _values(override: Any, search: Sequence[Path]) -> list[str]:
    """Return the values of a sweep as overrides of one value."""
    from hydra.core.override_parser.types import Glob

    pattern = override.value()
    if isinstance(pattern, Glob):
        values = pattern.filter(names_in(override.key_or_group, search))
    else:
        values = list(override.sweep_string_iterator())
    require(bool(values), f"{parse_override(override.input_line)} gives no values: name at least one")
    return [f"{override.get_key_element()}={value}" for value in values]


def _each_value_once(options: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return combinations with every value once, with the first of the others."""
    first = tuple(values[0] for values in options)
    combinations = [first]
    for place, values in enumerate(options):
        combinations += [(*first[:place], value, *first[place + 1 :]) for value in values]
    return list(dict.fromkeys(combinations))


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


def without_launcher(overrides: Sequence[str]) -> list[str]:
    """Return the overrides but those of the launcher."""
    launcher = ("hydra/launcher", "hydra.launcher.")
    return [text for text in overrides if not parse_override(text).key.startswith(launcher)]


def label_of_composed(keys: Sequence[str]) -> str:
    """Return the label of the job that Hydra has composed in this process, of a sweep over these keys."""
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    words = [text for text in hydra.overrides.task if parse_override(text).key in keys]
    return label_of(words, hydra.runtime.choices["encoding"])
