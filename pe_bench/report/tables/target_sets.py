"""Sets of targets: which one stands for a length that was scored on several, and where they change.

Lengths beyond `eval.max_length` have targets of their own, on which the training length is scored
too. Changes are always within one set; levels on two of them are of different text.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pe_bench.report.tables.cells import Cell
from pe_bench.runs.rows import Row

# The larger is preferred. The hash is last: of sets alike in all the rest, one has to be taken.
Rank = tuple[int, int, int, int, str]


def rank_sets(rows: Iterable[Row]) -> dict[str, Rank]:
    """Return the rank of each set: most lengths first, then the smaller longest one, rows and targets."""
    of_set: dict[str, list[Row]] = {}
    for row in rows:
        of_set.setdefault(row.target_hash, []).append(row)
    return {target_hash: _rank(target_hash, own) for target_hash, own in of_set.items()}


def lengths_on_other_sets(cells: Mapping[int, Cell], train_length: int) -> tuple[int, ...]:
    """Return the lengths whose level is of other targets than the training length's, or than most."""
    sets = {length: cell.target_hash for length, cell in sorted(cells.items()) if cell.levels}
    if not sets:
        return ()
    main = sets.get(train_length) or Counter(sets.values()).most_common(1)[0][0]
    return tuple(length for length, target_hash in sets.items() if target_hash != main)


def _rank(target_hash: str, rows: Sequence[Row]) -> Rank:
    lengths = {row.length for row in rows}
    return (len(lengths), -max(lengths), len(rows), max(row.targets for row in rows), target_hash)
