"""What a table has to show, without how it looks: curves over context length, or over position."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from textwrap import fill

import numpy as np

from pe_bench.report.statistics import break_point, student_interval
from pe_bench.report.tables.build import Table
from pe_bench.report.tables.cells import Cell
from pe_bench.report.tables.lines import Line

SMALLEST_SPAN = 10  # margins of the table, so that what changes by less than one looks flat
TITLE_LINE = 100  # characters
NO_VERDICT = "Different text at each position: not a comparison of lengths, no verdict."


@dataclass(frozen=True)
class Point:
    """Bits per byte at a length or position; low and high: its 95 % interval, infinite for one seed.

    of: what it was scored on, and by how many seeds; other levels are of other text or other models.
    """

    x: float
    level: float
    low: float
    high: float
    of: str = ""
    uses_context: bool = False


@dataclass(frozen=True)
class Curve:
    """The points of one line of a table, where it has a finite number; `broken_at` is its break point."""

    label: str
    points: tuple[Point, ...]
    broken_at: Point | None = None

    @property
    def segments(self) -> list[list[Point]]:
        """The points of one set of targets and seeds after the other: between them the curve is broken."""
        return [list(points) for _, points in groupby(self.points, key=lambda point: point.of)]


@dataclass(frozen=True)
class Chart:
    """Curves, best first, with what stands on their axes; order: by what they were ordered.

    ticks: of the x axis. ends: where a whole curve ends. smallest_span: of the y axis, in bits per byte.
    """

    title: str
    curves: tuple[Curve, ...]
    ticks: tuple[int, ...]
    ends: float
    train_length: int
    x_label: str
    order: str
    smallest_span: float

    @property
    def levels(self) -> np.ndarray:
        """All bits per byte, float64 [n]."""
        return np.array([point.level for curve in self.curves for point in curve.points])


def charts_of(table: Table, tables: Sequence[Table]) -> list[Chart]:
    """The chart over context length, and the one over position where any line has positions.

    tables: all that are drawn, from which the titles tell this one apart.
    """
    alike = [other for other in tables if other.title == table.title]
    settings = f", settings {table.group.setting[:8]}" if len(alike) > 1 else ""
    charts = [_over_length(table, _title(table) + settings)]
    if any(line.positions for line in table.lines):
        by_position = replace(table, group=replace(table.group, protocol="positions", stride_rule=""))
        charts.append(_over_position(table, f"{_title(by_position)}{settings}\n{NO_VERDICT}"))
    return charts


def _over_length(table: Table, title: str) -> Chart:
    return Chart(
        title=title,
        curves=tuple(_length_curve(line, table) for line in table.lines),
        ticks=table.lengths,
        ends=table.lengths[-1],
        train_length=table.group.train_length,
        x_label="context length (tokens)",
        order=_order(table),
        smallest_span=SMALLEST_SPAN * table.margin,
    )


def _over_position(table: Table, title: str) -> Chart:
    curves = tuple(_position_curve(line) for line in table.lines if line.positions)
    places = [point.x for curve in curves for point in curve.points] or [table.group.train_length]
    return Chart(
        title=title,
        curves=curves,
        ticks=_powers_of_two(places, table.group.train_length),
        ends=max(places),
        train_length=table.group.train_length,
        x_label="position of the token (tokens before it)",
        order=_order(table),
        smallest_span=SMALLEST_SPAN * table.margin,
    )


def _title(table: Table) -> str:
    """In two lines, or more where they are long."""
    lines = table.title.replace(", trained", "\ntrained").splitlines()
    return "\n".join(fill(line, TITLE_LINE, break_long_words=False) for line in lines)


def _order(table: Table) -> str:
    if table.ranked_at is None:
        return "Row by row as the table is"
    return f"Best first, row by row, by bits per byte at context length {table.ranked_at}"


def _length_curve(line: Line, table: Table) -> Curve:
    points = {
        length: _point(length, cell.levels, f"{cell.target_hash} {len(cell.levels)}", _uses_context(cell))
        for length, cell in sorted(line.cells.items())
        if _is_finite(cell.levels)
    }
    verdicts = {length: cell.verdict for length, cell in line.cells.items()}
    broken_at = break_point(verdicts, table.group.train_length)
    return Curve(line.label, tuple(points.values()), points.get(broken_at) if broken_at else None)


def _position_curve(line: Line) -> Curve:
    positions = [
        position for position in line.positions if position.context > 0 and _is_finite(position.levels)
    ]
    return Curve(line.label, tuple(_point(position.context, position.levels) for position in positions))


def _uses_context(cell: Cell) -> bool:
    return cell.use is not None and cell.use.uses_context == "yes"


def _is_finite(levels: Sequence[float]) -> bool:
    return bool(levels) and bool(np.all(np.isfinite(levels)))


def _point(x: float, levels: Sequence[float], of: str = "", uses_context: bool = False) -> Point:
    values = np.array(levels)
    return Point(x, float(values.mean()), *student_interval(values), of, uses_context)


def _powers_of_two(places: Sequence[float], train_length: int) -> tuple[int, ...]:
    """Those between the first and the last place, and the training length."""
    first, last = np.ceil(np.log2(min(places))), np.floor(np.log2(max(places)))
    return tuple(sorted({train_length, *(2**power for power in range(max(0, int(first)), int(last) + 1))}))
