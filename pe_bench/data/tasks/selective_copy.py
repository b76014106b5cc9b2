"""Selective copy: n symbols with as many blanks among them, and then the symbols alone.

    <begin> _ c _ a _ c <sep> [c] [a] [c] [<end>]

Source: Gu and Dao 2023, arXiv:2312.00752, selective copying, and Golovneva et al. 2024, arXiv:2405.18719
(CoPE), who change the number of blanks after training. Theirs have a fixed number of symbols in a long
window; ours has as many blanks as symbols at every size.
"""

from dataclasses import dataclass

import numpy as np

from pe_bench.data.tasks import BEGIN, END, SEPARATOR, StringCopy, symbol_texts
from pe_bench.values import AtLeast2, Natural

BLANK = "_"


@dataclass(frozen=True)
class SelectiveCopy(StringCopy):
    """A task to copy the symbols between blanks; `blanks` is the number of blanks for each symbol."""

    symbols: AtLeast2 = 16
    blanks: Natural = 1

    @property
    def symbols_and_signs(self) -> list[str]:
        return [*symbol_texts(self.symbols), BLANK, BEGIN, SEPARATOR, END]

    def tokens(self, size: int) -> int:
        return (2 + self.blanks) * size + 3

    def tokens_before_separator(self, rng: np.random.Generator, string: np.ndarray) -> np.ndarray:
        blank = self.symbols
        mixed = np.full((1 + self.blanks) * len(string), blank)
        places = rng.permutation(len(mixed))[: len(string)]
        mixed[np.sort(places)] = string
        return mixed
