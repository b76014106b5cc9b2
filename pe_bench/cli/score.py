"""`eval` and `probe`: finished runs and checkpoints, scored, and their tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pe_bench import api
from pe_bench.checkpoints.load import check_prompts
from pe_bench.cli.report import Outputs, check_outputs, print_run, print_sweep_tables
from pe_bench.config.parse import parse_lengths
from pe_bench.config.schema import Protocol
from pe_bench.errors import RunError, require
from pe_bench.report.build import probes_of_rows
from pe_bench.report.probes import show_probes
from pe_bench.report.statistics import MARGIN
from pe_bench.runs.commands import results_option
from pe_bench.runs.find import parse_condition, runs_to_score
from pe_bench.sweep.states import SweepTable
from pe_bench.system.terminal import say
from pe_bench.values import check_type

NOT_OF_CHECKPOINTS = {
    "where": "--where",
    "everything": "--all",
    "key_tokens_of": "--key-tokens-of",
    "code": "--code",
}


def evaluate(runs: Sequence[str] | None, **options: Any) -> None:
    """Score the runs or the checkpoint that `eval` names, with the options of `api.evaluate`."""
    options = {**_read(options), "per_position": options["per_position"] or None}
    if options["protocol"] is not None:  # a mistake in it comes before those of RUN
        check_type(options["protocol"], Protocol, "--protocol")
    if _has_checkpoint(runs):
        name, options = _only_checkpoint(runs, options)
        _print_run(api.evaluate(name, **options))
        return
    paths, scored, failures = _score(runs, options)
    if len(paths) == 1:
        _print_run(scored[0])
    else:
        elsewhere = [run for run in scored if run.path.parent.name != "runs"]
        for run in elsewhere:  # there is no folder of results to compare it in
            _print_run(run)
        compared = [run.path for run in scored if run not in elsewhere]
        margins = {run.margin for run in scored}
        margin = margins.pop() if len(margins) == 1 else MARGIN
        hashes = dict.fromkeys(row.target_hash for run in scored for row in run.scored)
        print_sweep_tables([SweepTable(compared, list(hashes), margin, "")] if compared else [])
    _raise_failures(failures, len(paths))


def probe(runs: Sequence[str] | None, task: str | None, plot: Path | None, **options: Any) -> None:
    """Probe the runs or the checkpoint that `probe` names, with the options of `api.probe`."""
    check_outputs(Outputs(plot=plot))
    options = {**_read(options), "task": None}
    if task is not None:
        require(plot is None, "--plot draws scores by depth, and --task has no depths: leave it out")
        _probe_prompts(runs, [kind.strip() for kind in task.split(",")], options)
        return
    api.read_probe(options)  # whose mistakes come before those of RUN
    if _has_checkpoint(runs):
        name, options = _only_checkpoint(runs, options)
        run = api.probe(name, **options)
        paths, scored, failures = [run.path], [run], [run.failure] if run.failure else []
    else:
        paths, scored, failures = _score(runs, options)
    if scored:
        _show_probes(scored, plot, options["results_dir"])
    _raise_failures(failures, len(paths))


def _probe_prompts(names: Sequence[str] | None, kinds: Sequence[str], options: Mapping[str, Any]) -> None:
    """Score prompts of each kind with a checkpoint, and print their tables."""
    way_out = "train a run on a task instead (pe-bench list tasks)"
    require(_has_checkpoint(names), f"--task is for a checkpoint (hf:FOLDER): {way_out}")
    name, options = _only_checkpoint(names, options)
    probes = [api.read_probe({**options, "task": kind}) for kind in kinds]
    check_prompts(name, options["overrides"], probes)
    for kind in kinds:
        _print_run(api.probe(name, **{**options, "task": kind}))


def _read(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as the functions of the API take them."""
    lengths = options["lengths"]
    return {**options, "lengths": None if lengths is None else parse_lengths(lengths)}


def _has_checkpoint(names: Sequence[str] | None) -> bool:
    """Return whether a checkpoint is among the names. Raise `UserError` for its folder without `hf:`."""
    for name in names or []:
        is_folder = (Path(name) / "config.json").is_file() and not (Path(name) / "config.yaml").exists()
        require(not is_folder, f"{name} is a checkpoint of Hugging Face: say hf:{name}")
    return any(map(api.is_checkpoint, names or []))


def _only_checkpoint(names: Sequence[str] | None, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the checkpoint among the names, and the options for it with the others, which are KEY=VALUE."""
    checkpoints = [name for name in names or [] if api.is_checkpoint(name)]
    overrides = [name for name in names or [] if not api.is_checkpoint(name)]
    require(len(checkpoints) == 1, f"give one checkpoint at a time, not {', '.join(checkpoints)}")
    of_runs = [spelled for name, spelled in NOT_OF_CHECKPOINTS.items() if options.get(name)]
    require(not of_runs, f"{', '.join(of_runs)} has no effect on a checkpoint: leave it out")
    for override in overrides:
        require("=" in override, f"{override} is not KEY=VALUE; score runs in a command without checkpoints")
    kept = {name: value for name, value in options.items() if name not in ("where", "everything")}
    return checkpoints[0], {**kept, "overrides": overrides}


def _score(
    names: Sequence[str] | None, options: Mapping[str, Any]
) -> tuple[list[Path], list[api.Run], list[str]]:
    """Score the runs that are named, that meet conditions, or all; else the one finished last."""
    where, everything = options["where"] or [], options["everything"]
    require(not options["plain"], "--plain is for a checkpoint: say it with hf:FOLDER")
    conditions = [*map(parse_condition, where)]
    runs = runs_to_score(names or [], conditions, options["results_dir"], everything=everything)
    if not (names or where or everything):
        say(f"the newest finished run: {runs[0]}")
    return runs, *api.score_runs(runs, options)


def _print_run(run: api.Run) -> None:
    print_run(run.scored, run.path, run.margin, run.asked)


def _raise_failures(failures: Sequence[str], count: int) -> None:
    if failures:
        more = f" (and {len(failures) - 1} more of {count} runs)" if len(failures) > 1 else ""
        raise RunError(f"{failures[0]}{more}")


def _show_probes(scored: Sequence[api.Run], plot: Path | None, results_dir: Path) -> None:
    runs = {run.name: run for run in scored}
    tables = probes_of_rows([row for run in scored for row in run.scored], runs.__getitem__)
    picture = [] if plot is not None else ["by depth: --plot FILE.png"]
    again = f"again: pe-bench report{results_option(results_dir)} --probe"
    show_probes(tables, hint="    ".join([*picture, again]))
    if plot is not None:
        from pe_bench.report.heat import plot_probes

        plot_probes(tables, plot)
        say(f"wrote {plot}")
