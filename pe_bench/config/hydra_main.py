"""Run Hydra's own `main`, for one job or for a sweep."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pe_bench.config.compose import parse_composed, register_resolvers
from pe_bench.config.groups import config_dir
from pe_bench.config.hydra_errors import explain_hydra_errors
from pe_bench.config.nested import for_hydra
from pe_bench.config.override import parse_override
from pe_bench.config.overrides import check_overrides
from pe_bench.config.schema import Config
from pe_bench.config.unknown_keys import CONFIG

# Overrides before the user's own: how tests run the README's commands on shorter budgets.
OVERRIDES_VARIABLE = "PE_BENCH_OVERRIDES"

JobFunction = Callable[[Config], Any]


@dataclass(frozen=True)
class HydraCommand:
    """A `train` command: its overrides, and the flags that Hydra gets after them."""

    overrides: tuple[str, ...] = ()
    config_dir: Path | None = None
    multirun: bool = False
    printing: tuple[str, ...] = ()  # flags that have Hydra print something in place of a run: --cfg job

    @property
    def search(self) -> tuple[Path, ...]:
        return () if self.config_dir is None else (self.config_dir,)

    @property
    def is_sweep(self) -> bool:
        return self.multirun or any(
            (override.key.lower(), (override.value or "").upper()) == ("hydra.mode", "MULTIRUN")
            for override in map(parse_override, self.overrides)
        )

    @property
    def config_flags(self) -> tuple[str, ...]:
        """The flags without which the overrides would compose something else."""
        return () if self.config_dir is None else ("--config-dir", str(self.config_dir))

    @property
    def arguments(self) -> list[str]:
        """The command line as Hydra wants it, which refuses overrides on both sides of a flag."""
        sweep = ("--multirun",) if self.multirun else ()
        return [*self.overrides, *self.config_flags, *sweep, *self.printing]


def complete_command(command: HydraCommand) -> HydraCommand:
    """Put the environment's overrides before the command's, and check all. Raises `UserError`."""
    overrides = [*os.environ.get(OVERRIDES_VARIABLE, "").split(), *command.overrides]
    check_overrides(overrides, command.search)
    return replace(command, overrides=tuple(for_hydra(overrides, command.search)))


def run_job(command: HydraCommand, job: JobFunction) -> None:
    """Compose the configuration of the one job that `command` asks for, and call `job` with it.

    Raises `UserError` for overrides that Hydra cannot use, and what the job raises.
    """
    failures: list[Exception] = []

    def task(composed: Any) -> None:
        # Kept, not raised: Hydra would print a report of its own.
        try:
            job(parse_composed(composed))
        except Exception as error:
            failures.append(error)

    call_hydra(command, task)
    if failures:
        raise failures[0]


def call_hydra(command: HydraCommand, task: Callable[[Any], None]) -> None:
    """Have Hydra compose each job that `command` asks for, and its launcher call `task` with it."""
    import hydra

    _mend_argparse()
    register_resolvers()
    main = hydra.main(config_path=str(config_dir()), config_name=CONFIG, version_base="1.3")(task)
    explained = explain_hydra_errors(command.overrides, command.search, command.is_sweep)
    with explained, _lent_arguments(command.arguments):
        main()


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
            os.environ.pop("HYDRA_FULL_ERROR", None)  # users' code may have cleared all
        else:
            os.environ["HYDRA_FULL_ERROR"] = shown


def _mend_argparse() -> None:
    """Let Hydra 1.3 start on Python 3.14, which refuses its help texts because they are not text."""
    if sys.version_info >= (3, 14):
        argparse.ArgumentParser._check_help = lambda self, action: None  # pyright: ignore
