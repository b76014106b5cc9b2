"""The columns of a table: of the short form, of the details, and of the data frame for other programs."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.text import Text

from pe_bench.render import grid as grids
from pe_bench.render.grid import MISSING, Cell, Column, Grid
from pe_bench.report import cells, notes
from pe_bench.report.marks import mark_of, verdict_cell
from pe_bench.report.records import BITS, ContextUse, Line, Number, Record, Table
from pe_bench.report.statistics import Interval
from pe_bench.system.terminal import csv_cell

if TYPE_CHECKING:
    import pandas

MAX_NOTES = 6  # the most notes below the short form on a terminal, the meanings of its marks among them
MIN_CAVEATS = 2  # the fewest caveats to show, however many notes the marks need
MAX_PAPER_LENGTHS = 5  # lengths of a table in LaTeX, unless more were named
MIN_LENGTHS = 3  # the number of lengths that stay before a long name is folded
NAME_COLUMN = Column("encoding", is_left=True, least=16)
WORKS_TO_COLUMN = Column("works to")
SETTING_COLUMNS = (
    *("model", "data", "data_hash", "tokenizer", "train_length", "steps", "setting", "protocol"),
    *("stride_rule", "score_dtype"),
)
LINE_COLUMNS = (
    *("encoding", "scored_with", "by", "run", "length", "stride", "slice", "judge", "status", "reason"),
    *("seeds", "documents", "targets", "anchor", "unlearned"),
)
LEVEL_COLUMNS = (
    *("accuracy", "exact", "exact_low", "exact_high", "chance"),
    *("bits_per_byte", "perplexity", "change", "change_low", "change_high", "verdict"),
    *("change_of_models_low", "change_of_models_high", "verdict_of_models", "seed_low", "seed_high"),
    *("break_point", "holds_to", "works_to", "stops_by", "breaks_at"),
)
CONTEXT_COLUMNS = (
    *("uses_context", "beats_window", "swap_gain", "swap_gain_low", "swap_gain_high"),
    *("window_gain", "window_gain_low", "window_gain_high"),
)
BASELINE_COLUMNS = (
    *("baseline", "difference", "difference_low", "difference_high", "compared_seeds", "comparison"),
)
COST_COLUMNS = ("parameters", "tokens_per_second", "peak_memory_mb", "target_hash")
FRAME_COLUMNS = (
    *SETTING_COLUMNS,
    *LINE_COLUMNS,
    *LEVEL_COLUMNS,
    *CONTEXT_COLUMNS,
    *BASELINE_COLUMNS,
    *COST_COLUMNS,
)
FRAME_INTEGER_COLUMNS = (
    "stride",
    "compared_seeds",
    "holds_to",
    "works_to",
    "stops_by",
    "breaks_at",
)  # plain pandas would write 32.0
# Columns of numbers that may be None in all rows, for which plain pandas would make a column of objects.
FRAME_FLOAT_COLUMNS = (
    *("accuracy", "exact", "exact_low", "exact_high", "chance", "bits_per_byte", "perplexity"),
    *("change", "change_low", "change_high", "change_of_models_low", "change_of_models_high"),
    *("seed_low", "seed_high", "swap_gain", "swap_gain_low", "swap_gain_high"),
    *("window_gain", "window_gain_low", "window_gain_high"),
    *("difference", "difference_low", "difference_high", "tokens_per_second", "peak_memory_mb"),
)


def short_grid(
    table: Table, lengths: Sequence[int] | None = None, *, is_small: bool = False, is_narrow: bool = False
) -> Grid:
    """Return the short form: a row for each encoding with its level, its changes, and two answers.

    is_small: leave out break points. is_narrow: put break points beside the names, and break a long heading
    into two lines.
    """
    lengths = cells.lengths_of_short_table(table) if lengths is None else lengths
    lines = table.shown_lines
    columns = [NAME_COLUMN]
    parts = [[Cell(line.label) for line in lines]]
    works_to = [cells.works_to_cell(line) for line in lines]
    if is_narrow and not is_small:
        columns.append(WORKS_TO_COLUMN)
        parts.append(works_to)
    if cells.has_trained_level(table):
        # Differences from a baseline are shown at the training length too: its first column has the levels.
        heading = "level\nat" if table.baseline else "at"
        columns.append(Column(f"{heading} {table.key.train_length:,}"))
        parts.append(_fill_missing_cells(cells.training_level_cell(line, table) for line in lines))
    for length in lengths:
        columns.append(Column(f"{length:,}"))
        parts.append(_fill_missing_cells(cells.value_cell(line, length, table) for line in lines))
    if not (is_narrow or is_small):
        columns.append(WORKS_TO_COLUMN)
        parts.append(works_to)
    if any(record.use for record in table.records):
        columns.append(Column("uses\ncontext" if is_narrow else "uses context"))
        parts.append([cells.context_use_cell(line) for line in lines])
    by_line = zip(*parts, strict=True)
    rows = [_dimmed_if_anchor(line, [*row]) for line, row in zip(lines, by_line, strict=True)]
    dropped = [length for length in cells.lengths_of_short_table(table) if length not in lengths]
    return Grid(columns, rows, table.title, table.why, notes.short_notes(table, dropped))


def _fill_missing_cells(column: Iterable[Cell | None]) -> list[Cell]:
    """Return the cells of a column, with `-` in place of None."""
    return [cell or Cell(MISSING) for cell in column]


def detail_grids(table: Table, lines: Sequence[Line] | None = None) -> list[Grid]:
    """Return the detailed form: a row for each line and length, and one for each line as a whole.

    lines: the lines of the table to show; by default all.
    """
    lines = table.shown_lines if lines is None else lines
    rows = []
    for line, length in product(lines, table.lengths):
        if length in line.records:
            rows.append(_score_row(line, line.records[length], table))
    by_length = Grid(_score_columns(table), rows, table.title, table.why, keys=2)
    return [by_length.without_empty(), _line_facts_grid(table, lines)]


def point_text(line: Line, record: Record, table: Table) -> str:
    """Return the facts at a point of a curve, a line each; the first names the point."""
    facts = [f"{line.label} at {record.length:,} tokens"]
    row = zip(_score_columns(table), _score_row(line, record, table), strict=True)
    for column, cell in [*row][2:]:  # after the label and the length
        if cell.text:
            heading = column.heading.replace("\n", " ")
            facts.append(f"{heading} {cell.text}")
    return "\n".join(facts).replace("\n±", " ±")


def _score_columns(table: Table) -> list[Column]:
    """Return the columns of the `--details` table, which has a row for each line and length."""
    verdict = Column("verdict", is_left=True)
    half = Column("±")
    level = map(Column, (table.measure.name, "95 %", "accuracy", "ppl"))
    difference = Column(f"vs\n{table.baseline}", least=8)
    answers = [Column("uses\ncontext", is_left=True), Column("beats\nwindow", is_left=True)]
    changes = [Column("change"), half, verdict, difference, half, verdict]
    return [NAME_COLUMN, Column("length"), *level, *changes, *answers, Column("MB")]


def _score_row(line: Line, record: Record, table: Table) -> list[Cell]:
    """Return the row of the `--details` table for one line at one length, as cells in column order."""
    difference = record.baseline or Number()
    has_levels_targets = table.has_targets_of_levels(record.compared)
    is_same_set = difference.target_hash in ("", record.target_hash)
    change_verdict = record.verdict if record.levels else ""
    memory = "" if record.peak_memory_mb is None else f"{record.peak_memory_mb:,.0f}"
    row = [
        Cell(line.label),
        Cell(f"{record.length:,}"),
        _level_cell(line, record, table),
        *_answer_cells(record),
        _perplexity_cell(record, table),
        *_number_cells(record.compared, change_verdict, is_common=has_levels_targets),
    ]
    is_common = is_same_set and table.has_common_targets(record)
    row += _number_cells(difference, difference.verdict, is_common=is_common)
    return _dimmed_if_anchor(line, [*row, *_context_cells(record.use), Cell(memory)])


def _number_cells(number: Number, verdict: str, *, is_common: bool) -> list[Cell]:
    """Return three cells: the mean, half of the interval's width, and the verdict.

    is_common: the number is of the same targets as the levels; else the mean gets the mark `~`.
    """
    return [
        _signed_cell(number.mean, is_common=is_common),
        half_width_cell(number.interval),
        verdict_cell(verdict),
    ]


def _answer_cells(record: Record) -> list[Cell]:
    """Return two cells: the interval of a task's exact match, and the accuracy; both empty for text."""
    if record.answers is None:
        return [Cell(), Cell()]
    exact = record.answers.exact
    low, high = map(cells.number_text, (exact.low, exact.high))
    return [Cell(f"{low} to {high}"), Cell(cells.number_text(record.answers.accuracy.mean))]


