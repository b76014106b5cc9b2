r"""Tables for documents: GitHub's Markdown, and LaTeX for the package booktabs."""

import re
from collections.abc import Sequence

from pe_bench.report.cell_text import (
    break_text,
    change_text,
    context_text,
    level_text,
    memory_text,
    pairs_text,
    verdict_of,
)
from pe_bench.report.legend import legend
from pe_bench.report.tables.build import Table
from pe_bench.report.tables.cells import Cell
from pe_bench.report.tables.lines import Line

LATEX_SIGNS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "<": "$<$",
    ">": "$>$",
    "≤": r"$\leq$",
}


def to_markdown(tables: Sequence[Table], *, details: bool = False) -> str:
    """The tables one below the other, each with its title and notes."""
    return "\n\n".join(_markdown(table) for table in tables) + "\n"


def to_latex(tables: Sequence[Table], *, details: bool = False) -> str:
    r"""The tables one below the other, each a `table` with `\usepackage{booktabs}`; notes are comments."""
    return "\n\n".join(_latex(table) for table in tables) + "\n"


def _markdown(table: Table) -> str:
    headings, *rows = _grid(table)
    rule = ["---", *["---:"] * (len(headings) - 1)]
    escaped = [[_inert(value) for value in row] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in (headings, rule, *escaped)]
    parts = [f"**{_inert(table.title)}**", *([_inert(table.why)] if table.why else []), "\n".join(lines)]
    return "\n\n".join([*parts, "\n".join(f"- {_inert(note)}" for note in _notes(table))])


def _inert(text: str) -> str:
    """A cell in which nothing is a mark: a label comes from a file, which may be a stranger's."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", r"\|")


def _latex(table: Table) -> str:
    headings, *rows = _grid(table)
    notes = ([table.why] if table.why else []) + _notes(table)
    comments = [f"% {' '.join(note.split())}" for note in notes]  # a second line would be no comment
    body = [" & ".join(map(_escaped, row)) + r" \\" for row in rows]
    return "\n".join(
        [
            *comments,
            r"\begin{table}",
            rf"\caption{{{_escaped(table.title)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}",
            r"\toprule",
            " & ".join(map(_escaped, headings)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _grid(table: Table) -> list[list[str]]:
    """The headings, and a row of words for each line."""
    controlled = any(cell.use for line in table.lines for cell in line.cells.values())
    headings = ["encoding", *(_heading(table, length) for length in table.lengths)]
    headings += ["uses context", "beats window"] if controlled else []
    headings += ["break point", "seeds", "parameters", "tokens/s"]
    headings += [f"MB at {length}" for length in table.lengths[-1:]]
    rows = [headings, *(_row(line, table, controlled) for line in table.lines)]
    # A label comes from a file, which may be a stranger's: no more than a line of it.
    return [[" ".join(value.split()) for value in row] for row in rows]


def _row(line: Line, table: Table, controlled: bool) -> list[str]:
    cells = [_cell(line, line.cells.get(length), table) for length in table.lengths]
    questions = ("uses_context", "beats_window") if controlled else ()
    answers = [context_text(line, question).replace("\n", ", ") for question in questions]
    return [
        *(
            line.label,
            *cells,
            *answers,
            break_text(line.break_point),
            str(line.seeds),
            f"{line.parameters:,}",
        ),
        f"{line.tokens_per_second:,.0f}",
        *(memory_text(line, length) for length in table.lengths[-1:]),
    ]


def _heading(table: Table, length: int) -> str:
    return f"{length} (trained)" if length == table.group.train_length else str(length)


def _cell(line: Line, cell: Cell | None, table: Table) -> str:
    if cell is None:
        return ""
    if not cell.levels:
        return cell.status.replace("_", " ")
    words = [level_text(line, cell), _bracketed(change_text(cell.change), verdict_of(cell, table))]
    if cell.baseline is not None:
        said = (change_text(cell.baseline.mean), cell.baseline.verdict, pairs_text(line, cell).strip())
        words.append(_bracketed(f"vs {table.baseline}", *said))
    return " ".join(word for word in words if word)


def _bracketed(*words: str) -> str:
    said = " ".join(word for word in words if word)
    return f"({said})" if said else ""


def _notes(table: Table) -> list[str]:
    return ["cells: bits per byte (change, verdict)", *legend(table), *table.notes]


def _escaped(text: str) -> str:
    pattern = "|".join(re.escape(sign) for sign in LATEX_SIGNS)
    return re.sub(pattern, lambda found: LATEX_SIGNS[found[0]], text)
