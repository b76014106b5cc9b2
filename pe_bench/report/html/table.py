"""A table of the page: encodings as rows, lengths as columns; every column can be sorted by."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pe_bench.report.cell_text import break_text, level_text, verdict_of
from pe_bench.report.html.element import Html, element, join
from pe_bench.report.html.style import Look, swatch
from pe_bench.report.html.text import (
    difference_text,
    interval_text,
    perplexity_text,
    signed,
    status_of,
    use_texts,
)
from pe_bench.report.tables.break_point import BreakPoint
from pe_bench.report.tables.build import Table
from pe_bench.report.tables.cells import Cell
from pe_bench.report.tables.lines import Line
from pe_bench.report.tables.ranking import largest_memory

# What the columns of lengths can be sorted by, as the script finds it in the cells' data-* attributes.
KEYS = {"level": "level", "change": "change", "verdict": "verdict"}
VERDICTS = ("improves", "holds", "unclear", "degrades", "fails", "undefined")  # the best first
# What is added to the length of such a break point, so that it comes after all that did break.
UNBROKEN = {"unclear": 1e12, "none": 2e12}
TALL = 12  # rows; a taller table scrolls under its headings


@dataclass(frozen=True)
class Column:
    """A column beside the lengths: its heading, and what stands in it and sorts it for a line."""

    heading: str
    text: Callable[[Line], str]
    value: Callable[[Line], str | float | None]


def render_table(table: Table, name: str, looks: Mapping[str, Look]) -> Html:
    """The table with its choice of what to sort lengths by; `name` begins the names of its rows."""
    headings = [
        _heading("encoding"),
        *(_length_heading(table, length) for length in table.lengths),
        *(_heading(column.heading) for column in COLUMNS),
    ]
    rows = [
        element(
            "tr",
            _name_cell(line, looks[line.label]),
            *(_length_cell(line, line.cells.get(length), table) for length in table.lengths),
            *(_plain_cell(column, line) for column in COLUMNS),
            data_line=f"{name}-{place}",
        )
        for place, line in enumerate(table.lines)
    ]
    grid = element(
        "table",
        element("caption", table.title, class_="unseen"),
        element("thead", element("tr", *headings)),
        element("tbody", *rows),
        class_="lines",
    )
    tall = " tall" if len(table.lines) > TALL else ""
    box = element("div", grid, class_=f"scroll{tall}", tabindex=0, role="region", aria_label=table.title)
    return join(_sort_choice(table), box)


def break_order(found: BreakPoint) -> float | None:
    """Return where a break point is sorted: the earliest first, then whatever was not seen to break."""
    return None if found.length is None else UNBROKEN.get(found.kind, 0.0) + found.length


def _sort_choice(table: Table) -> Html:
    keys = {**KEYS, **({f"difference from {table.baseline}": "baseline"} if table.baseline else {})}
    options = [element("option", words, value=key) for words, key in keys.items()]
    label = element("label", "Columns of lengths sort by ", element("select", *options, class_="sort-by"))
    return element("p", label, class_="controls")


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


COLUMNS = (
    Column(
        "break point", lambda line: break_text(line.break_point), lambda line: break_order(line.break_point)
    ),
    Column("parameters", lambda line: f"{line.parameters:,}", lambda line: line.parameters),
    Column(
        "training tokens/s", lambda line: _whole(line.tokens_per_second), lambda line: line.tokens_per_second
    ),
    Column("MB at most", lambda line: _whole(largest_memory(line)), largest_memory),
    Column("seeds", lambda line: str(line.seeds), lambda line: line.seeds),
)


def _heading(text: str, small: str = "", **attributes: str | int | None) -> Html:
    arrow = element("span", class_="arrow", aria_hidden="true")
    button = element("button", text, arrow, *([element("small", small)] if small else []), type="button")
    return element("th", button, scope="col", **attributes)


def _length_heading(table: Table, length: int) -> Html:
    ranked = "ascending" if length == table.ranked_at else None
    trained = "trained" if length == table.group.train_length else ""
    return _heading(str(length), trained, aria_sort=ranked, class_="length")


def _name_cell(line: Line, look: Look) -> Html:
    button = element("button", swatch(look), line.label, type="button", class_="name", aria_pressed="false")
    return element("th", button, scope="row", data_value=line.label)


def _plain_cell(column: Column, line: Line) -> Html:
    return element("td", column.text(line), data_value=_sortable(column.value(line)))


def _length_cell(line: Line, cell: Cell | None, table: Table) -> Html:
    if cell is None:
        return element("td")
    if not cell.levels:
        return element("td", element("span", status_of(cell), class_="status"), title=cell.reason or None)
    verdict = verdict_of(cell, table)
    return element(
        "td",
        element("span", level_text(line, cell), class_="level"),
        *_change(cell, table),
        *_judgements(cell, table),
        class_="trained" if cell.length == table.group.train_length else None,
        title=f"perplexity {perplexity_text(cell.perplexity)}",
        data_level=_sortable(cell.bits_per_byte),
        data_change=_sortable(cell.change),
        data_verdict=VERDICTS.index(verdict) if verdict in VERDICTS else None,
        data_baseline=_sortable(cell.baseline.mean if cell.baseline else None),
    )


def _change(cell: Cell, table: Table) -> list[Html]:
    """The change with its verdict, and below it the interval."""
    if cell.change is None:
        return []
    parts = [signed(cell.change)]
    verdict = verdict_of(cell, table)
    if verdict:
        parts += [" ", element("span", verdict, class_=f"verdict {verdict}")]
    found = [element("span", *parts, class_="change")]
    return found + ([element("span", interval_text(cell.interval), class_="minor")] if cell.interval else [])


def _judgements(cell: Cell, table: Table) -> list[Html]:
    """The difference from the baseline, and what the controls found."""
    versus = difference_text(cell.baseline, table.baseline) if cell.baseline else ""
    found = [element("span", versus, class_="minor versus")] if versus else []
    return found + [
        element("span", text, class_="minor") for text in (use_texts(cell.use) if cell.use else [])
    ]


def _sortable(value: str | float | None) -> str | None:
    """A value as the script reads it; none for what is no number and so sorts last."""
    if value is None or isinstance(value, str):
        return value
    if math.isfinite(value):
        return repr(value)
    return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
