"""Hands a command's words to Hydra, which composes the configuration of each job."""

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pe_bench.aliases import without_aliases
from pe_bench.config import Config, config_dir, parse_config
from pe_bench.errors import UserError, first_line
from pe_bench.hydra_errors import cause, known_to_other, names_in, of_job, one_line
from pe_bench.hydra_words import (
    CONFIG_DIR,
    CONFIG_NAME,
    GROUPS,
    ONE_OF_EACH,
    check_words,
    order_words,
    overrides_in,
    values_of,
)

# Words put before the user's own: how tests run the README's commands on shorter budgets.
WORDS_VARIABLE = "PE_BENCH_WORDS"
MOST_CHECKED = 20  # jobs of a sweep, before the first of them runs
CONFIG = "train"

Job = Callable[[Config, Sequence[Path]], Any]


def read_words(words: Sequence[str]) -> list[str]:
    """A command's words, in the order that Hydra wants, checked. Raises `UserError`."""
    words = order_words([*os.environ.get(WORDS_VARIABLE, "").split(), *words])
    check_words(words)
    return without_aliases(words, values_of(words, CONFIG_DIR))


def run_job(words: Sequence[str], job: Job) -> None:
    """Compose the configuration of the one job that `words` ask for, and call `job` with it.

    Raises `UserError` for words that Hydra cannot use, and what the job raises.
    """
    failures: list[Exception] = []

    def task(composed: Any) -> None:
        # Kept, not raised: Hydra would print a report of its own.
        try:
            job(*parse_composed(composed))
        except Exception as error:
            failures.append(error)

    call_hydra(words, task)
    if failures:
        raise failures[0]


def compose(overrides: Sequence[str], directories: Sequence[str] = (), name: str = CONFIG) -> dict[str, Any]:
    """The configuration of one job as plain values, without running anything."""
    overrides = without_aliases(overrides, directories)
    words = [*overrides, *(word for path in directories for word in ("--config-dir", path))]
    with one_line(words, lambda: _known_keys(words)):
        return _compose(overrides, directories, name)


def _compose(overrides: Sequence[str], directories: Sequence[str], name: str) -> dict[str, Any]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    register_resolvers()
    searched = [f"hydra.searchpath=[{','.join(map(_quoted_path, directories))}]"] if directories else []
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return to_plain_values(hydra_compose(name, [*overrides, *searched]))


def _quoted_path(directory: str) -> str:
    """For Hydra's grammar, in which brackets, commas and most letters mean something."""
    path = str(Path(directory).resolve()).replace("\\", "\\\\").replace('"', '\\"')
    return f'"file://{path}"'


