"""The lines under a table: what its numbers and marks mean, and why some are missing."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from pe_bench.config.schema import BY_COMMAND, HF_IDENTITY_VERSION, HF_SECTION, quarter_of
from pe_bench.render.grid import Cell
from pe_bench.report import cells
from pe_bench.report.groups import few_names, list_lengths
from pe_bench.report.lines import Order, TableRows, labels_on_other_targets
from pe_bench.report.marks import mark_of
from pe_bench.report.records import NATS, Line, Note, Table, label_of
from pe_bench.report.statistics import FAILURE
from pe_bench.report.unclear import unclear_notes
from pe_bench.report.verdicts import NEAR_CHANCE, SOLVED, has_few_targets
from pe_bench.runs.find import COPYING, TRIGRAM, ScoredRuns
from pe_bench.runs.rows import ALL, TASK, Row, level_of, one_per_run
from pe_bench.runs.scores import KEY, MIN_DOCUMENTS, NOVEL, RECALL
from pe_bench.system.cost import count

CONTEXT_UNJUDGED = "cannot judge context use"
SHORTER_UNJUDGED = "less context than in training costs by nature, and is not judged"
ANCHOR_NOTES = {
    TRIGRAM: "(trigram): no encoding, but counts of three tokens in the training text",
    COPYING: "(trigram+copy): no encoding; shows what copying from earlier text gains",
}


# Below the short form


def short_notes(table: Table, dropped: Sequence[int] = ()) -> list[str]:
    """Return the notes of the short form: the meanings of its numbers and marks, then the caveats.

    dropped: lengths for which there was no room.
    """
    notes = [*meanings(table), *table.caveats]
    if dropped:
        notes.append(f"no room for {list_lengths(dropped)}: --details has them")
    return notes


def meanings(table: Table) -> list[str]:
    """Return the meanings of the numbers, the marks and the words in the table, in short sentences."""
    texts = (_numbers_text(table), _marks_text(table))
    numbers = ": ".join(filter(None, texts))
    words = meanings_of_words(table)
    return [numbers, *words] if numbers else words


def meanings_of_words(table: Table) -> list[str]:
    """Return the meanings of the words in the table, and of marks that do not show a verdict."""
    notes = []
    if table.key.slice != ALL:
        notes.append(slice_text(table))
    notes += _line_notes(NOT_LEARNED, table)
    if len(table.lines) > 1:
        notes += _target_set_notes(table)
    if not table.baseline:
        notes.append(_changes_on_other_targets_note(table))
    points = [cells.works_to_cell(line) for line in table.lines]
    notes += _break_point_texts(table)
    if any("^" in cell.mark for cell in points):
        notes.append(later_stage_text(table))
    if any(record.use for record in table.records):
        notes.append(_context_text(table))
    notes += [ANCHOR_NOTES[line.encoding] for line in table.shown_anchors]
    lengths = cells.lengths_of_short_table(table)
    below = [length for length in lengths if length < table.key.train_length]
    if below and cells.has_trained_level(table) and not table.baseline:
        notes.append(f"{list_lengths(below)}: {SHORTER_UNJUDGED}")
    return [*dict.fromkeys(filter(None, notes))]


def _context_text(table: Table) -> str:
    """Return the meaning of the column of context use, and of its words that the table has."""
    length = table.key.train_length
    text = f"uses context: gains from reading more than {length:,} tokens back"
    answers = [cells.context_use_cell(line).text for line in table.lines]
    if "reads nothing" in answers:
        quarter = quarter_of(length)
        text += f"; reads nothing: no better at {length:,} than at {quarter:,}"
    return text


def _break_point_texts(table: Table) -> Iterator[str]:
    """Yield the meanings of the two lengths of a break point, and of its question mark."""
    points = map(cells.works_to_cell, table.lines)
    unsure = next((cell.text for cell in points if "?" in cell.mark), "")
    unclear = "unclear from a shorter length on"
    gap = next((line.break_point for line in table.lines if line.break_point.has_gap), None)
    if gap is not None:
        text = gap.works_to_text
        lengths = f"works at {gap.works_to:,}, not at {gap.stops_by:,}"
        if text == unsure:
            yield f'"{text}?": {lengths}; {unclear}'
            return
        yield f'"{text}": {lengths}, the next scored length'
    if unsure:
        yield f"works to {unsure}?: {unclear}"


def later_stage_text(table: Table) -> str:
    """Return the note on the level from which later stages are judged; empty without later stages."""
    lengths = sorted({line.longest for line in table.lines} - {0})
    if not lengths:
        return ""
    at = " or ".join(f"{length:,}" for length in lengths)
    return f"^: from the line's own level at {at}, the longest length that it was trained at"


def best_text(table: Table) -> str:
    """Return the meaning of bold numbers in Markdown and LaTeX."""
    which = "highest" if table.measure.higher_is_better else "lowest"
    if table.baseline:
        return f"bold: the {which} that is better than {table.baseline} for sure"
    return f"bold: the {which} of the encodings in each column, which need not be better for sure"


def slice_text(table: Table) -> str:
    """Return the name of a table's slice, and the rule that chooses its targets."""
    key = table.key
    rules = {
        RECALL: "the 8 bytes before the target occur earlier in its window, the last time more than "
        f"{key.train_length:,} tokens back, and the target followed them there",
        NOVEL: "the 8 bytes before the target occur nowhere earlier in its window",
        KEY: f"{key.judge} predicts them well, and much better with far context than without "
        "(LongPPL's rule)",
    }
    return f"{key.slice}: {rules[key.slice]}"


