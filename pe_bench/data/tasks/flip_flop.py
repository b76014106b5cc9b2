"""Flip-flop: instructions to write, ignore or read a bit; the answer to a read is the bit written last.

    w 1 i 0 i 1 r [1] w 0 r [0]

Source: Liu et al. 2023, arXiv:2306.00946 (flip-flop language modelling): the first instruction writes, the
last one reads, the others ignore with a chance of 0.8, and write and read with equal chances. They have 256
instructions and test a chance to ignore of 0.98 and 0.1 (task.ignore); ours has fewer, and tests more.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pe_bench.data.tasks import Example, Task
from pe_bench.values import Share


@dataclass(frozen=True)
class FlipFlop(Task):
    """A task to remember one bit; `ignore` is the chance that an instruction does nothing."""

    smallest_size: ClassVar[int] = 2

    ignore: Share = 0.8

    @property
    def symbols_and_signs(self) -> list[str]:
        return ["0", "1", "w", "i", "r"]

    @property
    def chance(self) -> float:
        return 1 / 2

    def tokens(self, size: int) -> int:
        return 2 * size

    def example(self, rng: np.random.Generator, size: int) -> Example:
        write, ignore, read = self.ids("w", "i", "r")
        other = (1 - self.ignore) / 2
        chances = [other, self.ignore, other]
        instructions = rng.choice([write, ignore, read], size=size, p=chances)
        instructions[[0, -1]] = write, read
        bits = rng.integers(2, size=size)
        writes = np.where(instructions == write, np.arange(size), 0)
        last_write = np.maximum.accumulate(writes)
        is_read = instructions == read
        bits = np.where(is_read, bits[last_write], bits)
        is_answer = np.stack([np.zeros(size, bool), is_read], 1)
        return Example(np.stack([instructions, bits], 1).ravel(), is_answer.ravel())
