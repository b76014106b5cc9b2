"""`eval hf:...`: score a checkpoint of Hugging Face, and print its table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pe_bench.cli.report import print_run
from pe_bench.config.parse import parse_lengths
from pe_bench.errors import require
from pe_bench.experiment.checkpoint import is_checkpoint
from pe_bench.interface.checkpoint import prepare_checkpoint_scoring
from pe_bench.interface.request import Request
from pe_bench.scoring.other_encodings import WithOption


def has_checkpoint(names: Sequence[str]) -> bool:
    """Return whether a checkpoint is among the names. Raise `UserError` for its folder without `hf:`."""
    for name in names:
        is_folder = (Path(name) / "config.json").is_file() and not (Path(name) / "config.yaml").exists()
        require(not is_folder, f"{name} is a checkpoint of Hugging Face: say hf:{name}")
    return any(map(is_checkpoint, names))


def score_named_checkpoint(
    names: Sequence[str],
    lengths: str | None,
    changes: dict[str, Any],
    machine: dict[str, Any],
    results_dir: Path,
    data_path: Path | None,
    others: WithOption,
    of_runs: Sequence[str],
    *,
    plain: bool,
) -> None:
    """Score the checkpoint among the names; the others are KEY=VALUE. Raises `UserError`, `RunError`.

    of_runs: options that were given and have no effect on a checkpoint.
    """
    checkpoint, overrides = only_checkpoint(names, of_runs)
    asked = {**changes, "lengths": parse_lengths(lengths) if lengths is not None else None}
    request = Request(asked, machine, data_path=data_path, others=others)
    run = prepare_checkpoint_scoring(checkpoint, overrides, request, results_dir, plain=plain).score()
    print_run(run.scored, run.path, run.margin, run.asked)


def only_checkpoint(names: Sequence[str], of_runs: Sequence[str]) -> tuple[str, list[str]]:
    """Return the checkpoint among the names, and the others, which must be KEY=VALUE. Raises `UserError`."""
    checkpoints = [name for name in names if is_checkpoint(name)]
    overrides = [name for name in names if not is_checkpoint(name)]
    require(len(checkpoints) == 1, f"give one checkpoint at a time, not {', '.join(checkpoints)}")
    require(not of_runs, f"{', '.join(of_runs)} has no effect on a checkpoint: leave it out")
    for override in overrides:
        require("=" in override, f"{override} is not KEY=VALUE; score runs in a command without checkpoints")
    return checkpoints[0], overrides
