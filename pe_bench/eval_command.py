"""The `eval` command: which runs, with which options, and the table of each."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pe_bench.config import parse_config, parse_lengths, to_plain, without_none
from pe_bench.errors import UserError
from pe_bench.experiment import score_run
from pe_bench.report_command import print_run
from pe_bench.runs import find_run, newest_run, read_config


def score_runs(
    words: Sequence[str],
    lengths: str | None,
    changes: dict[str, Any],
    machine: dict[str, Any],
    code: Sequence[Path],
    results_dir: Path,
) -> None:
    """Score each named run, or the one that finished last; `None` in a dict leaves the run's own.

    Raises `UserError` for a run that is missing or damaged and for options that cannot work.
    """
    changes = {**changes, "lengths": parse_lengths(lengths) if lengths is not None else None}
    for path in code:
        if not path.is_file():
            raise UserError(f"--code {path} is not a file")
    runs = [find_run(word, results_dir) for word in words] or [newest_run(results_dir)]
    if not words:
        print(f"the newest finished run: {runs[0]}", file=sys.stderr)
    for run in runs:
        trained = read_config(run)
        values = to_plain(replace(trained, **without_none(machine)))
        values["eval"].update(without_none(changes))
        config = parse_config(values)
        print_run(score_run(run, config, config.eval, code), results_dir)
