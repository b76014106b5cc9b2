"""Copy: a string of n random symbols, which may repeat, and the same string again.

    <begin> c a c <sep> [c] [a] [c] [<end>]

Source: Huang et al. 2025, arXiv:2410.02140, copy with repeats (lacoco-lab/length_generalization), with two
symbols; the lengths of Jelassi et al. 2024, arXiv:2402.01032, are longer. Ours has 26 symbols by default, and
every example begins at the first position.
"""

from dataclasses import dataclass

from pe_bench.data.tasks import StringCopy
from pe_bench.values import AtLeast2


@dataclass(frozen=True)
class Copy(StringCopy):
    """A task to copy a string whose symbols may repeat."""

    symbols: AtLeast2 = 26
