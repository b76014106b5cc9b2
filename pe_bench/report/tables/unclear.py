"""Notes on the changes that are unclear: how bad each can be, and what would settle it."""

import shlex
from collections.abc import Iterator, Sequence
from math import isfinite

from pe_bench.report.tables.cells import Cell
from pe_bench.report.tables.lines import Line
from pe_bench.report.tables.listing import MAX_NAMES, list_lengths
from pe_bench.runs.rows import Row

CHECKPOINT = "hf:"  # in the name of a model
MORE_SEEDS = "Most of this is how seeds differ: train more seeds"


def unclear_changes(lines: Sequence[Line], rows: Sequence[Row]) -> Iterator[str]:
    """Yield how bad the unclear changes can be at most, and what would settle them."""
    places: dict[bool, list[str]] = {}
    for line in lines:
        for is_of_seeds, cells in _unclear_cells(line).items():
            bounds = [cell.interval.high for cell in cells if cell.interval is not None]
            at = list_lengths(cell.length for cell in cells)
            places.setdefault(is_of_seeds, []).append(f"{line.label} at {at} (at most {max(bounds):+.3f})")
    for is_of_seeds, found in sorted(places.items()):
        way_out = MORE_SEEDS if is_of_seeds else _more_targets(lines, rows)
        yield f"unclear changes: {'; '.join(found)}. {way_out}"


def _unclear_cells(line: Line) -> dict[bool, list[Cell]]:
    """Return the unclear cells with a finite bound: those whose width seeds decide, and the others."""
    found: dict[bool, list[Cell]] = {}
    for _, cell in sorted(line.cells.items()):
        interval = cell.interval
        if cell.verdict == "unclear" and interval is not None and isfinite(interval.high):
            is_of_seeds = interval.spread is not None and interval.spread.seed_share > 0.5
            found.setdefault(is_of_seeds, []).append(cell)
    return found


def _more_targets(lines: Sequence[Line], rows: Sequence[Row]) -> str:
    """Return the command that scores four times the targets; without blocks there is more text alone."""
    blocks = rows[0].target_tokens
    if rows[0].protocol != "paired" or not blocks:
        return "More text would narrow these: raise eval.tokens"
    targets = max(row.targets for row in rows)
    encodings = {line.encoding for line in lines}
    # Where a checkpoint and runs of our own have one encoding, its name is for the latter alone.
    names = sorted(
        {
            shlex.quote(row.run if row.model.startswith(CHECKPOINT) else row.encoding)
            for row in rows
            if row.encoding in encodings
        }
    )
    runs = " ".join(names) if len(names) <= MAX_NAMES else "--all"
    return (
        "4 times the targets would narrow these by up to half: "
        f"pe-bench eval {runs} --targets {4 * targets // blocks}"
    )


def agreeing_seeds(lines: Sequence[Line], train_length: int, margin: float) -> Iterator[str]:
    """Yield the unclear verdicts that more seeds settle: each alone is worse by more than the margin."""
    places: dict[str, list[int]] = {}
    for line in lines:
        for length, cell in sorted(line.cells.items()):
            if length >= train_length and cell.verdict == "unclear" and _seeds_agree(cell, margin):
                places.setdefault(line.label, []).append(length)
    if places:
        where = "; ".join(f"{label} at {list_lengths(lengths)}" for label, lengths in places.items())
        yield f"unclear for lack of seeds, though each seed alone is worse by more than the margin: {where}"


def _seeds_agree(cell: Cell, margin: float) -> bool:
    """Return whether each seed alone is worse, and it is their differences that make the interval wide."""
    spread = cell.interval.spread if cell.interval is not None else None
    decided_by_seeds = spread is not None and spread.seed_share > 0.5
    return decided_by_seeds and len(cell.changes) > 1 and min(cell.changes) > margin
