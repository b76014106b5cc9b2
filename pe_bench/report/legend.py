"""What a line of a table shows, with its marks, and what is said around a table: what these mean."""

from collections.abc import Iterator, Sequence

from pe_bench.report.records import BreakPoint, Line, Record, Table, quarter_of
from pe_bench.report.statistics import FAILURE
from pe_bench.report.verdicts import NEAR_CHANCE, SOLVED
from pe_bench.runs.scores import KEY, NOVEL, RECALL
from pe_bench.system.grid import MISSING, NO_VERDICT, VERDICTS, Cell

MAX_PLAIN = 1e6  # bits per byte
UNLEARNED = "not learned"


def number_text(value: float, sign: str = "") -> str:
    """Return bits per byte with three decimals, as a power of ten where that would be no number to read.

    What rounds to 0 has no sign.
    """
    if abs(value) >= MAX_PLAIN:
        return f"{value:{sign}.2e}"
    text = f"{value:{sign}.3f}"
    return "0.000" if text[1:] == "0.000" else text


def judged(number: float, verdict: str = "", of_models: str = "", sign: str = "") -> Cell:
    """Return a number with its verdict's mark; where that is unclear, after the one on these models alone."""
    first = VERDICTS.get(of_models, NO_VERDICT).of_models if verdict == "unclear" else ""
    mark = first + VERDICTS.get(verdict, NO_VERDICT).mark
    return Cell(number_text(number, sign), mark, verdict, value=number)


def has_trained_level(table: Table) -> bool:
    return any(level_at_training(line, table) is not None for line in table.lines)


def has_controls(table: Table) -> bool:
    return any(record.use for record in table.records)


def short_lengths(table: Table) -> list[int]:
    """Return the lengths beyond the training length, and others that were asked for.

    The training length is one of them where a baseline is compared with there too. All of them where no line
    has a level at the training length.
    """
    if not has_trained_level(table):
        return list(table.lengths)
    train_length = table.key.train_length
    return [
        length
        for length in table.lengths
        if length > train_length
        or (length < train_length and length in table.asked)
        or (length == train_length and table.baseline)
    ]


def level_at_training(line: Line, table: Table) -> Cell | None:
    """Return the level at the training length, with no mark but that of what has not learned."""
    record = line.records.get(table.key.train_length)
    if record is None or record.level is None:
        return None
    if line.unlearned or record.answers is None:
        return judged(record.level, UNLEARNED if line.unlearned else "")
    return judged(record.level, record.verdict, record.verdict_of_models)


def value_at(line: Line, length: int, table: Table) -> Cell | None:
    """Return what a line shows at a length: its change, or its difference from the baseline.

    The baseline itself shows its level, and so does every line where none was scored at the training length.
    A change that is not judged because the model knows nothing would read as one that holds.
    """
    record = line.records.get(length)
    if record is None or record.level is None:
        return None
    if line.label == table.baseline or not (table.baseline or table.is_task or has_trained_level(table)):
        return judged(record.level)
    if table.baseline:
        difference = record.baseline
        if difference is None or difference.mean is None:
            return None
        return judged(difference.mean, difference.verdict, sign="+")
    if table.is_task:
        return judged(record.level, UNLEARNED if line.unlearned else record.verdict, record.verdict_of_models)
    if record.change is None or line.unlearned == "frequencies":
        return None
    return judged(record.change, record.verdict, record.verdict_of_models, "+")


def works_to(line: Line, table: Table) -> Cell:
    """Return the last length before it breaks, with a `?` where it surely holds to a shorter one only.

    It is `not at all` if the first longer one breaks, and `-` if none was judged.
    """
    length, later = line.break_point.works_to, "^" if line.longest else ""
    if length is None:
        return Cell(MISSING)
    if length <= table.key.train_length:
        return Cell("not at all")
    return Cell(f"{length:,}", ("" if line.break_point.is_sure else "?") + later, value=length)


def context_answer(line: Line) -> Cell:
    """Return one answer for all lengths: yes if it is yes at any, no if it is no at all that were judged.

    A model that surely gains nothing from most of its training length reads nothing that far back.
    """
    if line.reads_nothing and any(record.use for record in line.records.values()):
        return Cell("reads nothing")
    answers = {record.use.uses_context for record in line.records.values() if record.use} - {""}
    if not answers:
        return Cell(MISSING)
    answer = "yes" if "yes" in answers else "unclear" if len(answers) > 1 else answers.pop()
    return Cell(answer, style=answer)


def verdict_of(record: Record, table: Table) -> str:
    """Return the verdict, empty below the training length, where less context costs by nature."""
    return record.verdict if record.length >= table.key.train_length else ""


