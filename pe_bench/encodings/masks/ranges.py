"""Ranges of keys, outside of which a chunk of queries sees none: what `LayerEncoding.ranges` returns."""

from collections.abc import Sequence
from itertools import product


def latest(window: int, start: int, stop: int) -> list[range]:
    """Return the keys that one of the queries `start` to `stop` - 1 has among its last `window`."""
    return [range(max(0, start - window + 1), stop)]


def first_and_latest(first: int, window: int, start: int, stop: int) -> list[range]:
    """Return the `first` keys of all, and those that one of the queries has among its last `window`."""
    (near,) = latest(window, start, stop)
    if near.start <= first:
        return [range(stop)]
    return [range(first), near] if first else [near]


def intersection(these: Sequence[range], those: Sequence[range]) -> list[range]:
    """Return the keys that lie in ranges of both, each in rising order and without overlap."""
    both = [range(max(a.start, b.start), min(a.stop, b.stop)) for a, b in product(these, those)]
    return [one for one in both if one]
