"""The short form of a table: one line an encoding, its level, one change a length, and two answers.

What it says is decided here for all formats; `short_text` and `markup` give it their shape.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from pe_bench.report.measure import BITS, Measure
from pe_bench.report.statistics import Interval
from pe_bench.report.tables.cells import Cell
from pe_bench.report.tables.context_use import quarter_of
from pe_bench.report.tables.lines import Line
from pe_bench.report.tables.table import Table, TableKey, slice_name
from pe_bench.report.task_statistics import SOLVED
from pe_bench.runs.rows import ALL, HALF
from pe_bench.runs.slices import KEY, NOVEL, RECALL

UNLEARNED = "not learned"
# After a number; whatever holds, or is the same as the baseline, has none.
MARKS = {
    "degrades": ">",
    "fails": "!",
    "improves": "v",
    "unclear": "?",
    "worse": ">",
    "better": "v",
    "partial": ">",
    "chance": "!",
    UNLEARNED: "*",
}
MARKS_OF_MODELS = {**MARKS, "holds": "=", "solves": "=", "unclear": ""}
MISSING = "-"
MIN_LENGTHS = 3  # that stay before a long name is cut
MIN_NAME = 16  # characters
INDENT = "  "  # of a name's second line


@dataclass(frozen=True)
class Value:
    """A number of a line at a length, with what is known of it.

    is_level: a level and no difference; one of text has neither verdict nor interval. verdict_of_models:
    of the trained models alone, where they are several.
    """

    number: float
    verdict: str = ""
    interval: Interval | None = None
    is_level: bool = False
    verdict_of_models: str = ""

    @property
    def mark(self) -> str:
        """Return the verdict's mark; where it is unclear, after that of the verdict on these models."""
        of_models = MARKS_OF_MODELS.get(self.verdict_of_models, "") if self.verdict == "unclear" else ""
        return of_models + MARKS.get(self.verdict, "")


def short_title(table: Table) -> list[str]:
    """Return what all lines have in common, in parts."""
    key = table.key
    rule = "half the length" if key.stride_rule == HALF else key.stride_rule
    protocol = f"{key.protocol} protocol" + (f", stride {rule}" if rule else "")
    return [
        *setting_title(key, [line.seeds for line in table.lines]),
        *([protocol] if key.protocol != "paired" and not table.is_task else []),
        *([f"scores in {key.score_dtype}"] if key.score_dtype != "float32" else []),
        *([f"targets: {slice_name(table)}"] if key.slice != ALL else []),
        table.measure.meaning,
    ]


def setting_title(key: TableKey, seeds_of_lines: Sequence[int]) -> list[str]:
    """Return the model, the text or task and the training of all lines, and how many seeds they have."""
    steps = f", {key.steps:,} steps" if key.steps else ""
    seeds = sorted(set(seeds_of_lines))
    seeds_text = " to ".join(map(str, [*seeds[:1], *seeds[1:][-1:]])) + " seeds" if seeds else "no scores"
    return [
        f"{key.model} model" + (f" with {key.model_sizes}" if key.model_sizes else ""),
        *([f"task {key.data}"] if key.is_task else [key.data, key.tokenizer]),
        f"trained at {key.train_length} tokens{steps}" + (f" with {key.training}" if key.training else ""),
        "1 seed" if seeds == [1] else seeds_text,
    ]


def has_trained_level(table: Table) -> bool:
    return any(level_at_training(line, table) is not None for line in table.lines)


def has_changes(table: Table) -> bool:
    """Return whether numbers beside the levels are changes, or differences from the baseline."""
    is_change = has_trained_level(table) and not table.is_task
    return bool(short_lengths(table)) and (is_change or bool(table.baseline))


def short_lengths(table: Table) -> list[int]:
    """Return the lengths beyond the training length, and others that were asked for.

    All of them where no line has a level at the training length.
    """
    if not has_trained_level(table):
        return list(table.lengths)
    train_length = table.key.train_length
    return [
        length
        for length in table.lengths
        if length > train_length or (length < train_length and length in table.asked)
    ]


def without_middle(lengths: Sequence[int], count: int) -> list[int]:
    """Return so many of the lengths: the first and the last ones, the middle dropped."""
    first = (count + 1) // 2
    return [*lengths[:first], *lengths[len(lengths) - (count - first) :]]


def fitted(
    table: Table, room: Callable[[Sequence[int]], float], measure: Callable[[str], float]
) -> tuple[list[list[str]], list[int]]:
    """Return the names, each in one line or more, and the lengths to show, as many as fit.

    Lengths that were asked for are the last to go. Names are broken only where three lengths have no room
    beside them. room: what is left for names beside these lengths; measure: how wide a name is.
    """
    labels = [line.label for line in table.all_lines]
    lengths = short_lengths(table)
    names, shown = [[label] for label in labels], lengths
    for count in range(len(lengths), -1, -1):
        shown = _shown(lengths, count, table.asked)
        left = room(shown)
        names = [broken_name(label, left, measure) for label in labels]
        is_whole = all(len(lines) == 1 for lines in names)
        if is_whole or (count <= MIN_LENGTHS and left >= measure("x" * MIN_NAME)):
            break
    return names, shown


