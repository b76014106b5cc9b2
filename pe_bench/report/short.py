"""The short form of a table: one line an encoding, its level, one change a length, and two answers.

What it says is decided here for all formats; `short_text` and `markup` give it their shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pe_bench.report.statistics import Interval
from pe_bench.report.tables.build import Table
from pe_bench.report.tables.lines import Line
from pe_bench.runs.rows import HALF

# After a number; whatever holds, or is the same as the baseline, has none.
MARKS = {"degrades": ">", "fails": "!", "improves": "v", "unclear": "?", "worse": ">", "better": "v"}
MISSING = "-"


@dataclass(frozen=True)
class Value:
    """A number of a line at a length, with what is known of it.

    is_level: bits per byte and no difference, so that it has neither verdict nor interval.
    """

    number: float
    verdict: str = ""
    interval: Interval | None = None
    is_level: bool = False

    @property
    def mark(self) -> str:
        return MARKS.get(self.verdict, "")


def short_title(table: Table) -> list[str]:
    """Return what all lines have in common, in parts."""
    group = table.group
    steps = f", {group.steps:,} steps" if group.steps else ""
    seeds = sorted({line.seeds for line in table.lines})
    few_to_many = f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else f"{seeds[0]} seeds"
    rule = "half the length" if group.stride_rule == HALF else group.stride_rule
    protocol = f"{group.protocol} protocol" + (f", stride {rule}" if rule else "")
    return [
        f"{group.model} model" + (f" with {group.model_sizes}" if group.model_sizes else ""),
        group.data,
        group.tokenizer,
        f"trained at {group.train_length} tokens{steps}",
        "1 seed" if seeds == [1] else few_to_many,
        *([protocol] if group.protocol != "paired" else []),
        *([f"scores in {group.score_dtype}"] if group.score_dtype != "float32" else []),
        "bits per byte (lower is better)",
    ]


def has_trained_level(table: Table) -> bool:
    return any(level_at_training(line, table) is not None for line in table.lines)


def short_lengths(table: Table) -> list[int]:
    """Return the lengths beyond the training length; all of them where no line has a level at that."""
    if not has_trained_level(table):
        return list(table.lengths)
    return [length for length in table.lengths if length > table.group.train_length]


def without_middle(lengths: Sequence[int], count: int) -> list[int]:
    """Return so many of the lengths: the first and the last ones, the middle dropped."""
    first = (count + 1) // 2
    return [*lengths[:first], *lengths[len(lengths) - (count - first) :]]


def level_at_training(line: Line, table: Table) -> Value | None:
    """Return the level at the training length; with a baseline its mark is that of the comparison."""
    cell = line.cells.get(table.group.train_length)
    if cell is None or cell.bits_per_byte is None:
        return None
    return Value(cell.bits_per_byte, cell.baseline.verdict if cell.baseline else "", is_level=True)


def value_at(line: Line, length: int, table: Table) -> Value | None:
    """Return what a line shows at a length: its change, or its difference from the baseline.

    The baseline itself shows its level, and so does every line where none was scored at the training length.
    """
    cell = line.cells.get(length)
    if cell is None or cell.bits_per_byte is None:
        return None
    if line.label == table.baseline or not (table.baseline or has_trained_level(table)):
        return Value(cell.bits_per_byte, is_level=True)
    if table.baseline:
        found = cell.baseline
        if found is None or found.mean is None:
            return None
        return Value(found.mean, found.verdict, found.interval)
    return None if cell.change is None else Value(cell.change, cell.verdict, cell.interval)


def works_to(line: Line, table: Table) -> str:
    """Return the last length before the break point."""
    found = line.break_point.works_to
    if found is None:
        return MISSING
    return "not at all" if found <= table.group.train_length else f"{found:,}"


def has_controls(table: Table) -> bool:
    return any(cell.use for line in table.lines for cell in line.cells.values())


def uses_context(line: Line) -> str:
    """Return one answer for all lengths: yes where it is at any, no where it is at all that were judged."""
    answers = {cell.use.uses_context for cell in line.cells.values() if cell.use} - {""}
    if "yes" in answers:
        return "yes"
    return answers.pop() if len(answers) == 1 else "unclear" if answers else MISSING


def short_legend(table: Table, dropped: Sequence[int]) -> list[str]:
    """Return what the numbers and their marks are; dropped: the lengths that had no room."""
    train_length = table.group.train_length
    marks = "no mark holds, > degrades, ! fails, v improves, ? unclear"
    if table.baseline:
        marks = "no mark the same, > worse, v better, ? unclear"
        lines = [f"difference from {table.baseline} at the same length, on the same text: {marks}"]
    elif not has_trained_level(table):
        lines = [f"levels: without a score at {train_length}, the training length, there are no changes"]
    elif short_lengths(table):
        lines = [f"change against {train_length} on the same text: {marks}"]
    else:
        lines = []
    return lines + ([f"no room for {', '.join(map(str, dropped))}: --details has them"] if dropped else [])