def _perplexity_cell(record: Record, table: Table) -> Cell:
    """Return the perplexity; empty for a task, and on other targets than those of most lines."""
    if record.perplexity is None or record.answers is not None:
        return Cell()
    return Cell(f"{record.perplexity:.4g}" if table.has_common_targets(record) else "")


def _context_cells(use: ContextUse | None) -> list[Cell]:
    """Return the cells of `uses_context` and `beats_window`; both empty where no control was scored."""
    answers = ("", "")
    if use is not None:
        answers = (use.uses_context or MISSING, use.beats_window or MISSING)
    return list(map(verdict_cell, answers))


def _level_cell(line: Line, record: Record, table: Table) -> Cell:
    """Return the level, marked if the line has not learned; the status if there is no level.

    The number of seeds follows the level if it is not the line's: `3.012 (n=2)`. A level on other targets
    than those of most lines is not shown.
    """
    if record.level is None:
        return replace(verdict_cell("fails"), text=record.status.replace("_", " "))
    if not table.has_common_targets(record):
        return Cell(cells.OTHER_TARGETS_MARK)
    text = cells.number_text(record.level)
    if line.unlearned:
        text += mark_of(cells.UNLEARNED).text
    if len(record.levels) != line.seeds:
        text += f" (n={len(record.levels)})"
    return Cell(text)


