"""Indirect indexing: a string of n different symbols, one of them and an offset; the symbol at that place.

    <begin> c a d b <sep> d -2 [c]

To answer, a model finds a symbol by its content and then another by its distance.

Source: Gopalakrishnan et al. 2025, arXiv:2509.10534 (PoPE), the indirect indexing task. Its alphabet, lengths
and offsets were not obtained: ours are 128 symbols, all different in a string, and offsets of up to 8 places.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pe_bench.data.tasks import BEGIN, SEPARATOR, Example, Task, symbol_texts
from pe_bench.values import AtLeast1, AtLeast2


@dataclass(frozen=True)
class Index(Task):
    """A task to name the symbol at an offset from another symbol; `reach` is the largest offset."""

    smallest_size: ClassVar[int] = 2

    symbols: AtLeast2 = 128
    reach: AtLeast1 = 8

    @property
    def symbols_and_signs(self) -> list[str]:
        offsets = [f"{offset:+}" for offset in self._offsets]
        return [*symbol_texts(self.symbols), *offsets, BEGIN, SEPARATOR]

    @property
    def chance(self) -> float:
        return 1 / self.symbols

    @property
    def largest_size(self) -> int:
        return self.symbols

    @property
    def _offsets(self) -> list[int]:
        offsets = range(-self.reach, self.reach + 1)
        return [offset for offset in offsets if offset]

    def tokens(self, size: int) -> int:
        return size + 5

    def example(self, rng: np.random.Generator, size: int) -> Example:
        string = rng.permutation(self.symbols)[:size]
        index = int(rng.integers(size))
        fitting = [offset for offset in self._offsets if 0 <= index + offset < size]
        offset = int(rng.choice(fitting))
        begin, separator, sign = self.ids(BEGIN, SEPARATOR, f"{offset:+}")
        question = (string[index], sign)
        answer = string[index + offset]
        tokens = np.array([begin, *string, separator, *question, answer])
        return Example(tokens, np.arange(len(tokens)) == len(tokens) - 1)