def to_plain_values(composed: Any) -> dict[str, Any]:
    """Plain, resolved values; each part of the encoding names its options that were derived."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        raw = OmegaConf.to_container(composed, resolve=False)
        values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise UserError(cause(error) or first_line(error)) from error
    assert isinstance(raw, dict)
    assert isinstance(values, dict)
    plain = {
        str(key): value for key, value in values.items() if key not in ("hydra", "modifier", "experiment")
    }
    if isinstance(plain.get("encoding"), dict):
        plain["encoding"] = _mark_derived(raw["encoding"], plain["encoding"])
    return plain


def register_resolvers() -> None:
    """What the YAML files compute."""
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("divide", _divide, replace=True)
    OmegaConf.register_new_resolver("quotient", lambda a, b: max(1, a // b), replace=True)
    OmegaConf.register_new_resolver("times", lambda a, b: a * b, replace=True)
    OmegaConf.register_new_resolver("required", _require_value, replace=True)
    OmegaConf.register_new_resolver("expanduser", lambda path: os.path.expanduser(str(path)), replace=True)


def _require_value(otherwise: str) -> NoReturn:
    raise UserError(otherwise)


def _divide(d_model: int, n_heads: int) -> int:
    if not all(isinstance(value, int) and value > 0 for value in (d_model, n_heads)):
        raise UserError(f"model.d_model={d_model} and model.n_heads={n_heads} must be positive whole numbers")
    if d_model % n_heads:
        near = max(n_heads, round(d_model / n_heads) * n_heads)
        raise UserError(
            f"model.d_model={d_model} is not divisible by model.n_heads={n_heads}: try model.d_model={near}"
        )
    return d_model // n_heads


def parse_composed(composed: Any) -> tuple[Config, list[Path]]:
    """What Hydra hands to a task, and the folders of configurations that the command named."""
    from hydra.core.hydra_config import HydraConfig

    register_resolvers()  # a launcher may have begun this process
    sources = HydraConfig.get().runtime.config_sources
    search = [Path(source.path) for source in sources if source.schema == "file"]
    return parse_config(to_plain_values(composed)), [path for path in search if path != config_dir()]


def _mark_derived(raw: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    modifiers = values.get("modifiers")
    if isinstance(modifiers, dict) and modifiers:
        parts = {
            name: _mark_derived(raw["modifiers"][name], part) if isinstance(part, dict) else part
            for name, part in modifiers.items()
        }
        values = {**values, "modifiers": parts}
    derived = [name for name, value in raw.items() if isinstance(value, str) and value.startswith("${")]
    return {**values, "derived": derived}


def call_hydra(words: Sequence[str], task: Callable[[Any], None]) -> None:
    """Have Hydra compose each job that `words` ask for, and its launcher call `task` with it."""
    import hydra

    _mend_argparse()
    register_resolvers()
    main = hydra.main(config_path=str(config_dir()), config_name=CONFIG, version_base="1.3")(task)
    with one_line(words, lambda: _known_keys(words)), _lent_arguments(words):
        main()


@contextmanager
def _lent_arguments(words: Sequence[str]) -> Iterator[None]:
    """Hydra reads `sys.argv`, and shows its own errors unless it is told to raise them."""
    before, shown = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["pe-bench train", *words]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = before
        if shown is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = shown


def _known_keys(words: Sequence[str]) -> list[str]:
    """Every key of the configuration, with the groups and the options of encoding and launcher chosen."""
    from hydra.errors import HydraException

    chosen = [word for word in words if word.partition("=")[0] in GROUPS and "," not in word]
    try:
        values = _compose(chosen, values_of(words, CONFIG_DIR), CONFIG)
    except (HydraException, ValueError):
        values = compose([])
    return [*_flatten(values), *_launcher_keys(words), "modifier", "experiment"]


def _launcher_keys(words: Sequence[str]) -> Iterator[str]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    chosen = [word for word in words if word.startswith("hydra/launcher=")]
    try:
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            launcher = hydra_compose(CONFIG, chosen, return_hydra_config=True).hydra.launcher
    except HydraException:  # a launcher's file of the user's own
        return
    values: Any = OmegaConf.to_container(launcher, resolve=False)
    yield from (key for key in _flatten(values, "hydra.launcher.") if not key.endswith("_"))


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")


@dataclass(frozen=True)
class Swept:
    """What is known of a sweep before its first job runs."""

    keys: tuple[str, ...]  # that are swept over
    jobs: int
    results_dir: Path  # of its first job


def check_sweep(words: Sequence[str], check: Job) -> Swept:
    """Compose a sweep's values one by one, so that a mistake in the last is told before the first runs.

    `check` is called with the first of the jobs. Raises `UserError`.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    overrides, directories = overrides_in(words), values_of(words, CONFIG_DIR)
    name = (values_of(words, CONFIG_NAME) or [CONFIG])[-1]
    search = [Path(directory).resolve() for directory in directories]
    with one_line(words, lambda: _known_keys(words)):
        parsed = OverridesParser.create().parse_overrides(overrides)
        swept = [override for override in parsed if override.is_sweep_override()]
        discrete = [override for override in swept if override.is_discrete_sweep()]
        values = [_values(override, directories) for override in discrete]
    plain = [word for word, override in zip(overrides, parsed, strict=True) if override not in swept]
    configs = []
    composed = [
        each[:MOST_CHECKED] if override.is_range_sweep() else each
        for override, each in zip(discrete, values, strict=True)
    ]

    def parse(chosen: Sequence[str]) -> Config:
        return parse_config(compose([*plain, *chosen], directories, name))

    combinations = _combinations(composed)
    for place, chosen in enumerate(combinations):
        with of_job([word for word in chosen if word not in combinations[0]] or chosen):
            configs.append(_parse_job(parse, chosen, values, plain))
            if place < MOST_CHECKED:
                check(configs[-1], search)
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
        for word in chosen:
            option = _refused_option(word, plain, str(error))
            others = [other for each in values if word in each for other in each if option]
            other = next((other for other in others if _parses(parse, _instead(chosen, word, other))), None)
            if option and other:
                raise UserError(known_to_other(option, word, other)) from error
        raise


def _refused_option(word: str, plain: Sequence[str], text: str) -> str | None:
    """The option of the group that `word` chooses from, which an error's text names."""
    group = word.partition("=")[0]
    options = [option for option in plain if group in ONE_OF_EACH and option.startswith(f"{group}.")]
    return next((option for option in options if option.partition("=")[0] in text), None)


def _instead(words: Sequence[str], word: str, other: str) -> list[str]:
    return [other if one == word else one for one in words]


def _parses(parse: Callable[[Sequence[str]], Config], words: Sequence[str]) -> bool:
    try:
        parse(words)
    except UserError:
        return False
    return True


def _values(override: Any, directories: Sequence[str]) -> list[str]:
    """The values of a sweep as words of one value."""
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


def _mend_argparse() -> None:
    """Python 3.14 checks every help text when it is added, and Hydra 1.3's are not text."""
    if sys.version_info >= (3, 14):
        argparse.ArgumentParser._check_help = lambda self, action: None  # pyright: ignore
