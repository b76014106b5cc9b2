"""Trackers, which also record the losses and scores of a run; by default there is no tracker.

A run's own files are complete without a tracker. A run continues when its tracker fails, with one warning.
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
    """Event files in the run's `tensorboard/`, with the results and the scores by length in `scores/`.

    `tensorboard --logdir results/runs` shows all runs.
    """

    def __init__(self, run: Path, config: Config, last_step: int):
        """last_step: the step from which the run continues, 0 for a new run."""
        self.writer_class: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self.folder = run / "tensorboard"
        # Steps after the checkpoint are repeated, so TensorBoard forgets its records of them.
        self.writer = self.writer_class(str(self.folder), purge_step=last_step + 1)
        if not last_step:
            lines = [f"{name}: {value}" for name, value in to_plain(config).items()]
            text = "\n".join(lines)
            self.writer.add_text("config", f"```\n{text}\n```")

    def step(self, step: Step) -> None:
        for name, value in _step_values(step).items():
            self.writer.add_scalar(name, value, step.step)

    def record_results(self, rows: Sequence[Row], tables: Sequence["Table"], picture: Path) -> None:
        from matplotlib.image import imread

        from pe_bench.report.columns import to_markdown

        folder = self.folder / "scores"  # written anew, because lengths are no steps that could be purged
        shutil.rmtree(folder, ignore_errors=True)
        with self.writer_class(str(folder)) as writer:
            for row in rows:
                writer.add_scalar(_score_name(row), level_of(row), row.length)
            writer.add_text("results", to_markdown(tables))
            colours = imread(picture)[:, :, :3]
            writer.add_image("results", colours, dataformats="HWC")

    def end(self) -> None:
        """Close the file of events."""
        self.writer.close()


class WeightsAndBiases:
    """A record in `results/wandb/`, offline unless WANDB_MODE is set; `wandb sync` sends it.

    It is outside the run's folder, because wandb makes symbolic links, which a run may not contain.
    """

    def __init__(self, run: Path, config: Config, last_step: int):
        """last_step: the step from which the run continues, 0 for a new run."""
        self.library: Any = importlib.import_module("wandb")
        mode = os.environ.get("WANDB_MODE", "offline")
        project = os.environ.get("WANDB_PROJECT", "pe-bench")
        settings = self.library.Settings(silent=True, disable_git=True, save_code=False)
        self.run = self.library.init(
            project=project,
            id=run.name,
            name=run.name,
            group=group_of_command(),
            dir=config.results_dir,
            config=to_plain(config),
            mode=mode,
            resume=None if mode == "offline" else "allow",
            settings=settings,
        )
        # A record replaces an earlier record with its id on the server, so each record has all steps.
        for step in read_log(run / "train.csv", last_step) if mode == "offline" else []:
            self.step(step)

    def step(self, step: Step) -> None:
        self.run.log(_step_values(step), step=step.step)

    def record_results(self, rows: Sequence[Row], tables: Sequence["Table"], picture: Path) -> None:
        from pe_bench.report.columns import to_frame

        levels = {f"{_score_name(row)}/{row.length}": level_of(row) for row in rows}
        self.run.summary.update(levels)
        frame = to_frame(tables).astype(object)
        cells = frame.where(frame.notna(), None).to_numpy().tolist()
        table = self.library.Table(columns=[*frame.columns], data=cells, allow_mixed_types=True)
        curves = self.library.Image(str(picture))
        self.run.log({"results": table, "curves": curves})

    def end(self) -> None:
        """Finish the record."""
        self.run.finish()


class MLflow:
    """A database in the run's `mlflow/` unless MLFLOW_TRACKING_URI names a server."""

    def __init__(self, run: Path, config: Config, last_step: int):
        """last_step: the step from which the run continues, 0 for a new run."""
        folder = (run / "mlflow").resolve()
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if address is None:
            folder.mkdir(exist_ok=True)
            address = f"sqlite:///{folder / 'mlflow.db'}"
        self.entities = importlib.import_module("mlflow.entities")
        self.client = importlib.import_module("mlflow.tracking").MlflowClient(address)
        experiment = self.client.get_experiment_by_name("pe-bench")
        number = getattr(experiment, "experiment_id", None)
        if not number:
            number = self.client.create_experiment("pe-bench", str(folder / "artifacts"))
        runs = self.client.search_runs([number], f"tags.mlflow.runName = '{run.name}'")
        self.sent = 0  # the last step in the record; steps after the checkpoint are repeated
        if runs:
            self.id = runs[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            sent_losses = self.client.get_metric_history(self.id, "loss")
            self.sent = max((metric.step for metric in sent_losses), default=0)
        else:
            tags = {"group": group_of_command() or run.name}
            self.id = self.client.create_run(number, tags=tags, run_name=run.name).info.run_id
            values = to_plain(config)
            params = [self.entities.Param(name, str(value)) for name, value in values.items()]
            self.client.log_batch(self.id, params=params)

    def step(self, step: Step) -> None:
        if step.step > self.sent:
            values = _step_values(step)
            self._send([(name, value, step.step) for name, value in values.items()])

    def record_results(self, rows: Sequence[Row], tables: Sequence["Table"], picture: Path) -> None:
        from pe_bench.report.columns import to_csv

        self._send([(_score_name(row), level_of(row), row.length) for row in rows])
        self.client.log_text(self.id, to_csv(tables), "results.csv")
        self.client.log_artifact(self.id, str(picture))

    def end(self) -> None:
        """Mark the run in the database as finished."""
        self.client.set_terminated(self.id)

    def _send(self, values: Sequence[tuple[str, Any, int]]) -> None:
        """Send (name, value, step) of each value."""
        now = int(time.time() * 1000)
        metrics = [self.entities.Metric(name, value, now, step) for name, value, step in values]
        self.client.log_batch(self.id, metrics)


# A tracker is created with the run's folder, its configuration and the step of the checkpoint that training
# continues from. `step` records a row of train.csv. `record_results` records all rows under the run's own
# encoding, some of them perhaps again, and its tables with a picture.
TRACKERS: dict[str, Callable[[Path, Config, int], Any]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


class Tracking:
    """The tracker that `tracker=` names, if any. After a failure it records no more."""

    def __init__(self, run: Path, config: Config):
        self.run = run
        self.config = config
        self.tracker = None
        if config.tracker is not None:
            checkpoint = latest_checkpoint(run / "checkpoints")
            last_step = checkpoint.step if checkpoint else 0
            self.tracker = self._call_or_warn(TRACKERS[config.tracker], run, config, last_step)

    def step(self, step: Step) -> None:
        """Record a logged step, or a step with a validation loss."""
        is_logged = step.step % self.config.train.log_every == 0
        is_due = is_logged or step.validation_loss is not None
        if self.tracker is not None and is_due:
            self._call_or_warn(self.tracker.step, step)

    def record_results(self, rows: Sequence[Row]) -> None:
        """Record the scores of a run, and its tables with a picture."""
        if self.tracker is not None:
            self._call_or_warn(self._send_results, self.tracker, rows)

    def _send_results(self, tracker: Any, rows: Sequence[Row]) -> None:
        """Send the levels under the run's own encoding to a tracker, with tables and a picture."""
        from pe_bench.report.build import run_tables
        from pe_bench.report.draw import plot_tables

        rows = [row for row in rows if row.scored_with == row.encoding]
        tables = run_tables(rows, self.run, self.config.report.margin)
        with TemporaryDirectory() as folder:
            picture = Path(folder, "curves.png")
            plot_tables(tables, picture)
            with_level = [row for row in rows if level_of(row) is not None]
            tracker.record_results(with_level, tables, picture)

    def close(self) -> None:
        """End the tracker's record of the run."""
        if self.tracker is not None:
            self._call_or_warn(self.tracker.end)

    def _call_or_warn(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call the tracker; after an error, warn and record no more."""
        try:
            return call(*arguments)
        except Exception as error:
            self.tracker = None
            reason = f"{type(error).__name__}: {first_line(error)}"
            say(f"warning: tracker={self.config.tracker} failed, and the run continues without it ({reason})")


def check_tracker(name: str) -> None:
    """Raise `UserError` if the package of a tracker is missing."""
    is_there = importlib.util.find_spec(name) is not None
    require(is_there, f"tracker={name} is not installed: {how_to_install(name)}")


def _step_values(step: Step) -> dict[str, float]:
    """Return the numbers of a step that trackers record, by name; most steps have no validation loss."""
    values = {"loss": step.loss, "lr": step.lr, "gradient_norm": step.gradient_norm, "seconds": step.seconds}
    if step.validation_loss is not None:
        values["validation_loss"] = step.validation_loss
    return values


def _score_name(row: Row) -> str:
    """Return the name of the curve of levels by length to which trackers add a row."""
    control = "" if row.control == "none" else f"_{row.control}"
    name = "nats_per_token" if row.loses_text else "bits_per_byte"
    name = "exact" if row.protocol == TASK else name
    return f"{name}/{row.protocol}{control}"