def _numbers_text(table: Table) -> str:
    """Return the meaning of the changes or differences; empty if the table has only levels."""
    train_length = table.key.train_length
    if table.baseline:
        same = "examples, + is better" if table.is_task else "text"
        return f"difference from {table.baseline} at the same length, on the same {same}"
    if table.is_task:
        return ""
    if not cells.has_trained_level(table):
        at_training = f"{train_length:,}, the training length"
        if any(record.change is not None for record in table.records):
            of_which = " of the unchanged model" if _compares_stages(table) else ""
            return f"levels; changes are from the level{of_which} at {at_training}, which is not shown"
        return f"levels: without a score at {at_training}, there are no changes"
    if not cells.lengths_of_short_table(table):
        return ""
    level = f"change from {train_length:,}"
    if _compares_stages(table):
        level += " of the unchanged model"
    elif any(line.scored_with != line.encoding for line in table.lines):
        level += " with the trained encoding"
    return f"{level} on the same text"


def _compares_stages(table: Table) -> bool:
    """Return whether changes of later stages are from the level of their first stage."""
    return any(line.longest and not line.lacks_first_stage for line in table.lines)


def _marks_text(table: Table) -> str:
    """Return the meanings of the marks after numbers; empty if no number can have a mark."""
    shown_cells: list[Cell] = []
    for line, length in product(table.lines, cells.lengths_of_short_table(table)):
        cell = cells.value_cell(line, length, table)
        if cell is not None:
            shown_cells.append(cell)
    has_verdicts = any(cell.verdict not in ("", cells.UNLEARNED) for cell in shown_cells)
    if table.baseline:
        unmarked = "same"
        words = ("worse", "better", "unclear")
    elif table.is_task:
        unmarked = f"solves more than {100 * SOLVED:g} % for sure"
        words = ("partial", "chance", "unclear")
    elif has_verdicts and cells.has_trained_level(table):
        unmarked = "holds"
        words = ("degrades", "fails", "improves", "unclear")
    else:
        return ""
    marks = {cell.mark.removesuffix(cells.OTHER_TARGETS_MARK) for cell in shown_cells}
    seen = set().union(*marks)
    parts = [f"no mark {unmarked}"]
    for word in words:
        mark = mark_of(word).text
        if mark in seen:
            parts.append(f"{mark} {word}")
    text = ", ".join(parts)
    doubled = sorted(mark for mark in marks if len(mark) > 1)
    if doubled:
        text += f" ({' '.join(doubled)}: sure of these models, not of other seeds)"
    return text


# Below the details


def legend(table: Table) -> list[str]:
    """Return the rules of the verdicts in the detailed form."""
    if table.is_task:
        verdicts = (
            f"solves (exact above {SOLVED:g}), chance (accuracy less than {NEAR_CHANCE:g} above guessing), "
            f"partial (exact below {SOLVED:g}, and not chance)"
        )
    else:
        margin = f"{table.margin:g}"
        verdicts = (
            f"improves or degrades (by more than {margin}), fails (by more than {FAILURE:g}), "
            f"holds (at most {margin} worse)"
        )
    numbers = _numbers_text(table)
    lines = [numbers] if numbers else []
    lines.append(f"verdict: from the 95 % interval (±: half its width): {verdicts}, unclear")
    if table.baseline:
        lines.append(f"vs {table.baseline}: the verdicts at one length are corrected together (Holm)")
    later = later_stage_text(table)
    if later:
        lines.append(f"break point and uses context, {later}")
    if any(record.use and record.use.beats_window for record in table.records):
        first = " and the first tokens" if table.key.is_of_hf_models else ""
        seen = f"{table.key.train_length:,} tokens back{first}"
        lines.append(f"beats window: better than if every layer saw only {seen}")
    lines.append("ppl: perplexity of a token; MB: peak memory of the process while it scored")
    return lines


