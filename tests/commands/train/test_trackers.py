"""Trackers: what they get, what they keep, and that a run needs none of them."""

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from support.commands import only_run, stop_before

from pe_bench.config.schema import Config
from pe_bench.runs.typed import COMMAND_VARIABLE, group_of_command
from pe_bench.system.signals import INTERRUPTED_EXIT_CODE
from pe_bench.trackers import TRACKERS, TensorBoard
from pe_bench.training.checkpoint import Step

LENGTHS = [16, 32, 64]


def test_a_tracker_gets_the_steps_of_train_csv_and_one_that_fails_loses_nothing_but_what_it_keeps(
    train, monkeypatch
):
    begun: list[tuple[int, Mock]] = []
    monkeypatch.setitem(
        TRACKERS, "tensorboard", lambda run, config, first: begun.append((first, Mock())) or begun[-1][1]
    )
    with monkeypatch.context() as patch:
        stop_before(patch, 5)
        assert train("encoding=nope", "tracker=tensorboard").code == INTERRUPTED_EXIT_CODE
    assert train("encoding=nope", "tracker=tensorboard").code == 0
    steps = [(first, [call.args[0].step for call in each.step.call_args_list]) for first, each in begun]
    assert steps == [(0, [2, 4]), (4, [6, 8])]
    assert all(each.end.called for _, each in begun), "a stopped run is closed too"
    rows, (table,), _ = begun[1][1].record_results.call_args.args
    assert [row.length for row in rows] == [16, 32] == sorted(table.lines[0].records)
    broken = Mock(step=Mock(side_effect=OSError("no route to the tracker")))
    monkeypatch.setitem(TRACKERS, "tensorboard", lambda *_: broken)
    outcome = train("encoding=nope", "seed=1", "tracker=tensorboard")
    (line,) = [line for line in outcome.err.splitlines() if line.startswith("warning: ")]
    assert outcome.code == 0 and "tracker=tensorboard failed" in line and "no route to the tracker" in line


def test_a_missing_package_is_one_line_before_anything_is_written(train, folder, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    outcome = train("encoding=nope", "tracker=mlflow")
    assert outcome.code == 2 and "scripts/install mlflow" in outcome.line
    assert not (folder / "results").exists()


def test_the_runs_of_a_sweep_have_a_group(monkeypatch):
    groups = {}
    for command in ("", "train encoding=rope", "train -m seed=0,1", "train -m seed=0,2", "reproduce alibi"):
        monkeypatch.setenv(COMMAND_VARIABLE, f"pe-bench {command}" if command else "")
        groups[command] = group_of_command()
    alone, swept = list(groups.values())[:2], list(groups.values())[2:]
    assert alone == [None, None] and len({*swept}) == 3 and all(swept)
    assert swept[0].startswith("train-") and swept[2].startswith("reproduce-")


# Each with its library, or with a double that does what the library was seen to do


def stopped_and_finished(train, monkeypatch, name: str) -> None:
    """Stop a run after five steps, continue it from the fourth, and score it at one more length."""
    overrides = ("encoding=nope", f"tracker={name}", "train.log_every=1")
    monkeypatch.setenv(COMMAND_VARIABLE, "pe-bench train -m")
    monkeypatch.setenv("PE_BENCH_OTHER", "")
    monkeypatch.setattr("pe_bench.cli.program.COMMAND_VARIABLE", "PE_BENCH_OTHER")  # this command is not kept
    with monkeypatch.context() as patch:
        stop_before(patch, 5)
        assert train(*overrides).code == INTERRUPTED_EXIT_CODE
    assert train(*overrides).code == 0
    outcome = train(*overrides, f"eval.lengths={LENGTHS}")
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
    assert sorted(scalars(run / "tensorboard" / "scores", "bits_per_byte/paired")) == LENGTHS
    read = accumulator.EventAccumulator(str(run / "tensorboard" / "scores")).Reload()
    (table,) = read.Tensors("results/text_summary")
    assert b"nope" in table.tensor_proto.string_val[0]
    assert read.Images("results")[0].width > 100


def test_tensorboard_forgets_the_steps_of_a_run_that_was_killed_before_its_first_checkpoint(
    tmp_path: Path,
) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for last in (5, 3):
        tracker = TensorBoard(tmp_path, Config({"name": "nope"}), last_step=0)
        for number in range(1, last + 1):
            tracker.step(Step(number, 16 * number, float(last), None, 0.1, 1.0, 1.0))
        tracker.end()
    read = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in read.Scalars("loss")] == [(1, 3.0), (2, 3.0), (3, 3.0)]


