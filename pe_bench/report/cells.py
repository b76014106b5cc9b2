"""The cells of a line in the short form: numbers with their marks, `works to`, and the use of context."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pe_bench.render.grid import MISSING, Cell
from pe_bench.report.marks import mark_of, verdict_cell
from pe_bench.report.records import NEAR_RATIO, Line, Table, common_targets

MAX_PLAIN_NUMBER = 1e6  # bits per byte
UNLEARNED = "not learned"
# Replaces a level, or follows a number, that belongs to other targets than the levels beside it.
OTHER_TARGETS_MARK = "~"


def number_text(value: float, sign: str = "") -> str:
    """Return a number with three decimals, or in scientific notation if it is huge; 0.000 has no sign."""
    if abs(value) >= MAX_PLAIN_NUMBER:
        return f"{value:{sign}.2e}"
    text = f"{value:{sign}.3f}"
    return "0.000" if text[1:] == "0.000" else text


def number_cell(number: float, verdict: str = "", of_models: str = "", sign: str = "") -> Cell:
    """Return the cell of a number, with the mark of its verdict.

    of_models: the verdict that holds only of the trained models, not of other seeds: if `verdict` is unclear,
    the mark of `of_models` comes before the `?`.
    sign: `+` shows the sign of a positive number too.
    """
    mark = mark_of(verdict)
    text = mark.text
    if verdict == "unclear":
        text = mark_of(of_models).of_models + text
    return Cell(number_text(number, sign), text, verdict, value=number, colour=mark.colour)


def has_trained_level(table: Table) -> bool:
    """Return whether any line of a table has a level at the training length."""
    return any(training_level_cell(line, table) is not None for line in table.lines)


def lengths_of_short_table(table: Table) -> list[int]:
    """Return the lengths that have a column of changes or differences in the short form.

    They are longer than the training length, or named by the user; all lengths if no line has a level at the
    training length. With a baseline, the training length is among them, and lengths without any comparison
    are not.
    """
    if not has_trained_level(table):
        return list(table.lengths)
    return [length for length in table.lengths if _is_length_of_short_table(length, table)]


def _is_length_of_short_table(length: int, table: Table) -> bool:
    """Return whether a length has a column in the short form, by the rule of `lengths_of_short_table`."""
    train_length = table.key.train_length
    if length != train_length and length in table.chosen:
        return True
    if table.baseline:
        return length >= train_length and _is_compared(length, table)
    return length > train_length


def _is_compared(length: int, table: Table) -> bool:
    """Return whether any line shows a level or a difference from the baseline at a length."""
    cells = [value_cell(line, length, table) for line in table.all_lines]
    return any(cell is not None for cell in cells)


def training_level_cell(line: Line, table: Table) -> Cell | None:
    """Return the level of a line at the training length; None without a number.

    The level of a task has the mark of its verdict, the level of text only the mark of `not learned`.
    """
    record = line.records.get(table.key.train_length)
    if record is None or record.level is None:
        return None
    if not table.has_common_targets(record):
        return Cell(OTHER_TARGETS_MARK)
    if line.unlearned:
        return number_cell(record.level, UNLEARNED)
    if record.answers is None:
        return number_cell(record.level)
    return number_cell(record.level, record.verdict, record.verdict_of_models)


def value_cell(line: Line, length: int, table: Table) -> Cell | None:
    """Return the cell of a line at a length: its change, or its difference from the baseline.

    The baseline shows `(0)`. Without a baseline, a line of a task shows its level, and so does every line if
    none was scored at the training length. The change of a model that has learned nothing has the mark `*`,
    because without a mark it would read as `holds`. None without a number.
    """
    record = line.records.get(length)
    if record is None or record.level is None:
        return None
    if line.label == table.baseline:
        return Cell("(0)", value=0.0)
    has_levels = table.is_task or not has_trained_level(table)
    if has_levels and not table.baseline and not table.has_common_targets(record):
        return Cell(OTHER_TARGETS_MARK)
    if not (table.baseline or table.is_task or has_trained_level(table)):
        return number_cell(record.level)
    if table.baseline:
        difference = record.baseline
        if difference is None or difference.mean is None:
            return None
        is_common = difference.target_hash in ("", common_targets(table.lines, length))
        return _marked_if_other_targets(
            number_cell(difference.mean, difference.verdict, sign="+"), is_common=is_common
        )
    if table.is_task:
        verdict = UNLEARNED if line.unlearned else record.verdict
        return number_cell(record.level, verdict, record.verdict_of_models)
    if record.change is None:
        return None
    verdict = UNLEARNED if line.unlearned == "frequencies" else record.verdict
    cell = number_cell(record.change, verdict, record.verdict_of_models, "+")
    return _marked_if_other_targets(cell, is_common=table.has_targets_of_levels(record.compared))


def _marked_if_other_targets(cell: Cell, *, is_common: bool) -> Cell:
    """Return the cell, with the mark `~` if its number is of other targets than the levels in its row."""
    return cell if is_common else replace(cell, mark=cell.mark + OTHER_TARGETS_MARK)


def works_to_cell(line: Line) -> Cell:
    """Return the last length that works, and the next length if it fails and is far away.

    The mark `?` says that the line surely holds only to a shorter length, the mark `^` that a later stage is
    judged from its longest training length. The cell is `not at all` if the line fails at the training length
    itself, and `-` if no length was judged.
    """
    point = line.break_point
    if point.works_to is None:
        return Cell(MISSING)
    if point.works_to == 0:
        return Cell(point.works_to_text)
    mark = "" if point.holds_to == point.works_to else "?"
    if line.longest:
        mark += "^"
    return Cell(point.works_to_text, mark, value=point.works_to)


def context_use_cell(line: Line) -> Cell:
    """Return the answer on use of context: `yes` if any length has it, `no` if all judged lengths have it.

    It is `unclear` for other answers, `-` without answers, and `reads nothing` if the model surely gains
    nothing from most of its training length.
    """
    uses = [record.use for record in line.records.values() if record.use]
    if line.reads_nothing and uses:
        return Cell("reads nothing")
    answers = {use.uses_context for use in uses} - {""}
    if not answers:
        return Cell(MISSING)
    if "yes" in answers:
        return verdict_cell("yes")
    return verdict_cell("unclear" if len(answers) > 1 else answers.pop())


def lengths_by_importance(
    lengths: Sequence[int], train_length: int, named: Sequence[int], stops: Iterable[int] = ()
) -> list[int]:
    """Return the lengths in the order in which a narrow table keeps them.

    The lengths that the user named come first; then the training length, the longest length, and twice the
    training length; then the longest below twice the training length that is a line's first failing length,
    or else the longest length just past the training length; then four times the training length, and the
    others, longest first. stops: each line's first failing length.
    """
    longer = [length for length in lengths if length > train_length]
    just_past = max((length for length in longer if length <= NEAR_RATIO * train_length), default=0)
    stops_near = [length for length in stops if train_length < length < 2 * train_length]
    stop = max(stops_near, default=just_past)
    first = (train_length, max(lengths, default=0), 2 * train_length, stop, 4 * train_length)
    order = [*named, *first, *sorted(lengths, reverse=True)]
    return [length for length in dict.fromkeys(order) if length in lengths]
