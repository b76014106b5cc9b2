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
    """Majority of bits."""

    @property
    def symbols_and_signs(self) -> list[str]:
        return ["0", "1", BEGIN, SEPARATOR]

    @property
    def chance(self) -> float:
        return 1 / 2

    def tokens(self, size: int) -> int:
        return size + 3

    def example(self, rng: np.random.Generator, size: int) -> Example:
        zeros = int(rng.integers(size + 1 - (size % 2 == 0)))
        zeros += size % 2 == 0 and zeros >= size // 2  # no tie
        bits = rng.permutation([0] * zeros + [1] * (size - zeros))
        begin, separator = self.ids(BEGIN, SEPARATOR)
        tokens = np.array([begin, *bits, separator, int(2 * zeros < size)])
        return Example(tokens, np.arange(size + 3) == size + 2)
