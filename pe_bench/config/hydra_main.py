"""Run Hydra's own `main`, for one job or for a sweep."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pe_bench.config.compose import CONFIG, known_keys, parse_composed, register_resolvers
from pe_bench.config.groups import config_dir, without_aliases
from pe_bench.config.hydra_errors import one_line
from pe_bench.config.overrides import CONFIG_DIR, check_arguments, order_arguments, values_of
from pe_bench.config.schema import Config

# Words put before the user's own: how tests run the README's commands on shorter budgets.
OVERRIDES_VARIABLE = "PE_BENCH_OVERRIDES"


Job = Callable[[Config, Sequence[Path]], Any]


def read_arguments(arguments: Sequence[str]) -> list[str]:
    """A command's arguments, in the order that Hydra wants, checked. Raises `UserError`."""
    arguments = order_arguments([*os.environ.get(OVERRIDES_VARIABLE, "").split(), *arguments])
    check_arguments(arguments)
    return without_aliases(arguments, values_of(arguments, CONFIG_DIR))


def run_job(arguments: Sequence[str], job: Job) -> None:
    """Compose the configuration of the one job that `arguments` ask for, and call `job` with it.

    Raises `UserError` for arguments that Hydra cannot use, and what the job raises.
    """
    failures: list[Exception] = []

    def task(composed: Any) -> None:
        # Kept, not raised: Hydra would print a report of its own.
        try:
            job(*parse_composed(composed))
        except Exception as error:
            failures.append(error)

    call_hydra(arguments, task)
    if failures:
        raise failures[0]


def call_hydra(arguments: Sequence[str], task: Callable[[Any], None]) -> None:
    """Have Hydra compose each job that `arguments` ask for, and its launcher call `task` with it."""
    import hydra

    _mend_argparse()
    register_resolvers()
    main = hydra.main(config_path=str(config_dir()), config_name=CONFIG, version_base="1.3")(task)
    with one_line(arguments, lambda: known_keys(arguments)), _lent_arguments(arguments):
        main()


@contextmanager
def _lent_arguments(arguments: Sequence[str]) -> Iterator[None]:
    """Hydra reads `sys.argv`, and shows its own errors unless it is told to raise them."""
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


def _mend_argparse() -> None:
    """Python 3.14 checks every help text when it is added, and Hydra 1.3's are not text."""
    if sys.version_info >= (3, 14):
        argparse.ArgumentParser._check_help = lambda self, action: None  # pyright: ignore
