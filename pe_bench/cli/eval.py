"""The `eval` command: which runs, with which options, and the table of each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pe_bench.cli.report import print_run
from pe_bench.config.checks import READ_WITH, unused_keys
from pe_bench.config.override import parse_override
from pe_bench.config.parse import parse_config, parse_lengths, to_plain, without_none
from pe_bench.config.schema import Config, Protocol
from pe_bench.errors import RunError, UserError
from pe_bench.experiment.prepare import trusted
from pe_bench.experiment.score import describe_failures, score_run
from pe_bench.runs.config_file import read_config
from pe_bench.runs.find import find_run, newest_run
from pe_bench.scoring.other_encodings import WithOption, find_others
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
) -> None:
    """Score each named run, or the one that finished last; `None` in a dict leaves the run's own.

    `data_path` is where a run's data is now, `request` names other encodings to score the runs under. Raises
    `UserError` for a run that is missing or damaged and for options that cannot work, before scoring.
    """
    request = request or WithOption()
    if changes.get("protocol") is not None:
        check_type(changes["protocol"], Protocol, "--protocol")
    changes = {**changes, "lengths": parse_lengths(lengths) if lengths is not None else None}
    for path in code:
        if not path.is_file():
            raise UserError(f"--code {path} is not a file")
    runs = [find_run(name, results_dir) for name in names] or [newest_run(results_dir)]
    if not names:
        say(f"the newest finished run: {runs[0]}")
    asked = [_changed(read_config(run), changes, machine, data_path) for run in runs]
    configs = [trusted(config, code, may_differ=request.force) for config in asked]
    others = [find_others(request, run.name, config) for run, config in zip(runs, configs, strict=True)]
    failures = []
    for run, config, found in zip(runs, configs, others, strict=True):
        rows = score_run(run, config, results_dir, found)
        print_run(rows, run, config.report.margin, changes["lengths"] or ())
        failures += filter(None, [describe_failures(rows)])
    if failures:
        more = f" (and {len(failures) - 1} more runs)" if len(failures) > 1 else ""
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
