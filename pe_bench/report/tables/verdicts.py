"""Verdicts over a whole table, corrected for how many there are, and what follows from them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pe_bench.report.statistics import Interval, corrected_comparisons, corrected_verdicts
from pe_bench.report.tables.break_point import find_break_point
from pe_bench.report.tables.cells import Cell, Difference
from pe_bench.report.tables.differences import Paired, ScoreFiles, paired, pairs_by_seed
from pe_bench.report.tables.lines import Line, Member

Place = tuple[int, int]  # a line's number, and a length


def judge(lines: Sequence[Line], train_length: int, margin: float) -> list[Line]:
    """Return the lines with verdicts on their changes, and their break points.

    From the training length on, where only what was not trained has a change, the verdicts are those of one
    table, by Holm's correction. Below it less context costs by nature, and nothing is judged.
    """
    intervals = {
        (number, length): cell.interval
        for number, line in enumerate(lines)
        for length, cell in line.cells.items()
        if cell.interval is not None
    }
    judged = {place: interval for place, interval in intervals.items() if place[1] >= train_length}
    found = dict(zip(judged, corrected_verdicts(list(judged.values()), margin), strict=True))
    return [_with_verdicts(line, number, found, train_length) for number, line in enumerate(lines)]


def count_verdicts(lines: Sequence[Line], train_length: int) -> int:
    """Return how many were corrected together."""
    judged = [cell for line in lines for length, cell in line.cells.items() if length >= train_length]
    return sum(cell.interval is not None for cell in judged)


def count_comparisons(lines: Sequence[Line]) -> int:
    cells = [cell for line in lines for cell in line.cells.values()]
    return sum(cell.baseline is not None and cell.baseline.interval is not None for cell in cells)


def with_baseline(
    lines: Sequence[Line], members: Sequence[Member], baseline: str, margin: float, files: ScoreFiles
) -> list[Line]:
    """Return the lines with their differences from the line of that label, which has none itself."""
    number = [line.label for line in lines].index(baseline)
    base_line, base = lines[number], members[number]
    differences: dict[Place, Paired] = {}
    for place, (line, member) in enumerate(zip(lines, members, strict=True)):
        for length, cell in line.cells.items():
            if place != number and cell.levels:
                differences[place, length] = _difference(member, cell, base, base_line, files)
    intervals: dict[Place, Interval] = {
        place: difference.interval for place, difference in differences.items() if difference.interval
    }
    found = dict(zip(intervals, corrected_comparisons(list(intervals.values()), margin), strict=True))
    return [_with_differences(line, place, differences, found) for place, line in enumerate(lines)]


def _difference(member: Member, cell: Cell, base: Member, base_line: Line, files: ScoreFiles) -> Paired:
    others = base.at(cell.length, cell.target_hash)
    if not others:
        known = cell.length in base_line.cells
        why = "was scored on other targets" if known else "has no score at this length"
        return Paired(None, None, f"{base_line.label} {why}")
    pairs = pairs_by_seed(member.at(cell.length, cell.target_hash), others)
    return paired(pairs, files) if pairs else Paired(None, None, f"no seed in common with {base_line.label}")


def _with_differences(
    line: Line, number: int, differences: Mapping[Place, Paired], found: Mapping[Place, str]
) -> Line:
    cells = {
        length: replace(
            cell,
            baseline=Difference(
                differences[number, length].mean,
                differences[number, length].interval,
                found.get((number, length), ""),
                differences[number, length].missing,
            ),
        )
        if (number, length) in differences
        else cell
        for length, cell in line.cells.items()
    }
    return replace(line, cells=cells)


def _with_verdicts(line: Line, number: int, found: Mapping[Place, str], train_length: int) -> Line:
    cells = {
        length: replace(cell, verdict=found.get((number, length), cell.verdict))
        for length, cell in line.cells.items()
    }
    return replace(line, cells=cells, break_point=find_break_point(cells, train_length))
