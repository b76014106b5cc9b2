"""The jobs of a sweep, composed and checked before the first of them runs."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pe_bench.config.compose import compose
from pe_bench.config.groups import OPTIONS_OF_GROUP, names_in
from pe_bench.config.overrides import (
    explain_hydra_errors,
    name_job_in_error,
    parse_override,
    takes_list,
)
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import Config, warn_unused
from pe_bench.errors import UserError, require
from pe_bench.system.progress import progress_bar

# How often a scheduler starts a job: a run's processes are started by the job itself, on one machine.
STARTS = {
    "hydra.launcher.nodes": "1 machine",
    "hydra.launcher.tasks_per_node": "1 task, which starts train.processes itself",
}
MAX_CHECKED = 20  # jobs, before the first of them runs


@dataclass(frozen=True)
class Swept:
    """The facts of a sweep before its first job runs."""

    keys: tuple[str, ...]  # that are swept over
    jobs: int
    results_dir: Path  # of its first job


def check_sweep(overrides: Sequence[str], search: Sequence[Path], check: Callable[[Config], None]) -> Swept:
    """Compose a sweep's values one by one, so that a mistake in the last is found before the first runs.

    `check` is called with the first of the jobs. Raises `UserError`.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    with explain_hydra_errors(overrides, search, is_sweep=True):
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        for override in parsed:
            key, value = override.key_or_group, override.value()
            message = f"{key}={value}: a run takes {STARTS.get(key)}; say {key}=1"
            require(key not in STARTS or value == 1, message)
        swept = [override for override in parsed if override.is_sweep_override()]
        discrete = [override for override in swept if override.is_discrete_sweep()]
        _refuse_parts_of_lists([override.input_line or "" for override in discrete])
        values = [_values(override, search) for override in discrete]
    plain = [text for text, override in zip(overrides, parsed, strict=True) if override not in swept]
    configs = []
    composed = [
        each[:MAX_CHECKED] if override.is_range_sweep() else each
        for override, each in zip(discrete, values, strict=True)
    ]

    combinations = _combinations(composed)
    with progress_bar("sweep", len(combinations)) as bar:
        for index, chosen in enumerate(combinations):
            first = "checking every value before the first job starts" if index == 0 else None
            bar.show(index, f"checking {' '.join(chosen)}", first)
            with name_job_in_error([value for value in chosen if value not in combinations[0]] or chosen):
                configs.append(parse_config(compose([*plain, *chosen], search), search))
                if index < MAX_CHECKED:
                    check(configs[-1])
    warn_unused([config.eval for config in configs], [parse_override(text).key for text in overrides])
    keys = tuple(override.get_key_element() for override in swept)
    return Swept(keys, math.prod(map(len, values)), Path(configs[0].results_dir))


def _refuse_parts_of_lists(overrides: Sequence[str]) -> None:
    """Raise `UserError` for `eval.lengths=64,128`: a sweep would score one run at 64, and one at 128."""
    for text in overrides:
        override = parse_override(text)
        if takes_list(override.key) and not re.search(r"[\[(]", override.value or ""):
            key, value = override.key, override.value
            raise UserError(
                f"{text} with -m makes a run for each value, and {key} takes a list: "
                f"say '{key}=[{value}]' for one list, '{key}=[...],[...]' for several",
                key,
            )


def _values(override: Any, search: Sequence[Path]) -> list[str]:
    """Return the values of a sweep as overrides of one value."""
    from hydra.core.override_parser.types import Glob

    pattern = override.value()
    if isinstance(pattern, Glob):
        values = pattern.filter(names_in(override.key_or_group, search))
    else:
        values = list(override.sweep_string_iterator())
    if not values:
        raise UserError(f"{override.input_line} gives no values: name at least one")
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
