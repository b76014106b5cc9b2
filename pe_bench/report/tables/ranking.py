"""In which order lines stand: by their level at a length, or by another of their numbers."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pe_bench.errors import UserError
from pe_bench.report.tables.lines import Line, on_other_targets
from pe_bench.report.tables.notes import Note
from pe_bench.values import unknown

# Rising, but for what is better the larger it is.
KEYS: dict[str, Callable[[Line], tuple[object, ...]]] = {
    "name": lambda line: (),
    "parameters": lambda line: (line.parameters,),
    "tokens_per_second": lambda line: (-line.tokens_per_second,),
    "peak_memory_mb": lambda line: (largest_memory(line) is None, largest_memory(line)),
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
    if not word.isdecimal() and word not in KEYS:
        raise UserError(f"{unknown(word, '--sort', KEYS)}; or a length such as 2048")


def ordered(lines: Sequence[Line], sort: str | None) -> Order:
    """Return the lines by their level at the length `sort`, or by a key.

    By default it is the longest length that most reach. A line without a level there stands below the others
    and moves none of them.
    """
    if sort in KEYS:
        key = KEYS[sort]
        by_key = sorted(lines, key=lambda line: (*key(line), line.label))
        return Order(by_key, None, Note(f"in order of {sort}", is_caveat=True))
    if sort is None and any(cell.answers for line in lines for cell in line.cells.values()):
        return _by_reach(lines)
    wanted = int(sort) if sort is not None else None
    is_scored = any(line.cells[wanted].levels for line in lines if wanted in line.cells)
    length = wanted if is_scored else _longest_of_most(lines)
    if length is None:
        by_name = sorted(lines, key=lambda line: line.label)
        return Order(
            by_name, None, Note("in order of names: no length has a number for most lines", is_caveat=True)
        )
    if on_other_targets(lines, length):
        return _unranked(lines, length, is_asked=is_scored)
    chosen = "" if is_scored else ", the longest length that most have a number at"
    ranked = _by_level(lines, length)
    below = [line.label for line in ranked if not _has_level(line, length)]
    short = f"; below: {', '.join(below)}" if below else ""
    name = (
        "exact" if any(line.cells[length].answers for line in lines if length in line.cells) else "bits/byte"
    )
    note = Note(f"ranked by {name} at {length}{chosen}{short}", is_caveat=is_scored)
    return Order(ranked, length, note)


def _by_reach(lines: Sequence[Line]) -> Order:
    """Return the lines of a task: at most lengths either all or none solve it."""

    def place(line: Line) -> tuple[bool, int, float, str]:
        levels = [cell.level or 0.0 for cell in line.cells.values()]
        return not line.is_ranked, -(line.break_point.works_to or 0), -sum(levels), line.label

    text = "in order of the length that a line works to, then of its mean over lengths"
    return Order(sorted(lines, key=place), None, Note(text, is_caveat=False))


def memory_at(line: Line, length: int) -> float | None:
    """Return the peak megabytes while that length was scored; None where it has no number."""
    cell = line.cells.get(length)
    return cell.peak_memory_mb if cell is not None and cell.levels else None


def largest_memory(line: Line) -> float | None:
    """Return the peak megabytes over all lengths."""
    found = [cell.peak_memory_mb for cell in line.cells.values() if cell.peak_memory_mb is not None]
    return max(found, default=None)


def _by_level(lines: Sequence[Line], length: int) -> list[Line]:
    """Return the lines with a level at the length, then the others, the furthest reaching first.

    What has not learned to beat the anchors is below all that has.
    """
    return sorted(lines, key=lambda line: (*_rank(line, length), line.label))


def _rank(line: Line, length: int) -> tuple[bool, bool, int, float]:
    if _has_level(line, length):
        return not line.is_ranked, False, 0, _level(line, length)
    reached = max((reached for reached in line.cells if _has_level(line, reached)), default=0)
    return not line.is_ranked, True, -reached, _level(line, reached)


def _unranked(lines: Sequence[Line], length: int, *, is_asked: bool) -> Order:
    """Return the lines by their names, or by their levels where those were asked for."""
    in_order = _by_level(lines, length) if is_asked else sorted(lines, key=lambda line: line.label)
    text = (
        f"not ranked, because the levels at {length} are of different targets: in order of "
        f"{'levels nevertheless' if is_asked else 'names'}. To rank them, repeat their commands with "
        "the same eval.* values (nothing is trained again), or pe-bench eval RUN... with the same --lengths, "
        "--max-length and --targets"
    )
    return Order(in_order, None, Note(text, is_caveat=True))


def _longest_of_most(lines: Sequence[Line]) -> int | None:
    """Return the longest length that has a level for more than half of the lines that can be scored there."""
    lengths = sorted({length for line in lines for length in line.cells}, reverse=True)
    return next((length for length in lengths if _most_reach(lines, length)), None)


def _most_reach(lines: Sequence[Line], length: int) -> bool:
    able = [line for line in lines if length not in line.cells or line.cells[length].status != "undefined"]
    return 2 * sum(_has_level(line, length) for line in able) > len(able)


def _has_level(line: Line, length: int) -> bool:
    return length in line.cells and bool(line.cells[length].levels)


def _level(line: Line, length: int) -> float:
    """Return the level at a length, of which less is better; one that is no number, or not there, is last."""
    cell = line.cells.get(length)
    level = cell.level if cell is not None else None
    if level is not None and cell is not None and cell.answers is not None:
        return -level
    return level if level is not None and level == level else float("inf")
