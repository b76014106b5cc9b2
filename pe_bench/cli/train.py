"""The commands that train: `train`, for a run or a sweep, `extend` and `try`."""

import inspect
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pe_bench import api
from pe_bench.cli.data import print_data
from pe_bench.cli.options import command
from pe_bench.errors import RunError, require
from pe_bench.system.cost import count
from pe_bench.system.terminal import say, write_out
from pe_bench.values import listed as listed_values
from pe_bench.values import parse_lengths, require_writable

if TYPE_CHECKING:
    from pe_bench.commands.try_change.trying import Try

QUICK_OVERRIDE = "experiment=quick"
EXIT_CODES = {"better": 0, "not better": 3, "mixed": 4, "unclear": 4, "no verdict": 4}
TRIES_COLUMNS = ("number", "change", "baseline", "at training", "at longest", "seeds", "answer")


@command("train")
def train(
    overrides: Sequence[str] = (),
    *,
    multirun: bool = False,
    cfg: str | None = None,
    plan: Path | None = None,
    lengths: str | None = None,
    as_json: bool = False,
    config_dir: Sequence[Path] = (),
) -> None:
    """Train a model, score it at longer lengths, print the table. Finished work is reused.

    overrides KEY=VALUE: Keys to change, in any order. The most common ones, with their defaults
        (`pe-bench list keys` explains more, `--cfg job` prints all): encoding=rope, model=tiny, data=stdlib,
        seed=0, threads=auto, train.length=128, train.tokens=1024000, train.lr=0.005, eval.lengths=null,
        results_dir=results.
    multirun: A sweep: train each combination of listed values.
    cfg job: Print every key and its value instead of training.
    plan FILE: Check all jobs of a sweep, write the command of each on a line of FILE, and train nothing;
        - prints the commands.
    lengths N,N: Context lengths to score, as 'eval.lengths=[N,N]'.
    config_dir DIR: A folder with your own encoding/NAME.yaml and similar files.

    Examples:
      pe-bench train encoding=rope
      pe-bench train encoding=rope 'modifier=[logn]' train.length=256
      pe-bench train -m encoding=rope,alibi seed=0,1,2     # a sweep of six runs
      pe-bench train --cfg job                             # every key and its value
    """
    if lengths is not None:
        overrides = [*overrides, f"eval.lengths={parse_lengths(lengths)}".replace(" ", "")]
    if cfg is not None:
        is_one = cfg == "job" and plan is None and not multirun
        require(is_one, "say --cfg job, without -m and --plan: it prints the keys of one job")
        from pe_bench.config.compose import complete_overrides, print_config

        print_config(complete_overrides(overrides, config_dir), config_dir)
    elif plan is not None:
        _write_plan(overrides, config_dir, plan)
    elif multirun:
        _train_sweep(overrides, config_dir, as_json=as_json)
    else:
        run = api.train(*overrides, config_dir=config_dir)
        from pe_bench.cli.tables import print_quick_result, print_scored, tables_of_run

        part = tables_of_run(run)
        if QUICK_OVERRIDE in overrides and not as_json and not run.failure:
            print_quick_result([part])
        else:
            print_scored("train", [part], [run.failure], as_json=as_json)
        if run.failure:
            raise RunError(run.failure)


def _train_sweep(overrides: Sequence[str], search: Sequence[Path], *, as_json: bool) -> None:
    from pe_bench.cli.tables import print_quick_result, print_scored, tables_by_folder
    from pe_bench.commands.sweep.run import launch_overrides
    from pe_bench.system.signals import world_size

    require(world_size() == 1, "torchrun starts one run: start a sweep without it, with train.processes=N")
    summary = launch_overrides(overrides, search)
    failures = [f"{state.label}: {state.text}" for state in summary.failed]
    parts = chain.from_iterable(map(tables_by_folder, summary.tables))
    if QUICK_OVERRIDE in overrides and not as_json and not failures:
        print_quick_result(list(parts))
    else:
        print_scored("train", parts, failures, as_json=as_json)
    summary.end()


def _write_plan(overrides: Sequence[str], search: Sequence[Path], plan: Path) -> None:
    """Check the jobs that overrides ask for, and write the command of each on a line of its own."""
    from pe_bench.commands.sweep.run import check_sweep, commands_of_sweep
    from pe_bench.config.compose import complete_overrides
    from pe_bench.system.files import write_text

    is_printed = str(plan) == "-"
    if not is_printed:
        require_writable("--plan", plan)
    overrides = complete_overrides(overrides, search)
    check_sweep(overrides, search)
    commands = commands_of_sweep(overrides, search)
    text = "\n".join([*commands, ""])
    if is_printed:
        write_out(text)
        return
    write_text(plan, text)
    say(f"{plan}: the commands of {count(len(commands), 'job')}; each does what is missing")


