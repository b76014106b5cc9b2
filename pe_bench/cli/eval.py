"""The `eval` command: which runs, with which options, and the table of each."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pe_bench.cli.report import print_run, print_sweep_tables
from pe_bench.config.parse import parse_lengths
from pe_bench.config.schema import Protocol
from pe_bench.errors import RunError, UserError
from pe_bench.interface.evaluate import Scoring, prepare_scoring
from pe_bench.interface.request import Request
from pe_bench.interface.run import Run
from pe_bench.report.statistics import MARGIN
from pe_bench.runs.conditions import parse_condition, runs_to_score
from pe_bench.runs.find import find_run
from pe_bench.runs.identity import encoding_in
from pe_bench.scoring.other_encodings import WithOption
from pe_bench.sweep.summary import SweepTable
from pe_bench.system.terminal import say
from pe_bench.values import check_type


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
    judge: str | None = None,
    *,
    everything: bool = False,
) -> None:
    """Score the runs that are named, that meet the conditions `where`, or all; else the one finished last.

    `None` in a dict leaves the run's own. `data_path` is where a run's data is now, `request` names other
    encodings to score the runs under, and `judge` a run whose scores decide which targets are key. Raises
    `UserError` for a run that is missing or damaged and for options that cannot work, before scoring; and
    `RunError` at the end for runs that could not be scored.
    """
    if changes.get("protocol") is not None:
        check_type(changes["protocol"], Protocol, "--protocol")
    changes = {**changes, "lengths": parse_lengths(lengths) if lengths is not None else None}
    judging = find_run(judge, results_dir) if judge is not None else None
    wanted = Request(changes, machine, code, data_path, request or WithOption(), judging)
    wanted.check_code()
    runs = runs_to_score(names, [*map(parse_condition, where)], results_dir, everything=everything)
    if not (names or where or everything):
        say(f"the newest finished run: {runs[0]}")
    scorings: list[Scoring] = []
    for run in runs:
        with naming(run, runs):
            scorings.append(prepare_scoring(run, wanted))
    if len(runs) > 1:
        _score_many(scorings, results_dir)
        return
    scored = scorings[0].score(results_dir)
    print_run(scored.scored, scored.path, scored.margin, scored.asked)
    if scored.failure:
        raise RunError(scored.failure)


@contextmanager
def naming(run: Path, runs: Sequence[Path]) -> Iterator[None]:
    """Name the run in a `UserError` where it is one of several."""
    try:
        yield
    except UserError as error:
        if len(runs) == 1:
            raise
        without = shlex.quote(f"encoding!={encoding_in(run.name)}")
        raise UserError(f"{run.name}: {error}; or leave it out with --where {without}") from error


def _score_many(scorings: Sequence[Scoring], results_dir: Path) -> None:
    """Score run after run and print their tables. Raise `RunError` at the end for those that failed."""
    failures: list[str] = []
    scored: list[Run] = []
    for place, scoring in enumerate(scorings, 1):
        name = scoring.run.name
        say(f"run {place} of {len(scorings)}: {name}")
        try:
            run = scoring.score(results_dir)
        except (RunError, UserError) as error:
            say(f"warning: {name} could not be scored: {error}")
            failures.append(f"{name}: {error}")
            continue
        scored.append(run)
        if run.path.parent.name != "runs":  # there is no folder of results to compare it in
            print_run(run.scored, run.path, run.margin)
        failures += filter(None, [run.failure])
    margins = {scoring.config.report.margin for scoring in scorings}
    margin = margins.pop() if len(margins) == 1 else MARGIN
    hashes = dict.fromkeys(row.target_hash for run in scored for row in run.scored)
    compared = [run.path for run in scored if run.path.parent.name == "runs"]
    print_sweep_tables([SweepTable(compared, list(hashes), margin, "")] if compared else [])
    if failures:
        more = f" (and {len(failures) - 1} more of {len(scorings)} runs)" if len(failures) > 1 else ""
        raise RunError(f"{failures[0]}{more}")
