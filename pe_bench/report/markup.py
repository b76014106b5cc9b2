r"""Tables for documents, in either form: GitHub's Markdown, and LaTeX for the package booktabs."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress

from pe_bench.report.cell_text import number_text
from pe_bench.report.details_markup import details_grid, details_notes
from pe_bench.report.latex_width import BOLD, TEXT_WIDTH, TYPES, Type
from pe_bench.report.short import (
    MISSING,
    Value,
    below_text,
    best_of,
    context_answer,
    dropped_text,
    fitted,
    half_width,
    has_changes,
    has_controls,
    has_trained_level,
    level_at_training,
    marks_of_task,
    numbers_text,
    short_lengths,
    short_title,
    value_at,
    works_to,
    works_to_text,
)
from pe_bench.report.tables.table import Table
from pe_bench.system.outside_text import latex, latex_comment, markdown

BEST = "the {} of each column is bold, which need not be better for sure"
INTERVAL = "± is half the width of the 95 % interval"


def to_markdown(tables: Sequence[Table], *, details: bool = False) -> str:
    """Return the tables one below the other, each with its title and notes."""
    parts = _details_markdown if details else _short_markdown
    return "\n\n".join("\n\n".join(filter(None, parts(table))) for table in tables) + "\n"


def to_latex(tables: Sequence[Table], *, details: bool = False) -> str:
    r"""Return the tables one below the other, each a `table` with `\usepackage{booktabs}`.

    Notes are comments before it. In the short form it is as wide as a column of text at most.
    """
    if details:
        return "\n\n".join(map(_details_latex, tables)) + "\n"
    names = [_latex_label(place, tables) for place in range(len(tables))]
    return "\n\n".join(map(_short_latex, tables, names)) + "\n"


def _details_markdown(table: Table) -> list[str]:
    headings, *rows = details_grid(table)
    escaped = [[markdown(text) for text in row] for row in rows]
    return [
        f"**{markdown(table.title)}**",
        markdown(table.why),
        _piped(headings, escaped),
        _listed(details_notes(table)),
    ]


def _short_markdown(table: Table) -> list[str]:
    def shown(value: Value, is_best: bool) -> str:
        text = _text(value).replace("*", r"\*")
        return f"**{text}**" if is_best else text

    names = [markdown(line.label) for line in table.all_lines]
    columns = _columns(table, short_lengths(table), shown, "-")
    headings = ["encoding", *(" ".join(column.heading).strip() for column in columns)]
    rows = [[name, *cells] for name, *cells in zip(names, *(column.cells for column in columns), strict=True)]
    title = f"**{markdown(' · '.join(short_title(table)))}**"
    return [title, markdown(table.why), _piped(headings, rows), _listed(_notes(table, []))]


def _piped(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, rule, *rows))


def _listed(notes: Sequence[str]) -> str:
    return "\n".join(f"- {markdown(note)}" for note in notes)


@dataclass(frozen=True)
class ShortColumn:
    """A column beside the names. heading: in two parts, of which the first may be empty."""

    heading: tuple[str, str]
    cells: list[str]


def _columns(
    table: Table, lengths: Sequence[int], shown: Callable[[Value, bool], str], missing: str
) -> list[ShortColumn]:
    """Return the columns of the short form; shown: the text of a value, given whether it is the best."""

    def column(heading: str, values: Sequence[Value | None]) -> ShortColumn:
        ranked = [line.is_ranked for line in lines]
        best = best_of(list(compress(values, ranked)), table.baseline, table.measure)
        cells = [
            missing if value is None else shown(value, is_ranked and f"{value.number:.3f}" == best)
            for value, is_ranked in zip(values, ranked, strict=True)
        ]
        return ShortColumn(("", heading), cells)

    lines, columns = table.all_lines, []
    if has_trained_level(table):
        levels = [level_at_training(line, table) for line in lines]
        columns.append(column(f"at {table.key.train_length}", levels))
    for length in lengths:
        columns.append(column(str(length), [value_at(line, length, table) for line in lines]))
    columns.append(ShortColumn(("works", "to"), [_answer(works_to(line, table), missing) for line in lines]))
    if has_controls(table):
        answers = [_answer(context_answer(line), missing) for line in lines]
        columns.append(ShortColumn(("uses", "context"), answers))
    return columns


def _answer(text: str, missing: str) -> str:
    return missing if text == MISSING else text


def _text(value: Value) -> str:
    """Return a level, or a change with half the width of its interval."""
    if value.is_level:
        return number_text(value.number) + value.mark
    half = f" ± {half_width(value.interval)}" if value.interval else ""
    return f"{number_text(value.number, '+')}{half}"


def _notes(table: Table, dropped: Sequence[int]) -> list[str]:
    which = "highest" if table.measure.higher_is_better else "lowest"
    best = (
        f"bold: the {which} that is better than {table.baseline} for sure"
        if table.baseline
        else BEST.format(which)
    )
    numbers = marks_of_task(table) if table.is_task and not table.baseline else numbers_text(table)
    notes = [numbers, INTERVAL if has_changes(table) else "", best, works_to_text(table)]
    return list(filter(None, [*notes, below_text(table), dropped_text(dropped), *table.caveats]))


def _short_latex(table: Table, label: str) -> str:
    lengths = short_lengths(table)
    type_ = next(
        (type_ for type_ in TYPES if _room(table, lengths, type_) >= _names_width(table, type_)), TYPES[-1]
    )
    names, shown = fitted(table, lambda lengths: _room(table, lengths, type_), type_.width)
    columns = _columns(table, shown, _latex_value, "--")
    dropped = [length for length in lengths if length not in shown]
    above, headings = (["", *(column.heading[place] for column in columns)] for place in (0, 1))
    rows: list[Sequence[str]] = []
    for (first, *others), *cells in zip(names, *(column.cells for column in columns), strict=True):
        rows += [
            [latex(first), *cells],
            *([rf"\quad {latex(line.strip())}", *[""] * len(cells)] for line in others),
        ]
    contents = (
        f": level, then {numbers_text(table)}, with half of its 95 % interval" if has_changes(table) else ""
    )
    caption = f"{', '.join(short_title(table))}{contents}."
    return "\n".join(
        [
            *_comments([table.why, *_notes(table, dropped)]),
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex(caption)}}}",
            rf"\label{{{label}}}",
            rf"{type_.command}\setlength{{\tabcolsep}}{{{type_.column_space:g}pt}}",
            rf"\begin{{tabular}}{{@{{}}l{'r' * len(columns)}@{{}}}}",
            r"\toprule",
            _latex_row(above),
            _latex_row(["encoding", *headings[1:]]),
            r"\midrule",
            *map(_latex_row, rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _details_latex(table: Table) -> str:
    headings, *rows = details_grid(table)
    return "\n".join(
        [
            *_comments([table.why, *details_notes(table)]),
            r"\begin{table}",
            rf"\caption{{{latex(table.title)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}",
            r"\toprule",
            _latex_row(map(latex, headings)),
            r"\midrule",
            *(_latex_row(map(latex, row)) for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _comments(notes: Sequence[str]) -> list[str]:
    return [latex_comment(note) for note in notes if note]


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_value(value: Value, is_best: bool) -> str:
    r"""Return a value in math, where a minus is one; `\mathbf` is what makes digits bold there."""
    number = _text(value).replace("±", r"\pm").replace("inf", r"\infty").replace("∞", r"\infty")
    number = number.replace("nan", r"\mathrm{nan}").replace("*", "^{*}")
    return rf"$\mathbf{{{number}}}$" if is_best else f"${number}$"


def _room(table: Table, lengths: Sequence[int], type_: Type) -> float:
    """Return the points that are left for names beside these lengths."""

    def width(cell: str) -> float:
        return type_.width(cell.lstrip("*")) * (BOLD if cell.startswith("*") else 1.0)

    columns = _columns(table, lengths, lambda value, is_best: ("*" if is_best else "") + _text(value), "--")
    widths = [max(map(width, (*column.heading, *column.cells))) for column in columns]
    return TEXT_WIDTH - sum(widths) - 2 * type_.column_space * len(columns)


def _names_width(table: Table, type_: Type) -> float:
    return max(type_.width(text) for text in ("encoding", *(line.label for line in table.all_lines)))


def _latex_label(place: int, tables: Sequence[Table]) -> str:
    """Return a name to refer to a table by, which no two of these have."""
    key = tables[place].key
    words = re.sub(r"[^a-z0-9]+", "-", f"{key.model}-{key.data}-{key.train_length}".lower())
    return f"tab:{words}" + (f"-{place + 1}" if len(tables) > 1 else "")
