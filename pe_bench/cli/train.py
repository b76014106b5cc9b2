"""The commands that train: `train`, for a run or a sweep, `extend` and `try`; `import` takes runs in."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import typer

from pe_bench import api
from pe_bench.cli.data import print_data, print_runs
from pe_bench.config.compose import complete_overrides, print_config
from pe_bench.errors import RunError, require
from pe_bench.runs.commands import results_option
from pe_bench.system.files import require_writable, write_text
from pe_bench.system.signals import world_size
from pe_bench.system.terminal import say, write_out

PRINTED = ("job", "hydra", "all")
EXIT_CODES = {"better": 0, "not better": 3, "unclear": 4}
TRIES = ("number", "change", "baseline", "at training", "at longest", "seeds", "answer")


def run_train(
    overrides: Sequence[str],
    cfg: str | None,
    config_dir: Path | None,
    plan: Path | None,
    *,
    as_json: bool,
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
        print_config(complete_overrides(overrides, search), search, cfg, resolve=resolve)
    elif plan is not None:
        _write_plan(complete_overrides(overrides, search), search, plan)
    elif multirun:
        require(
            world_size() == 1, "torchrun starts one run: start a sweep without it, with train.processes=N"
        )
        _train_many(overrides, search, as_json=as_json)
    else:
        run = api.train(*overrides, config_dir=config_dir)
        from pe_bench.cli.report import print_run, tables_of_run

        if as_json:
            print_runs("train", [run.path], [run.failure], tables=tables_of_run(run))
        else:
            print_run(run)
        if run.failure:
            raise RunError(run.failure)


def _train_many(overrides: Sequence[str], search: Sequence[Path], *, as_json: bool) -> None:
    from pe_bench.cli.report import print_sweep_tables, tables_of_sweep
    from pe_bench.sweep.run import launch, require_done
    from pe_bench.sweep.show import print_summary

    summary = launch(overrides, search)
    if as_json:
        runs = dict.fromkeys(run for part in summary.tables for run in part.runs)
        failures = [f"{state.label}: {state.reason or state.text}" for state in summary.failed]
        tables = chain(*tables_of_sweep(summary.tables).values())
        print_runs("train", runs, failures, tables=tables)
    else:
        print_sweep_tables(summary.tables)
    print_summary(summary)
    require_done(summary)


def _write_plan(overrides: Sequence[str], search: Sequence[Path], plan: Path) -> None:
    """Check the jobs that overrides ask for, and write the command of each on a line of its own."""
    from pe_bench.sweep.run import check_job, check_sweep, plan_sweep

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


def extend(words: Sequence[str], plot: Path | None, options: dict[str, Any]) -> None:
    """Extend the runs that are named, and print the table of their family."""
    from pe_bench.plot.paper import picture_format
    from pe_bench.report.columns import show

    names, overrides = ([word for word in words if ("=" in word) is is_key] for is_key in (False, True))
    require(bool(names), "no run is named: say pe-bench extend rope, or the beginning of a run's name")
    results_dir = Path(options["results_dir"])
    picture = plot or results_dir / "extend.png"
    picture_format(picture)
    family = api.extend(names, overrides=overrides, **options)
    show(family.tables)
    family.plot(picture)
    say(f"wrote {picture}   details: pe-bench report{results_option(results_dir)} --all --details")


def run_try(arguments: Sequence[str], as_json: bool, options: dict[str, Any]) -> None:
    """Try a change, print what was found, and exit with its code. Raises `UserError`, `RunError`."""
    require(bool(arguments), "name what to try, such as my.py:RootBias or 'rope base=500000'")
    change, *overrides = arguments
    if ".py:" in change:
        from pe_bench.tries.trying import overrides_in

        _check(overrides_in(change), options["config_dir"], as_json)
    outcome = api.try_change(change, *overrides, **options)
    if as_json:
        print_data("try", outcome=outcome)
    else:
        write_out(f"{outcome}\n")
    raise typer.Exit(EXIT_CODES[outcome.answer])


def _check(overrides: Sequence[str], config_dir: str | Path | None, as_json: bool) -> None:
    """Say that all properties of an encoding hold, or print which fail and raise `RunError`."""
    from pe_bench.cli.inspect import check_encodings
    from pe_bench.inspection.check import check_all
    from pe_bench.inspection.check.case import find_cases

    search = [] if config_dir is None else [Path(config_dir)]
    options = [text.removeprefix("encoding=").removeprefix("encoding.") for text in overrides]
    states = [result.state for case in find_cases(options, search) for _, result in check_all(case)]
    if {"fails", "not checked"} & {*states}:
        check_encodings(options, search, as_json=as_json)
    say(f"check: {states.count('holds')} properties hold, none fails")


def list_tries(results_dir: Path, as_json: bool) -> None:
    """Print a table of all that was tried."""
    from pe_bench.system.grid import Cell, Column, Grid, draw, show
    from pe_bench.tries.trying import read_tries

    tries = read_tries(results_dir)
    require(bool(tries), f"{results_dir} has no tries: pe-bench try my.py:RootBias makes one")
    if as_json:
        print_data("try", tries=tries)
        return
    columns = [Column(name, is_left=name in ("change", "baseline", "answer")) for name in TRIES]
    rows = [
        [
            *(f"{each.kind} {each.number}", each.change, each.baseline),
            *(_signed(each.at_training), _signed(each.at_longest), f"{each.seeds}", each.answer),
        ]
        for each in tries
    ]
    notes = ("differences in bits per byte, negative is better; each baseline counts its own tries",)
    grid = Grid(columns, [list(map(Cell, row)) for row in rows], notes=notes)
    show(lambda width: draw(grid, width))


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.4f}"