def break_text(point: BreakPoint) -> str:
    texts = {
        "at": f"{point.length}",
        "by": f"≤ {point.length}",
        "unclear": f"none; unclear from {point.length}",
        "none": f"none up to {point.length}",
        "unknown": "unknown",
    }
    return texts[point.kind]


def by_importance(lengths: Sequence[int], train_length: int, named: Sequence[int]) -> list[int]:
    """Return the lengths in the order in which a narrow table keeps them.

    Those that the user named come first, then the training length, the longest, twice and four times the
    training length, one that is just past it, and the others from the longest on.
    """
    just_past = max((length for length in lengths if train_length < length <= 1.25 * train_length), default=0)
    first = (train_length, max(lengths, default=0), 2 * train_length, 4 * train_length, just_past)
    order = [*named, *first, *sorted(lengths, reverse=True)]
    return [length for length in dict.fromkeys(order) if length in lengths]


# Below the short form


def short_notes(table: Table, dropped: Sequence[int] = ()) -> list[str]:
    """Return the notes of the short form, the most important first.

    They say what the numbers and marks are, what a reader has to know of them, which lengths are dropped for
    want of room, and what other words mean.
    """
    numbers = ": ".join(filter(None, (_numbers_text(table), _marks_text(table))))
    no_room = f"no room for {', '.join(map(str, dropped))}: --details has them" if dropped else ""
    unsure = any("?" in works_to(line, table).mark for line in table.lines)
    works = "a length with ?: unclear from a shorter one on" if unsure else ""
    later, below = later_text(table), _below_text(table)
    notes = (numbers, later, slice_text(table), *table.caveats, no_room, works, _context_text(table), below)
    return list(filter(None, notes))


def later_text(table: Table) -> str:
    """Return what `^` means, the mark of lines of several training lengths; empty without such lines."""
    lengths = sorted({line.longest for line in table.lines} - {0})
    if not lengths:
        return ""
    at = " or ".join(map(str, lengths))
    return f"^: from the line's own level at {at}, the longest length that it was trained at"


def best_text(table: Table) -> str:
    """Return what is bold in documents."""
    which = "highest" if table.measure.higher_is_better else "lowest"
    if table.baseline:
        return f"bold: the {which} that is better than {table.baseline} for sure"
    return f"bold: the {which} of the encodings in each column, which need not be better for sure"


def slice_text(table: Table) -> str:
    """Return which targets the numbers are of; empty where they are of all."""
    meanings = {
        RECALL: "the 8 bytes before the target occur earlier in its window, the last time more than "
        f"{table.key.train_length} tokens back, and the target followed them there",
        NOVEL: "the 8 bytes before the target occur nowhere earlier in its window",
        KEY: f"{table.key.judge} predicts them well, and much better with far context than without "
        "(LongPPL's rule)",
    }
    meaning = meanings.get(table.key.slice)
    return f"{table.key.slice}: {meaning}" if meaning else ""


def _numbers_text(table: Table) -> str:
    """Return what the numbers beside the levels are; empty where there are none."""
    train_length = table.key.train_length
    if table.baseline:
        same = "examples, + is better" if table.is_task else "text"
        return f"difference from {table.baseline} at the same length, on the same {same}"
    if table.is_task:
        return ""
    if not has_trained_level(table):
        return f"levels: without a score at {train_length}, the training length, there are no changes"
    return f"change against {train_length}{_whose(table)} on the same text" if short_lengths(table) else ""


def _whose(table: Table) -> str:
    """Return whose level a change is from, where that is not clear."""
    if any(line.longest for line in table.lines):
        return " of the unchanged model"
    is_another = any(line.scored_with != line.encoding for line in table.lines)
    return " with the trained encoding" if is_another else ""


def _marks_text(table: Table) -> str:
    """Return what the marks after numbers mean; empty where there are none."""
    lengths = short_lengths(table)
    cells = [value_at(line, length, table) for line in table.lines for length in lengths]
    marked = [cell for cell in cells if cell is not None and cell.style]
    doubled = sorted({cell.mark for cell in marked if len(cell.mark) > 1})
    of_models = f" ({' '.join(doubled)}: sure of these models, not of other seeds)" if doubled else ""
    if table.is_task and not table.baseline:
        return _marks_of_task(table, marked) + of_models
    is_below = not table.baseline and max(lengths, default=0) < table.key.train_length
    if is_below or not marked or not (table.baseline or has_trained_level(table)):
        return ""
    words = ("worse", "better", "unclear") if table.baseline else ("degrades", "fails", "improves", "unclear")
    marks = ", ".join(f"{VERDICTS[word].mark} {word}" for word in words)
    return (
        f"no mark {'the same' if table.baseline else 'holds'}, {marks}{'' if table.baseline else of_models}"
    )


