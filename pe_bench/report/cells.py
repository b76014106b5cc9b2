"""What a line of a table shows in the short form, with its marks."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pe_bench.render.grid import MISSING, Cell
from pe_bench.report.marks import mark_of, verdict_cell
from pe_bench.report.records import Line, Table, common_targets

MAX_PLAIN = 1e6  # bits per byte
UNLEARNED = "not learned"
OTHER_TARGETS = "~"  # in place of a level, or after a number, of other targets than the levels beside it


def number_text(value: float, sign: str = "") -> str:
    """Return bits per byte with three decimals, in scientific notation if they are huge.

    What rounds to 0 has no sign.
    """
    if abs(value) >= MAX_PLAIN:
        return f"{value:{sign}.2e}"
    text = f"{value:{sign}.3f}"
    return "0.000" if text[1:] == "0.000" else text


def judged(number: float, verdict: str = "", of_models: str = "", sign: str = "") -> Cell:
    """Return a number with its verdict's mark. The mark for these models alone precedes that of `unclear`."""
    mark = mark_of(verdict)
    text = mark.text
    if verdict == "unclear":
        text = mark_of(of_models).of_models + text
    return Cell(number_text(number, sign), text, verdict, value=number, colour=mark.colour)


def has_trained_level(table: Table) -> bool:
    return any(level_at_training(line, table) is not None for line in table.lines)


def lengths_of_short_table(table: Table) -> list[int]:
    """Return the lengths beyond the training length, and others that were named.

    With a baseline, the training length is one of them, and a length is not at which nothing can be compared.
    If no line has a level at the training length, all lengths are.
    """
    if not has_trained_level(table):
        return list(table.lengths)
    return [length for length in table.lengths if _is_short_length(length, table)]


def _is_short_length(length: int, table: Table) -> bool:
    train_length = table.key.train_length
    if length != train_length and length in table.chosen:
        return True
    if table.baseline:
        return length >= train_length and _is_compared(length, table)
    return length > train_length


def _is_compared(length: int, table: Table) -> bool:
    """Whether a line shows a level or a difference from the baseline at a length."""
    return any(value_at(line, length, table) is not None for line in table.all_lines)


def level_at_training(line: Line, table: Table) -> Cell | None:
    """Return the level at the training length, with no mark except that of `not learned`."""
    record = line.records.get(table.key.train_length)
    if record is None or record.level is None:
        return None
    if not table.has_common_targets(record):
        return Cell(OTHER_TARGETS)
    if line.unlearned:
        return judged(record.level, UNLEARNED)
    if record.answers is None:
        return judged(record.level)
    return judged(record.level, record.verdict, record.verdict_of_models)


def value_at(line: Line, length: int, table: Table) -> Cell | None:
    """Return the cell of a line at a length: its change, or its difference from the baseline.

    The baseline shows `(0)`, and every line its level if none was scored at the training length. The change
    of a model that knows nothing has its `*`, because without a verdict it would read as one that holds.
    """
    record = line.records.get(length)
    if record is None or record.level is None:
        return None
    if line.label == table.baseline:
        return Cell("(0)", value=0.0)
    has_levels = table.is_task or not has_trained_level(table)
    if has_levels and not table.baseline and not table.has_common_targets(record):
        return Cell(OTHER_TARGETS)
    if not (table.baseline or table.is_task or has_trained_level(table)):
        return judged(record.level)
    if table.baseline:
        difference = record.baseline
        if difference is None or difference.mean is None:
            return None
        is_common = difference.target_hash in ("", common_targets(table.lines, length))
        return _marked(judged(difference.mean, difference.verdict, sign="+"), is_common=is_common)
    if table.is_task:
        verdict = UNLEARNED if line.unlearned else record.verdict
        return judged(record.level, verdict, record.verdict_of_models)
    if record.change is None:
        return None
    verdict = UNLEARNED if line.unlearned == "frequencies" else record.verdict
    cell = judged(record.change, verdict, record.verdict_of_models, "+")
    return _marked(cell, is_common=table.has_targets_of_levels(record.compared))


def _marked(cell: Cell, *, is_common: bool) -> Cell:
    """Return the cell, with a mark if its number is of other targets than the levels beside it."""
    return cell if is_common else replace(cell, mark=cell.mark + OTHER_TARGETS)


def works_to(line: Line) -> Cell:
    """Return the last length that works, and the first that does not unless that is near.

    A `?` says that it surely holds only to a shorter one. It is `not at all` if it fails at the training
    length itself, and `-` if no length was judged.
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


def context_answer(line: Line) -> Cell:
    """Return one answer for all lengths: yes if it is yes at any, no if it is no at all that were judged.

    It is `reads nothing` if the model surely gains nothing from most of its training length.
    """
    if line.reads_nothing and any(record.use for record in line.records.values()):
        return Cell("reads nothing")
    answers = {record.use.uses_context for record in line.records.values() if record.use} - {""}
    if not answers:
        return Cell(MISSING)
    if "yes" in answers:
        return verdict_cell("yes")
    return verdict_cell("unclear" if len(answers) > 1 else answers.pop())


def by_importance(
    lengths: Sequence[int], train_length: int, named: Sequence[int], stops: Iterable[int] = ()
) -> list[int]:
    """Return the lengths in the order in which a narrow table keeps them.

    Those that the user named come first, then the training length, the longest, twice the training length,
    the last one before that at which a line stops to work, or else one that is just past the training length,
    four times the training length, and the others from the longest on. stops: where lines stop to work.
    """
    just_past = max((length for length in lengths if train_length < length <= 1.25 * train_length), default=0)
    breaks = max((length for length in stops if train_length < length < 2 * train_length), default=just_past)
    first = (train_length, max(lengths, default=0), 2 * train_length, breaks, 4 * train_length)
    order = [*named, *first, *sorted(lengths, reverse=True)]
    return [length for length in dict.fromkeys(order) if length in lengths]
