"""Whole runs of a task, in seconds: trained, stopped, continued, scored, reported, and refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.commands import only_run, stop_before

from pe_bench.config.compose import compose_config
from pe_bench.data.batches import TaskWindows
from pe_bench.data.packed import load_data
from pe_bench.model.decoder import build_decoder
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import load_scores, score_file
from pe_bench.training.trainer import Trainer

TINY = (
    *("model.d_model=16", "model.d_ff=24", "threads=1", "train.length=16", "train.batch_tokens=64"),
    *("train.steps=8", "train.warmup_steps=2", "train.checkpoint_every=2", "train.validate_every=4"),
    *("train.validation_tokens=64", "train.log_every=2", "eval.lengths=[16,32]", "eval.targets=6"),
)


@pytest.fixture
def train(command, folder):
    results = f"results_dir={folder / 'results'}"
    return lambda *arguments: command("train", "encoding=rope", results, *TINY, *arguments)


def rows_of(folder: Path) -> list[Row]:
    return read_rows(only_run(folder) / "eval.csv")


TEXT = ("data=files", "data.path=../corpus", "eval.max_length=64")


@pytest.mark.parametrize("data", [("task=copy",), TEXT])
def test_halves_have_tables_of_their_own_and_lost_scores_of_both_are_made_again(train, command, folder, data):
    halves = ("both", "first", "second")
    for half in halves:
        outcome = train(*data, f"eval.half={half}", "eval.controls=none")
        assert outcome.code == 0, outcome.err
    rows = [row for row in rows_of(folder) if row.slice == "all"]
    files = [score_file(only_run(folder), row) for row in rows]
    pairs = [(half, length) for half in ("", "first", "second") for length in (16, 32)]
    before = [load_scores(file).nll.tobytes() for file in files]
    assert {(row.half, row.length) for row in rows} == {*pairs} and len({*before}) == 6
    where = ("--results-dir", str(folder / "results"))
    tables = json.loads(command("report", "--all", *where, "--json").out)["tables"]
    assert [table["key"]["half"] for table in tables] == ["", "first", "second"]
    for table in tables:
        records = [record for line in table["lines"] for record in line["records"]]
        assert {record["target_hash"].rpartition("-")[0] for record in records} == {table["key"]["half"]}
    for file in files:
        file.unlink()
    for half in halves:
        again = command("eval", "rope", "--lengths", "16,32", "--half", half, *where)
        assert again.code == 0, again.err
    assert [load_scores(file).nll.tobytes() for file in files] == before


def gradients(*overrides: str) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss of a first step, and the gradients before it."""
    config = compose_config([*TINY, *overrides])
    data = load_data(config)
    model = build_decoder(config, data.vocabulary)
    trainer = Trainer(config, model, data, torch.device("cpu"), torch.float32)
    kept: dict[str, torch.Tensor] = {}

    def keep() -> None:
        parameters = model.named_parameters()
        kept.update({name: value.grad.clone() for name, value in parameters if value.grad is not None})

    trainer.optimizer.step = keep  # pyright: ignore[reportAttributeAccessIssue]
    return trainer.step(0, 0.0).loss, kept


def test_padding_and_questions_have_no_loss_and_parts_of_a_batch_the_gradient_of_the_whole(monkeypatch):
    loss, whole = gradients("task=copy")
    parts_loss, parts = gradients("task=copy", "train.micro_batches=4")
    assert parts_loss == pytest.approx(loss, rel=1e-5), "though they have unequally many answers"
    assert all(torch.allclose(parts[name], whole[name], atol=1e-6) for name in whole)
    batch = TaskWindows.batch

    def other_padding(self: TaskWindows, count: int, seed: int, step: int):
        drawn = batch(self, count, seed, step)
        return replace(drawn, tokens=torch.where(drawn.tokens == self.task.padding, 3, drawn.tokens))

    monkeypatch.setattr(TaskWindows, "batch", other_padding)
    other_loss, other = gradients("task=copy")
    assert other_loss == loss and all(torch.equal(other[name], whole[name]) for name in whole)


def test_a_task_is_trained_scored_and_reported(train, command, folder):
    outcome = train("data=task", "task=copy")
    assert outcome.code == 0, outcome.err
    assert "task copy" in outcome.out and "exact match" in outcome.out
    assert "examples of sizes 1 to 7 at 16 tokens, 0.037 right by guessing" in outcome.err
    rows = rows_of(folder)
    facts = [(row.length, row.protocol, row.control, row.data) for row in rows]
    assert facts == [(16, "task", "none", "copy"), (32, "task", "none", "copy")]
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


def test_a_stopped_run_of_a_task_ends_in_the_same_weights(train, folder, monkeypatch):
    def ends() -> list[object]:
        weights = only_run(folder) / "checkpoints" / "step-00000008" / "weights.safetensors"
        return [weights.read_bytes(), *((row.length, row.nll, row.exact) for row in rows_of(folder))]

    assert train("task=mqar").code == 0
    unbroken = ends()
    only_run(folder).rename(folder / "unbroken")
    with monkeypatch.context() as patch:
        stop_before(patch, 5)
        assert train("task=mqar").code == 130
    assert train("task=mqar").code == 0
    assert ends() == unbroken


REFUSED = {
    "data=task": "data=task and eval.protocol=paired do not fit task=null: say task=NAME",
    "task=copy data=stdlib": "do not fit task=copy",
    "task=copy eval.protocol=paired": "do not fit task=copy",
    "eval.protocol=task": "do not fit task=null",
    "task=copyy": "unknown task 'copyy': did you mean 'copy'",
    "task=copy task.symbol=4": "unknown key 'task.symbol': did you mean 'task.symbols'",
    "task=copy_unique eval.lengths=[16,999]": "the largest of task=copy_unique is 128",
}


def test_what_cannot_work_is_refused_in_one_line_before_anything_is_written(train, command, folder):
    for overrides, message in REFUSED.items():
        outcome = train(*overrides.split())
        assert outcome.code == 2 and message in outcome.line
    assert not (folder / "results").exists()
    assert train("task=majority").code == 0
    run = str(only_run(folder))
    outcome = command("eval", run, "--protocol=sliding")
    assert outcome.code == 2 and "do not fit task=majority" in outcome.line
    outcome = command("probe", run, "--lengths", "128")
    assert outcome.code == 2 and "answers task=majority" in outcome.line
    outcome = command("export", run, "--hf", str(folder / "hf"))
    assert outcome.code == 2 and "is trained on a task" in outcome.line
