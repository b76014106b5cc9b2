"""TensorBoard: event files in the run's `tensorboard/`; scores in a folder of their own, by length.

`tensorboard --logdir results/runs` shows all runs.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from pe_bench.config.parse import to_plain
from pe_bench.config.schema import Config
from pe_bench.experiment.trackers import level_of, score_name, values_of
from pe_bench.runs.rows import Row
from pe_bench.training.log import Step


def begin(run: Path, config: Config, first: int) -> "TensorBoard":
    return TensorBoard(run / "tensorboard", config, first)


class TensorBoard:
    def __init__(self, folder: Path, config: Config, first: int):
        self.folder = folder
        # Steps after the checkpoint are taken again: TensorBoard forgets those that it has.
        self.writer = SummaryWriter(str(folder), purge_step=first + 1 if first else None)
        if not first:
            self.writer.add_text("config", f"```\n{_lines(to_plain(config))}\n```")

    def step(self, step: Step) -> None:
        for name, value in values_of(step).items():
            self.writer.add_scalar(name, value, step.step)

    def scores(self, rows: Sequence[Row]) -> None:
        folder = self.folder / "scores"  # written anew: lengths are no steps, which could be purged
        shutil.rmtree(folder, ignore_errors=True)
        with SummaryWriter(str(folder)) as writer:
            for row in rows:
                if level_of(row) is not None:
                    writer.add_scalar(score_name(row), level_of(row), row.length)

    def end(self) -> None:
        self.writer.close()


def _lines(values: dict[str, object]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in values.items())
