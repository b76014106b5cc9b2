"""The `probe` command: which runs or which checkpoint, with which windows, and the table of all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pe_bench.cli.checkpoint import has_checkpoint, only_checkpoint
from pe_bench.cli.eval import naming
from pe_bench.cli.outputs import Outputs, check_outputs
from pe_bench.cli.report import print_run, report_option
from pe_bench.config.parse import parse_lengths
from pe_bench.errors import RunError, UserError, require
from pe_bench.experiment.checkpoint import check_prompts
from pe_bench.interface.checkpoint import prepare_checkpoint_scoring
from pe_bench.interface.evaluate import Scoring, prepare_scoring
from pe_bench.interface.probe import read_probe
from pe_bench.interface.request import Request
from pe_bench.report.probes import show_probes
from pe_bench.report.tables.build import probes_of_rows
from pe_bench.runs.conditions import parse_condition, runs_to_score
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.rows import Row
from pe_bench.scoring.needles import Probe
from pe_bench.scoring.other_encodings import WithOption
from pe_bench.system.terminal import say


@dataclass(frozen=True)
class ProbeOptions:
    """The options of the command, as they were typed: those of `eval` that a probe has too.

    machine: device, threads and cache_dir. others: encodings to probe the weights under too.
    """

    names: Sequence[str]
    where: Sequence[str]
    everything: bool
    precision: str | None
    machine: dict[str, Any]
    code: Sequence[Path]
    data_path: Path | None
    others: WithOption
    plain: bool
    plot: Path | None


def probe_runs(lengths: str | None, probe: Probe, options: ProbeOptions, results_dir: Path) -> None:
    """Score the windows of a probe and print their table.

    Raises `UserError` for all that can be wrong, before anything is scored, and `RunError` at the end for
    runs that could not be scored.
    """
    check_outputs(Outputs(plot=options.plot))
    request = _request(_with_lengths(probe, lengths), options)
    if has_checkpoint(options.names):
        _probe_checkpoint(request, options, results_dir)
        return
    require(not options.plain, "--plain is for a checkpoint: say pe-bench probe hf:FOLDER --plain")
    request.check_code()
    conditions = [*map(parse_condition, options.where)]
    runs = runs_to_score(options.names, conditions, results_dir, everything=options.everything)
    request.check_runs(runs)
    if not (options.names or options.where or options.everything):
        say(f"the newest finished run: {runs[0]}")
    scorings: list[Scoring] = []
    for run in runs:
        with naming(run, runs):
            scorings.append(prepare_scoring(run, request))
    rows, failures = _score(scorings, results_dir)
    if rows:
        _show(rows, {run.name: run for run in runs}, options.plot, results_dir)
    if failures:
        more = f" (and {len(failures) - 1} more of {len(scorings)} runs)" if len(failures) > 1 else ""
        raise RunError(f"{failures[0]}{more}")


def probe_prompts(
    kinds: str, lengths: str | None, probe: Probe, options: ProbeOptions, results_dir: Path
) -> None:
    """Score prompts of each kind with a checkpoint, and print their tables.

    Raises `UserError` for every wrong option before anything is scored.
    """
    require(options.plot is None, "--plot draws scores by depth, and --task has no depths: leave it out")
    message = "--task is for a checkpoint (hf:FOLDER): train a run on a task instead (pe-bench list tasks)"
    require(has_checkpoint(options.names), message)
    probe = _with_lengths(probe, lengths)
    probes = [replace(probe, prompts=kind.strip()) for kind in kinds.split(",")]
    checkpoint, overrides = _checkpoint_in(options)
    check_prompts(checkpoint, overrides, probes)
    for probe in probes:
        request = _request(probe, options)
        scoring = prepare_checkpoint_scoring(checkpoint, overrides, request, results_dir, plain=options.plain)
        run = scoring.score()
        print_run(run.scored, run.path, run.margin, probe.lengths or ())


def _with_lengths(probe: Probe, lengths: str | None) -> Probe:
    """Return what is probed. Raise `UserError` for lengths and depths that cannot work."""
    return read_probe(parse_lengths(lengths) if lengths is not None else None, probe.depths, probe.windows)


def _request(probe: Probe, options: ProbeOptions) -> Request:
    return Request(
        {"precision": options.precision},
        options.machine,
        options.code,
        options.data_path,
        options.others,
        probe=probe,
    )


def _score(scorings: Sequence[Scoring], results_dir: Path) -> tuple[list[Row], list[str]]:
    """Return the rows of all runs, and a line for each that could not be scored."""
    rows: list[Row] = []
    failures: list[str] = []
    for place, scoring in enumerate(scorings, 1):
        name = scoring.run.name
        if len(scorings) > 1:
            say(f"run {place} of {len(scorings)}: {name}")
        try:
            run = scoring.score(results_dir)
        except (RunError, UserError) as error:
            if len(scorings) == 1:
                raise
            say(f"warning: {name} could not be scored: {error}")
            failures.append(f"{name}: {error}")
            continue
        rows += run.scored
        failures += filter(None, [run.failure])
    return rows, failures


def _probe_checkpoint(request: Request, options: ProbeOptions, results_dir: Path) -> None:
    checkpoint, overrides = _checkpoint_in(options)
    scoring = prepare_checkpoint_scoring(checkpoint, overrides, request, results_dir, plain=options.plain)
    run = scoring.score()
    _show(run.scored, {run.name: run.path}, options.plot, results_dir)
    if run.failure:
        raise RunError(run.failure)


def _checkpoint_in(options: ProbeOptions) -> tuple[str, list[str]]:
    of_runs = {"--where": options.where, "--all": options.everything, "--code": options.code}
    return only_checkpoint(options.names, [option for option, value in of_runs.items() if value])


def _show(rows: Sequence[Row], runs: dict[str, Path], plot: Path | None, results_dir: Path) -> None:
    tables = probes_of_rows(rows, lambda name: RunFolder(runs[name]))
    place = report_option(results_dir)
    picture = [] if plot is not None else ["by depth: --plot FILE.png"]
    show_probes(tables, hint="    ".join([*picture, f"again: pe-bench report{place} --probe"]))
    if plot is not None:
        from pe_bench.report.charts.heat_figure import plot_probes

        plot_probes(tables, plot)
        say(f"wrote {plot}")
