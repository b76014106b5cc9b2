"""The `rm` command: runs that are no longer wanted."""

import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from pe_bench.cli.options import command
from pe_bench.errors import RunError, require
from pe_bench.system.cost import count
from pe_bench.system.terminal import say


@command("rm")
def remove(runs: Sequence[str], *, yes: bool = False, results_dir: Path = Path("results")) -> None:
    """Delete runs with their weights and scores.

    It names them and asks first. A run that another run starts from is kept, unless that goes too.

    runs RUN: Runs by name, encoding, or the beginning of a name; finished or not.
    yes: Delete without asking.

    Examples:
      pe-bench rm rope-s0-1a2b3c4d
      pe-bench rm rope alibi --yes
      pe-bench rm nope-s3 --results-dir results
    """
    from pe_bench.runs.remove import needed_by, remove_runs, runs_named

    named = runs_named(runs, results_dir)
    needed = needed_by(named, results_dir)
    removed = [run for run in named if run not in needed]
    for run, others in needed.items():
        say(f"kept: {run.name}, which {', '.join(others)} starts from")
    if not removed:
        raise RunError("nothing is deleted: the lines above say why")
    for run in removed:
        say(f"  {run.name}")
    if not yes:
        amount = count(len(removed), "run")
        require(sys.stdin.isatty(), f"say --yes to delete {amount} without being asked")
        typer.confirm(f"delete {amount}?", abort=True, err=True)
    remove_runs(removed, results_dir)
    say(f"{len(removed)} deleted")