class FakeWandb:
    """Weights & Biases, as far as it is used: a record for each `init`."""

    Table, Image, Settings = dict, staticmethod(lambda path: Path(path).read_bytes()), dict

    def __init__(self) -> None:
        self.records = []

    def init(self, **about):
        logged, summary = [], {}
        self.records.append((about, logged, summary))

        def log(values, step=None):
            logged.append((step, values))

        return SimpleNamespace(log=log, summary=summary, finish=lambda: None)


def install(tracker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that a tracker is installed; other imports are as ever."""
    find = importlib.util.find_spec

    def find_tracker(name: str, *package: str) -> object:
        return name if name == tracker else find(name, *package)

    monkeypatch.setattr(importlib.util, "find_spec", find_tracker)


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_records_of_wandb_have_one_id_and_group_and_an_offline_one_has_all_steps(
    train, folder, monkeypatch, mode
):
    library = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", library)  # pyright: ignore[reportArgumentType]
    install("wandb", monkeypatch)
    monkeypatch.setenv("WANDB_MODE", mode)
    stopped_and_finished(train, monkeypatch, "wandb")
    run, all_steps = only_run(folder).name, list(range(1, 9))
    abouts, logs, summaries = zip(*library.records, strict=True)
    assert [about["id"] for about in abouts] == [run] * 3
    (group,) = {about["group"] for about in abouts}
    assert group.startswith("train-")
    assert {about["resume"] for about in abouts} == {None if mode == "offline" else "allow"}
    steps = [[step for step, _ in logged if step is not None] for logged in logs]
    again = {"offline": [all_steps, all_steps], "online": [all_steps[4:], []]}
    assert steps == [all_steps[:5], *again[mode]], "the last offline record that is sent replaces the others"
    (results,) = (values for step, values in logs[-1] if step is None)
    assert results["curves"].startswith(b"\x89PNG")
    assert {cells[results["results"]["columns"].index("length")] for cells in results["results"]["data"]} >= {
        64
    }
    assert summaries[-1].keys() == {f"bits_per_byte/paired/{length}" for length in LENGTHS}


def test_mlflow_keeps_all_steps_and_scores_in_one_run(train, folder, monkeypatch):
    client, kept, pictures = Mock(), [], []
    run = SimpleNamespace(info=SimpleNamespace(run_id="1a2b"))
    client.get_experiment_by_name.return_value = SimpleNamespace(experiment_id="1")
    client.create_run.return_value = run
    client.search_runs.side_effect = lambda *_: [run] if client.create_run.called else []
    client.log_batch.side_effect = lambda run, metrics=(), params=(): kept.extend(metrics)
    client.get_metric_history.side_effect = lambda run, name: [
        SimpleNamespace(step=metric[3]) for metric in kept if metric[0] == name
    ]
    client.log_artifact.side_effect = lambda run, path: pictures.append(Path(path).read_bytes()[:4])
    entities = SimpleNamespace(Param=lambda *values: values, Metric=lambda *values: values)
    for name, module in (("entities", entities), ("tracking", Mock(MlflowClient=lambda address: client))):
        monkeypatch.setitem(sys.modules, f"mlflow.{name}", module)
    install("mlflow", monkeypatch)
    stopped_and_finished(train, monkeypatch, "mlflow")
    ((_, about),) = client.create_run.call_args_list
    assert about["run_name"] == only_run(folder).name and about["tags"]["group"].startswith("train-")
    assert client.set_terminated.call_count == 3
    steps = [metric[3] for metric in kept if metric[0] == "loss"]
    assert steps == list(range(1, 9)), "a step that is taken again is not sent again"
    assert {metric[3] for metric in kept if metric[0] == "bits_per_byte/paired"} == {*LENGTHS}
    assert pictures == [b"\x89PNG"] * 2
    assert "64" in client.log_text.call_args.args[1]