# Notes on the lines, the most important first


def with_notes(table: Table, table_rows: TableRows, order: Order) -> Table:
    """Return the table with its notes and caveats, each once. table_rows: the rows of the table's lines."""
    if not table.lines:
        return table
    rows = [row for row in table_rows.rows if row.length in table.lengths]
    unsliced = [row for row in table_rows.unsliced if row.length in table.lengths]
    notes = []
    if len(table.lines) > 1:
        notes.append(Note(order.text, order.is_caveat))
    notes += map(Note, _caveats(table, rows, table_rows.runs))
    notes += unclear_notes(table, unsliced, table_rows.runs)
    notes += map(Note, _line_notes(SCORED_WITH, table))
    notes += _missing_value_notes(table)
    notes += _offset_notes(table, table_rows.rows)
    notes.append(Note(table.lacking))
    notes = [note for note in notes if note.text]
    texts = dict.fromkeys(note.text for note in notes)
    caveats = dict.fromkeys(note.short or note.text for note in notes if note.is_caveat)
    return replace(table, notes=tuple(texts), caveats=tuple(caveats))


def _caveats(table: Table, rows: Sequence[Row], runs: ScoredRuns) -> Iterator[str]:
    """Yield the notes that change how the numbers of all lines, or of some, are read."""
    for row in one_per_run(rows):
        config = runs.folder_of(row.run).flat_config
        if f"{HF_SECTION}.source" in config:
            yield _hf_model_note(row, config)
    yield from _infinite_level_notes(table.lines)
    yield from _fewer_seeds_notes(table.lines)
    yield from _missing_number_notes(table.lines)
    yield from _not_scored_notes(table)
    lacking = [line.label for line in table.lines if line.lacks_first_stage]
    if lacking:
        yield f"no score of the unchanged model ({few_names(lacking)}): changes are from the line's own level"
    yield PROTOCOL_NOTES.get(table.key.protocol, "")
    if table.measure is NATS:
        yield LOSSY_TOKENIZER_NOTE
    for label in dict.fromkeys(label_of(line) for line in table.lines if line.run):
        yield RUNS_APART_NOTE.format(label)
    if not table.key.is_of_hf_models:
        yield from _line_notes(FEW_SEEDS, table)
    documents = [record.documents for record in table.records if record.levels]
    fewest = min(documents, default=MIN_DOCUMENTS)
    if fewest < MIN_DOCUMENTS:
        things = "examples" if table.is_task else "documents"
        yield f"few {things} ({fewest}): intervals over so few say little about other {things}"


# Lines and lengths


def _first_labels(labels: Collection[str], lines: Sequence[Line]) -> str:
    """Return ` (rope, alibi and 3 more)` for the labels of some lines; empty if all lines have them."""
    names = set(labels)
    return "" if len(names) == len(lines) else f" ({few_names(labels)})"


# Notes of lines

# A note and the test of the lines that it is about.
LineNotes = dict[str, Callable[[Line], bool]]

NOT_LEARNED: LineNotes = {
    "*: not learned yet{which}: surely worse at the training length than a trigram of the same training "
    "tokens; no rank": lambda line: line.unlearned == "trigram",
    "*: nothing learned yet{which}: at the training length not surely better than guessing each {token} by "
    "how often it occurs; no rank and no verdict": lambda line: line.unlearned == "frequencies",
    "*: not learned{which}: at the training length not surely right on more than {solved:g} % of the "
    "examples; no rank, and no verdict past that length": lambda line: line.unlearned == "task",
}
FEW_SEEDS: LineNotes = {
    "one seed{which}: results describe these models, not the encodings": lambda line: line.seeds == 1,
    "two seeds{which}: too few to know how seeds differ, so intervals are very wide": lambda line: (
        line.seeds == 2
    ),
}
SCORED_WITH: LineNotes = {
    "knows each text's final length: {names}; not possible while generating": lambda line: line.knows_length,
    "(forced): scored with an encoding that is not compatible with the trained one": lambda line: line.forced,
    "factor=auto: each length is scored with a factor of its own, not with one for all": lambda line: (
        "factor=auto" in line.scored_with
    ),
}
RUNS_APART_NOTE = (
    "{}: several runs have the same seed and differ in what the name does not show "
    "(such as another version of its code), so each is a line of its own and none are averaged"
)
LOSSY_TOKENIZER_NOTE = (
    "the tokenizer does not give the text back, so that bits per byte would be of less than the text: "
    "numbers are nats per token, and compare only within this table"
)
PROTOCOL_NOTES = {
    "nonoverlapping": "nonoverlapping: the first tokens of a window see little, and long windows have fewer "
    "of them, so scores improve with length by themselves; levels are over all text, and changes are means "
    "over documents, so a change is not exactly the difference of two levels",
    TASK: "each length has examples of its own: encodings are compared on the same ones, lengths are not",
}


