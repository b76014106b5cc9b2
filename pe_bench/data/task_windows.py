"""Windows of a task: an example of a random size and padding in each, a function of the seed and the step."""

import numpy as np
import torch

from pe_bench.data.task import STREAMS, Task


class TaskWindows:
    """The examples of a task in windows of `length + 1` tokens.

    Sizes are drawn with equal chances, from the least to the largest that fits. Raises `UserError` where none
    does.
    """

    def __init__(self, task: Task, length: int, side: str = "training") -> None:
        self.task, self.size = task, length + 1
        self.largest = task.size_at(length)
        self.stream = STREAMS[side]

    def batch(self, count: int, seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return int64 [count, length + 1], and which of them are answers, bool of the same shape.

        They are equal for equal arguments, whatever was drawn before.
        """
        rng = np.random.default_rng([seed, self.stream, step])
        sizes = rng.integers(self.task.least, self.largest + 1, size=count)
        tokens = np.full((count, self.size), self.task.padding, np.int64)
        is_answer = np.zeros((count, self.size), bool)
        for row, size in enumerate(sizes):
            example = self.task.example(rng, int(size))
            tokens[row, : len(example.tokens)] = example.tokens
            is_answer[row, : len(example.tokens)] = example.is_answer
        return torch.from_numpy(tokens), torch.from_numpy(is_answer)
