"""What a sweep's arguments ask for, composed and checked before the first of its jobs runs."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_bench.config.checks import refuse_unused
from pe_bench.config.compose import CONFIG, compose, known_keys
from pe_bench.config.groups import names_in
from pe_bench.config.hydra_errors import known_to_other, of_job, one_line
from pe_bench.config.hydra_main import Job
from pe_bench.config.overrides import (
    CONFIG_DIR,
    CONFIG_NAME,
    ONE_OF_EACH,
    OPTIONS_OF_GROUP,
    overrides_in,
    values_of,
)
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import Config
from pe_bench.errors import UserError
from pe_bench.sweep.launchers import require_one_start

LAUNCHER = "hydra.launcher."
MAX_CHECKED = 20  # jobs, before the first of them runs


@dataclass(frozen=True)
class Swept:
    """What is known of a sweep before its first job runs."""

    keys: tuple[str, ...]  # that are swept over
    jobs: int
    results_dir: Path  # of its first job


def check_sweep(arguments: Sequence[str], check: Job) -> Swept:
    """Compose a sweep's values one by one, so that a mistake in the last is told before the first runs.

    `check` is called with the first of the jobs. Raises `UserError`.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    overrides, directories = overrides_in(arguments), values_of(arguments, CONFIG_DIR)
    name = (values_of(arguments, CONFIG_NAME) or [CONFIG])[-1]
    search = [Path(directory).resolve() for directory in directories]
    with one_line(arguments, lambda: known_keys(arguments)):
        parsed = OverridesParser.create().parse_overrides(overrides)
        launcher = [override for override in parsed if override.key_or_group.startswith(LAUNCHER)]
        require_one_start({each.key_or_group.removeprefix(LAUNCHER): each.value() for each in launcher})
        swept = [override for override in parsed if override.is_sweep_override()]
        discrete = [override for override in swept if override.is_discrete_sweep()]
        values = [_values(override, directories) for override in discrete]
    plain = [argument for argument, override in zip(overrides, parsed, strict=True) if override not in swept]
    configs = []
    composed = [
        each[:MAX_CHECKED] if override.is_range_sweep() else each
        for override, each in zip(discrete, values, strict=True)
    ]

    def parse(chosen: Sequence[str]) -> Config:
        return parse_config(compose([*plain, *chosen], directories, name))

    combinations = _combinations(composed)
    for place, chosen in enumerate(combinations):
        with of_job([argument for argument in chosen if argument not in combinations[0]] or chosen):
            configs.append(_parse_job(parse, chosen, values, plain))
            if place < MAX_CHECKED:
                check(configs[-1], search)
    refuse_unused(configs, overrides)
    keys = tuple(override.get_key_element() for override in swept)
    return Swept(keys, math.prod(map(len, values)), Path(configs[0].results_dir))


def _parse_job(
    parse: Callable[[Sequence[str]], Config],
    chosen: Sequence[str],
    values: Sequence[Sequence[str]],
    plain: Sequence[str],
) -> Config:
    """`chosen` holds one of each of the `values`. Raises `UserError`."""
    try:
        return parse(chosen)
    except UserError as error:
        for argument in chosen:
            option = _refused_option(argument, plain, str(error))
            others = [other for each in values if argument in each for other in each if option]
            other = next(
                (other for other in others if _parses(parse, _instead(chosen, argument, other))), None
            )
            if option and other:
                raise UserError(known_to_other(option, argument, other)) from error
        raise


def _refused_option(argument: str, plain: Sequence[str], text: str) -> str | None:
    """The option of the group that `argument` chooses from, which an error's text names."""
    group = argument.partition("=")[0]
    options = [option for option in plain if group in ONE_OF_EACH and option.startswith(f"{group}.")]
    return next((option for option in options if option.partition("=")[0] in text), None)


def _instead(arguments: Sequence[str], argument: str, other: str) -> list[str]:
    return [other if one == argument else one for one in arguments]


def _parses(parse: Callable[[Sequence[str]], Config], arguments: Sequence[str]) -> bool:
    try:
        parse(arguments)
    except UserError:
        return False
    return True


def _values(override: Any, directories: Sequence[str]) -> list[str]:
    """The values of a sweep as arguments of one value."""
    from hydra.core.override_parser.types import Glob

    pattern = override.value()
    if isinstance(pattern, Glob):
        values = pattern.filter(names_in(override.key_or_group, directories))
    else:
        values = list(override.sweep_string_iterator())
    if not values:
        raise UserError(f"{override.input_line} stands for no value at all")
    return [f"{override.get_key_element()}={value}" for value in values]


def _combinations(options: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Every value once, with the first of the others."""
    first = tuple(values[0] for values in options)
    others = [
        (*first[:place], value, *first[place + 1 :])
        for place, values in enumerate(options)
        for value in values
    ]
    return list(dict.fromkeys([first, *others]))


def with_swept_options(arguments: Sequence[str]) -> list[str]:
    """Options of a group that is swept, as sweeps of one value.

    Hydra composes a sweep without what it sweeps over before it composes the jobs, and would
    refuse `encoding.n_buckets=8` of `encoding=t5,t5_wide` for not being an option of the default.
    """
    swept = [
        argument.split("=")[0]
        for argument in arguments
        if re.match(r"(encoding|modifier)=(?!\[[^]]*\]$).*[,(]", argument)
    ]
    options = tuple(OPTIONS_OF_GROUP[group] for group in swept)

    def adapt(argument: str) -> str:
        key, equals, value = argument.partition("=")
        choice = equals and key.lstrip("+").startswith(options) and not re.search(r"[,(]", value)
        return f"{key}=choice({value})" if choice else argument

    return [adapt(argument) for argument in arguments] if options else list(arguments)