def _line_notes(tests_of_notes: LineNotes, table: Table) -> Iterator[str]:
    """Yield each note whose test holds for some lines of the table, with the names of these lines."""
    token = "byte" if table.key.tokenizer == "bytes" else "token"
    facts = {"token": token, "solved": 100 * SOLVED}
    for text, is_so in tests_of_notes.items():
        labels = [line.label for line in table.lines if is_so(line)]
        if labels:
            yield text.format(which=_first_labels(labels, table.lines), names=", ".join(labels), **facts)


def _hf_model_note(row: Row, config: Mapping[str, Any]) -> str:
    """Return a note on a Hugging Face model, which pe-bench did not train."""

    def fact(name: str) -> Any:
        return config.get(f"{HF_SECTION}.{name}")

    length_from = str(fact("train_length_from"))
    trained = fact("train_length") or row.train_length
    about = f"{row.model}: trained at {trained:,} tokens according to {length_from}"
    if length_from == BY_COMMAND:
        verb = "measured from" if trained == row.train_length else "trained at"
        about = f"{row.model}: {verb} {trained:,} tokens, as the command says"
    if trained != row.train_length:
        about += f", and measured from {row.train_length:,}"
    if scaling := fact("unused_scaling"):
        about += f"; its config.json names the scaling {scaling}, and no layer turns so"
    if (fact("identity_version") or 1) < HF_IDENTITY_VERSION:
        again = f"score it again with pe-bench eval {fact('source')}"
        about += f"; {row.run} is of an older identity, and its scores may be others now: {again}"
    all_layers = config["model.n_layers"]
    without = fact("without_attention") or 0
    if without:
        about += f"; {without} of {all_layers} layers have no attention"
    attending = all_layers - without
    layers = fact("layers")
    if layers and layers < attending:
        about += f"; {layers} of {attending} layers have this encoding, the others keep their own"
    begin = fact("begin")
    if isinstance(begin, list):
        about += f"; each window begins with tokens {', '.join(map(str, begin))}, as its tokenizer has it"
    elif begin is not None:
        about += f"; each window begins with token {begin}, as its tokenizer has it"
    if has_few_targets(row):
        counted = f"{count(row.targets, 'target')} of {count(row.documents, 'document')}"
        about += f"; {counted} are too few to say whether it has learned anything"
    return about


def _missing_number_notes(lines: Sequence[Line]) -> Iterator[str]:
    """Yield for each line and status all lengths without a number, and the reason at the shortest of them."""
    for line in lines:
        lacking = [record for _, record in sorted(line.records.items()) if not record.levels]
        for status in dict.fromkeys(record.status for record in lacking):
            records = [record for record in lacking if record.status == status]
            lengths = list_lengths(record.length for record in records)
            word = status.replace("_", " ")
            reason = records[0].reason or "no reason is given"
            yield f"{word}: {line.label} at {lengths}: {reason}"


def _infinite_level_notes(lines: Sequence[Line]) -> Iterator[str]:
    """Yield a note on each line with levels that are infinite or NaN."""
    for line in lines:
        records = [record for record in line.records.values() if record.level is not None]
        lengths = [record.length for record in records if not math.isfinite(record.level or 0.0)]
        if lengths:
            yield f"not finite: {line.label} at {list_lengths(lengths)}: its scores are infinite or NaN"


def _fewer_seeds_notes(lines: Sequence[Line]) -> Iterator[str]:
    """Yield a note on the levels that are of fewer seeds than their line has."""
    labels_of_lengths: dict[tuple[int, int, tuple[int, ...]], list[str]] = {}
    for line in lines:
        lengths_of_counts: dict[int, list[int]] = {}
        for length, record in sorted(line.records.items()):
            if 0 < len(record.levels) < line.seeds:
                lengths_of_counts.setdefault(len(record.levels), []).append(length)
        for scored, found in lengths_of_counts.items():
            labels_of_lengths.setdefault((scored, line.seeds, tuple(found)), []).append(line.label)
    for (scored, seeds, found), labels in labels_of_lengths.items():
        lengths = list_lengths(found)
        yield f"at {lengths}, {scored} of {seeds} seeds only: {few_names(labels)}"


