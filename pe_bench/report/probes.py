"""A table of probes as a grid, and as a file for programs."""

import math
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from pe_bench.report.columns import NAME, half_width
from pe_bench.report.legend import setting_title
from pe_bench.report.measures import FINDS, NO_LIFT
from pe_bench.report.needles import Found, ProbeLine, ProbeTable
from pe_bench.report.statistics import MARGIN, Interval
from pe_bench.system import grid as grids
from pe_bench.system.grid import MISSING, Cell, Column, Grid, draw

COLUMNS = (
    *("model", "data", "data_hash", "tokenizer", "train_length", "steps", "setting", "score_dtype"),
    *("encoding", "length", "depth", "seeds", "documents", "windows", "chance"),
    *("gain", "gain_low", "gain_high", "accuracy", "accuracy_low", "accuracy_high", "without", "verdict"),
    "reason",
)


def title_of(table: ProbeTable) -> str:
    return " · ".join(_title(table))


def _title(table: ProbeTable) -> list[str]:
    return setting_title(table.key, [line.seeds for line in table.lines])


def grid_of(table: ProbeTable) -> Grid:
    """Return a row for each line and length."""
    headings = ("length", "gain", "±", "accuracy", "95 %", "without")
    columns = [NAME, *map(Column, headings), Column("verdict", is_left=True)]
    rows = [
        [Cell(line.label), Cell(f"{length}"), *_cells(line.whole[length])]
        for line in table.lines
        for length in table.lengths
        if length in line.whole
    ]
    return Grid(columns, rows, _title(table), table.why, legend_of(table), keys=2)


def _cells(found: Found | str) -> list[Cell]:
    if isinstance(found, str):
        return [Cell(MISSING)] * 6
    gain, accuracy = found.gain, found.accuracy
    return [
        Cell(f"{gain.mean:+.3f}", value=gain.mean),
        half_width(gain),
        Cell(percent(accuracy.mean)),
        Cell(_percents(accuracy)),
        Cell(percent(found.without)),
        Cell(found.verdict, style=found.verdict),
    ]


def legend_of(table: ProbeTable) -> list[str]:
    """Return what the columns and the verdicts mean, a paragraph each."""
    windows = " to ".join(f"{count:,}" for count in dict.fromkeys([*table.windows[:1], *table.windows[-1:]]))
    depths = ", ".join(f"{100 * depth:.3g} %" for depth in table.depths)
    chance = f"{100 * table.chance:.3g} %"
    return [
        "can it find a span of 32 tokens, once it reads the first 16 of them again at the end? "
        f"{windows} windows at each depth: {depths}",
        "gain: bits per byte by which the other 16 are cheaper than where another span is in its place; "
        "±: half the width of its 95 % interval",
        f"accuracy: they are the likeliest of eight endings of spans in the window; chance: {chance}; "
        "without: the accuracy with the span replaced, which knowing the language gives",
        f"finds: surely {100 * FINDS:g} % are right; partly: surely above without and above guessing; "
        f"chance: surely less than {100 * NO_LIFT:g} points above without or above guessing, or a gain "
        f"surely below {MARGIN:g}",
        *table.notes,
    ]


def show_probes(tables: Sequence[ProbeTable], console: Console | None = None, hint: str = "") -> None:
    """Print tables of probes on the console, standard output by default."""

    def draw_all(width: int) -> Iterator[Text]:
        for index, table in enumerate(tables):
            yield from [Text()] if index else []
            yield from draw(grid_of(table), width)
        yield from [Text(hint, "dim")] if hint else []

    grids.show(draw_all, console)


def probes_to_markdown(tables: Sequence[ProbeTable]) -> str:
    return grids.to_markdown(map(grid_of, tables))


def probes_to_csv(tables: Sequence[ProbeTable]) -> str:
    """Return a row for each line, length and depth, and one for all depths, whose depth is empty."""
    rows = [
        _record(table, line, length, depth, found)
        for table in tables
        for line in table.lines
        for (length, depth), found in [
            *(((length, None), found) for length, found in line.whole.items()),
            *line.by_depth.items(),
        ]
    ]
    return grids.to_csv(COLUMNS, rows)


def _record(
    table: ProbeTable, line: ProbeLine, length: int, depth: float | None, found: Found | str
) -> list[object]:
    key = table.key
    of_table = [key.model, key.data, key.data_hash, key.tokenizer, key.train_length, key.steps, key.setting]
    place = [*of_table, key.score_dtype, line.label, length, depth]
    if isinstance(found, str):
        return [*place, *[None] * 3, table.chance, *[None] * 8, found]
    gain, accuracy = found.gain, found.accuracy
    return [
        *place,
        *(gain.seeds, found.documents, found.windows, table.chance),
        *(gain.mean, gain.low, gain.high, accuracy.mean, accuracy.low, accuracy.high),
        *(found.without, found.verdict, None),
    ]


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _percents(interval: Interval) -> str:
    low, high = (
        f"{100 * bound:.0f}" if math.isfinite(bound) else "?" for bound in (interval.low, interval.high)
    )
    return f"{low} to {high} %"
