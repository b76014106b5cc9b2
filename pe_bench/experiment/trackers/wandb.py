"""Weights & Biases: offline in `results/wandb/` unless WANDB_MODE says otherwise; `wandb sync` sends it.

Not in the run's directory: it makes symbolic links to its logs, and a run holds none.
"""

import importlib
import os
from collections.abc import Sequence
from pathlib import Path

from pe_bench.config.parse import to_plain
from pe_bench.config.schema import Config
from pe_bench.experiment.trackers import level_of, score_name, values_of
from pe_bench.runs.rows import Row
from pe_bench.training.log import Step


def begin(run: Path, config: Config, first: int) -> "WeightsAndBiases":
    return WeightsAndBiases(run, config)


class WeightsAndBiases:
    def __init__(self, run: Path, config: Config):
        library = importlib.import_module("wandb")
        mode = os.environ.get("WANDB_MODE", "offline")
        self.run = library.init(
            project=os.environ.get("WANDB_PROJECT", "pe-bench"),
            id=run.name,
            name=run.name,
            dir=config.results_dir,
            config=to_plain(config),
            mode=mode,
            # Offline there is nothing to look up: what is sent later under one id is one record.
            resume=None if mode == "offline" else "allow",
            settings=library.Settings(silent=True, disable_git=True, save_code=False),
        )

    def step(self, step: Step) -> None:
        self.run.log(values_of(step), step=step.step)

    def scores(self, rows: Sequence[Row]) -> None:
        self.run.summary.update({f"{score_name(row)}/{row.length}": level_of(row) for row in rows})

    def end(self) -> None:
        self.run.finish()
