"""In which order lines stand: by their level at a length, or by another of their numbers."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pe_bench.errors import require
from pe_bench.report.lines import on_other_targets
from pe_bench.report.notes import Note
from pe_bench.report.records import Line
from pe_bench.values import unknown

# Rising, but for what is better the larger it is.
KEYS: dict[str, Callable[[Line], tuple[object, ...]]] = {
    "name": lambda line: (),
    "parameters": lambda line: (line.parameters,),
    "tokens_per_second": lambda line: (-line.tokens_per_second,),
    "peak_memory_mb": lambda line: (line.peak_memory_mb is None, line.peak_memory_mb),
}


class Order(NamedTuple):
    """Lines in order; the length whose levels ranked them, if one did; and the note that says so.

    Levels on different targets put lines in order where that was asked for, and rank nothing.
    """

    lines: list[Line]
    ranked_at: int | None
    note: Note


def check_sort(word: str) -> None:
    """Raises `UserError` for what is neither a length nor a key."""
    require(word.isdecimal() or word in KEYS, f"{unknown(word, '--sort', KEYS)}; or a length such as 2048")


def ordered(lines: Sequence[Line], sort: str | None) -> Order:
    """Return the lines by their level at the length `sort`, or by a key.

    By default it is the longest length that most reach. A line without a level there stands below the others
    and moves none of them.
    """
    by_name = sorted(lines, key=lambda line: line.label)
    if sort in KEYS:
        return Order(sorted(by_name, key=KEYS[sort]), None, Note(f"in order of {sort}", is_caveat=True))
    is_task = any(record.answers for line in lines for record in line.records.values())
    if sort is None and is_task:
        text = "in order of the length that a line works to, then of its mean over lengths"
        return Order(sorted(by_name, key=_reach), None, Note(text, is_caveat=False))
    is_scored = sort is not None and any(_has_level(line, int(sort)) for line in lines)
    length = int(sort) if sort is not None and is_scored else _longest_of_most(lines)
    if length is None:
        text = "in order of names: no length has a number for most lines"
        return Order(by_name, None, Note(text, is_caveat=True))
    by_level = sorted(by_name, key=lambda line: _rank(line, length))
    if on_other_targets(lines, length):
        text = (
            f"not ranked, because the levels at {length} are of different targets: in order of "
            f"{'levels nevertheless' if is_scored else 'names'}. To rank them, repeat their commands with "
            "the same eval.* values (nothing is trained again), or pe-bench eval RUN... with the same "
            "--lengths, --max-length and --targets"
        )
        return Order(by_level if is_scored else by_name, None, Note(text, is_caveat=True))
    chosen = "" if is_scored else ", the longest length that most have a number at"
    below = [line.label for line in by_level if not _has_level(line, length)]
    text = f"ranked by {'exact' if is_task else 'bits/byte'} at {length}{chosen}"
    text += f"; below: {', '.join(below)}" if below else ""
    return Order(by_level, length, Note(text, is_caveat=is_scored))


def _reach(line: Line) -> tuple[bool, int, float]:
    """Return the place of a line of a task: at most lengths either all or none solve it."""
    levels = [record.level or 0.0 for record in line.records.values()]
    return not line.is_ranked, -(line.break_point.works_to or 0), -sum(levels)


def _rank(line: Line, length: int) -> tuple[bool, bool, int, float]:
    """Return the place of a line: those with a level at the length first, then the furthest reaching.

    What has not learned to beat the anchors is below all that has.
    """
    if _has_level(line, length):
        return not line.is_ranked, False, 0, _level(line, length)
    reached = max((reached for reached in line.records if _has_level(line, reached)), default=0)
    return not line.is_ranked, True, -reached, _level(line, reached)


def _longest_of_most(lines: Sequence[Line]) -> int | None:
    """Return the longest length that has a level for more than half of the lines that can be scored there."""
    for length in sorted({length for line in lines for length in line.records}, reverse=True):
        records = [line.records.get(length) for line in lines]
        able = [record for record in records if record is None or record.status != "undefined"]
        if 2 * sum(record is not None and bool(record.levels) for record in able) > len(able):
            return length
    return None


def _has_level(line: Line, length: int) -> bool:
    return length in line.records and bool(line.records[length].levels)


def _level(line: Line, length: int) -> float:
    """Return the level at a length, of which less is better; one that is no number, or not there, is last."""
    record = line.records.get(length)
    if record is None or record.level is None or record.level != record.level:
        return float("inf")
    return record.level if record.answers is None else -record.level
