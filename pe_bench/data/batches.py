"""Training windows: uniform random crops of a document, a pure function of the seed and the step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pe_bench.data.packed import Data, Split
from pe_bench.data.tasks import RANDOM_STREAMS, Task
from pe_bench.errors import UserError

WINDOWS_STREAM = 0xDA7A  # separates these draws from others with the same seed


@dataclass(frozen=True)
class Batch:
    """B windows of T inputs and T targets: the targets are the tokens after the inputs."""

    tokens: Tensor  # [B, T + 1]
    is_answer: Tensor | None = None  # bool [B, T + 1], the tokens with a loss; None: all but the first

    @property
    def n_losses(self) -> int:
        """Return the number of targets with a loss."""
        if self.is_answer is None:
            return self.tokens[:, 1:].numel()
        return int(self.is_answer[:, 1:].sum())

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """Apply `function` to each field of the batch."""
        if self.is_answer is None:
            return Batch(function(self.tokens))
        return Batch(function(self.tokens), function(self.is_answer))

    def split(self, count: int) -> Iterator["Batch"]:
        """Yield parts of at most `count` windows, in order."""
        for start in range(0, len(self.tokens), count):
            part = slice(start, start + count)
            yield self.map(lambda windows, part=part: windows[part])


class TrainingWindows:
    """Draws crops of `length + 1` tokens from the documents of a split, each crop with equal chance.

    Documents shorter than a crop are joined by the end-of-text id into one document, which is a copy. Raises
    `UserError`, which names the split, if the whole split is shorter than one crop.
    """

    def __init__(self, split: Split, length: int, end_of_text: int, split_name: str = "training") -> None:
        self.size = length + 1
        joined = _documents_to_join(split.lengths, self.size)
        between = np.array([end_of_text], split.tokens.dtype)
        parts = [between[:0]]
        for index in joined.tolist():
            parts += [between, split.document(index)]
        self.joint = np.concatenate(parts)[1:]
        is_all_joined = len(joined) == len(split.lengths)
        if is_all_joined and len(self.joint) < self.size:
            raise UserError(
                f"the {split_name} documents have {len(self.joint)} tokens together, and one window of "
                f"train.length={length} needs {self.size}: use more text, or a shorter train.length"
            )
        self.tokens = split.tokens
        alone = np.setdiff1d(np.arange(len(split.lengths)), joined)
        # The joint document comes last.
        self.starts = np.append(split.starts[alone], 0)
        lengths = np.append(split.lengths[alone], len(self.joint))
        self.crops_through = np.cumsum(np.maximum(lengths - length, 0))

    def batch(self, count: int, seed: int, step: int) -> Batch:
        """Return `count` windows, int64 [count, length + 1], which follow from the arguments alone."""
        generator = np.random.default_rng([seed, WINDOWS_STREAM, step])
        drawn = generator.integers(0, self.crops_through[-1], size=count)
        document = np.searchsorted(self.crops_through, drawn, side="right")
        crops_before = np.append(0, self.crops_through)[document]
        begins = self.starts[document] + drawn - crops_before
        is_joint = document == len(self.starts) - 1
        windows = []
        for begin, from_joint in zip(begins, is_joint, strict=True):
            tokens = self.joint if from_joint else self.tokens
            windows.append(tokens[begin : begin + self.size])
        return Batch(torch.from_numpy(np.array(windows, np.int64)))


class TaskWindows:
    """Draws examples of a task, padded to windows of `length + 1` tokens.

    Sizes are drawn with equal chances, from the least to the largest that fits. Raises `UserError` if no size
    fits.
    """

    def __init__(self, task: Task, length: int, split_name: str = "training") -> None:
        self.task = task
        self.size = length + 1
        self.largest = task.size_at(length)
        self.stream = RANDOM_STREAMS[split_name]

    def batch(self, count: int, seed: int, step: int) -> Batch:
        """Return `count` examples, int64 [count, length + 1], which follow from the arguments alone."""
        rng = np.random.default_rng([seed, self.stream, step])
        sizes = rng.integers(self.task.smallest_size, self.largest + 1, size=count)
        tokens = np.full((count, self.size), self.task.padding, np.int64)
        is_answer = np.zeros((count, self.size), bool)
        for row, size in enumerate(sizes):
            example = self.task.example(rng, int(size))
            tokens[row, : len(example.tokens)] = example.tokens
            is_answer[row, : len(example.tokens)] = example.is_answer
        return Batch(torch.from_numpy(tokens), torch.from_numpy(is_answer))


Windows = TrainingWindows | TaskWindows


def windows_of(data: Data, length: int, split_name: str = "training") -> Windows:
    """Return the windows of a split, training or validation, of text or of a task.

    Raises `UserError` if no window can be drawn.
    """
    if data.task is not None:
        return TaskWindows(data.task, length, split_name)
    split = data.train if split_name == "training" else data.validation
    return TrainingWindows(split, length, data.end_of_text, split_name)


def _documents_to_join(lengths: np.ndarray, size: int) -> np.ndarray:
    """Return the indices of the documents to join: all that are shorter than `size` tokens.

    If their joint length is below `size`, the shortest longer documents are joined too. Without a short
    document there is nothing to join.
    """
    order = np.argsort(lengths, kind="stable")
    joint_lengths = np.cumsum(lengths[order] + 1) - 1
    short = int(np.searchsorted(lengths[order], size))
    enough = int(np.searchsorted(joint_lengths, size)) + 1
    if not short:
        return np.empty(0, np.int64)
    return np.sort(order[: max(short, enough)])