def _marks_of_task(table: Table, marked: Sequence[Cell]) -> str:
    """Return what the marks after levels mean, those that are shown."""
    at_training = (level_at_training(line, table) for line in table.lines)
    chances = {record.answers.chance for record in table.records if record.answers}
    guessing = " or ".join(f"{100 * chance:.3g} %" for chance in sorted(chances))
    meanings = {
        "": f"no mark solves more than {100 * SOLVED:g} % of the examples for sure",
        ">": f"> partial: fewer than {100 * SOLVED:g} %",
        "!": f"! chance: as few answers right as by guessing ({guessing})",
        "?": "? unclear",
    }
    shown = {mark for cell in (*marked, *at_training) if cell for mark in (cell.mark or [""])}
    return ", ".join(meaning for mark, meaning in meanings.items() if mark in shown)


def _context_text(table: Table) -> str:
    """Return what the answers on the use of context mean, those that are shown; empty where none is."""
    if not has_controls(table):
        return ""
    train_length = table.key.train_length
    shown = {context_answer(line).text for line in table.lines}
    meanings = {
        "reads nothing": f"reads nothing: no better at {train_length} than at {quarter_of(train_length)}",
        MISSING: "-: cannot be judged",
    }
    special = "".join(f"; {meaning}" for answer, meaning in meanings.items() if answer in shown)
    return f"uses context: gains from reading more than {train_length} tokens back{special}"


def _below_text(table: Table) -> str:
    """Return why lengths within training have no verdict; empty where none is shown."""
    below = [length for length in short_lengths(table) if length < table.key.train_length]
    if not below or not has_trained_level(table) or table.baseline:
        return ""
    if table.is_task:
        return f"{', '.join(map(str, below))}: shorter than in training, and not judged"
    return f"{', '.join(map(str, below))}: less context than in training costs by nature, and is not judged"


# Below the details


def legend(table: Table) -> list[str]:
    """Return what the terms of the detailed form mean, in whole lines."""
    lines = [line for part in (_of_changes, _of_answers, _of_context) for line in part(table)]
    if table.baseline:
        sign = "+" if table.measure.higher_is_better else "-"
        lines.append(
            f"vs {table.baseline}: {table.measure.name} minus its own at the same length, seed and targets; "
            f"{sign} is better; same is within {table.margin:g}; those at one length are corrected together "
            "(Holm)"
        )
    later = later_text(table)
    return [*lines, f"break point and uses context, {later}"] if later else lines


def _of_changes(table: Table) -> Iterator[str]:
    train_length = table.key.train_length
    if not any(record.change is not None for record in table.records):
        return
    yield f"change: in bits/byte against {train_length}{_whose(table)}, on the same targets; + is worse"
    judged = [record for record in table.records if record.length >= train_length and record.interval]
    verdicts = {record.verdict for record in judged} - {""}
    if judged:
        yield "±: half the width of the 95 % interval"
    meanings = [
        f"{word} ({verdict.meaning.format(margin=table.margin, failure=FAILURE)})"
        for word, verdict in VERDICTS.items()
        if word in verdicts
    ]
    if meanings:
        yield "verdict (from the 95 % interval): " + ", ".join(meanings)


def _of_answers(table: Table) -> Iterator[str]:
    """Yield what the numbers of a task are."""
    records = [record for record in table.records if record.answers]
    if not records:
        return
    counts = sorted({record.documents for record in records})
    chance = max(record.answers.chance for record in records if record.answers)
    yield (
        f"exact: the share of the {' or '.join(map(str, counts))} examples at a length all of whose answers "
        f"are right; accuracy: of all answers ({chance:.3g} by guessing); given the right answers before"
    )
    yield (
        f"verdict (from the 95 % intervals): solves (exact above {SOLVED:g}), chance (accuracy less than "
        f"{NEAR_CHANCE:g} above guessing), partial (exact below {SOLVED:g}, and not chance), unclear"
    )


def _of_context(table: Table) -> Iterator[str]:
    uses = [record.use for record in table.records if record.use is not None]
    if not uses:
        return
    yield (
        "uses context: yes = better than at the training length, and hurt when far context comes from "
        f"another document; no = hurt by less than {table.margin:g}"
        + ("; - = cannot be judged" if any(not use.uses_context for use in uses) else "")
    )
    yield (
        "beats window: better than sliding-window attention of the training length in every layer"
        + ("; n/a = windowed itself" if any(use.beats_window == "n/a" for use in uses) else "")
    )