def _shown(lengths: Sequence[int], count: int, asked: Sequence[int]) -> list[int]:
    """Return so many of the lengths: those that were asked for, and the first and last of the others."""
    kept = without_middle([length for length in lengths if length in asked], count)
    others = [length for length in lengths if length not in asked]
    return sorted([*kept, *without_middle(others, count - len(kept))])


def broken_name(name: str, room: float, measure: Callable[[str], float]) -> list[str]:
    """Return the name in lines that fit, broken between its words, and within one that has no room."""
    lines = [""]
    for word in name.split():
        longer = f"{lines[-1]} {word}" if lines[-1].strip() else lines[-1] + word
        if measure(longer) <= room:
            lines[-1] = longer
            continue
        if lines[-1].strip():
            lines.append(INDENT)
        for sign in word:
            if lines[-1].strip() and measure(lines[-1] + sign) > room:
                lines.append(INDENT)
            lines[-1] += sign
    return lines


def best_of(values: Sequence[Value | None], baseline: str, measure: Measure = BITS) -> str:
    """Return the best number as it is written, of at least two.

    With a baseline it is the lowest difference that is better for sure; levels are no differences.
    """
    known = [value for value in values if value and isfinite(value.number)]
    compared = [value for value in known if not value.is_level] or known
    numbers = [value.number for value in compared if not baseline or value.verdict == "better"]
    best = max if measure.higher_is_better else min
    return f"{best(numbers):.3f}" if len(compared) > 1 and numbers else ""


def half_width(interval: Interval) -> str:
    """Return half the width of an interval, with two digits or three places."""
    half = (interval.high - interval.low) / 2
    if not half < inf:
        return "∞"
    return f"{half:.3f}" if half < 0.0995 else f"{half:.2f}"


def level_at_training(line: Line, table: Table) -> Value | None:
    """Return the level at the training length, with no mark but that of what has not learned."""
    cell = line.cells.get(table.key.train_length)
    if cell is None or cell.level is None:
        return None
    if line.unlearned or cell.answers is None:
        return Value(cell.level, UNLEARNED if line.unlearned else "", is_level=True)
    return _answers_value(line, cell.level, cell)


def value_at(line: Line, length: int, table: Table) -> Value | None:
    """Return what a line shows at a length: its change, or its difference from the baseline.

    The baseline itself shows its level, and so does every line where none was scored at the training length.
    A change that is not judged because the model knows nothing would read as one that holds.
    """
    cell = line.cells.get(length)
    if cell is None or cell.level is None:
        return None
    if line.label == table.baseline or not (table.baseline or table.is_task or has_trained_level(table)):
        return Value(cell.level, is_level=True)
    if table.baseline:
        found = cell.baseline
        if found is None or found.mean is None:
            return None
        return Value(found.mean, found.verdict, found.interval)
    if table.is_task:
        return _answers_value(line, cell.level, cell)
    if cell.change is None or line.unlearned == "frequencies":
        return None
    return Value(cell.change, cell.verdict, cell.interval, verdict_of_models=cell.verdict_of_models)


def _answers_value(line: Line, level: float, cell: Cell) -> Value:
    """Return the level of a task, which has a verdict by itself; none where it is not learned."""
    if line.unlearned:
        return Value(level, UNLEARNED, is_level=True)
    interval = None if cell.answers is None else cell.answers.intervals.exact
    return Value(level, cell.verdict, interval, is_level=True, verdict_of_models=cell.verdict_of_models)


def works_to(line: Line, table: Table) -> str:
    """Return the last length before it breaks, with a `?` where it surely holds to a shorter one only.

    It is `not at all` if the first longer one breaks, and `-` if none was judged.
    """
    found = line.break_point.works_to
    if found is None:
        return MISSING
    if found <= table.key.train_length:
        return "not at all"
    return f"{found:,}{'' if line.break_point.is_sure else '?'}"


def has_controls(table: Table) -> bool:
    return any(cell.use for line in table.lines for cell in line.cells.values())


def context_answer(line: Line) -> str:
    """Return one answer for all lengths: yes if it is yes at any, no if it is no at all that were judged.

    A model that surely gains nothing from most of its training length reads nothing that far back.
    """
    if line.reads_nothing and any(cell.use for cell in line.cells.values()):
        return "reads nothing"
    answers = {cell.use.uses_context for cell in line.cells.values() if cell.use} - {""}
    if "yes" in answers:
        return "yes"
    return answers.pop() if len(answers) == 1 else "unclear" if answers else MISSING


def numbers_text(table: Table) -> str:
    """Return what the numbers beside the levels are; empty where there are none."""
    train_length = table.key.train_length
    if table.baseline and not short_lengths(table):
        return f"levels; their differences from {table.baseline} are in the details"
    if table.baseline:
        same = "examples, + is better" if table.is_task else "text"
        return f"difference from {table.baseline} at the same length, on the same {same}"
    if table.is_task:
        return ""
    if not has_trained_level(table):
        return f"levels: without a score at {train_length}, the training length, there are no changes"
    return f"change against {train_length}{_own(table)} on the same text" if short_lengths(table) else ""


