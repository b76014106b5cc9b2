"""Trackers, which record the losses and scores of a run too: none by default.

The run's own files are the truth. Whatever a tracker does, a run goes on: when it fails, that is said once.
"""

import importlib
import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pe_bench.config.parse import to_plain
from pe_bench.config.schema import Config
from pe_bench.errors import first_line, how_to_install, require
from pe_bench.runs.rows import TASK, Row, level_of
from pe_bench.runs.typed import group_of_command
from pe_bench.system.terminal import say
from pe_bench.training.checkpoint import Step, latest_checkpoint, read_log

if TYPE_CHECKING:
    from pe_bench.report.records import Table


class TensorBoard:
    """Event files in the run's `tensorboard/`; results in a folder of their own, with scores by length.

    `tensorboard --logdir results/runs` shows all runs.
    """

    def __init__(self, run: Path, config: Config, first: int):
        self.writer_class: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self.folder = run / "tensorboard"
        # Steps after the checkpoint are taken again: TensorBoard forgets those that it has.
        self.writer = self.writer_class(str(self.folder), purge_step=first + 1 if first else None)
        if not first:
            lines = "\n".join(f"{name}: {value}" for name, value in to_plain(config).items())
            self.writer.add_text("config", f"```\n{lines}\n```")

    def step(self, step: Step) -> None:
        for name, value in _values_of(step).items():
            self.writer.add_scalar(name, value, step.step)

    def results(self, rows: Sequence[Row], tables: Sequence["Table"], picture: Path) -> None:
        from matplotlib.image import imread

        from pe_bench.report.columns import to_markdown

        folder = self.folder / "scores"  # written anew: lengths are no steps, which could be purged
        shutil.rmtree(folder, ignore_errors=True)
        with self.writer_class(str(folder)) as writer:
            for row in rows:
                writer.add_scalar(_score_name(row), _level_of(row), row.length)
            writer.add_text("results", to_markdown(tables))
            writer.add_image("results", imread(picture)[:, :, :3], dataformats="HWC")

    def end(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """Offline in `results/wandb/` unless WANDB_MODE says otherwise; `wandb sync` sends it.

    Not in the run's directory: it makes symbolic links to its logs, and a run holds none.
    """

    def __init__(self, run: Path, config: Config, first: int):
        self.library: Any = importlib.import_module("wandb")
        mode = os.environ.get("WANDB_MODE", "offline")
        self.run = self.library.init(
            project=os.environ.get("WANDB_PROJECT", "pe-bench"),
            id=run.name,
            name=run.name,
            group=group_of_command(),
            dir=config.results_dir,
            config=to_plain(config),
            mode=mode,
            resume=None if mode == "offline" else "allow",
            settings=self.library.Settings(silent=True, disable_git=True, save_code=False),
        )
        # The last record sent replaces others with its id, so each gets all steps.
        for step in read_log(run / "train.csv", first) if mode == "offline" else []:
            self.step(step)

    def step(self, step: Step) -> None:
        self.run.log(_values_of(step), step=step.step)

    def results(self, rows: Sequence[Row], tables: Sequence["Table"], picture: Path) -> None:
        from pe_bench.report.columns import to_frame

        self.run.summary.update({f"{_score_name(row)}/{row.length}": _level_of(row) for row in rows})
        frame = to_frame(tables).astype(object)
        cells = frame.where(frame.notna(), None).to_numpy().tolist()
        table = self.library.Table(columns=[*frame.columns], data=cells, allow_mixed_types=True)
        self.run.log({"results": table, "curves": self.library.Image(str(picture))})

    def end(self) -> None:
        self.run.finish()


class MLflow:
    """A database in the run's `mlflow/` unless MLFLOW_TRACKING_URI names a server."""

    def __init__(self, run: Path, config: Config, first: int):
        folder = (run / "mlflow").resolve()
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if address is None:
            folder.mkdir(exist_ok=True)
            address = f"sqlite:///{folder / 'mlflow.db'}"
        self.entities = importlib.import_module("mlflow.entities")
        self.client = importlib.import_module("mlflow.tracking").MlflowClient(address)
        experiment = self.client.get_experiment_by_name("pe-bench")
        number = getattr(experiment, "experiment_id", None)
        number = number or self.client.create_experiment("pe-bench", str(folder / "artifacts"))
        runs = self.client.search_runs([number], f"tags.mlflow.runName = '{run.name}'")
        if runs:
            self.id = runs[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
        else:
            tags = {"group": group_of_command() or run.name}
            self.id = self.client.create_run(number, tags=tags, run_name=run.name).info.run_id
            values = [self.entities.Param(name, str(value)) for name, value in to_plain(config).items()]
            self.client.log_batch(self.id, params=values)

    def step(self, step: Step) -> None:
        self._log([(name, value, step.step) for name, value in _values_of(step).items()])

    def results(self, rows: Sequence[Row], tables: Sequence["Table"], picture: Path) -> None:
        from pe_bench.report.columns import to_csv

        self._log([(_score_name(row), _level_of(row), row.length) for row in rows])
        self.client.log_text(self.id, to_csv(tables), "results.csv")
        self.client.log_artifact(self.id, str(picture))

    def end(self) -> None:
        self.client.set_terminated(self.id)

    def _log(self, values: Sequence[tuple[str, Any, int]]) -> None:
        now = int(time.time() * 1000)
        metrics = [self.entities.Metric(name, value, now, step) for name, value, step in values]
        self.client.log_batch(self.id, metrics)


# Each takes the run's directory, its configuration, and the step from which it goes on. `step` records a row
# of train.csv. `results` records all rows under the run's own encoding, perhaps some of them again, and its
# tables with their picture.
TRACKERS: dict[str, Callable[[Path, Config, int], Any]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


class Tracking:
    """The tracker that `tracker=` names, if any, for as long as that works; a run's record goes on."""

    def __init__(self, run: Path, config: Config):
        self.run = run
        self.config = config
        self.tracker = None
        if config.tracker is not None:
            checkpoint = latest_checkpoint(run / "checkpoints")
            first = checkpoint.step if checkpoint else 0
            self.tracker = self._forgiven(TRACKERS[config.tracker], run, config, first)

    def step(self, step: Step) -> None:
        is_due = step.step % self.config.train.log_every == 0 or step.validation_loss is not None
        if self.tracker is not None and is_due:
            self._forgiven(self.tracker.step, step)

    def results(self, rows: Sequence[Row]) -> None:
        if self.tracker is not None:
            self._forgiven(self._send, self.tracker, rows)

    def _send(self, tracker: Any, rows: Sequence[Row]) -> None:
        from pe_bench.report.build import run_tables
        from pe_bench.report.draw import plot_tables

        rows = [row for row in rows if row.scored_with == row.encoding]
        tables = run_tables(rows, self.run, self.config.report.margin)
        with TemporaryDirectory() as folder:
            picture = Path(folder, "curves.png")
            plot_tables(tables, picture)
            tracker.results([row for row in rows if _level_of(row) is not None], tables, picture)

    def close(self) -> None:
        if self.tracker is not None:
            self._forgiven(self.tracker.end)

    def _forgiven(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except Exception as error:
            self.tracker = None
            reason = f"{type(error).__name__}: {first_line(error)}"
            say(f"warning: tracker={self.config.tracker} failed, and the run continues without it ({reason})")


def check_tracker(name: str) -> None:
    """Raise `UserError` where the package of a tracker is missing."""
    is_there = importlib.util.find_spec(name) is not None
    require(is_there, f"tracker={name} is not installed: {how_to_install(name)}")


def _values_of(step: Step) -> dict[str, float]:
    """Return the values that trackers draw against the step."""
    names = ("loss", "lr", "gradient_norm", "seconds", "validation_loss")
    return {name: value for name in names if (value := getattr(step, name)) is not None}


def _score_name(row: Row) -> str:
    """Return the name of a value that trackers draw against the length."""
    control = "" if row.control == "none" else f"_{row.control}"
    name = "nats_per_token" if row.loses_text else "bits_per_byte"
    name = "exact" if row.protocol == TASK else name
    return f"{name}/{row.protocol}{control}"


def _level_of(row: Row) -> float | None:
    """Return the number of a row that trackers draw; None where it has none."""
    return level_of(row)
