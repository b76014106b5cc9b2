"""By which rule the windows of the sliding protocol advanced, told from the rows alone.

A row has the stride that its length was scored with. The rule behind it is half the length, or a
fixed number, which a shorter length cuts to itself: `min(length, number)`. A row may fit several
rules (a stride of 1 at length 2) and is then a score under each. A rule counts as used by a run only
if some of the run's rows fit no other, so that strides 64, 128 and 256 are one rule and not three.
"""

from collections.abc import Sequence

from pe_bench.runs.rows import Row

HALF = "half"


def by_stride_rule(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Each row under each rule that its run used and the row fits; "" where there is no stride.

    The rows are those that may stand in one table but for their strides.
    """
    runs: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        runs.setdefault((row.run, row.scored_with), []).append(row)
    # A stride as long as the length tells only that the number is no smaller; others' rows may tell it.
    there = [row for row in rows if row.stride is not None and not _fits(row, HALF)]
    found = []
    for own in runs.values():
        found += [("", row) for row in own if row.stride is None]
        strided = [row for row in own if row.stride is not None]
        rules = _rules(strided, there)
        found += [(rule, row) for row in strided for rule in rules if _fits(row, rule)]
    return found


def describe_rule(rule: str) -> str:
    return "half the length" if rule == HALF else rule


def order_of_rule(rule: str) -> int:
    return int(rule) if rule.isdecimal() else 0


def _rules(own: Sequence[Row], there: Sequence[Row]) -> list[str]:
    """The rules that one run's rows were scored under, as few as explain all of them."""
    numbers = _numbers([row for row in own if not _fits(row, HALF)])
    open_lengths = [row.length for row in own if not _fits(row, HALF) and not _fits_any(row, numbers)]
    if open_lengths:
        numbers.append(_number_for(max(open_lengths), own, numbers, there))
    explained = all(_fits_any(row, numbers) for row in own)
    return sorted({str(number) for number in numbers}) + ([] if explained else [HALF])


def _number_for(longest: int, own: Sequence[Row], numbers: list[int], there: Sequence[Row]) -> int:
    """The number behind strides that are as long as their lengths, `longest` the longest of those.

    One that leaves nothing of the run unexplained, else one that another run was scored with, else
    the smallest that does for all runs.
    """
    for number in _numbers(own):
        if number >= longest and all(_fits_any(row, [*numbers, number]) for row in own):
            return number
    known = [number for number in _numbers(there) if number >= longest]
    return known[0] if known else max(row.stride for row in there if row.stride is not None)


def _numbers(rows: Sequence[Row]) -> list[int]:
    """The strides that are shorter than their lengths, and so are the number itself, rising."""
    return sorted({row.stride for row in rows if row.stride is not None and row.stride < row.length})


def _fits(row: Row, rule: str) -> bool:
    return row.stride == (max(1, row.length // 2) if rule == HALF else min(row.length, int(rule)))


def _fits_any(row: Row, numbers: Sequence[int]) -> bool:
    return any(_fits(row, str(number)) for number in numbers)
