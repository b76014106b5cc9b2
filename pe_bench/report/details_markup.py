"""The cells of a table's detailed form for documents: what stands in each, as text."""

from pe_bench.report.cell_text import (
    answers_texts,
    break_text,
    change_text,
    context_answers,
    level_text,
    memory_text,
    of_model,
    pairs_text,
    verdict_of,
)
from pe_bench.report.legend import legend
from pe_bench.report.tables.cells import Cell
from pe_bench.report.tables.lines import Line
from pe_bench.report.tables.table import Table


def details_grid(table: Table) -> list[list[str]]:
    """Return the headings, and a row of texts for each line."""
    controlled = any(cell.use for line in table.lines for cell in line.cells.values())
    headings = ["encoding", *(_heading(table, length) for length in table.lengths)]
    headings += ["uses context", "beats window"] if controlled else []
    headings += ["break point", "seeds", "parameters", "tokens/s"]
    headings += [f"MB at {length}" for length in table.lengths[-1:]]
    return [headings, *(_row(line, table, controlled) for line in table.all_lines)]


def _row(line: Line, table: Table, controlled: bool) -> list[str]:
    cells = [_cell(line, line.cells.get(length), table) for length in table.lengths]
    questions = ("uses_context", "beats_window") if controlled else ()
    answers = [
        ", ".join(f"{length} {answer}" for length, answer in context_answers(line, question))
        for question in questions
    ]
    return [
        *(
            line.label,
            *cells,
            *answers,
            of_model(line, break_text(line.break_point)),
            str(line.seeds),
            of_model(line, f"{line.parameters:,}"),
        ),
        of_model(line, f"{line.tokens_per_second:,.0f}"),
        *(memory_text(line, length) for length in table.lengths[-1:]),
    ]


def _heading(table: Table, length: int) -> str:
    return f"{length} (trained)" if length == table.key.train_length else str(length)


def _cell(line: Line, cell: Cell | None, table: Table) -> str:
    if cell is None:
        return ""
    if not cell.levels:
        return cell.status.replace("_", " ")
    low, high, accuracy = answers_texts(cell) or ("", "", "")
    interval = f"{low} to {high}, accuracy {accuracy}" if low else ""
    said = _bracketed(interval, change_text(cell.change), verdict_of(cell, table))
    words = [level_text(line, cell), said]
    if cell.baseline is not None:
        said = (change_text(cell.baseline.mean), cell.baseline.verdict, pairs_text(line, cell).strip())
        words.append(_bracketed(f"vs {table.baseline}", *said))
    return " ".join(word for word in words if word)


def _bracketed(*words: str) -> str:
    said = " ".join(word for word in words if word)
    return f"({said})" if said else ""


def details_notes(table: Table) -> list[str]:
    inside = "95 % interval, accuracy, verdict" if table.is_task else "change, verdict"
    return [f"cells: {table.measure.unit} ({inside})", *legend(table), *table.notes]
