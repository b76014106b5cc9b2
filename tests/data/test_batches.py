"""Training windows are uniform crops inside a document, and follow from seed and step alone."""

from collections import Counter

import numpy as np
import pytest
import torch

from pe_bench.data.batches import TrainingWindows
from pe_bench.data.packed import Split
from pe_bench.errors import UserError

END = 9_999


def split_of(*lengths: int, dtype: type = np.uint16) -> Split:
    """Document d holds 100 d, 100 d + 1, ... so that a window tells where it comes from."""
    documents = [np.arange(length, dtype=dtype) + 100 * index for index, length in enumerate(lengths)]
    starts = np.cumsum([0, *lengths], dtype=np.int64)
    return Split(
        np.concatenate(documents), starts, [str(index) for index in range(len(lengths))], sum(lengths)
    )


def test_windows_stand_inside_one_document():
    batch = TrainingWindows(split_of(50, 40, 9), 8, END).batch(500, seed=0, step=0).tokens
    assert torch.equal(batch, batch[:, :1] + torch.arange(9))
    assert (batch[:, 0] // 100 == batch[:, -1] // 100).all()


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


def test_short_documents_that_do_not_fill_a_window_are_joined_to_the_next_longer_one():
    windows = TrainingWindows(split_of(30, 12, 3), length=8, end_of_text=END)
    assert windows.joint.tolist() == [*range(100, 112), END, 200, 201, 202]


def test_a_batch_follows_from_seed_and_step_alone():
    split = split_of(500, 3, 400)
    windows = TrainingWindows(split, length=8, end_of_text=END)
    first = [windows.batch(4, seed=3, step=step).tokens for step in range(3)]
    resumed = TrainingWindows(split, length=8, end_of_text=END).batch(4, seed=3, step=2).tokens
    assert torch.equal(resumed, first[2])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], windows.batch(4, seed=4, step=0).tokens)


def test_a_batch_is_pinned():
    batch = TrainingWindows(split_of(500, 3, 400), 2, END).batch(4, seed=0, step=7).tokens
    assert batch[:, 0].tolist() == [244, 401, 577, 254], (
        "the batches of every run have changed: raise the version of a run's identity with these numbers"
    )


def test_a_split_shorter_than_one_window_is_told_with_both_numbers():
    with pytest.raises(
        UserError,
        match="the training documents have 8 tokens together, and one window of train.length=8 needs 9",
    ):
        TrainingWindows(split_of(4, 3), length=8, end_of_text=END)
    with pytest.raises(UserError, match="the validation documents have 8 tokens together"):
        TrainingWindows(split_of(4, 3), length=8, end_of_text=END, side="validation")
    assert TrainingWindows(split_of(4, 4), 8, END).batch(1, 0, 0).tokens.tolist() == [
        [0, 1, 2, 3, END, 100, 101, 102, 103]
    ]
