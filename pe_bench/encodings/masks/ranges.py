"""Keys that queries see, as `ranges` and `first_keys` of `LayerEncoding` return them."""

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor


def window_ranges(window: int, first_query: int, stop: int) -> list[range]:
    """Return the range of all keys in the windows of the queries `first_query` to `stop` - 1."""
    return [range(max(0, first_query - window + 1), stop)]


def first_keys_in_windows(window: int, tokens: int) -> Tensor:
    """Return the first key [T] of each token's window, int64."""
    return (torch.arange(tokens) + 1 - window).clamp(min=0)


def first_and_window_ranges(first: int, window: int, first_query: int, stop: int) -> list[range]:
    """Return the ranges of the `first` keys, and of all keys in the windows of the queries."""
    (near,) = window_ranges(window, first_query, stop)
    if near.start <= first:
        return [range(stop)]
    return [range(first), near] if first else [near]


def intersection(some: Sequence[range], others: Sequence[range]) -> list[range]:
    """Return the ranges of the keys in both lists of ranges; in each list, ranges rise without overlap."""
    common_ranges: list[range] = []
    for a, b in product(some, others):
        overlap = range(max(a.start, b.start), min(a.stop, b.stop))
        if overlap:
            common_ranges.append(overlap)
    return common_ranges
