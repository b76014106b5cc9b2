"""What is said around a table: its title, what its numbers and marks mean, and what they do not judge."""

from collections.abc import Iterator, Sequence

from pe_bench.report.records import Line, Table, TableKey, quarter_of, slice_name
from pe_bench.report.statistics import FAILURE
from pe_bench.report.values import (
    context_answer,
    has_changes,
    has_controls,
    has_trained_level,
    level_at_training,
    short_lengths,
    values_of,
    works_to,
)
from pe_bench.report.verdicts import NEAR_CHANCE, SOLVED
from pe_bench.runs.rows import ALL, HALF
from pe_bench.runs.scores import KEY, NOVEL, RECALL
from pe_bench.system.grid import MISSING, VERDICTS, Cell


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
        key.model_title,
        *(
            [f"task {key.data}"]
            if key.is_task
            else [key.data, "its tokenizer" if key.is_checkpoint else key.tokenizer]
        ),
        f"trained at {key.train_length} tokens{steps}" + (f" with {key.training}" if key.training else ""),
        "1 seed" if seeds == [1] else seeds_text,
    ]


# Of the short form


def short_notes(table: Table, dropped: Sequence[int] = ()) -> list[str]:
    """Return the notes of the short form, the most important first.

    They say what the numbers and marks are, what a reader has to know of them, which lengths are dropped for
    want of room, and what other words mean.
    """
    numbers = ": ".join(filter(None, (numbers_text(table), _marks_text(table))))
    no_room = f"no room for {', '.join(map(str, dropped))}: --details has them" if dropped else ""
    unsure = any("?" in works_to(line, table).mark for line in table.lines)
    works = "a length with ?: unclear from a shorter one on" if unsure else ""
    words = (works, _context_text(table), _below_text(table))
    return [
        note
        for note in (numbers, later_text(table), slice_text(table), *table.caveats, no_room, *words)
        if note
    ]


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


def numbers_text(table: Table) -> str:
    """Return what the numbers beside the levels are; empty where there are none."""
    train_length = table.key.train_length
    if table.baseline:
        same = "examples, + is better" if table.is_task else "text"
        return f"difference from {table.baseline} at the same length, on the same {same}"
    if table.is_task:
        return ""
    if not has_trained_level(table):
        return f"levels: without a score at {train_length}, the training length, there are no changes"
    own = " with the trained encoding" if any(map(_is_another, table.lines)) else ""
    own = " of the unchanged model" if any(line.longest for line in table.lines) else own
    return f"change against {train_length}{own} on the same text" if short_lengths(table) else ""


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


def _marks_text(table: Table) -> str:
    """Return what the marks after numbers mean; empty where there are none."""
    if table.is_task and not table.baseline:
        return _marks_of_task(table)
    is_below = not table.baseline and max(short_lengths(table), default=0) < table.key.train_length
    marked = [value for value in values_of(table) if value.style]
    if not has_changes(table) or is_below or not marked:
        return ""
    if table.baseline:
        return f"no mark the same, {_marks_of('worse', 'better', 'unclear')}"
    marks = _marks_of("degrades", "fails", "improves", "unclear")
    return f"no mark holds, {marks}{_of_models_text(marked)}"


def _marks_of(*words: str) -> str:
    return ", ".join(f"{VERDICTS[word].mark} {word}" for word in words)


def _marks_of_task(table: Table) -> str:
    """Return what the marks after levels mean, those that are shown."""
    marked = [value for value in values_of(table) if value.style]
    marked += [level for line in table.lines if (level := level_at_training(line, table)) is not None]
    chances = {record.answers.chance for record in table.records if record.answers}
    guessing = " or ".join(f"{100 * chance:.3g} %" for chance in sorted(chances))
    meanings = {
        "": f"no mark solves more than {100 * SOLVED:g} % of the examples for sure",
        ">": f"> partial: fewer than {100 * SOLVED:g} %",
        "!": f"! chance: as few answers right as by guessing ({guessing})",
        "?": "? unclear",
    }
    shown = {mark for value in marked for mark in (value.mark or [""])}
    return ", ".join(meaning for mark, meaning in meanings.items() if mark in shown) + _of_models_text(marked)


def _of_models_text(values: Sequence[Cell]) -> str:
    """Return what two marks at a number mean, with an example of each that is shown."""
    doubled = sorted({value.mark for value in values if len(value.mark) > 1})
    return f" ({' '.join(doubled)}: sure of these models, not of other seeds)" if doubled else ""


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


# Of the details


def legend(table: Table) -> list[str]:
    """Return what the terms of the detailed form mean, in whole lines."""
    parts = (_of_changes, _of_answers, _of_baseline, _of_context, _of_memory, _of_anchors)
    lines = [line for part in parts for line in part(table)]
    later = later_text(table)
    return [*lines, f"break point and uses context, {later}"] if later else lines


def _of_changes(table: Table) -> Iterator[str]:
    train_length = table.key.train_length
    if not any(record.change is not None for record in table.records):
        return
    own = " with the run's own encoding" if any(map(_is_another, table.lines)) else ""
    own = " of the unchanged model" if any(line.longest for line in table.lines) else own
    yield f"change: in bits/byte against length {train_length}{own}, on the same targets; + is worse"
    judged = [record for record in table.records if record.length >= train_length and record.interval]
    verdicts = {record.verdict for record in judged} - {""}
    if judged:
        yield "±: half the width of the 95 % interval"
    if not verdicts:
        return
    meanings = [
        f"{word} ({verdict.meaning.format(margin=table.margin, failure=FAILURE)})"
        for word, verdict in VERDICTS.items()
        if word in verdicts
    ]
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


def _of_baseline(table: Table) -> Iterator[str]:
    if table.baseline:
        yield (
            f"vs {table.baseline}: {table.measure.name} minus its own at the same length, seed and targets; "
            f"{'+' if table.measure.higher_is_better else '-'} is better; same is within {table.margin:g}; "
            "those at one length are corrected together (Holm)"
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


def _of_memory(table: Table) -> Iterator[str]:
    records = [record for record in table.records if record.levels]
    if any(record.peak_memory_mb is not None for record in records):
        yield (
            "MB: the most that the whole process held while scoring that length (on a GPU, PyTorch's tensors "
            "alone); jobs of a sweep and a single run hold different amounts beside the model, so compare "
            "within one command"
        )


def _of_anchors(table: Table) -> Iterator[str]:
    # A checkpoint was trained elsewhere, in no steps of ours.
    if table.lines and not table.anchors and table.key.steps and not table.is_task:
        yield "no trigram of the same training tokens to compare with: pe-bench eval RUN... adds it"


def _is_another(line: Line) -> bool:
    return line.scored_with != line.encoding
