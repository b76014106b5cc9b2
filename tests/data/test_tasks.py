"""Each task: its answers are right by an independent oracle, and its examples are what they claim to be."""

import hashlib
from collections import Counter

import numpy as np
import pytest
import torch
import yaml

from pe_bench.config.groups import config_dir, names_in
from pe_bench.data.batches import TaskWindows, TrainingWindows, windows_of
from pe_bench.data.packed import Split, task_data
from pe_bench.data.tasks import build_task
from pe_bench.errors import UserError
from pe_bench.scoring.plans import task_plan
from tests.support.task_oracles import ORACLES

every_task = pytest.mark.parametrize("name", names_in("task"))


@every_task
def test_every_answer_is_what_an_oracle_says_and_follows_from_what_is_before_it(name: str) -> None:
    task, answers = build_task({"name": name}), set()
    in_file = yaml.safe_load((config_dir() / "task" / f"{name}.yaml").read_text(encoding="utf-8"))["task"]
    assert task == build_task(in_file), "the options in the file are the defaults"
    for seed in range(600):
        size = 8 if seed >= 30 else task.smallest_size + seed % 12
        tokens, is_answer, _ = task.example(np.random.default_rng(seed), size)
        example = [task.vocabulary[token] for token in tokens]
        assert any(is_answer) and not is_answer[0]
        answers |= {example[index] for index in np.flatnonzero(is_answer)}
        for index in np.flatnonzero(is_answer) if seed < 30 else ():
            assert example[index] == ORACLES[name](example[:index]), (size, example, index)
    assert len(answers) == round(1 / task.chance), "guessing is right as often as is said"
    batch = TaskWindows(task, 40).batch(300, seed=0, step=0)
    tokens, is_answer = batch.tokens, batch.is_answer
    assert is_answer is not None and tokens.shape == is_answer.shape == (300, 41)
    possible = {task.tokens(size) for size in range(task.smallest_size, task.size_at(40) + 1)}
    assert set((tokens != task.padding).sum(1).tolist()) == possible
    assert not is_answer[tokens == task.padding].any() and is_answer.any(1).all()


# The hash of each task, of a plan and of a training batch: whoever changes one raises EXAMPLES_VERSION.
PINNED = {
    "copy": ("56c91fb6032d47ce", "5e0be30d574fa467", "11f1ef6130bd8f83"),
    "copy_unique": ("8b812529410b1023", "fcd0687d16988220", "221d73199aa7f58f"),
    "flip_flop": ("1b7b623d9dd09f6d", "ae52b6f821e07ff9", "5ac33e6ae2fcde4a"),
    "index": ("37b732a8342d390c", "9648c70b08f9347f", "17d07b7290ff85ec"),
    "majority": ("5fbd0a4826c1ef9e", "8101e4911571eb12", "3fcd26cde630db42"),
    "mqar": ("3c8c57b0cd0e2961", "9be13dca5d8f48a9", "7f3c4ba44131514b"),
    "selective_copy": ("328f8620d58cc47e", "84e762b2e542ec4b", "774aba2a91f29cb5"),
}


@every_task
def test_examples_of_a_seed_are_those_of_older_versions(name: str) -> None:
    task = build_task({"name": name})
    batch = TaskWindows(task, 32).batch(8, seed=1, step=2).tokens.numpy().astype("<i8").tobytes()
    found = task.hash, task_plan(task, 32, 8, 0).target_hash, hashlib.sha256(batch).hexdigest()[:16]
    assert found == PINNED[name]


def test_options_that_cannot_be_are_refused() -> None:
    for values, message in (
        ({"name": "majorty"}, "unknown task 'majorty': did you mean 'majority'"),
        ({"name": "copy", "symbols": 1}, "task.symbols must be a whole number of at least 2, not 1"),
        ({"name": "mqar", "spread": 5}, "task.spread must be an even number"),
    ):
        with pytest.raises(UserError, match=message):
            build_task(values)


def test_a_batch_counts_the_losses_of_answers_alone_and_its_parts_are_its_rows() -> None:
    batch = windows_of(task_data(build_task({"name": "flip_flop"})), 16).batch(6, 0, 0)
    assert batch.is_answer is not None
    assert batch.n_losses == int(batch.is_answer.sum()) < batch.tokens[:, 1:].numel()
    assert sum(part.n_losses for part in batch.split(2)) == batch.n_losses


# Training windows are uniform crops inside a document, and follow from seed and step alone

END = 9_999


def split_of(*lengths: int) -> Split:
    """Document d holds 100 d, 100 d + 1, ... so that a window tells where it comes from."""
    documents = [np.arange(length, dtype=np.uint16) + 100 * index for index, length in enumerate(lengths)]
    starts = np.cumsum([0, *lengths], dtype=np.int64)
    return Split(np.concatenate(documents), starts)


def test_every_start_is_equally_likely():
    windows = TrainingWindows(split_of(20, 9, 12), length=8, end_of_text=END)
    starts = Counter(windows.batch(16_000, seed=1, step=0).tokens[:, 0].tolist())
    assert sorted(starts) == [*range(12), 100, *range(200, 204)]
    expected = 16_000 / 17
    chi_square = sum((seen - expected) ** 2 / expected for seen in starts.values())
    assert chi_square < 39.3, "a uniform draw over 17 starts stays below this in 999 of 1000 cases"


def test_short_documents_are_joined_by_the_end_of_text_and_nothing_is_lost():
    windows = TrainingWindows(split_of(3, 30, 8, 2), length=8, end_of_text=END)
    assert windows.joint.tolist() == [0, 1, 2, END, *range(200, 208), END, 300, 301]
    seen = set(windows.batch(2_000, seed=0, step=0).tokens.flatten().tolist())
    assert seen == {0, 1, 2, *range(100, 130), *range(200, 208), 300, 301, END}
    windows = TrainingWindows(split_of(30, 12, 3), length=8, end_of_text=END)
    assert windows.joint.tolist() == [*range(100, 112), END, 200, 201, 202], "with the next longer one"
    one = TrainingWindows(split_of(4, 4), 8, END).batch(1, 0, 0)
    assert one.tokens.tolist() == [[0, 1, 2, 3, END, 100, 101, 102, 103]]
    told = "the validation documents have 8 tokens together, and one window of train.length=8 needs 9"
    with pytest.raises(UserError, match=told):
        TrainingWindows(split_of(4, 3), length=8, end_of_text=END, split_name="validation")


def test_a_batch_follows_from_seed_and_step_alone():
    split = split_of(500, 3, 400)
    windows = TrainingWindows(split, length=8, end_of_text=END)
    first = [windows.batch(4, seed=3, step=step).tokens for step in range(3)]
    resumed = TrainingWindows(split, length=8, end_of_text=END).batch(4, seed=3, step=2).tokens
    assert torch.equal(resumed, first[2])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], windows.batch(4, seed=4, step=0).tokens)
    pinned = TrainingWindows(split, 2, END).batch(4, seed=0, step=7).tokens[:, 0]
    told = "the batches of every run have changed: raise the version of a run's identity with these numbers"
    assert pinned.tolist() == [244, 401, 577, 254], told


def test_the_validation_examples_of_a_task_are_not_those_of_training() -> None:
    data = task_data(build_task({"name": "flip_flop"}))
    train, validation = (windows_of(data, 32, name).batch(4, 0, 0) for name in ("training", "validation"))
    assert not torch.equal(train.tokens, validation.tokens)
