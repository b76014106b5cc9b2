"""Show where the time of a run goes, stage by stage: `python benchmarks/stages.py [OVERRIDES]`.

It runs `pe-bench train` in this process and in a temporary folder, with a clock around the parts of it, and
prints each stage with its seconds and its processor seconds. A stage does not count those that it called.
Without overrides it is the default run with encoding=rope.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import wraps
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from interleaved import machine, print_table

from pe_bench.cli.program import run
from pe_bench.commands import job, train
from pe_bench.data.batches import TrainingWindows
from pe_bench.runs import folder as runs
from pe_bench.scoring import rows as rows_of_scores
from pe_bench.scoring.scorer import Scorer
from pe_bench.training import checkpoint
from pe_bench.training.optimizer import Optimizer
from pe_bench.training.trainer import Trainer

START = "import sys; from pe_bench.cli.app import app; import pe_bench.cli.tables, pe_bench.commands.train"
REST = "configuration, files and all else"


@dataclass
class Clock:
    """Seconds by stage, on the wall and on the processor, each without those of the stages within it."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _since: tuple[float, float] = (0.0, 0.0)

    def enter(self, stage: str) -> None:
        self._settle()
        self._open.append(stage)
        self.calls[stage] = self.calls.get(stage, 0) + 1

    def leave(self) -> None:
        self._settle()
        self._open.pop()

    def _settle(self) -> None:
        now = time.perf_counter(), time.process_time()
        if self._open:
            spent = self.seconds.setdefault(self._open[-1], [0.0, 0.0])
            for kind in range(2):
                spent[kind] += now[kind] - self._since[kind]
        self._since = now

    def around(self, owner: Any, name: str, stage: str | Callable[..., str]) -> None:
        """Put the clock around a function; `stage` may follow from its arguments."""
        inner = getattr(owner, name)

        @wraps(inner)
        def timed(*given: Any, **named: Any) -> Any:
            self.enter(stage if isinstance(stage, str) else stage(*given, **named))
            try:
                return inner(*given, **named)
            finally:
                self.leave()

        setattr(owner, name, timed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", default=["encoding=rope"], help="as for pe-bench train")
    overrides = parser.parse_args().overrides
    clock = Clock()
    watch_parts(clock)
    clock.seconds["start: Python and imports"] = started()
    with tempfile.TemporaryDirectory() as folder:
        clock.enter(REST)
        code, said = run_quietly(["train", *overrides, f"results_dir={Path(folder) / 'results'}"])
        clock.leave()
    if code != 0:
        sys.exit(said)
    print(f"{machine()}\npe-bench train {' '.join(overrides)}\n")
    print_table(["stage", "calls", "s", "processor s", "share"], rows(clock), left=1)


def watch_parts(clock: Clock) -> None:
    """Put the clock around the stages of a run."""
    for owner, name, stage in (
        (job, "load_data", "data"),
        (job, "build_decoder", "model: built"),
        (job, "dry_run_training", "model: first try"),
        (train, "make_plans", "plans of scoring"),
        (TrainingWindows, "batch", "training: windows"),
        (Trainer, "_nll", "training: forward"),
        (torch.Tensor, "backward", "training: backward"),
        (Trainer, "_clip", "training: clipping"),
        (Optimizer, "step", "training: optimizer"),
        (Trainer, "step", "training: rest of a step"),
        (Trainer, "validation_loss", "training: validation, but for its forward passes"),
        (checkpoint, "save_checkpoint", "training: checkpoints"),
        (train, "fit", "training: all else"),
        (train, "score_encodings", "scoring: weights, checks and rows"),
        (rows_of_scores, "save_scores", "scoring: files"),
        (train, "score_missing_anchors", "anchors"),
        (runs, "gather_and_warn", "results.csv"),
    ):
        clock.around(owner, name, stage)
    clock.around(Scorer, "score", lambda _, plan: f"scoring: {plan.length:>6,} {kind_of(plan)}")
    from pe_bench.cli import tables

    clock.around(tables, "print_scored", "table")


def kind_of(plan: Any) -> str:
    return plan.protocol if plan.control == "none" else f"{plan.control} control"


def started() -> list[float]:
    """Return the seconds that a process takes to import what a run needs, and what this one's took."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", f"{START}; import time; print(time.process_time())"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [time.perf_counter() - began, float(done.stdout)]


def run_quietly(arguments: Sequence[str]) -> tuple[int, str]:
    """Return the exit code of a command, and what it said."""
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = run(list(arguments))
    return code, said.getvalue()


def rows(clock: Clock) -> list[list[str]]:
    """Return a row for each stage, for each group of stages, and for all."""
    total = [sum(spent[kind] for spent in clock.seconds.values()) for kind in range(2)]
    groups: dict[str, list[float]] = {}
    for stage, spent in clock.seconds.items():
        group = groups.setdefault(f"all {stage.partition(':')[0]}" if ":" in stage else "", [0.0, 0.0])
        for kind in range(2):
            group[kind] += spent[kind]
    groups.pop("", None)
    in_order = sorted(clock.seconds.items(), key=lambda item: item[0].partition(":")[0])
    found = [*in_order, *groups.items(), ("all", total)]
    return [
        [
            stage,
            f"{clock.calls.get(stage, '')}",
            f"{spent[0]:.1f}",
            f"{spent[1]:.1f}",
            f"{spent[0] / total[0]:.0%}",
        ]
        for stage, spent in found
    ]


if __name__ == "__main__":
    main()