def _dimmed_if_anchor(line: Line, row: list[Cell]) -> list[Cell]:
    """Return the row of a line; the row of an anchor is dim and has no verdicts."""
    if not line.is_anchor:
        return row
    return [replace(cell, verdict="", colour=mark_of("anchor").colour) for cell in row]


def _signed_cell(value: float | None, *, is_common: bool) -> Cell:
    """Return a number with its sign, and with a mark if it is not of the targets of the levels."""
    if value is None:
        return Cell()
    mark = "" if is_common else cells.OTHER_TARGETS_MARK
    return Cell(cells.number_text(value, "+"), mark, value=value)


def half_width_cell(interval: Interval | None) -> Cell:
    """Return the cell with half of an interval's width; an empty cell without an interval."""
    if interval is None:
        return Cell()
    half = (interval.high - interval.low) / 2
    return Cell(cells.number_text(half) if half < inf else "∞", value=half)


def _line_facts_grid(table: Table, lines: Sequence[Line]) -> Grid:
    """Return the grid with a row for each line (break point, seeds, size, speed), and all notes below it."""
    columns = (NAME_COLUMN, *map(Column, ("break point", "seeds", "parameters", "trained\ntokens/s")))
    rows = []
    for line in lines:
        if not line.is_anchor:
            texts = (line.label, str(line.break_point), str(line.seeds), f"{line.parameters:,}")
            rows.append([*map(Cell, texts), _training_speed(line)])
    below = notes.legend(table) + notes.meanings_of_words(table) + [*table.notes]
    return Grid(columns, rows, ("each encoding as a whole",), notes=below, keys=1).without_empty()


def _training_speed(line: Line) -> Cell:
    """Return the speed of a line's training; empty for a Hugging Face model, which was trained elsewhere."""
    return Cell(f"{line.tokens_per_second:,.0f}") if line.tokens_per_second else Cell()


# All tables of a report


def show(
    tables: Sequence[Table], console: Console | None = None, *, hint: str = "", details: bool = False
) -> None:
    """Print tables on the console, standard output by default, each in the short form or with its details.

    hint: the command that shows more, below the short form; not broken if it fits a line.
    """
    draw_table = _draw_details if details else _draw_short
    drawn = [partial(draw_table, table) for table in tables]
    grids.show(drawn, console, "" if details else hint)


def to_markdown(tables: Sequence[Table], *, details: bool = False) -> str:
    return grids.to_markdown(_document_grids(tables, details))


def to_latex(tables: Sequence[Table], *, details: bool = False) -> str:
    """Return tables for a paper, with the most important lengths and half of the interval of each change."""
    if details:
        return grids.to_latex(_document_grids(tables, details))
    return grids.to_latex([_paper_grid(table) for table in tables])


def _paper_grid(table: Table) -> Grid:
    """Return the short form for a paper: few lengths, the best number marked, and half of each interval."""
    lengths = cells.lengths_of_short_table(table)
    if len(lengths) > MAX_PAPER_LENGTHS:
        most = max(MAX_PAPER_LENGTHS, len(table.chosen))
        lengths = sorted(_lengths_by_importance(table)[:most])
    grid = _with_best(short_grid(table, lengths), table, lengths)
    headings = {f"{length:,}": length for length in lengths}
    lengths_of_columns = [headings.get(column.heading) for column in grid.columns]
    rows = []
    for line, row in zip(table.shown_lines, grid.rows, strict=True):
        columns = zip(row, lengths_of_columns, strict=True)
        rows.append([_with_interval(cell, line, length, table) for cell, length in columns])
    return replace(grid, rows=rows)


