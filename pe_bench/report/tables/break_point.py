"""Where an encoding stops working, from the verdicts of its table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from pe_bench.report.statistics import breaks_at, holds_up_to
from pe_bench.report.tables.cells import Cell

HELD, BROKEN = ("improves", "holds"), ("degrades", "fails")
CLAIMED = (*HELD, *BROKEN, "unclear")
Kind = Literal["at", "by", "unclear", "none", "unknown"]


@dataclass(frozen=True)
class BreakPoint:
    """A length and what it says of the break point.

    kind: it breaks `at` the length, or there or before (`by`, after an unclear one); it is `unclear` from the
    length on; it does not break up to the length (`none`); or nothing is known. holds_to: the last length up
    to which it surely holds. works_to: the last one before it breaks, or surely breaks these models or each
    of them, or cannot be scored; other unclear lengths are included. Both are the training length where the
    next one breaks, and 0 where that breaks itself, as it may with an encoding that was not trained; None
    where no longer one was judged.
    """

    kind: Kind = "unknown"
    length: int | None = None
    holds_to: int | None = None
    works_to: int | None = None

    @property
    def is_sure(self) -> bool:
        """Return whether the line surely holds up to the length that it works to."""
        return self.holds_to == self.works_to

    @property
    def breaks_at(self) -> int | None:
        """Return the first length that degrades or fails."""
        return self.length if self.kind in ("at", "by") else None


def find_break_point(cells: Mapping[int, Cell], train_length: int) -> BreakPoint:
    """Return the break point of a line whose cells have their verdicts."""
    # The training length has a verdict only where it is scored with an encoding that was not trained.
    judged = {
        length: cell
        for length, cell in sorted(cells.items())
        if length > train_length or (length == train_length and cell.verdict)
    }
    verdicts = {length: cell.verdict for length, cell in judged.items()}
    held = holds_up_to(verdicts)
    worked = _last(takewhile(lambda length: _is_reached(judged[length]), judged))
    first = next(iter(judged.values()), None)
    is_judged = first is not None and (first.verdict not in ("", "undefined") or first.status == "undefined")
    least = 0 if train_length in judged else train_length
    kind, length = _kind(verdicts, held)
    return BreakPoint(
        kind,
        length,
        holds_to=(held or least) if is_judged else None,
        works_to=(worked or least) if is_judged else None,
    )


def _is_reached(cell: Cell) -> bool:
    """Return whether a length holds, or is unclear without surely breaking these models or each of them."""
    broken = all(verdict in BROKEN for verdict in cell.verdicts_of_seeds or (cell.verdict_of_models,))
    is_unclear = cell.verdict == "unclear" and cell.verdict_of_models not in BROKEN and not broken
    return cell.verdict in HELD or is_unclear


def _kind(verdicts: Mapping[int, str], held: int | None) -> tuple[Kind, int | None]:
    broken = breaks_at({length: verdict for length, verdict in verdicts.items() if verdict in CLAIMED})
    if broken is not None:
        before = _last(length for length in verdicts if length < broken)
        return ("at" if before in (None, held) else "by"), broken
    following = next((length for length in verdicts if held is None or length > held), None)
    if following is not None and verdicts[following] == "unclear":
        return "unclear", following
    return ("none", held) if held is not None else ("unknown", None)


def _last(lengths: Iterable[int]) -> int | None:
    return max(lengths, default=None)
