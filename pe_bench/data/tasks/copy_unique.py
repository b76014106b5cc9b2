"""Unique copy: a string of n different symbols, and the same string again.

    <begin> c a d <sep> [c] [a] [d] [<end>]

No symbol occurs twice, so that the one before says where to copy from.

Source: Huang et al. 2025, arXiv:2410.02140, unique copy (lacoco-lab/length_generalization). They have 150
symbols, train on up to 50 and draw the first position at random; ours has 128, and begins at the first.
"""

from dataclasses import dataclass

import numpy as np

from pe_bench.data.task import BEGIN, END, SEPARATOR, Example, Task, symbols
from pe_bench.errors import require


@dataclass(frozen=True)
class CopyUnique(Task):
    """Copy of a string of different symbols."""

    symbols: int = 128

    def __post_init__(self) -> None:
        require(self.symbols >= 2, f"task.symbols must be at least 2, not {self.symbols}")

    @property
    def symbols_and_signs(self) -> list[str]:
        return [*symbols(self.symbols), BEGIN, SEPARATOR, END]

    @property
    def chance(self) -> float:
        return 1 / (self.symbols + 1)

    @property
    def most(self) -> int:
        return self.symbols

    def tokens(self, size: int) -> int:
        return 2 * size + 3

    def example(self, rng: np.random.Generator, size: int) -> Example:
        string = rng.permutation(self.symbols)[:size]
        begin, separator, end = self.ids(BEGIN, SEPARATOR, END)
        tokens = np.array([begin, *string, separator, *string, end])
        return Example(tokens, np.arange(len(tokens)) > size + 1)
