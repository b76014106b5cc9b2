"""Facts that older versions wrote as words: columns that their rows lack, and the kernel of a run.

An older row has a stride, a remark in English, and a mark in the name of what it was scored with. Newer rows
have a column for each such fact, and nothing else reads the words.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FORCED = " (forced)"  # ended the name of an encoding that was scored by force
ADDED = (
    *("stride_rule", "target_tokens", "knows_length", "forced", "encoding_lr"),
    *("slice", "judge", "slice_hash"),
    *("accuracy", "exact", "chance", "depth"),
)
_HALF = "half"  # the stride rule: half of each length
_KNOWS_LENGTH = "the encoding is told the length of the text"  # the end of a remark

Record = Mapping[str, str]  # the cells of a row by their column


def with_added_columns(records: Sequence[Record]) -> list[Record]:
    """Return the rows of one run with all columns; one that fits several stride rules is there once for each.

    Raises `ValueError` for a number that is none.
    """
    later = {"encoding_lr": "1.0", "slice": "all", "judge": "", "slice_hash": ""}
    later |= dict.fromkeys(("accuracy", "exact", "chance", "depth"), "")
    with_later: list[Record] = [{**later, **record} for record in records]
    if all("stride_rule" in record for record in with_later):
        return with_later
    return [{**_with_facts(record), "stride_rule": rule} for rule, record in _by_stride_rule(with_later)]


def _with_facts(record: Record) -> Record:
    knows_length = record["status"] == "ok" and record["reason"].endswith(_KNOWS_LENGTH)
    reason = record["reason"].removesuffix(_KNOWS_LENGTH).rstrip("; ") if knows_length else record["reason"]
    return {
        **record,
        "reason": reason,
        "scored_with": record["scored_with"].removesuffix(FORCED),
        "target_tokens": _target_tokens(record),
        "knows_length": str(knows_length),
        "forced": str(record["scored_with"].endswith(FORCED)),
    }


def _target_tokens(record: Record) -> str:
    """Return the tokens in a target block, whose targets see from `length` less the block's size on."""
    mean = float(record["context_mean"] or "nan")
    if record["protocol"] != "paired" or not math.isfinite(mean):
        return ""
    return str(max(0, round(2 * (int(record["length"]) - mean)) - 1))


@dataclass(frozen=True)
class _Strided:
    """A row of the sliding protocol: its place among all rows, what belongs together, and its two numbers."""

    place: int
    series: tuple[str, str]  # scored_with and score_dtype
    length: int
    stride: int


def _by_stride_rule(records: Sequence[Record]) -> list[tuple[str, Record]]:
    """Return each row under each rule that it was scored under; "" where there is no stride.

    A row has the stride of its own length. The rule is half the length, or a fixed number, which a shorter
    length cuts to itself: `min(length, number)`. A row may fit several rules (a stride of 1 at length 2) and
    is then a score under each. A rule counts as used only if some rows fit no other, so that strides 64, 128
    and 256 are one rule and not three.
    """
    strided = [
        _Strided(place, (record["scored_with"], record["score_dtype"]), int(record["length"]), int(text))
        for place, record in enumerate(records)
        if (text := record["stride"])
    ]
    # A stride as long as the length tells only that the number is no smaller; others' rows may tell it.
    unhalved = [row for row in strided if not _fits(row, _HALF)]
    rules_of: dict[int, list[str]] = {}
    for series in dict.fromkeys(row.series for row in strided):
        rows = [row for row in strided if row.series == series]
        rules = _rules(rows, unhalved)
        rules_of |= {row.place: [rule for rule in rules if _fits(row, rule)] for row in rows}
    return [(rule, record) for place, record in enumerate(records) for rule in rules_of.get(place, [""])]


def _rules(rows: Sequence[_Strided], unhalved: Sequence[_Strided]) -> list[str]:
    """Return the rules that one series was scored under, as few as explain all of its rows."""
    numbers = _numbers([row for row in rows if not _fits(row, _HALF)])
    open_lengths = [row.length for row in rows if not _fits(row, _HALF) and not _fits_any(row, numbers)]
    if open_lengths:
        numbers.append(_number_from(max(open_lengths), rows, numbers, unhalved))
    explained = all(_fits_any(row, numbers) for row in rows)
    return sorted({str(number) for number in numbers}) + ([] if explained else [_HALF])


def _number_from(
    longest: int, rows: Sequence[_Strided], numbers: list[int], unhalved: Sequence[_Strided]
) -> int:
    """Return the number from which strides follow that are as long as their lengths, up to `longest`.

    It leaves nothing of the series unexplained, else another series was scored with it, else it is the
    smallest that does for all.
    """
    for number in _numbers(rows):
        if number >= longest and all(_fits_any(row, [*numbers, number]) for row in rows):
            return number
    known = [number for number in _numbers(unhalved) if number >= longest]
    return known[0] if known else max(row.stride for row in unhalved)


def _numbers(rows: Sequence[_Strided]) -> list[int]:
    """Return the strides that are shorter than their lengths, and so are the number itself, rising."""
    return sorted({row.stride for row in rows if row.stride < row.length})


def _fits(row: _Strided, rule: str) -> bool:
    return row.stride == (max(1, row.length // 2) if rule == _HALF else min(row.length, int(rule)))


def _fits_any(row: _Strided, numbers: Sequence[int]) -> bool:
    return any(_fits(row, str(number)) for number in numbers)
