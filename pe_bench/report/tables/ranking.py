"""In which order lines stand: by their level at a length, or by another of their numbers."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pe_bench.errors import UserError
from pe_bench.report.tables.lines import Line, on_other_targets
from pe_bench.values import unknown

# Rising, but for what is better the larger it is.
KEYS: dict[str, Callable[[Line], tuple[object, ...]]] = {
    "name": lambda line: (),
    "parameters": lambda line: (line.parameters,),
    "tokens_per_second": lambda line: (-line.tokens_per_second,),
    "peak_memory_mb": lambda line: (largest_memory(line) is None, largest_memory(line)),
}


class Order(NamedTuple):
    """Lines in order; the length whose levels ranked them, if one did; and the order in words.

    Levels on different targets put lines in order where that was asked for, and rank nothing.
    """

    lines: list[Line]
    ranked_at: int | None
    words: str


def check_sort(word: str) -> None:
    """Raises `UserError` for what is neither a length nor a key."""
    if not word.isdecimal() and word not in KEYS:
        raise UserError(f"{unknown(word, '--sort', KEYS)}; or a length such as 2048")


def ordered(lines: Sequence[Line], sort: str | None) -> Order:
    """By the level at the length `sort`, or by a key; by default at the longest length that all have."""
    if sort in KEYS:
        key = KEYS[sort]
        by_key = sorted(lines, key=lambda line: (*key(line), line.label))
        return Order(by_key, None, f"in order of {sort}")
    wanted = int(sort) if sort is not None else None
    is_scored = any(line.cells[wanted].levels for line in lines if wanted in line.cells)
    length = wanted if is_scored else _longest_common(lines)
    if length is None:
        by_name = sorted(lines, key=lambda line: line.label)
        return Order(by_name, None, "no length has a number for all: the order is that of the names")
    if on_other_targets(lines, length):
        return _unranked(lines, length, is_asked=is_scored)
    ranked = _by_level(lines, length)
    chosen = "" if is_scored else ", the longest length that all have a number at"
    return Order(ranked, length, f"ranked by bits/byte at {length}{chosen}")


def memory_at(line: Line, length: int) -> float | None:
    """Peak megabytes while that length was scored; None where it has no number."""
    cell = line.cells.get(length)
    return cell.peak_memory_mb if cell is not None and cell.levels else None


def largest_memory(line: Line) -> float | None:
    """Peak megabytes over all lengths."""
    found = [cell.peak_memory_mb for cell in line.cells.values() if cell.peak_memory_mb is not None]
    return max(found, default=None)


def _by_level(lines: Sequence[Line], length: int) -> list[Line]:
    return sorted(lines, key=lambda line: (_level(line, length), line.label))


def _unranked(lines: Sequence[Line], length: int, *, is_asked: bool) -> Order:
    """By the names, but where it `is_asked` for by the levels."""
    in_order = _by_level(lines, length) if is_asked else sorted(lines, key=lambda line: line.label)
    words = (
        f"not ranked, for the levels at {length} are of different targets: the order is that of "
        f"{'the levels all the same' if is_asked else 'the names'}. To rank them, repeat their commands with "
        "the same eval.* words (nothing is trained again), or pe-bench eval RUN... with the same --lengths, "
        "--max-length and --targets"
    )
    return Order(in_order, None, words)


def _longest_common(lines: Sequence[Line]) -> int | None:
    lengths = [{length for length, cell in line.cells.items() if cell.levels} for line in lines]
    return max(set.intersection(*lengths), default=None) if lengths else None


def _level(line: Line, length: int) -> float:
    """Bits per byte at a length; a level that is no number, or is not there, ranks last."""
    cell = line.cells.get(length)
    level = cell.bits_per_byte if cell is not None else None
    return level if level is not None and level == level else float("inf")
