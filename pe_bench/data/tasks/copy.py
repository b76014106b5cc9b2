"""Copy: a string of n random symbols, which may repeat, and the same string again.

    <begin> c a c <sep> [c] [a] [c] [<end>]

Source: Huang et al. 2025, arXiv:2410.02140, copy with repeats (lacoco-lab/length_generalization), with two
symbols; the lengths of Jelassi et al. 2024, arXiv:2402.01032, are longer. Ours has 26 symbols by default, and
every example begins at the first position.
"""

from dataclasses import dataclass

import numpy as np

from pe_bench.data.task import BEGIN, END, SEPARATOR, Example, Task, symbols
from pe_bench.errors import require


@dataclass(frozen=True)
class Copy(Task):
    """Copy of a string, symbols of which may repeat."""

    symbols: int = 26

    def __post_init__(self) -> None:
        require(self.symbols >= 2, f"task.symbols must be at least 2, not {self.symbols}")

    @property
    def symbols_and_signs(self) -> list[str]:
        return [*symbols(self.symbols), BEGIN, SEPARATOR, END]

    @property
    def chance(self) -> float:
        return 1 / (self.symbols + 1)

    def tokens(self, size: int) -> int:
        return 2 * size + 3

    def example(self, rng: np.random.Generator, size: int) -> Example:
        string = rng.integers(self.symbols, size=size)
        begin, separator, end = self.ids(BEGIN, SEPARATOR, END)
        tokens = np.array([begin, *string, separator, *string, end])
        return Example(tokens, np.arange(len(tokens)) > size + 1)