def _not_scored_notes(table: Table) -> Iterator[str]:
    """Yield a note on lines without a score at lengths that other lines of the short form have."""
    shown = {*cells.lengths_of_short_table(table), table.key.train_length}.intersection(table.lengths)
    lines_by_lengths: dict[tuple[int, ...], list[str]] = {}
    for line in table.lines:
        lengths = tuple(sorted(shown.difference(line.records)))
        if lengths:
            lines_by_lengths.setdefault(lengths, []).append(line.label)
    for lengths, labels in lines_by_lengths.items():
        yield f"-: not scored: {few_names(labels)} at {list_lengths(lengths)}"


# Documents and targets


def _target_set_notes(table: Table) -> Iterator[str]:
    """Yield a note on the lengths at which levels are of different text from line to line."""
    labels_at = {length: tuple(labels_on_other_targets(table.lines, length)) for length in table.lengths}
    for labels in dict.fromkeys(filter(None, labels_at.values())):
        alike = [length for length in table.lengths if labels_at[length] == labels]
        yield (
            f"~ at {list_lengths(alike)}: {few_names(labels)} scored on other targets than the others, "
            "so without a level"
        )


def _changes_on_other_targets_note(table: Table) -> str:
    """Return the note on changes marked `~`: they compare other targets than the levels shown in the table.

    Empty without such changes.
    """
    train_length = table.key.train_length
    labels: list[str] = []
    lengths: list[int] = []
    for line in table.lines:
        for length, record in line.records.items():
            if record.change is not None and not table.has_targets_of_levels(record.compared):
                labels.append(line.label)
                lengths.append(length)
    if not labels:
        return ""
    where = f"{list_lengths(lengths)}{_first_labels(labels, table.lines)}"
    first = f"from levels at {train_length} on the same targets"
    return f"~ changes at {where}: {first}, which are not those of the levels shown at {train_length:,}"


# Missing numbers


def _missing_value_notes(table: Table) -> Iterator[Note]:
    """Yield a note for each reason why changes, intervals, differences or answers on context are missing."""
    places_of_reasons: dict[tuple[str, str], dict[str, list[int]]] = {}
    for line in table.lines:
        for length, record in sorted(line.records.items()):
            change = "no change" if record.change is None else "a change without an interval"
            kinds = {change: record.compared, "no comparison": record.baseline, CONTEXT_UNJUDGED: record.use}
            for kind, part in kinds.items():
                if part is not None and part.missing:
                    lengths_of_lines = places_of_reasons.setdefault((kind, part.missing), {})
                    lengths_of_lines.setdefault(line.label, []).append(length)
    for (kind, reason), lengths_of_lines in places_of_reasons.items():
        if kind == CONTEXT_UNJUDGED:
            which = _first_labels(lengths_of_lines, table.lines)
            yield Note(f"{kind}{which}: {reason}", is_caveat=False)
        else:
            lengths = set().union(*lengths_of_lines.values())
            names = ", ".join(lengths_of_lines)
            is_caveat = max(lengths) >= table.key.train_length
            yield Note(f"{kind}: {names} at {list_lengths(lengths)}: {reason}", is_caveat)


def _offset_notes(table: Table, rows: Sequence[Row]) -> Iterator[Note]:
    """Yield, for each row of the control `offset`, its change from the level at the training length.

    rows: rows of the table's runs at all lengths, also at lengths that the table does not show.
    """
    labels_of_runs: dict[tuple[str, str], str] = {}
    for line in table.lines:
        for run in line.runs:
            labels_of_runs[run, line.scored_with] = line.label
    levels = {}
    for row in rows:
        if row.control == "none" and row.length == row.train_length:
            levels[row.run, row.scored_with, row.target_hash] = level_of(row)
    for row in rows:
        label = labels_of_runs.get((row.run, row.scored_with))
        if row.control != "offset" or label is None or row.length not in table.lengths:
            continue
        level = level_of(row)
        reference = levels.get((row.run, row.scored_with, row.target_hash))
        position = f"position {row.length:,}"
        if level is None or reference is None:
            yield Note(f"offset control: {label} up to {position}: {row.reason}")
            continue
        change = level - reference
        where = f"windows of {row.train_length:,} tokens end at {position} (seed {row.seed})"
        text = f"offset control: {label} changes by {cells.number_text(change, '+')} where {where}"
        yield Note(text, is_caveat=abs(change) > table.margin)
