"""`eval hf:...`: score a checkpoint of Hugging Face, and print its table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pe_bench.cli.report import print_run
from pe_bench.config.checks import check_folder
from pe_bench.config.parse import parse_lengths, without_none
from pe_bench.errors import require
from pe_bench.experiment.checkpoint import prepare_checkpoint, score_checkpoint
from pe_bench.scoring.other_encodings import WithOption, find_others

PREFIX = "hf:"


def is_checkpoint(names: Sequence[str]) -> bool:
    return any(name.startswith(PREFIX) for name in names)


def score_named_checkpoint(
    names: Sequence[str],
    lengths: str | None,
    changes: dict[str, Any],
    machine: dict[str, Any],
    results_dir: Path,
    data_path: Path | None,
    request: WithOption,
    *,
    plain: bool,
) -> None:
    """Score the checkpoint among the names; the others are KEY=VALUE. Raises `UserError`, `RunError`."""
    checkpoints = [name for name in names if name.startswith(PREFIX)]
    overrides = [name for name in names if not name.startswith(PREFIX)]
    require(len(checkpoints) == 1, f"give one checkpoint at a time, not {', '.join(checkpoints)}")
    for override in overrides:
        require("=" in override, f"{override} is not KEY=VALUE; score runs in a command without checkpoints")
    check_folder(results_dir, "--results-dir", is_written=True)
    if data_path is not None:
        overrides.append(f"data.path={data_path}")
    asked = parse_lengths(lengths) if lengths is not None else None
    changes = without_none({**changes, "lengths": asked})
    job = prepare_checkpoint(checkpoints[0], overrides, changes, machine, results_dir, plain=plain)
    config = job.setup.config
    others = find_others(request, job.setup.run.name, config)
    rows = score_checkpoint(job, others)
    print_run(rows, job.setup.run, config.report.margin, asked or ())
