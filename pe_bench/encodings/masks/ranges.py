"""Ranges that hold all keys which a chunk of queries sees, as `LayerEncoding.ranges` returns them."""

from collections.abc import Sequence
from itertools import product


def window_ranges(window: int, first_query: int, stop: int) -> list[range]:
    """Return the range of all keys in the windows of the queries `first_query` to `stop` - 1."""
    return [range(max(0, first_query - window + 1), stop)]


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
