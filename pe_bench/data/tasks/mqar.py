"""Multi-query associative recall: n pairs of a key and a value, and then each key once more, and its value.

    <begin> k3 v1 k0 v7 _ _ k0 [v7] _ _ _ _ k3 [v1] _ _

The keys come again in an order and at gaps of their own: the first gaps are the likeliest, by a power law.

Source: Arora et al. 2023, arXiv:2312.04927 (Zoology, `multiquery_ar`), with its power law (a = 0.01). Their
vocabulary has 8,192 tokens and ours 64 keys and 64 values; they fill what is between the queries with random
tokens and ours are blanks; and after a query our input holds the value, which theirs does not.
"""

from dataclasses import dataclass

import numpy as np

from pe_bench.data.tasks import BEGIN, Example, Task
from pe_bench.errors import require
from pe_bench.values import AtLeast2

BLANK = "_"
GAP_POWER = 0.01


@dataclass(frozen=True)
class MultiQueryRecall(Task):
    """A task to recall values by their keys; `spread` is the number of an example's tokens for each pair."""

    symbols: AtLeast2 = 64  # keys, and as many values
    spread: int = 8

    def __post_init__(self) -> None:
        is_possible = self.spread >= 4 and self.spread % 2 == 0  # a pair, a query and its value
        require(is_possible, f"task.spread must be an even number of at least 4, not {self.spread}")

    @property
    def symbols_and_signs(self) -> list[str]:
        keys = [f"k{number}" for number in range(self.symbols)]
        values = [f"v{number}" for number in range(self.symbols)]
        return [*keys, *values, BLANK, BEGIN]

    @property
    def chance(self) -> float:
        return 1 / self.symbols

    @property
    def largest_size(self) -> int:
        return self.symbols

    def tokens(self, size: int) -> int:
        return 1 + self.spread * size

    def example(self, rng: np.random.Generator, size: int) -> Example:
        keys = rng.permutation(self.symbols)[:size]
        values = self.symbols + rng.integers(self.symbols, size=size)
        places = (self.spread - 2) * size // 2  # places for a query and its value
        weights = np.arange(1, places + 1) ** (GAP_POWER - 1)
        chosen = rng.choice(places, size=size, replace=False, p=weights / weights.sum())
        blank, begin = self.ids(BLANK, BEGIN)
        queries = np.full((places, 2), blank)
        queries[chosen] = np.stack([keys, values], 1)
        pairs = np.stack([keys, values], 1)
        is_answer = np.zeros((places, 2), bool)
        is_answer[chosen, 1] = True
        before = np.zeros(1 + pairs.size, bool)
        tokens = np.array([begin, *pairs.flat, *queries.flat])
        return Example(tokens, np.concatenate([before, is_answer.ravel()]))
