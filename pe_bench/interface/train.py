"""`pe_bench.train`: one run, as `pe-bench train` makes it. Heavy imports wait until all is checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.config.checks import check_folder, refuse_unused
from pe_bench.config.hydra_main import HydraCommand, complete_command, run_job
from pe_bench.config.override import quote
from pe_bench.config.schema import Config
from pe_bench.errors import require
from pe_bench.interface.values import plain
from pe_bench.system.signals import interruptible

if TYPE_CHECKING:
    from pe_bench.interface.run import Run


def train(*overrides: str, config_dir: str | Path | None = None, **keys: Any) -> Run:
    """Train a model, score it at longer lengths, and return the run. Finished work is reused.

        pe_bench.train(encoding="rope", seed=1, train={"length": 64})
        pe_bench.train("encoding=rope", "seed=1", "train.length=64")

    overrides: KEY=VALUE as on the command line. keys: the same keys by name, after the overrides; a
    dictionary holds keys of a group, such as train, eval or encoding. config_dir: a folder with your own
    encoding/NAME.yaml. Progress is written on standard error.

    An interrupt (Ctrl-C, the stop button of a notebook) ends the training after its step: what is done is
    saved, and the same call continues from there.

    Raises `UserError` (a `ValueError`) before anything is written where a key or a value cannot work,
    `RunError` where the run fails later. Lengths at which the code of a custom encoding fails raise nothing:
    they have the status failed in `scores`, and `failure` names them.
    """
    named = [override for key, value in keys.items() for override in _overrides(key, value)]
    folder = None if config_dir is None else Path(config_dir)
    require(folder is None or folder.is_dir(), f"config_dir={config_dir} is not a folder")
    command = HydraCommand((*overrides, *named), folder)
    require(not command.is_sweep, "hydra.mode=MULTIRUN makes many runs: call train once for each of them")
    with interruptible():
        return train_command(complete_command(command))


def train_command(command: HydraCommand) -> Run:
    """Train and score the one run that a completed command asks for. Raises `UserError`, `RunError`."""
    trained: list[Run] = []
    run_job(command, lambda config: trained.append(_train(config, command.overrides)))
    return trained[0]


def _train(config: Config, overrides: Sequence[str]) -> Run:
    from pe_bench.experiment.run import run_experiment
    from pe_bench.interface.run import Run

    refuse_unused([config], overrides)
    check_folder(config.results_dir, "results_dir", is_written=True)
    run, rows = run_experiment(config)
    return Run(run, rows, config.report.margin)


def _overrides(key: str, value: Any) -> Iterator[str]:
    """Write a value as overrides in Hydra's grammar: one, or one for each key of a group."""
    if isinstance(value, Mapping):
        require(
            bool(value), f"{key}={{}} names no key and changes nothing: leave it out, or name a key in it"
        )
        for name, inner in value.items():
            yield from _overrides(f"{key}.{name}", inner)
    else:
        yield f"{key}={quote(plain(value))}"
