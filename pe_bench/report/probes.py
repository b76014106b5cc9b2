"""A table of probes as text: for a terminal or a pipe, as Markdown and as CSV."""

import csv
import io
import math
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from pe_bench.report.needle_statistics import FINDS, NO_LIFT
from pe_bench.report.short import setting_title
from pe_bench.report.short_text import WIDTH
from pe_bench.report.statistics import MARGIN, Interval
from pe_bench.report.tables.probes import Found, ProbeLine, ProbeTable
from pe_bench.report.text import print_captured, print_lines
from pe_bench.report.verdict_styles import STYLES
from pe_bench.system.outside_text import csv_cell, markdown
from pe_bench.system.terminal import wrap

GAP = "  "
HEADINGS = ("encoding", "length", "gain", "95 %", "accuracy", "95 %", "without", "verdict")
MISSING = "-"
COLUMNS = (
    *("model", "data", "data_hash", "tokenizer", "train_length", "steps", "setting", "score_dtype"),
    *("encoding", "length", "depth", "seeds", "documents", "windows", "chance"),
    *("gain", "gain_low", "gain_high", "accuracy", "accuracy_low", "accuracy_high", "without", "verdict"),
    "reason",
)


def title_of(table: ProbeTable) -> str:
    return " · ".join(setting_title(table.key, [line.seeds for line in table.lines]))


def rows_of(table: ProbeTable) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each line at each length, in the order of the headings."""
    for line in table.lines:
        for length in table.lengths:
            found = line.whole.get(length)
            if isinstance(found, Found):
                yield line.label, str(length), *_cells(found)
            elif found is not None:
                yield line.label, str(length), *[MISSING] * (len(HEADINGS) - 2)


def legend_of(table: ProbeTable) -> list[str]:
    """Return what the columns and the verdicts mean, a paragraph each."""
    windows = " to ".join(f"{count:,}" for count in dict.fromkeys([*table.windows[:1], *table.windows[-1:]]))
    depths = ", ".join(f"{100 * depth:.3g} %" for depth in table.depths)
    chance = f"{100 * table.chance:.3g} %"
    return [
        "can it find a span of 32 tokens, once it reads the first 16 of them again at the end? "
        f"{windows} windows at each depth: {depths}",
        "gain: bits per byte by which the other 16 are cheaper than where another span is in its place",
        f"accuracy: they are the likeliest of eight endings of spans in the window; chance: {chance}; "
        "without: the accuracy with the span replaced, which knowing the language gives",
        f"finds: surely {100 * FINDS:g} % are right; partly: surely above without and above guessing; "
        f"chance: surely less than {100 * NO_LIFT:g} points above without or above guessing, or a gain "
        f"surely below {MARGIN:g}",
        *table.notes,
    ]


def show_probes(tables: Sequence[ProbeTable], console: Console | None = None, hint: str = "") -> None:
    """Print tables of probes on the console, standard output by default."""

    def print_all(console: Console) -> None:
        for place, table in enumerate(tables):
            last = [Text(hint, style="dim")] if hint and place == len(tables) - 1 else []
            lines = _render(table, min(console.width, WIDTH))
            print_lines([*([Text()] if place else []), *lines, *last], console)

    print_captured(print_all, console)


def probes_to_markdown(tables: Sequence[ProbeTable]) -> str:
    parts = []
    for table in tables:
        rule = ["---", *["---:"] * (len(HEADINGS) - 1)]
        cells = [[markdown(cell) for cell in row] for row in rows_of(table)]
        grid = "\n".join(f"| {' | '.join(row)} |" for row in (HEADINGS, rule, *cells))
        notes = "\n".join(f"- {markdown(note)}" for note in legend_of(table))
        parts.append("\n\n".join(filter(None, [f"**{markdown(title_of(table))}**", table.why, grid, notes])))
    return "\n\n".join(parts) + "\n"


def probes_to_csv(tables: Sequence[ProbeTable]) -> str:
    """Return a row for each line, length and depth, and one for all depths, whose depth is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for table in tables:
        for line in table.lines:
            places = [((length, None), found) for length, found in line.whole.items()]
            for (length, depth), found in [*places, *line.by_depth.items()]:
                writer.writerow(map(_csv_text, _record(table, line, length, depth, found)))
    return text.getvalue()


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


def _csv_text(value: object) -> str:
    if value is None:
        return ""
    return csv_cell(value) if isinstance(value, str) else repr(value)


def _cells(found: Found) -> tuple[str, ...]:
    gain, accuracy = found.gain, found.accuracy
    return (
        f"{gain.mean:+.3f}",
        f"{_bound(gain.low, '+.3f')} to {_bound(gain.high, '+.3f')}",
        percent(accuracy.mean),
        _percents(accuracy),
        percent(found.without),
        found.verdict,
    )


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _percents(interval: Interval) -> str:
    return f"{_bound(100 * interval.low, '.0f')} to {_bound(100 * interval.high, '.0f')} %"


def _bound(value: float, form: str) -> str:
    return f"{value:{form}}" if math.isfinite(value) else "?"


def _render(table: ProbeTable, width: int) -> Iterator[Text]:
    for part in wrap(title_of(table), width).split("\n"):
        yield Text(part, style="bold")
    if table.why:
        yield from (Text(part, style="italic") for part in wrap(table.why, width).split("\n"))
    heading, *lines = _grid(table, width)
    yield from (Text(), heading, Text("-" * max(line.cell_len for line in [heading, *lines])), *lines, Text())
    for note in legend_of(table):
        yield from (Text(part, style="dim") for part in wrap(note, width).split("\n"))


def _grid(table: ProbeTable, width: int) -> list[Text]:
    """Return the heading and the rows: a name before its first row, or above it where that is too wide."""
    rows = [*rows_of(table)]
    widths = [max(map(cell_len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    is_above = sum(widths) + len(GAP) * (len(widths) - 1) > width
    widths[0] = 0 if is_above else widths[0]
    heading = _aligned(("" if is_above else HEADINGS[0], *HEADINGS[1:]), widths)
    lines, last = [heading], ""
    for label, *cells in rows:
        if is_above and label != last:
            lines += [Text(part) for part in wrap(label, width).split("\n")]
        lines.append(_aligned(("" if is_above or label == last else label, *cells), widths))
        last = label
    return lines


def _aligned(row: Sequence[str], widths: Sequence[int]) -> Text:
    """Return a row with its name and its verdict to the left, and numbers to the right."""
    line = Text(row[0] + " " * (widths[0] - cell_len(row[0])))
    for cell, width in zip(row[1:-1], widths[1:-1], strict=True):
        line += Text(GAP + cell.rjust(width))
    return line + Text(GAP) + Text(row[-1], style=STYLES.get(row[-1], ""))
