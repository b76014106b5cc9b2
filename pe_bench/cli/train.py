"""The commands `train`, for one run or a sweep of many, and `import`, for runs from elsewhere."""

from collections.abc import Sequence
from pathlib import Path

from pe_bench import api
from pe_bench.config.compose import call_hydra, complete_overrides, is_sweep
from pe_bench.errors import RunError, require
from pe_bench.sweep.check import check_sweep
from pe_bench.system.files import require_writable, write_text
from pe_bench.system.ranks import world_size
from pe_bench.system.terminal import say

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
        is_one = plan is None and not multirun
        require(is_one, "--cfg prints the keys of one job: leave out -m and --plan")
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
    from pe_bench.sweep.run import launch, require_done
    from pe_bench.sweep.summary import print_summary

    summary = launch(overrides, search)
    print_sweep_tables(summary.tables)
    print_summary(summary)
    require_done(summary)


def _write_plan(overrides: Sequence[str], search: Sequence[Path], plan: Path) -> None:
    """Check the jobs that overrides ask for, and write the command of each on a line of its own."""
    from pe_bench.sweep.run import check_job, plan_sweep

    require_writable("--plan", plan)
    check_sweep(overrides, search, check_job)
    commands = plan_sweep(overrides, search)
    write_text(plan, "\n".join([*commands, ""]))
    say(f"{plan}: {len(commands)} command{'s' if len(commands) > 1 else ''}; each does what is missing")


def import_folders(folders: Sequence[Path], results_dir: Path) -> None:
    """Import the runs in these folders. Raise `RunError` where some were refused."""
    imported = api.import_runs(folders, results_dir)
    for name, why in imported.refused.items():
        say(f"not imported: {name}: {why}")
    say(f"{len(imported.copied)} imported, {len(imported.present)} here already")
    if imported.refused:
        raise RunError(f"{len(imported.refused)} not imported: the lines above say why")
