"""The `eval` command: which runs, with which options, and the table of each."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pe_bench.cli.report import print_run, print_sweep_tables
from pe_bench.config.checks import READ_WITH, unused_keys
from pe_bench.config.override import parse_override
from pe_bench.config.parse import parse_config, parse_lengths, to_plain, without_none
from pe_bench.config.schema import Config, Protocol
from pe_bench.errors import RunError, UserError
from pe_bench.experiment.prepare import trusted
from pe_bench.experiment.score import describe_failures, score_run
from pe_bench.report.statistics import MARGIN
from pe_bench.runs.conditions import parse_condition, runs_to_score
from pe_bench.runs.config_file import read_config
from pe_bench.runs.identity import encoding_in
from pe_bench.scoring.other_encodings import OtherEncoding, WithOption, find_others
from pe_bench.sweep.summary import SweepTable
from pe_bench.system.terminal import say
from pe_bench.values import check_type

Job = tuple[Path, Config, list[OtherEncoding]]


def score_runs(
    names: Sequence[str],
    lengths: str | None,
    changes: dict[str, Any],
    machine: dict[str, Any],
    code: Sequence[Path],
    results_dir: Path,
    data_path: Path | None = None,
    request: WithOption | None = None,
    where: Sequence[str] = (),
    *,
    everything: bool = False,
) -> None:
    """Score the runs that are named, that meet the conditions `where`, or all; else the one finished last.

    `None` in a dict leaves the run's own. `data_path` is where a run's data is now, `request` names other
    encodings to score the runs under. Raises `UserError` for a run that is missing or damaged and for options
    that cannot work, before scoring; and `RunError` at the end for runs that could not be scored.
    """
    request = request or WithOption()
    if changes.get("protocol") is not None:
        check_type(changes["protocol"], Protocol, "--protocol")
    changes = {**changes, "lengths": parse_lengths(lengths) if lengths is not None else None}
    for path in code:
        if not path.is_file():
            raise UserError(f"--code {path} is not a file")
    runs = runs_to_score(names, [*map(parse_condition, where)], results_dir, everything=everything)
    if not (names or where or everything):
        say(f"the newest finished run: {runs[0]}")
    jobs: list[Job] = []
    for run in runs:
        with _naming(run, runs):
            asked = _changed(read_config(run), changes, machine, data_path)
            config = trusted(asked, code, may_differ=request.force)
            jobs.append((run, config, find_others(request, run.name, config)))
    if len(runs) == 1:
        run, config, others = jobs[0]
        rows = score_run(run, config, results_dir, others)
        print_run(rows, run, config.report.margin, changes["lengths"] or ())
        if failure := describe_failures(rows):
            raise RunError(failure)
    else:
        _score_many(jobs, results_dir)


@contextmanager
def _naming(run: Path, runs: Sequence[Path]) -> Iterator[None]:
    """Name the run in a `UserError` where it is one of several."""
    try:
        yield
    except UserError as error:
        if len(runs) == 1:
            raise
        without = shlex.quote(f"encoding!={encoding_in(run.name)}")
        raise UserError(f"{run.name}: {error}; or leave it out with --where {without}") from error


def _score_many(jobs: Sequence[Job], results_dir: Path) -> None:
    """Score run after run and print their tables. Raise `RunError` at the end for those that failed."""
    failures: list[str] = []
    hashes: dict[str, None] = {}
    scored: list[Path] = []
    for place, (run, config, others) in enumerate(jobs, 1):
        say(f"run {place} of {len(jobs)}: {run.name}")
        try:
            rows = score_run(run, config, results_dir, others)
        except (RunError, UserError) as error:
            say(f"warning: {run.name} could not be scored: {error}")
            failures.append(f"{run.name}: {error}")
            continue
        if run.parent.name == "runs":
            scored.append(run)
        else:  # there is no folder of results to compare it in
            print_run(rows, run, config.report.margin)
        hashes |= dict.fromkeys(row.target_hash for row in rows)
        failures += filter(None, [describe_failures(rows)])
    margins = {config.report.margin for _, config, _ in jobs}
    margin = margins.pop() if len(margins) == 1 else MARGIN
    print_sweep_tables([SweepTable(scored, list(hashes), margin, "")] if scored else [])
    if failures:
        more = f" (and {len(failures) - 1} more of {len(jobs)} runs)" if len(failures) > 1 else ""
        raise RunError(f"{failures[0]}{more}")


def _changed(
    trained: Config, changes: dict[str, Any], machine: dict[str, Any], data_path: Path | None
) -> Config:
    """Return the run's configuration with the user's changes, checked like any other."""
    # A run may come from a stranger: where tokens are cached is for its reader to say.
    values = {**to_plain(trained), "cache_dir": None, **without_none(machine)}
    if changes.get("protocol") not in (None, "paired"):
        values["eval"]["controls"] = "auto"  # the run's own are of another protocol
    values["eval"].update(without_none(changes))
    if data_path is not None:
        values["data"]["path"] = str(data_path)
    config = parse_config(values)
    _refuse_unused(config, changes)
    return config


def _refuse_unused(config: Config, changes: dict[str, Any]) -> None:
    """Raise `UserError` for an option without effect; the run's own keys may be of another protocol."""
    for key in unused_keys(config.data, config.eval):
        name = key.removeprefix("eval.")
        if changes.get(name) is not None:
            protocol = parse_override(READ_WITH[key][0]).value
            raise UserError(
                f"--{name} has no effect with --protocol {config.eval.protocol}: remove it, or say "
                f"--protocol {protocol}"
            )
