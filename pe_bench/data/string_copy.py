"""The common part of tasks that copy a string; each task draws the string in its own way."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from pe_bench.data.task import BEGIN, END, SEPARATOR, Example, Task, require_at_least, symbol_texts


@dataclass(frozen=True)
class StringCopy(Task):
    """A copy of a string: the string, a separator, the string once more and its end."""

    symbols: int

    def __post_init__(self) -> None:
        require_at_least(2, self.symbols, "symbols")

    @property
    def symbols_and_signs(self) -> list[str]:
        return [*symbol_texts(self.symbols), BEGIN, SEPARATOR, END]

    @property
    def chance(self) -> float:
        return 1 / (self.symbols + 1)

    def tokens(self, size: int) -> int:
        return 2 * size + 3

    @abstractmethod
    def string(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Return the symbols of a string, int64 [size]."""

    def example(self, rng: np.random.Generator, size: int) -> Example:
        string = self.string(rng, size)
        begin, separator, end = self.ids(BEGIN, SEPARATOR, END)
        tokens = np.array([begin, *string, separator, *string, end])
        return Example(tokens, np.arange(len(tokens)) > size + 1)
