"""The `train` command: one run, or a sweep of many."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pe_bench.config import Config
from pe_bench.config_checks import check_folder
from pe_bench.distributed.machines import Machines, machines_asked
from pe_bench.errors import RunError
from pe_bench.hydra_app import read_words, run_job
from pe_bench.hydra_sweep import check_sweep
from pe_bench.hydra_words import is_sweep
from pe_bench.signals import Stopped


def run_train(words: Sequence[str]) -> None:
    """Train and score what `words` ask for, and print one table of it. Raises `UserError`, `RunError`."""
    words = read_words(words)
    if is_sweep(words):
        _train_many(words)
    else:
        run_job(words, _train_one)


def _train_one(config: Config, search: Sequence[Path]) -> None:
    from pe_bench.experiment import run_experiment
    from pe_bench.report_command import print_run

    check_folder(config.results_dir, "results_dir")
    run, rows = run_experiment(config, search)
    print_run(rows, run, config.report.margin)


def _train_many(words: Sequence[str]) -> None:
    from pe_bench.report_command import print_asked
    from pe_bench.sweep import run_sweep
    from pe_bench.sweep.summary import print_summary

    check = partial(_check, machines_asked(words))
    summary = run_sweep(words, check_sweep(words, check))
    print_asked(summary.asked)
    print_summary(summary)
    if summary.stopped and not summary.is_done:
        raise Stopped("stopped; the same command goes on from where it was")
    if summary.failed:
        raise RunError("the sweep is not done; mend what failed, then the same command does what is missing")
    if not summary.is_done:
        raise RunError("the sweep is not done; the same command does what is missing")


def _check(machines: Machines, config: Config, search: Sequence[Path]) -> None:
    from pe_bench.experiment import check

    check_folder(config.results_dir, "results_dir")
    check(config, search, machines)
