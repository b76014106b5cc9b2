"""The `train` command: one run, or a sweep of many."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pe_bench.config.checks import check_folder, refuse_unused
from pe_bench.config.hydra_main import read_arguments, run_job
from pe_bench.config.overrides import is_sweep, overrides_in
from pe_bench.config.schema import Config
from pe_bench.errors import RunError
from pe_bench.runs.gather import results_file
from pe_bench.sweep.grid import check_sweep
from pe_bench.system.signals import Stopped


def run_train(arguments: Sequence[str]) -> None:
    """Train and score what `arguments` ask for, and print one table of it. Raises `UserError`, `RunError`."""
    arguments = read_arguments(arguments)
    if is_sweep(arguments):
        _train_many(arguments)
    else:
        run_job(arguments, partial(_train_one, overrides_in(arguments)))


def _train_one(arguments: Sequence[str], config: Config, search: Sequence[Path]) -> None:
    from pe_bench.cli.report import print_run
    from pe_bench.experiment.run import run_experiment

    refuse_unused([config], arguments)
    check_folder(config.results_dir, "results_dir")
    run, rows = run_experiment(config, search)
    print_run(rows, run, config.report.margin)


def _train_many(arguments: Sequence[str]) -> None:
    from pe_bench.cli.report import print_asked
    from pe_bench.runs.gather import gather_and_warn
    from pe_bench.sweep.run import run_sweep
    from pe_bench.sweep.summary import print_summary

    swept = check_sweep(arguments, _check)
    if results_file(swept.results_dir).exists():
        gather_and_warn(swept.results_dir)  # what a job says of it stands in its log alone
    summary = run_sweep(arguments, swept)
    print_asked(summary.asked)
    print_summary(summary)
    if summary.stopped and not summary.is_done:
        raise Stopped("stopped; the same command goes on from where it was")
    if summary.failed:
        raise RunError("the sweep is not done; mend what failed, then the same command does what is missing")
    if not summary.is_done:
        raise RunError("the sweep is not done; the same command does what is missing")


def _check(config: Config, search: Sequence[Path]) -> None:
    from pe_bench.experiment.prepare import check

    check_folder(config.results_dir, "results_dir")
    check(config, search)
