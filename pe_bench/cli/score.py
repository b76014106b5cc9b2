"""`eval` and `probe`: finished runs and checkpoints, scored, and their tables."""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from pe_bench import api
from pe_bench.checkpoints.load import check_prompts, with_one_length
from pe_bench.cli.data import print_runs
from pe_bench.cli.report import (
    Outputs,
    draw_probes,
    print_run,
    print_sweep_tables,
    tables_of_run,
    tables_of_sweep,
)
from pe_bench.errors import RunError, require
from pe_bench.report.build import probes_of_rows
from pe_bench.report.probes import show_probes
from pe_bench.report.statistics import MARGIN
from pe_bench.runs.commands import results_option
from pe_bench.runs.find import is_checkpoint, parse_condition, runs_to_score
from pe_bench.scored import Run, read_probe, score_each
from pe_bench.sweep.show import SweepTable
from pe_bench.system.terminal import say
from pe_bench.values import parse_lengths


def evaluate(
    names: Sequence[str],
    where: Sequence[str],
    everything: bool,
    baseline: str | None,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    """Score the runs or the checkpoints that `eval` names, with the options of `api.evaluate`."""
    options = {**options, "lengths": _lengths(options), "per_position": options["per_position"] or None}
    scored, failures = _score(names, where, everything, options, api.evaluate)
    # One that lies elsewhere has no folder of results to be compared in.
    is_one = len(scored) == 1 and baseline is None
    alone = [run for run in scored if is_one or run.path.parent.name != "runs"]
    compared = [run.path for run in scored if run not in alone]
    margins = {run.margin for run in scored}
    margin = margins.pop() if len(margins) == 1 else MARGIN
    hashes = dict.fromkeys(row.target_hash for run in scored for row in run.scored)
    together = [SweepTable(compared, list(hashes), margin, "")] if compared else []
    choice = {"by": ("model",) if sum(map(is_checkpoint, names)) > 1 else (), "baseline": baseline}
    if as_json:
        tables = chain(*map(tables_of_run, alone), *tables_of_sweep(together, **choice).values())
        print_runs("eval", [run.path for run in scored], failures, tables=tables)
    else:
        for run in alone:
            print_run(run)
        print_sweep_tables(together, **choice)
    _raise_failures(failures)


def probe(
    names: Sequence[str],
    where: Sequence[str],
    everything: bool,
    plot: Path | None,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    """Probe the runs or the checkpoint that `probe` names, with the options of `api.probe`."""
    outputs = Outputs({"--plot": plot} if plot else {})
    options = {**options, "lengths": _lengths(options)}
    if options["task"] is not None:
        require(plot is None, "--plot draws scores by depth, and --task has no depths: leave it out")
        _probe_prompts(names, as_json, options)
        return
    read_probe(options)  # whose mistakes come before those of RUN
    scored, failures = _score(names, where, everything, options, api.probe)
    if scored:
        runs = {run.name: run for run in scored}
        tables = probes_of_rows([row for run in scored for row in run.scored], runs.__getitem__)
        picture = "" if plot else "by depth: --plot FILE.png    "
        results_dir = Path(options["results_dir"])
        if as_json:
            print_runs("probe", [run.path for run in scored], failures, probes=tables)
        else:
            show_probes(tables, hint=f"{picture}again: pe-bench report{results_option(results_dir)} --probe")
        outputs.write({}, partial(draw_probes, tables))
    _raise_failures(failures)


def _probe_prompts(names: Sequence[str], as_json: bool, options: dict[str, Any]) -> None:
    """Score prompts of each kind with a checkpoint, and print their tables."""
    require(any(map(is_checkpoint, names)), "--task is for a checkpoint (hf:FOLDER): leave it out")
    checkpoints, overrides = _checkpoints(names)
    require(len(checkpoints) == 1, f"--task takes one checkpoint at a time, not {', '.join(checkpoints)}")
    name = checkpoints[0]
    each = [{**options, "overrides": overrides, "task": kind.strip()} for kind in options["task"].split(",")]
    check_prompts(name, overrides, [probe for one in each if (probe := read_probe(one)) is not None])
    runs = (api.probe(name, **one) for one in each)
    if as_json:
        scored = [*runs]
        print_runs("probe", [run.path for run in scored], tables=chain(*map(tables_of_run, scored)))
    else:
        for run in runs:
            print_run(run)


def _lengths(options: dict[str, Any]) -> list[int] | None:
    return parse_lengths(",".join(options["lengths"])) if options["lengths"] else None


def _score(
    names: Sequence[str], where: Sequence[str], everything: bool, options: dict[str, Any], call: Any
) -> tuple[list[Run], list[str]]:
    """Score the checkpoint or the runs that are named, that meet conditions, or all; else the newest one."""
    for name in names:
        is_folder = (Path(name) / "config.json").is_file() and not (Path(name) / "config.yaml").exists()
        require(not is_folder, f"{name} is a checkpoint of Hugging Face: say hf:{name}")
    if any(map(is_checkpoint, names)):
        require(not where and not everything, "--where and --all choose runs: leave them out of checkpoints")
        checkpoints, overrides = _checkpoints(names)
        runs = [call(name, **options, overrides=overrides) for name in checkpoints]
        return runs, [run.failure for run in runs if run.failure and call is api.probe]
    conditions = [*map(parse_condition, where)]
    runs = runs_to_score(names, conditions, Path(options["results_dir"]), everything=everything)
    if not (names or where or everything):
        say(f"the newest finished run: {runs[0]}")
    return score_each(runs, options)


def _checkpoints(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the checkpoints among the names, and the others, which are KEY=VALUE."""
    checkpoints = list(dict.fromkeys(filter(is_checkpoint, names)))
    overrides = [name for name in names if not is_checkpoint(name)]
    for override in overrides:
        require("=" in override, f"{override} is not KEY=VALUE; score runs in a command without checkpoints")
    return checkpoints, with_one_length(checkpoints, overrides)


def _raise_failures(failures: Sequence[str]) -> None:
    if failures:
        more = f" (and {len(failures) - 1} more runs)" if len(failures) > 1 else ""
        raise RunError(f"{failures[0]}{more}")
