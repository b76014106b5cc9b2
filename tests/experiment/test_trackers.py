"""Trackers: what they get, what they keep, and that a run needs none of them."""

import importlib.util
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.commands import only_run

from pe_bench.system.signals import EXIT_CODE
from pe_bench.trackers import TRACKERS
from pe_bench.training.trainer import Trainer


@dataclass
class Fake:
    """A tracker that keeps everything it gets."""

    first: int
    steps: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    ended: bool = False
    fails_at: int | None = None

    def step(self, step):
        if step.step == self.fails_at:
            raise OSError("no route to the tracker")
        self.steps.append(step.step)

    def scores(self, rows):
        self.lengths = [row.length for row in rows]

    def end(self):
        self.ended = True


@pytest.fixture
def fakes(monkeypatch):
    """The trackers that were started, in place of TensorBoard's."""
    begun: list[Fake] = []
    module = SimpleNamespace(fails_at=None, begun=begun)

    def begin(run, config, first):
        begun.append(Fake(first, fails_at=module.fails_at))
        return begun[-1]

    monkeypatch.setitem(TRACKERS, "tensorboard", begin)
    return module


def stop_before(monkeypatch, number: int) -> None:
    step = Trainer.step

    def stopped(self, at, seconds):
        if at == number:
            raise KeyboardInterrupt
        return step(self, at, seconds)

    monkeypatch.setattr(Trainer, "step", stopped)


def test_a_tracker_gets_the_rows_of_train_csv_and_the_scores(train, folder, fakes):
    assert train("encoding=nope", "tracker=tensorboard", "train.log_every=3").code == 0
    (tracker,) = fakes.begun
    assert (tracker.first, tracker.steps, tracker.lengths) == (0, [3, 4, 6, 8], [16, 32])
    assert tracker.ended
    name = only_run(folder).name
    shutil.rmtree(folder / "results")
    train("encoding=nope", "train.log_every=3")
    assert only_run(folder).name == name, "a tracker is no part of what a run is"
    assert fakes.begun == [tracker], "none is the default"


def test_a_tracker_gets_the_step_that_a_run_continues_from(train, fakes, monkeypatch):
    with monkeypatch.context() as patch:
        stop_before(patch, 5)
        assert train("encoding=nope", "tracker=tensorboard").code == EXIT_CODE
    assert fakes.begun[0].ended, "a stopped run is closed too"
    fakes.fails_at = 8
    outcome = train("encoding=nope", "tracker=tensorboard")
    assert outcome.code == 0, "a tracker that fails loses nothing but what it keeps"
    assert (fakes.begun[1].first, fakes.begun[1].steps) == (4, [6])
    (line,) = [line for line in outcome.err.splitlines() if line.startswith("warning: ")]
    assert "tracker=tensorboard failed" in line and "no route to the tracker" in line


def test_an_unknown_or_missing_package_is_one_line_before_anything_is_written(train, folder, monkeypatch):
    outcome = train("encoding=nope", "tracker=visdom")
    assert outcome.code == 2 and "tensorboard, wandb, mlflow" in outcome.line
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    outcome = train("encoding=nope", "tracker=mlflow")
    assert outcome.code == 2 and "pip install 'pe-bench[mlflow]'" in outcome.line
    assert not (folder / "results").exists()


# Each for real


def stopped_and_finished(train, monkeypatch, name: str) -> None:
    """Stop a run after five steps, continue it from the fourth, and score it at one more length."""
    overrides = ("encoding=nope", f"tracker={name}", "train.log_every=1")
    with monkeypatch.context() as patch:
        stop_before(patch, 5)
        assert train(*overrides).code == EXIT_CODE
    assert train(*overrides).code == 0
    outcome = train(*overrides, "eval.lengths=[16,32,64]")
    assert outcome.code == 0 and "warning" not in outcome.err, outcome.err


def test_tensorboard_reads_each_step_once_and_each_score(train, folder, monkeypatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    stopped_and_finished(train, monkeypatch, "tensorboard")

    def scalars(path: Path, tag: str) -> dict[int, float]:
        read = accumulator.EventAccumulator(str(path)).Reload()
        found = [(event.step, event.value) for event in read.Scalars(tag)]
        assert len(found) == len(dict(found))
        return dict(found)

    run = only_run(folder)
    losses = scalars(run / "tensorboard", "loss")
    assert sorted(losses) == list(range(1, 9))
    assert losses[8] == pytest.approx(json.loads((run / "result.json").read_text())["loss"], rel=1e-6)
    assert sorted(scalars(run / "tensorboard", "validation_loss")) == [4, 8]
    assert sorted(scalars(run / "tensorboard" / "scores", "bits_per_byte/paired")) == [16, 32, 64]


@pytest.mark.filterwarnings("default")  # of its own making
def test_wandb_keeps_an_offline_record_next_to_the_runs(train, folder, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    stopped_and_finished(train, monkeypatch, "wandb")
    run = only_run(folder)
    records = list((folder / "results" / "wandb").glob(f"offline-run-*-{run.name}"))
    assert records and all(list(record.glob(f"run-{run.name}.wandb")) for record in records)


@pytest.mark.filterwarnings("default")  # of its own making
def test_mlflow_keeps_each_step_once_in_the_runs_database(train, folder, monkeypatch):
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow.tracking import MlflowClient

    stopped_and_finished(train, monkeypatch, "mlflow")
    run = only_run(folder)
    client = MlflowClient(f"sqlite:///{run / 'mlflow' / 'mlflow.db'}")
    (record,) = client.search_runs([client.get_experiment_by_name("pe-bench").experiment_id])
    assert (record.info.run_name, record.info.status) == (run.name, "FINISHED")
    steps = [metric.step for metric in client.get_metric_history(record.info.run_id, "loss")]
    assert sorted(steps) == list(range(1, 9))
    lengths = [
        metric.step for metric in client.get_metric_history(record.info.run_id, "bits_per_byte/paired")
    ]
    assert sorted(lengths) == [16, 32, 64]
