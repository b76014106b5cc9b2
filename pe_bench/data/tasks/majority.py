"""Majority: n bits, and the answer is the more frequent one.

    <begin> 0 1 1 0 1 <sep> [1]

Source: Huang et al. 2025, arXiv:2410.02140, binary majority (lacoco-lab/length_generalization). As there, the
number of zeros is uniform among those without a tie. They train on up to 50 bits and draw the first position
at random, and their answer ends with a token of its own; ours has none.
"""

from dataclasses import dataclass

import numpy as np

from pe_bench.data.tasks import BEGIN, SEPARATOR, Example, Task


@dataclass(frozen=True)
class Majority(Task):
    """A task to name the more frequent of two bits."""

    @property
    def symbols_and_signs(self) -> list[str]:
        return ["0", "1", BEGIN, SEPARATOR]

    @property
    def chance(self) -> float:
        return 1 / 2

    def tokens(self, size: int) -> int:
        return size + 3

    def example(self, rng: np.random.Generator, size: int) -> Example:
        is_even = size % 2 == 0
        zeros = int(rng.integers(size + 1 - is_even))
        zeros += is_even and zeros >= size // 2  # no tie
        ones = size - zeros
        bits = rng.permutation([0] * zeros + [1] * ones)
        begin, separator = self.ids(BEGIN, SEPARATOR)
        tokens = np.array([begin, *bits, separator, int(zeros < ones)])
        return Example(tokens, np.arange(len(tokens)) == len(tokens) - 1)