def _with_interval(cell: Cell, line: Line, length: int | None, table: Table) -> Cell:
    """Return the cell of a change or difference with ` ± ` half of its interval; other cells unchanged."""
    record = None if length is None else line.records.get(length)
    if record is None or cell.value is None:
        return cell
    compared = record.baseline if table.baseline else record.compared
    if compared is None or compared.interval is None or not cell.text.startswith(("+", "-", "0")):
        return cell
    half = half_width_cell(compared.interval)
    return replace(cell, text=f"{cell.text} ± {half.text}")


def _document_grids(tables: Sequence[Table], details: bool) -> list[Grid]:
    """Return the grids for Markdown and LaTeX: short forms with the best of each column, or the details."""
    if details:
        return list(chain.from_iterable(map(detail_grids, tables)))
    return [_with_best(short_grid(table), table, cells.lengths_of_short_table(table)) for table in tables]


def _with_best(grid: Grid, table: Table, lengths: Sequence[int]) -> Grid:
    """Return the short form with the best number of each column marked, and a note that explains the mark."""
    columns: list[Sequence[Cell]] = [*zip(*grid.rows, strict=True)]
    numbers = cells.has_trained_level(table) + len(lengths)  # columns after the names
    for number in range(1, min(1 + numbers, len(columns))):
        columns[number] = _mark_best(columns[number], table)
    below = [*grid.notes]
    if any(cell.is_best for cell in chain.from_iterable(columns)):
        below.append(notes.best_text(table))
    return replace(grid, rows=[*zip(*columns, strict=True)], notes=below)


def _mark_best(column: Sequence[Cell], table: Table) -> Sequence[Cell]:
    """Return a column with the best of its numbers marked if there are at least two.

    With a baseline, only differences that are surely better count; the baseline's own level does not.
    """
    compared = _compared_numbers(column, table)
    numbers = list(compared.values())
    if table.baseline:
        numbers = [number for place, number in compared.items() if column[place].verdict == "better"]
    if len(compared) < 2 or not numbers:
        return column
    best = cells.number_text(max(numbers) if table.measure.higher_is_better else min(numbers))
    marked = []
    for place, cell in enumerate(column):
        is_best = place in compared and cells.number_text(compared[place]) == best
        marked.append(replace(cell, is_best=is_best))
    return marked


def _compared_numbers(column: Sequence[Cell], table: Table) -> dict[int, float]:
    """Return the numbers of a column that may be its best, by their places.

    They are finite numbers of ranked lines on the same targets, without the baseline.
    """
    numbers = {}
    for place, (line, cell) in enumerate(zip(table.shown_lines, column, strict=True)):
        is_compared = line.is_ranked and line.label != table.baseline
        if not is_compared or cell.mark.endswith(cells.OTHER_TARGETS_MARK):
            continue
        if cell.value is not None and isfinite(cell.value):
            numbers[place] = cell.value
    return numbers


def _draw_details(table: Table, width: int) -> list[RenderableType]:
    first, second = detail_grids(table)
    return [*first.draw(width), Text(), *second.draw(width)]


def _draw_short(table: Table, width: int) -> list[RenderableType]:
    """Return the parts of the short form, with as many lengths as fit, and the small table of recall.

    The small table is left out if recall improves at no length.
    """
    grid = short_grid(table)
    if grid.width() > width:
        grid = _fitting_short_form(table, width)
    lines = replace(grid, notes=_few_notes(grid.notes, table)).draw(width)
    if table.recall is None:
        return lines
    if all(record.verdict != "improves" for record in table.recall.records):
        return lines
    return [*lines, Text(), *_recall_grid(table.recall).draw(width)]


def _few_notes(below: Sequence[str], table: Table) -> list[str]:
    """Return the notes `below` a short form; of the caveats only the first if not all have room."""
    meanings = len(notes.meanings(table))
    caveats = below[meanings : meanings + len(table.caveats)]
    room = max(MAX_NOTES - meanings, MIN_CAVEATS)
    if len(caveats) <= room:
        return [*below]
    kept = caveats[: room - 1]
    more = f"{len(caveats) - len(kept)} more notes: --details"
    return [*below[:meanings], *kept, more, *below[meanings + len(caveats) :]]


