"""The commands `train`, for one run or a sweep of many, and `import`, for runs from elsewhere."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench import api
from pe_bench.config.compose import call_hydra, complete_overrides, is_sweep
from pe_bench.config.schema import Config
from pe_bench.errors import RunError, require
from pe_bench.runs.gather import results_file
from pe_bench.sweep.check import check_sweep
from pe_bench.system.files import check_folder, write_text
from pe_bench.system.ranks import world_size
from pe_bench.system.signals import Stopped
from pe_bench.system.terminal import say

if TYPE_CHECKING:
    from pe_bench.sweep.summary import Summary

PRINTED = ("job", "hydra", "all")


def run_train(
    overrides: Sequence[str],
    cfg: str | None,
    config_dir: Path | None,
    plan: Path | None,
    *,
    multirun: bool,
    resolve: bool,
) -> None:
    """Train and score what a command asks for, and print one table of it. Raises `UserError`, `RunError`."""
    search = [] if config_dir is None else [config_dir]
    if cfg or resolve:
        cfg = cfg or PRINTED[0]
        require(cfg in PRINTED, f"--cfg prints one of {', '.join(PRINTED)}, not '{cfg}'")
        flags = ["--cfg", cfg, *(["--resolve"] if resolve else [])]
        call_hydra(complete_overrides(overrides, search), search, flags, lambda composed: None)
    elif plan is not None:
        _write_plan(complete_overrides(overrides, search), search, plan)
    elif multirun or is_sweep(overrides):
        require(
            world_size() == 1, "torchrun starts one run: start a sweep without it, with train.processes=N"
        )
        _train_many(overrides, search)
    else:
        run = api.train(*overrides, config_dir=config_dir)
        from pe_bench.cli.report import print_run

        print_run(run)
        if run.failure:
            raise RunError(run.failure)


def _train_many(overrides: Sequence[str], search: Sequence[Path]) -> None:
    from pe_bench.cli.report import print_sweep_tables
    from pe_bench.sweep.summary import print_summary

    summary = launch(overrides, search)
    print_sweep_tables(summary.tables)
    print_summary(summary)
    require_done(summary)


def _write_plan(overrides: Sequence[str], search: Sequence[Path], plan: Path) -> None:
    """Check the jobs that overrides ask for, and write the command of each on a line of its own."""
    from pe_bench.sweep.run import plan_sweep

    check_sweep(overrides, search, _check)
    commands = plan_sweep(overrides, search)
    write_text(plan, "\n".join([*commands, ""]))
    say(f"{plan}: {len(commands)} command{'s' if len(commands) > 1 else ''}; each does what is missing")


def launch(overrides: Sequence[str], search: Sequence[Path]) -> "Summary":
    """Run the sweep that overrides ask for. Raise `UserError` before anything is written."""
    from pe_bench.runs.gather import gather_and_warn
    from pe_bench.sweep.run import run_sweep

    overrides = complete_overrides(overrides, search)
    swept = check_sweep(overrides, search, _check)
    if results_file(swept.results_dir).exists():
        gather_and_warn(swept.results_dir)  # what a job says of it stands in its log alone
    return run_sweep(overrides, search, swept)


def require_done(summary: "Summary") -> None:
    """Raise `Stopped` or `RunError` for a sweep with jobs that are not done."""
    if summary.stopped and not summary.is_done:
        raise Stopped("stopped; the same command does what is missing")
    if not summary.is_done:
        first = "fix what failed, then " if summary.failed else ""
        raise RunError(f"the sweep is not done; {first}the same command does what is missing")


def import_folders(folders: Sequence[Path], results_dir: Path) -> None:
    """Import the runs in these folders. Raise `RunError` where some were refused."""
    imported = api.import_runs(folders, results_dir)
    for name, why in imported.refused.items():
        say(f"not imported: {name}: {why}")
    say(f"{len(imported.copied)} imported, {len(imported.present)} here already")
    if imported.refused:
        raise RunError(f"{len(imported.refused)} not imported: the lines above say why")


def _check(config: Config) -> None:
    from pe_bench.experiment import prepare

    check_folder(config.results_dir, "results_dir", is_written=True)
    prepare(config)
