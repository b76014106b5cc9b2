"""Unique copy: a string of n different symbols, and the same string again.

    <begin> c a d <sep> [c] [a] [d] [<end>]

No symbol occurs twice, so that the one before says where to copy from.

Source: Huang et al. 2025, arXiv:2410.02140, unique copy (lacoco-lab/length_generalization). They have 150
symbols, train on up to 50 and draw the first position at random; ours has 128, and begins at the first.
"""

from dataclasses import dataclass

import numpy as np

from pe_bench.data.tasks import StringCopy
from pe_bench.values import AtLeast2


@dataclass(frozen=True)
class CopyUnique(StringCopy):
    """A task to copy a string of different symbols."""

    symbols: AtLeast2 = 128

    @property
    def largest_size(self) -> int:
        return self.symbols

    def string(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return rng.permutation(self.symbols)[:size]
