"""Answers of a task are scored where they are: by a model that knows them, and by some that do not."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.needles import STRENGTH, Copying
from support.scoring import TRAIN_LENGTH, scored, trained_model
from support.task_oracles import ORACLES
from torch import Tensor

from pe_bench.config.schema import EvalConfig
from pe_bench.data.packed import task_data
from pe_bench.data.tasks import Task, build_task
from pe_bench.model.decoder import LanguageModel
from pe_bench.runs.rows import Row

COUNT = 6
EVALUATION = EvalConfig(lengths=[16, 32], targets=COUNT, protocol="task", batch_tokens=70)


class Solving(Copying):
    """A model that knows what follows every beginning of an example, but for the one up to `mistake`."""

    def __init__(self, task: Task, mistake: int | None = None) -> None:
        super().__init__()
        self.task, self.mistake = task, mistake
        self.vocab_size = len(task.vocabulary)

    def _logits(self, tokens: list[int], first: int) -> Tensor:
        texts = [self.task.vocabulary[token] for token in tokens]
        logits = torch.zeros(len(tokens), self.vocab_size)
        for place in range(len(tokens)):
            try:
                answer = ORACLES[self.task.name](texts[: place + 1])
            except (ValueError, IndexError):  # nothing has been asked yet
                continue
            logits[place, self.task.vocabulary.index(answer)] = STRENGTH
        if self.mistake is not None and self.mistake < len(tokens):
            logits[self.mistake] = -logits[self.mistake]
        return logits[first:]


def rows_of(run: Path, task: Task, model: LanguageModel | None, count: int = COUNT) -> list[Row]:
    trained = trained_model(run, data=task_data(task))
    evaluation = replace(EVALUATION, targets=count)
    return scored(trained if model is None else replace(trained, model=model), evaluation)


@pytest.mark.parametrize("name", ORACLES)
def test_a_model_that_knows_the_answers_has_all_of_them_right(tmp_path: Path, name: str) -> None:
    task = build_task({"name": name})
    rows = rows_of(tmp_path / "run", task, Solving(task))
    assert [(row.length, row.accuracy, row.exact, row.documents) for row in rows] == [
        (length, 1.0, 1.0, COUNT) for length in (TRAIN_LENGTH, 16, 32)
    ]


def test_a_mistake_costs_one_answer_of_each_example_and_all_of_them_their_exactness(tmp_path: Path) -> None:
    task = build_task({"name": "copy_unique"})
    _, row, longer = rows_of(tmp_path / "run", task, Solving(task, mistake=10))
    size = task.size_at(16)
    assert (row.accuracy, row.exact) == (pytest.approx(size / (size + 1)), 0.0)
    assert (longer.accuracy, longer.exact) == (1.0, 1.0), "its answers begin later"


@pytest.mark.parametrize("name", ["copy", "mqar", "majority"])
def test_a_model_of_random_weights_is_no_better_than_guessing(tmp_path: Path, name: str) -> None:
    task = build_task({"name": name})
    for row in rows_of(tmp_path / "run", task, None, 100):
        assert row.chance == task.chance and row.accuracy is not None
        deviation = (task.chance * (1 - task.chance) / 100) ** 0.5
        assert row.accuracy < task.chance + 3 * deviation
