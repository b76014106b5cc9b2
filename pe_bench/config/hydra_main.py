"""The overrides of a command as one configuration, or as jobs that one of Hydra's launchers starts."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pe_bench.config.compose import compose, register_resolvers
from pe_bench.config.groups import SEARCH_PATH, config_dir
from pe_bench.config.hydra_errors import explain_hydra_errors
from pe_bench.config.nested import for_hydra, values_of
from pe_bench.config.override import parse_override, parse_overrides
from pe_bench.config.overrides import check_overrides
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import Config
from pe_bench.config.unknown_keys import CONFIG

# Overrides before the user's own: how tests run the README's commands on shorter budgets.
OVERRIDES_VARIABLE = "PE_BENCH_OVERRIDES"


def complete_overrides(overrides: Sequence[str], search: Sequence[Path] = ()) -> list[str]:
    """Put the environment's overrides before a command's, and check all. Raises `UserError`."""
    overrides = [*os.environ.get(OVERRIDES_VARIABLE, "").split(), *overrides]
    check_overrides(overrides, search)
    return for_hydra(overrides, search)


def compose_config(overrides: Sequence[str], search: Sequence[Path] = ()) -> Config:
    """Return the configuration of the one job that a command's overrides ask for. Raises `UserError`."""
    overrides = complete_overrides(overrides, search)
    named = [override for override in parse_overrides(overrides) if override.key == SEARCH_PATH]
    folders = [Path(str(name).removeprefix("file://")) for text in named for name in values_of(text)[0]]
    return parse_config(compose(overrides, search), [*search, *folders])


def is_sweep(overrides: Sequence[str]) -> bool:
    """Return whether a command's overrides ask Hydra for a sweep, as its -m does."""
    return any(
        (override.key.lower(), (override.value or "").upper()) == ("hydra.mode", "MULTIRUN")
        for override in map(parse_override, overrides)
    )


def call_hydra(
    overrides: Sequence[str], search: Sequence[Path], flags: Sequence[str], task: Callable[[Any], None]
) -> None:
    """Call Hydra with overrides and flags: it prints, or its launcher calls `task` for each job."""
    import hydra

    if sys.version_info >= (3, 14):  # which refuses Hydra 1.3's help texts, because they are not text
        argparse.ArgumentParser._check_help = lambda self, action: None  # pyright: ignore
    register_resolvers()
    main = hydra.main(config_path=str(config_dir()), config_name=CONFIG, version_base="1.3")(task)
    arguments = [*overrides, *config_flags(search), *flags]  # Hydra refuses overrides on both sides of a flag
    with explain_hydra_errors(overrides, search, is_sweep="--multirun" in flags), _lent_arguments(arguments):
        main()


def config_flags(search: Sequence[Path]) -> list[str]:
    """Return the flags without which overrides would compose something else."""
    return [word for folder in search for word in ("--config-dir", str(folder))]


@contextmanager
def _lent_arguments(arguments: Sequence[str]) -> Iterator[None]:
    """Lend Hydra `sys.argv`, and have it raise its errors instead of printing them."""
    before, shown = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["pe-bench train", *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = before
        if shown is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = shown