def _own(table: Table) -> str:
    """Return whose level changes are against, where a line shows another level of its own."""
    is_another = any(line.scored_with != line.encoding for line in table.lines)
    return " with the trained encoding" if is_another else ""


def short_legend(table: Table, dropped: Sequence[int]) -> list[str]:
    """Return what numbers and marks mean, and the lengths that are dropped for want of room."""
    legend = ": ".join(filter(None, (numbers_text(table), _marks_text(table))))
    notes = [slice_text(table), works_to_text(table), context_text(table)]
    notes += [below_text(table), dropped_text(dropped)]
    return [line for line in (legend, *notes) if line]


def slice_text(table: Table) -> str:
    """Return which targets the numbers are of; empty where they are of all."""
    train_length, judge = table.key.train_length, table.key.judge
    meanings = {
        RECALL: f"the 8 bytes before the target occur earlier in its window, the last time more than "
        f"{train_length} tokens back, and the target followed them there",
        NOVEL: "the 8 bytes before the target occur nowhere earlier in its window",
        KEY: f"{judge} predicts them well, and much better with far context than without (LongPPL's rule)",
    }
    meaning = meanings.get(table.key.slice)
    return f"{table.key.slice}: {meaning}" if meaning else ""


def recall_lengths(table: Table) -> list[int]:
    """Return the lengths of the small table of recall: the longest, and where use of context is judged."""
    judged = {length for line in table.lines for length, cell in line.cells.items() if cell.use}
    lengths = short_lengths(table)
    return [length for length in lengths if length in judged or length == lengths[-1]]


def works_to_text(table: Table) -> str:
    """Return what a `?` after a length means; empty where none has one."""
    unsure = [line for line in table.lines if works_to(line, table).endswith("?")]
    return "a length with ?: unclear from a shorter one on" if unsure else ""


def context_text(table: Table) -> str:
    """Return what the answers on the use of context mean, those that are shown; empty where none is."""
    if not has_controls(table):
        return ""
    train_length = table.key.train_length
    shown = {context_answer(line) for line in table.lines}
    meanings = {
        "reads nothing": f"reads nothing: no better at {train_length} than at {quarter_of(train_length)}",
        MISSING: "-: cannot be judged",
    }
    special = "".join(f"; {meaning}" for answer, meaning in meanings.items() if answer in shown)
    return f"uses context: gains from reading more than {train_length} tokens back{special}"


def below_text(table: Table) -> str:
    """Return why lengths within training have no verdict; empty where none is shown."""
    below = [length for length in short_lengths(table) if length < table.key.train_length]
    if not below or not has_trained_level(table) or table.baseline:
        return ""
    if table.is_task:
        return f"{', '.join(map(str, below))}: shorter than in training, and not judged"
    return f"{', '.join(map(str, below))}: less context than in training costs by nature, and is not judged"


def dropped_text(dropped: Sequence[int]) -> str:
    return f"no room for {', '.join(map(str, dropped))}: --details has them" if dropped else ""


def marks_of_task(table: Table) -> str:
    """Return what the marks after levels mean, those that are shown."""
    values = [value_at(line, length, table) for line in table.lines for length in short_lengths(table)]
    marked = [value for value in values if value is not None and value.verdict]
    marked += [value for line in table.lines if (value := level_at_training(line, table)) is not None]
    chances = {cell.answers.chance for line in table.lines for cell in line.cells.values() if cell.answers}
    guessing = " or ".join(f"{100 * chance:.3g} %" for chance in sorted(chances))
    meanings = {
        "": f"no mark solves more than {100 * SOLVED:g} % of the examples for sure",
        ">": f"> partial: fewer than {100 * SOLVED:g} %",
        "!": f"! chance: as few answers right as by guessing ({guessing})",
        "?": "? unclear",
    }
    shown = {mark for value in marked for mark in (value.mark or [""])}
    return ", ".join(meaning for mark, meaning in meanings.items() if mark in shown) + _of_models_text(marked)


def _of_models_text(values: Sequence[Value]) -> str:
    """Return what two marks at a number mean, with an example of each that is shown."""
    doubled = sorted({value.mark for value in values if len(value.mark) > 1})
    return f" ({' '.join(doubled)}: sure of these models, not of other seeds)" if doubled else ""


def _marks_text(table: Table) -> str:
    """Return what the marks after numbers mean; empty where there are none."""
    if table.is_task and not table.baseline:
        return marks_of_task(table)
    if not has_changes(table):
        return ""
    if not table.baseline and max(short_lengths(table)) < table.key.train_length:
        return ""
    values = [value_at(line, length, table) for line in table.lines for length in short_lengths(table)]
    judged = [value for value in values if value is not None and value.verdict]
    if not judged:
        return ""
    if table.baseline:
        return "no mark the same, > worse, v better, ? unclear"
    of_models = _of_models_text(judged)
    return f"no mark holds, > degrades, ! fails, v improves, ? unclear{of_models}"
