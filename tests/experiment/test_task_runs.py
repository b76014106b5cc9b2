"""Whole runs of a task, in seconds: trained, stopped, continued, scored, reported, and refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.data.packed import load_data_of
from pe_bench.model.decoder import build_decoder
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import load_scores, score_file
from pe_bench.training.trainer import Trainer
from tests.support.commands import Command, Outcome, only_run

TINY = (
    *("model.d_model=16", "model.d_ff=24", "threads=1", "train.length=16", "train.batch_tokens=64"),
    *("train.steps=8", "train.warmup_steps=2", "train.checkpoint_every=2", "train.validate_every=4"),
    *("train.validation_tokens=64", "train.log_every=2", "eval.lengths=[16,32]", "eval.targets=6"),
)
CPU = torch.device("cpu")
Train = Callable[..., Outcome]


@pytest.fixture
def train(command: Command, folder: Path) -> Train:
    results = f"results_dir={folder / 'results'}"
    return lambda *arguments: command("train", "encoding=rope", results, *TINY, *arguments)


@pytest.mark.parametrize(
    "data", [("task=copy",), ("data=files", "data.path=../corpus", "eval.max_length=64")]
)
def test_the_halves_of_what_is_scored_are_tables_of_their_own_and_lost_scores_of_both_are_made_again(
    train: Train, command: Command, folder: Path, data: tuple[str, ...]
) -> None:
    for half in ("both", "first", "second"):
        outcome = train(*data, f"eval.half={half}", "eval.controls=none")
        assert outcome.code == 0, outcome.err
    rows = [row for row in rows_of(folder) if row.slice == "all"]
    assert {(row.half, row.length) for row in rows} == {
        (half, length) for half in ("", "first", "second") for length in (16, 32)
    }
    where = ("--results-dir", str(folder / "results"))
    tables = json.loads(command("report", "--all", *where, "--json").out)["tables"]
    assert [table["key"]["half"] for table in tables] == ["", "first", "second"]
    for table in tables:
        assert {
            record["target_hash"].rpartition("-")[0] for line in table["lines"] for record in line["records"]
        } == {table["key"]["half"]}
    assert "eval.half=second" in command("report", "--all", *where).out

    files = [score_file(only_run(folder), row) for row in rows]
    assert len(set(files)) == 6
    before = [load_scores(file) for file in files]
    for file in files:
        file.unlink()
    for half in ("both", "first", "second"):
        again = command("eval", "rope", "--lengths", "16,32", "--half", half, *where)
        assert again.code == 0, again.err
    assert all(
        np.array_equal(load_scores(file).nll, scores.nll) for file, scores in zip(files, before, strict=True)
    )


def rows_of(folder: Path) -> list[Row]:
    return read_rows(only_run(folder) / "eval.csv")


def gradients(*overrides: str) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss of a first step, and the gradients before it."""
    config = parse_config(compose([*TINY, *overrides]))
    data = load_data_of(config)
    model = build_decoder(config, data.vocabulary)
    trainer = Trainer(config, model, data, CPU, torch.float32)
    found: dict[str, torch.Tensor] = {}

    def keep() -> None:
        parameters = model.named_parameters()
        found.update({name: value.grad.clone() for name, value in parameters if value.grad is not None})

    trainer.optimizer.step = keep  # pyright: ignore[reportAttributeAccessIssue]
    return trainer.step(0, 0.0).loss, found


def test_a_task_is_trained_scored_and_reported(train: Train, command: Command, folder: Path) -> None:
    outcome = train("data=task", "task=copy")
    assert outcome.code == 0, outcome.err
    assert "task copy" in outcome.out and "exact match" in outcome.out
    assert "examples of sizes 1 to 7 at 16 tokens, 0.037 right by guessing" in outcome.err
    rows = rows_of(folder)
    assert [(row.length, row.protocol, row.control, row.data) for row in rows] == [
        (16, "task", "none", "copy"),
        (32, "task", "none", "copy"),
    ]
    for row in rows:
        scores = load_scores(score_file(only_run(folder), row))
        assert scores.correct is not None and row.targets == len(scores.correct) == 6 * (row.length // 2)
        assert row.accuracy == pytest.approx(scores.correct.mean())
        assert row.nll == pytest.approx(scores.nll.mean(), rel=1e-4)
        assert row.bits_per_byte is None and row.chance == 1 / 27
    assert not (folder / "results" / "anchors").exists()
    again = train("task=copy")
    assert again.code == 0 and "already trained" in again.err and rows_of(folder) == rows
    scored = command("eval", str(only_run(folder)), "--with", "yarn", "--lengths", "32", "--threads", "1")
    assert scored.code == 0, scored.err
    at_32 = [row for row in rows_of(folder) if row.length == 32]
    assert len({row.target_hash for row in at_32}) == 1
    assert any(row.scored_with.startswith("yarn") for row in at_32)


def test_a_stopped_run_of_a_task_ends_in_the_same_weights(
    train: Train, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train("task=mqar").code == 0
    rows = rows_of(folder)
    only_run(folder).rename(folder / "unbroken")
    step = Trainer.step

    def stopped(self: Trainer, number: int, seconds: float):
        if number == 5:
            raise KeyboardInterrupt
        return step(self, number, seconds)

    monkeypatch.setattr(Trainer, "step", stopped)
    assert train("task=mqar").code == 130
    monkeypatch.undo()
    assert train("task=mqar").code == 0
    final = Path("checkpoints", "step-00000008", "weights.safetensors")
    assert (only_run(folder) / final).read_bytes() == (folder / "unbroken" / final).read_bytes()
    scored = [(row.length, row.nll, row.exact, row.target_hash) for row in rows]
    assert [(row.length, row.nll, row.exact, row.target_hash) for row in rows_of(folder)] == scored


def test_padding_and_questions_have_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    from pe_bench.data.batches import TaskWindows

    loss, whole = gradients("task=copy")
    batch = TaskWindows.batch

    def other_padding(self: TaskWindows, count: int, seed: int, step: int):
        drawn = batch(self, count, seed, step)
        return replace(drawn, tokens=torch.where(drawn.tokens == self.task.padding, 3, drawn.tokens))

    monkeypatch.setattr(TaskWindows, "batch", other_padding)
    other_loss, other = gradients("task=copy")
    assert other_loss == loss
    assert all(torch.equal(other[name], whole[name]) for name in whole)


REFUSED = {
    "data=task": "data=task and eval.protocol=paired do not fit task=null: say task=NAME",
    "task=copy data=stdlib": "do not fit task=copy",
    "task=copy eval.protocol=paired": "do not fit task=copy",
    "eval.protocol=task": "do not fit task=null",
    "task=copyy": "unknown task 'copyy': did you mean 'copy'",
    "task=copy task.symbol=4": "unknown key 'task.symbol': did you mean 'task.symbols'",
    "task=copy_unique eval.lengths=[16,999]": "has none above 128",
}


def test_what_cannot_work_is_refused_in_one_line_before_anything_is_written(
    train: Train, command: Command, folder: Path
) -> None:
    for overrides, message in REFUSED.items():
        outcome = train(*overrides.split())
        assert outcome.code == 2 and message in outcome.line
    assert not (folder / "results").exists()
    assert train("task=majority").code == 0
    run = str(only_run(folder))
    for arguments, message in (
        (("eval", run, "--protocol=sliding"), "do not fit task=majority"),
        (("export", run, "--hf", str(folder / "hf")), "is trained on a task"),
    ):
        outcome = command(*arguments)
        assert outcome.code == 2 and message in outcome.line
