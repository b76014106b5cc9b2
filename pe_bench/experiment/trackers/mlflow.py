"""MLflow: a database in the run's `mlflow/` unless MLFLOW_TRACKING_URI names a server."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]
from mlflow.tracking import MlflowClient  # pyright: ignore[reportMissingImports]

from pe_bench.config.parse import to_plain
from pe_bench.config.schema import Config
from pe_bench.experiment.trackers import level_of, score_name, values_of
from pe_bench.runs.rows import Row
from pe_bench.training.log import Step

EXPERIMENT = "pe-bench"


def begin(run: Path, config: Config, first: int) -> "MLflow":
    address = os.environ.get("MLFLOW_TRACKING_URI")
    if address is None:
        folder = (run / "mlflow").resolve()
        folder.mkdir(exist_ok=True)
        address = f"sqlite:///{folder / 'mlflow.db'}"
    return MLflow(MlflowClient(address), run, config)


class MLflow:
    def __init__(self, client: MlflowClient, run: Path, config: Config):
        self.client = client
        found = client.get_experiment_by_name(EXPERIMENT)
        place = str((run / "mlflow").resolve() / "artifacts")
        experiment = found.experiment_id if found else client.create_experiment(EXPERIMENT, place)
        known = client.search_runs([experiment], f"tags.mlflow.runName = '{run.name}'")
        if known:
            self.id = known[0].info.run_id
            client.update_run(self.id, status="RUNNING")
        else:
            self.id = client.create_run(experiment, run_name=run.name).info.run_id
            values = [Param(name, str(value)) for name, value in to_plain(config).items()]
            client.log_batch(self.id, params=values)
        self.last = max(self._steps("loss"), default=0)

    def step(self, step: Step) -> None:
        if step.step > self.last:  # a step that is taken again is the same
            self._log([(name, value, step.step) for name, value in values_of(step).items()])

    def scores(self, rows: Sequence[Row]) -> None:
        known = {name: self._steps(name) for name in map(score_name, rows)}
        self._log(
            [
                (score_name(row), level, row.length)
                for row in rows
                if (level := level_of(row)) is not None and row.length not in known[score_name(row)]
            ]
        )

    def end(self) -> None:
        self.client.set_terminated(self.id)

    def _steps(self, name: str) -> set[int]:
        return {metric.step for metric in self.client.get_metric_history(self.id, name)}

    def _log(self, values: Sequence[tuple[str, float, int]]) -> None:
        now = int(time.time() * 1000)
        self.client.log_batch(self.id, [Metric(name, value, now, step) for name, value, step in values])