@command("extend", api.extend)
def extend(runs: Sequence[str] = (), *, plot: Path | None = None, **options: Any) -> None:
    """Stretch trained models to longer texts, and compare them.

    Scores the runs unchanged and, without more training, with each encoding; --tokens also trains them
    further with each, and draws the lines of untrained encodings dashed. Prints one table and draws it.

    runs RUN: Seeds of one encoding, or hf:FOLDER; then KEY=VALUE of the further training or the machine.
    plot FILE: The picture, a PNG, SVG or PDF file.  [default: extend.png in the folder of results]

    Examples:
      pe-bench extend rope --to 4x --with yarn,rope_pi --tokens 128000
      pe-bench extend rope --with 'rope base=80000' --tokens 128000 --long
      pe-bench extend rope --to 4x --lengths 256,512 --targets 16    # a first look
      pe-bench extend hf:FOLDER --text DIR --with yarn
      pe-bench extend hf:FOLDER --to 2x --with yarn --tokens 1M --text DIR
    """
    names = [word for word in runs if "=" not in word]
    overrides = [word for word in runs if "=" in word]
    require(bool(names), "no run is named: say pe-bench extend rope, or the beginning of a run's name")
    options["lengths"] = parse_lengths(",".join(options["lengths"])) if options["lengths"] else None
    results_dir = options["results_dir"]
    picture = plot or results_dir / "extend.png"
    from pe_bench.cli.tables import MAX_NAMES, details_command
    from pe_bench.render.paper import picture_format
    from pe_bench.report.columns import show

    picture_format(picture)
    if plot is not None:
        require_writable("--plot", plot)
    family = api.extend(names, overrides=overrides, **options)
    if not family.tables:  # the first of torchrun's processes shows them
        return
    show(family.tables)
    family.plot(picture)
    details = details_command(family.runs, results_dir, max_runs=MAX_NAMES, otherwise=["--all"])
    say(f"wrote {picture}   details: {details}")


@command("try", api.try_change)
def try_(
    arguments: Sequence[str] = (), *, listed: bool = False, as_json: bool = False, **options: Any
) -> None:
    """Say whether a change is better than its baseline.

    Checks the change, trains it and the baseline seed by seed, on 256,000 tokens each, and stops when
    the answer is sure or the time is up. Tries are counted: the more there were, the larger a gain has
    to be. Exit codes: 0 better, 3 not better, 4 mixed, unclear or no verdict, 1 failed, 2 wrong command,
    130 stopped.

    arguments CHANGE|KEY=VALUE: What to try, such as my.py:RootBias, 'rope base=500000' or rope+logn; then
        keys for both sides, such as model=small.
    listed: List the tries in this folder of results.

    Examples:
      pe-bench try my.py:RootBias
      pe-bench try 'rope base=500000' --against rope --minutes 10
      pe-bench try my.py:RootBias --confirm    # on other documents and seeds
      pe-bench try --list
    """
    if listed:
        _require_alone(arguments, options)
        _list_tries(options["results_dir"], as_json=as_json)
        return
    require(bool(arguments), "name what to try, such as my.py:RootBias or 'rope base=500000'")
    from pe_bench.commands.try_change.trying import try_change

    change, *overrides = arguments

    def check() -> None:
        if ".py:" in change:
            _require_sound(change, [*map(Path, listed_values(options["config_dir"]))], as_json=as_json)

    outcome = try_change(change, *overrides, check=check, **options)
    if as_json:
        print_data("try", outcome=outcome)
    else:
        write_out(f"{outcome}\n")
    raise typer.Exit(EXIT_CODES[outcome.answer])


def _require_sound(change: str, search: Sequence[Path], *, as_json: bool) -> None:
    """Say that all properties of an encoding hold, or print which fail and raise `RunError`."""
    from pe_bench.cli.inspect import check_each, finding_states, print_checks
    from pe_bench.config.arguments import overrides_in

    names = [text.removeprefix("encoding=").removeprefix("encoding.") for text in overrides_in(change)]
    results = check_each(names, search)
    states = finding_states(results)
    if "fails" in states:
        print_checks(results, as_json=as_json)
    say(f"check: {states.count('holds')} properties hold, none fails")


def _require_alone(arguments: Sequence[str], options: dict[str, Any]) -> None:
    """Raise `UserError` for what `--list` does not read: arguments, and options of a new try."""
    parameters = inspect.signature(api.try_change).parameters
    ignored = list(arguments)
    for name, value in options.items():
        if name != "results_dir" and value != parameters[name].default:
            ignored.append(f"--{name.replace('_', '-')}")
    message = (
        f"--list reads finished tries, with --results-dir and --json alone: leave out {' '.join(ignored)}"
    )
    require(not ignored, message)


def _list_tries(results_dir: Path, *, as_json: bool) -> None:
    """Print a table of all tries in a folder of results, or their JSON."""
    from pe_bench.commands.try_change.trying import read_tries
    from pe_bench.render.grid import plain_grid, show

    tries = read_tries(results_dir)
    require(bool(tries), f"{results_dir} has no tries: pe-bench try my.py:RootBias makes one")
    if as_json:
        print_data("try", tries=tries)
        return
    unit = "bits per byte, or nats per token where a tokenizer loses text"
    note = f"differences in {unit}; negative is better; each baseline counts its own tries"
    show([plain_grid(TRIES_COLUMNS, map(_try_row, tries), [note]).draw])


def _try_row(tried: "Try") -> list[str | int]:
    number = f"{tried.kind} {tried.number}"
    means = (_signed_text(tried.at_training), _signed_text(tried.at_longest))
    return [number, tried.change, tried.baseline, *means, tried.seeds, tried.answer]


def _signed_text(mean: float | None) -> str:
    return "" if mean is None else f"{mean:+.4f}"