def _fitting_short_form(table: Table, width: int) -> Grid:
    """Return the short form with as many lengths as fit.

    Names are folded only if three lengths have no room otherwise.
    """
    kept = _lengths_by_importance(table)
    for count in range(len(kept), 0, -1):
        grid = short_grid(table, sorted(kept[:count]), is_narrow=True)
        if grid.width(folded=count <= MIN_LENGTHS) <= width:
            return grid
    return short_grid(table, [], is_narrow=True)


def _lengths_by_importance(table: Table) -> list[int]:
    """Return the lengths of a table's short form, the most important first."""
    stops = [line.break_point.stops_by or 0 for line in table.lines]
    return cells.lengths_by_importance(
        cells.lengths_of_short_table(table), table.key.train_length, table.chosen, stops
    )


def _recall_grid(table: Table) -> Grid:
    """Return the small table of a slice, with the lengths that have controls, and the longest."""
    lengths = cells.lengths_of_short_table(table)
    controlled = {record.length for record in table.records if record.use}
    shown = controlled.union(lengths[-1:])
    below = [f"{notes.slice_text(table)}; all lengths: --slice {table.key.slice}"]
    if table.lacking:
        below.append(table.lacking)
    grid = short_grid(table, [length for length in lengths if length in shown], is_small=True)
    return replace(grid, title=[f"targets: {table.slice_name}"], why="", notes=below)


# For other programs


def to_csv(tables: Sequence[Table]) -> str:
    """Return the rows of `to_frame` as CSV, in which a spreadsheet computes no formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FRAME_COLUMNS)
    for row in _frame_rows(tables):
        writer.writerow([csv_cell(row.get(name)) for name in FRAME_COLUMNS])
    return text.getvalue()


def to_frame(tables: Sequence[Table]) -> "pandas.DataFrame":
    """Return one row for each line and length of each table, in the tables' order.

    `run` is empty where seeds are averaged; `stride` is the number of tokens at that length.
    """
    import pandas

    frame = pandas.DataFrame(_frame_rows(tables), columns=list(FRAME_COLUMNS))
    kinds = dict.fromkeys(FRAME_INTEGER_COLUMNS, "Int64") | dict.fromkeys(FRAME_FLOAT_COLUMNS, "float64")
    return frame.astype(kinds)


def _frame_rows(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """Return a mapping from columns to values for each line and length; it lacks columns without a value."""
    rows = []
    for table in tables:
        for line in table.all_lines:
            facts = {**vars(table.key), **vars(line), **_line_values(line)}
            for _, record in sorted(line.records.items()):
                rows.append({**facts, **vars(record), **_record_values(record, table)})
    return rows


def _line_values(line: Line) -> dict[str, Any]:
    """Return the columns of a line that are not fields of `Line`."""
    point = line.break_point
    values = {"anchor": line.is_anchor, "break_point": str(point), "breaks_at": point.breaks_at}
    values |= {"holds_to": point.holds_to, "works_to": point.works_to, "stops_by": point.stops_by}
    return values


def _record_values(record: Record, table: Table) -> dict[str, Any]:
    """Return the columns of a record that are not fields of `Record`; an interval has three columns."""
    use = record.use or ContextUse()
    difference = record.baseline or Number()
    compared = record.compared
    bits = record.level if table.measure is BITS else None
    values: dict[str, Any] = {"bits_per_byte": bits, "seeds": len(record.levels), "change": compared.mean}
    values["seed_low"] = min(record.changes, default=None)
    values["seed_high"] = max(record.changes, default=None)
    values |= {"uses_context": use.uses_context, "beats_window": use.beats_window}
    values |= {"baseline": table.baseline, "difference": difference.mean, "comparison": difference.verdict}
    intervals = {"swap_gain": use.swap_gain, "window_gain": use.window_gain}
    intervals |= {"change": compared.interval, "change_of_models": compared.of_models}
    intervals["difference"] = difference.interval
    if difference.interval is not None:
        values["compared_seeds"] = difference.interval.seeds
    if record.answers is not None:
        values["accuracy"] = record.answers.accuracy.mean
        values["chance"] = record.answers.chance
        intervals["exact"] = record.answers.exact
    for name, interval in intervals.items():
        if interval is not None:
            values[name] = interval.mean
            values[f"{name}_low"] = interval.low
            values[f"{name}_high"] = interval.high
    return values
