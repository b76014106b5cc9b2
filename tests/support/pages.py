"""Tables for pages, with everything that a page can show."""

from dataclasses import replace
from pathlib import Path

from support.results import add_run

from pe_bench.report.build import build_tables
from pe_bench.report.records import BreakPoint, ContextUse, Line, Number, Position, Table
from pe_bench.report.statistics import Interval, judge_change

HOSTILE = "</script></style><img src=x onerror=alert(1)>\"'&<script>alert(2)</script>"
LEVELS = {
    "rope": {64: 2.9, 128: 2.6, 256: 3.1, 1024: 4.6},
    "alibi": {64: 3.0, 128: 2.7, 256: 2.7, 1024: 2.71},
    "sinusoidal": {64: 3.3, 128: 3.1, 256: 4.2, 1024: 4.3},
    "learned": {64: 2.95, 128: 2.65, 256: 2.66, 1024: None},
}
BREAK_POINTS = {
    "rope": BreakPoint("at", 256, 128, 128, 256),
    "alibi": BreakPoint("none", 1024, 1024, 1024),
    "sinusoidal": BreakPoint("by", 256, 128, 128, 256),
    "learned": BreakPoint("none", 256, 256, 256),
}


def some_tables(results: Path) -> list[Table]:
    """Return a table with a baseline, controls and positions, and one on other data."""
    for place, (encoding, levels) in enumerate(LEVELS.items()):
        for seed in (0, 1):
            cost = {"parameters": 9_000 + 1_000 * place, "tokens_per_second": 2_000.0 - 600 * place}
            memory = None if encoding == "alibi" else 90.0 + 20 * place
            add_run(results, encoding, levels, seed=seed, peak_memory_mb=memory, **cost)
    add_run(results, "rope", LEVELS["rope"], data="wikitext103", data_hash="beef0123456789")
    first, second = (replace(table, lines=tuple(map(judged, table.lines))) for table in build_tables(results))
    return [replace(first, lines=tuple(map(with_all, first.lines)), baseline="rope"), second]


def judged(line: Line) -> Line:
    """Return the line with verdicts and a break point that do not depend on the table's correction."""
    records = {
        length: replace(cell, verdict=judge_change(cell.interval)) if cell.interval else cell
        for length, cell in line.records.items()
    }
    return replace(line, records=records, break_point=BREAK_POINTS[line.encoding])


def with_all(line: Line) -> Line:
    difference = Number(-0.3, Interval(-0.3, -0.4, -0.2, 2, 24), "", verdict="better")
    gain = Interval(0.1, 0.05, 0.15, 2, 24)
    records = dict(line.records)
    for length, cell in records.items():
        if line.encoding != "rope" and cell.levels:
            use = ContextUse("yes", "no", gain, gain, "") if length == 1024 else None
            records[length] = replace(cell, baseline=difference, use=use)
    positions = tuple(Position(float(2**i), (3.5 - 0.1 * i, 3.6 - 0.1 * i)) for i in range(1, 11))
    return replace(line, records=records, positions=() if line.encoding == "learned" else positions)
