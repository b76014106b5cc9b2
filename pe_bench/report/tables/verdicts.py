"""Verdicts on changes, one line at a time, and on differences between lines."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pe_bench.report.statistics import Interval, corrected_comparisons, judge_change
from pe_bench.report.tables.break_point import find_break_point
from pe_bench.report.tables.cells import Cell, Difference
from pe_bench.report.tables.differences import Paired, ScoreFiles, of_one_set, paired, pairs_by_seed
from pe_bench.report.tables.lines import Line, Member
from pe_bench.report.tables.task_cells import judge_task

Place = tuple[int, int]  # a line's number, and a length


def judge(lines: Sequence[Line], train_length: int, margin: float) -> list[Line]:
    """Return the lines with verdicts on their changes, and their break points; no line changes another's.

    The training length has a change where it is scored with an encoding that was not trained. Below it less
    context costs by nature, and nothing is judged. Nor is an anchor, or a model that is no better than token
    frequencies: it would hold by knowing nothing.
    """
    return [_judge_line(line, train_length, margin) for line in lines]


def _judge_line(line: Line, train_length: int, margin: float) -> Line:
    if any(cell.answers for cell in line.cells.values()):
        cells, found = judge_task(line.cells, train_length, is_unlearned=line.unlearned == "task")
        return replace(line, cells=cells, break_point=found)
    if line.is_anchor or line.unlearned == "frequencies":
        return replace(line, cells={length: replace(cell, use=None) for length, cell in line.cells.items()})
    cells = {
        length: _judge_cell(cell, margin) if length >= train_length else cell
        for length, cell in line.cells.items()
    }
    return replace(line, cells=cells, break_point=find_break_point(cells, train_length))


def _judge_cell(cell: Cell, margin: float) -> Cell:
    if cell.interval is None:
        return cell
    return replace(
        cell,
        verdict=judge_change(cell.interval, margin),
        verdict_of_models="" if cell.of_models is None else judge_change(cell.of_models, margin),
        verdicts_of_seeds=tuple(judge_change(interval, margin) for interval in cell.of_seeds),
    )


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
        place: difference.interval
        for place, difference in differences.items()
        if difference.interval and not lines[place[0]].is_anchor
    }
    is_task = any(cell.answers for cell in base_line.cells.values())
    judged = {place: interval.mirrored for place, interval in intervals.items()} if is_task else intervals
    found = _compare(judged, margin)  # of which negative is better
    return [_with_differences(line, place, differences, found) for place, line in enumerate(lines)]


def _compare(intervals: Mapping[Place, Interval], margin: float) -> dict[Place, str]:
    """Return the verdicts on differences, corrected over the lines at each length."""
    found: dict[Place, str] = {}
    for length in {length for _, length in intervals}:
        there = {place: interval for place, interval in intervals.items() if place[1] == length}
        found |= zip(there, corrected_comparisons(list(there.values()), margin), strict=True)
    return found


def _difference(member: Member, cell: Cell, base: Member, base_line: Line, files: ScoreFiles) -> Paired:
    rows, others = member.at(cell.length), base.at(cell.length)
    pairs = of_one_set(pairs_by_seed(rows, others))
    if pairs:
        return paired(pairs, files)
    if {row.target_hash for row in rows} & {row.target_hash for row in others}:
        return Paired(None, None, f"no seed in common with {base_line.label}")
    why = "was scored on other targets" if others else "has no score at this length"
    return Paired(None, None, f"{base_line.label} {why}")


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
                differences[number, length].target_hash,
                differences[number, length].targets,
            ),
        )
        if (number, length) in differences
        else cell
        for length, cell in line.cells.items()
    }
    return replace(line, cells=cells)
