"""The lines under a table: what its numbers do not say, and why some are missing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pe_bench.report.tables.cells import Cell, label_of
from pe_bench.report.tables.differences import has_number
from pe_bench.report.tables.lines import Line, on_other_targets
from pe_bench.report.tables.listing import few_names, list_lengths
from pe_bench.report.tables.scored_checkpoint import ScoredCheckpoint, notes_on_checkpoints
from pe_bench.report.tables.target_sets import lengths_on_other_sets
from pe_bench.report.tables.training_machine import TrainingMachine
from pe_bench.report.tables.unclear import agreeing_seeds, unclear_changes
from pe_bench.report.task_statistics import SOLVED
from pe_bench.runs.anchors import COPYING
from pe_bench.runs.rows import TASK, Row
from pe_bench.runs.scores import MIN_DOCUMENTS


class Note(NamedTuple):
    """A sentence below a table. is_caveat: it changes how the short form is read, and stands there too."""

    text: str
    is_caveat: bool


def make_notes(
    lines: Sequence[Line],
    rows: Sequence[Row],
    slice_rows: Sequence[Row],
    order_note: Note,
    margin: float,
    machines: Mapping[str, TrainingMachine],
    checkpoints: Sequence[ScoredCheckpoint] = (),
) -> list[Note]:
    """Return the notes, each once, the most important first.

    rows: all that the table shows, and their controls, of all targets; slice_rows: those of its slice.
    order_note: the note on how the lines are ordered. machines: on which each run was trained. checkpoints:
    the runs among them that were trained elsewhere.
    """
    anchors = [line for line in lines if line.is_anchor]
    lines = [line for line in lines if not line.is_anchor]
    if not lines:
        return []
    train_length = rows[0].train_length
    plain = [row for row in rows if row.control == "none"]
    unequal_lengths = [*_unequal_targets(lines)]
    unequal_lengths += [] if rows[0].protocol == TASK else _other_sets(lines, train_length)
    notes = [
        *([order_note] if len(lines) > 1 else []),
        *_caveats(notes_on_checkpoints(checkpoints)),
        *_caveats(_unlearned(lines, rows[0]), _anchors(anchors)),
        *_caveats(
            _protocol_caveats(rows[0].protocol), _runs_apart(lines), _few_seeds(lines), _other_seeds(lines)
        ),
        *_caveats(unclear_changes(lines, rows)),
        *_details(agreeing_seeds(lines, train_length, margin)),
        *_caveats(_few_documents(lines), unequal_lengths, _own_sets(lines)),
        *_statuses(lines, rows),
        *_missing(lines, train_length),
        *_missing_baseline(lines, train_length),
        *_details(_unjudged(lines), _windows(lines, rows)),
        *_offsets(lines, slice_rows, margin),
        *_caveats(_knows_length(lines), _forced(lines)),
        *_details(_rates(plain), _speeds(lines, machines), _not_shown(lines, plain)),
    ]
    return list(dict.fromkeys(notes))


def _caveats(*groups: Iterable[str]) -> list[Note]:
    return [Note(text, is_caveat=True) for texts in groups for text in texts]


def _details(*groups: Iterable[str]) -> list[Note]:
    return [Note(text, is_caveat=False) for texts in groups for text in texts]


def _unlearned(lines: Sequence[Line], row: Row) -> Iterator[str]:
    """Yield which lines have no rank, and which no verdict either, because their models know too little."""
    worse = [line.label for line in lines if line.unlearned == "trigram"]
    if worse:
        yield (
            f"* not learned yet, so without a rank{_which(worse, lines)}: surely worse at {row.train_length} "
            "than a trigram counted on the same training tokens"
        )
    none = [line.label for line in lines if line.unlearned == "frequencies"]
    if none:
        token = "byte" if row.tokenizer == "bytes" else "token"
        yield (
            f"* no better than {token} frequencies, so with neither rank nor verdicts{_which(none, lines)}: "
            f"not surely better at {row.train_length} than how often each {token} is"
        )
    task = [line.label for line in lines if line.unlearned == "task"]
    if task:
        yield (
            f"* not learned, so with neither rank nor verdicts past {row.train_length}{_which(task, lines)}: "
            f"not surely right on more than {100 * SOLVED:g} % of the examples at {row.train_length}"
        )


def _anchors(anchors: Sequence[Line]) -> Iterator[str]:
    if anchors:
        names = ", ".join(line.label for line in anchors)
        copies = "; +copy copies what followed the longest match in reach" if COPYING in names else ""
        yield f"{names}: no encodings, but counts of the training tokens{copies}"


def _runs_apart(lines: Sequence[Line]) -> Iterator[str]:
    for label in dict.fromkeys(label_of(line) for line in lines if line.run):
        yield (
            f"{label}: several runs have the same seed and differ in what the name does not show "
            "(such as another version of its code), so each is a line of its own and none are averaged"
        )


def _protocol_caveats(protocol: str) -> Iterator[str]:
    if protocol == "nonoverlapping":
        yield (
            "nonoverlapping: the first tokens of a window see little, and long windows have fewer of them, "
            "so scores improve with length by themselves"
        )
    if protocol == TASK:
        yield (
            "each length has examples of its own: encodings are compared on the same ones, lengths are not"
        )


def _few_seeds(lines: Sequence[Line]) -> Iterator[str]:
    alone = [line.label for line in lines if line.seeds == 1]
    if alone:
        yield f"one seed{_which(alone, lines)}: results describe these models, not the encodings"
    two = [line.label for line in lines if line.seeds == 2]
    if two:
        yield f"two seeds{_which(two, lines)}: too few to know how seeds differ, so intervals are very wide"


def _other_seeds(lines: Sequence[Line]) -> Iterator[str]:
    """Yield where numbers are means over different seeds, and so of different models."""
    counts = {line.seeds for line in lines}
    if len(counts) > 1:
        yield (
            f"lines have {min(counts)} to {max(counts)} seeds, which also affects their levels and order: "
            "--baseline compares only seeds that both have"
        )
    yield from _fewer_seeds(lines, "of", lambda cell: len(cell.levels))
    yield from _fewer_seeds(lines, "compared over", _compared_seeds)


def _fewer_seeds(lines: Sequence[Line], verb: str, count: Callable[[Cell], int | None]) -> Iterator[str]:
    """Yield which numbers rest on fewer seeds than their line has; count: the seeds of a cell."""
    places: dict[tuple[int, int, tuple[int, ...]], list[str]] = {}
    for line in lines:
        lengths_of: dict[int, list[int]] = {}
        for length, cell in line.cells.items():
            seeds = count(cell) if cell.levels else None
            if seeds is not None and seeds < line.seeds:
                lengths_of.setdefault(seeds, []).append(length)
        for seeds, lengths in lengths_of.items():
            places.setdefault((seeds, line.seeds, tuple(lengths)), []).append(line.label)
    for (seeds, of_all, lengths), labels in places.items():
        yield (
            f"{few_names(labels)} at {list_lengths(lengths)}: {verb} {seeds} of {of_all} seeds only; a "
            "difference is always between the same seeds"
        )


def _compared_seeds(cell: Cell) -> int | None:
    """Return how many seeds are compared with the baseline."""
    interval = cell.baseline.interval if cell.baseline is not None else None
    return None if interval is None else interval.seeds


def _few_documents(lines: Sequence[Line]) -> Iterator[str]:
    scored = [cell for line in lines for cell in line.cells.values() if cell.levels]
    few = [cell for cell in scored if cell.documents < MIN_DOCUMENTS]
    if not few:
        return
    fewest = min(cell.documents for cell in few)
    documents = "1 document" if fewest == 1 else f"{fewest} documents"
    segments = max(cell.segments for cell in few)
    if segments > 1:
        yield (
            f"{documents} only: intervals are over {segments} segments of each, which are more alike than "
            "documents are, so they say little about other texts"
        )
    else:
        yield f"{documents} only: intervals over so few say little about others"


def _unequal_targets(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the lengths at which levels are of different text from line to line."""
    places: dict[tuple[str, ...], list[int]] = {}
    for length in sorted({length for line in lines for length in line.cells}):
        labels = on_other_targets(lines, length)
        if labels:
            places.setdefault(tuple(labels), []).append(length)
    for labels, lengths in places.items():
        yield (
            f"{list_lengths(lengths)}: not all rows were scored on the same targets "
            f"({few_names(labels)} on others), which also affects their levels"
        )


def _other_sets(lines: Sequence[Line], train_length: int) -> Iterator[str]:
    """Yield the lengths at which a row's levels are of other targets than its other levels."""
    places: dict[tuple[int, ...], list[str]] = {}
    for line in lines:
        found = lengths_on_other_sets(line.cells, train_length)
        if found:
            places.setdefault(found, []).append(line.label)
    for lengths, labels in places.items():
        which = "" if len(labels) == len(lines) else f" ({', '.join(labels)})"
        yield (
            f"{list_lengths(lengths)}{which}: scored on another set of targets than the other lengths, so "
            "levels are not comparable along the row; a change is always within one set"
        )


def _own_sets(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the changes and differences that are of other targets than the levels at their length."""
    places: dict[tuple[str, int, int], dict[str, list[int]]] = {}
    for line in lines:
        for length, cell in line.cells.items():
            sets = {"change": (cell.change_hash, cell.change_targets)}
            if cell.baseline is not None:
                sets["difference"] = (cell.baseline.target_hash, cell.baseline.targets)
            for kind, (target_hash, targets) in sets.items():
                if target_hash not in ("", cell.target_hash):
                    of_line = places.setdefault((kind, targets, cell.targets), {})
                    of_line.setdefault(line.label, []).append(length)
    for (kind, targets, of_levels), of_lines in places.items():
        where = "; ".join(f"{label} at {list_lengths(lengths)}" for label, lengths in of_lines.items())
        whose = "the line has" if kind == "change" else "both lines have"
        yield (
            f"{where}: the {kind} is of the largest set of targets that {whose} ({targets:,}), the level of "
            f"the set that most lines share ({of_levels:,})"
        )


def _statuses(lines: Sequence[Line], rows: Sequence[Row]) -> Iterator[Note]:
    """Yield a note for each line and status, with all lengths and the reason at the shortest of them.

    A length out of an encoding's reach is what the table shows; other statuses are not the encoding's. A
    control has one where its code failed though that of the length did not.
    """
    missing: dict[tuple[str, str], dict[int, str]] = {}
    failed = {
        (row.run, row.scored_with, row.length) for row in rows if row.control == "none" and _failed(row)
    }
    line_of = _line_of(lines)
    for row in rows:
        line = line_of.get((row.run, row.scored_with))
        if line is None:
            continue
        label = line.label if row.control == "none" else f"{line.label}, {row.control} control,"
        if row.control != "none" and (not _failed(row) or (row.run, row.scored_with, row.length) in failed):
            continue
        if not has_number(row):
            status = "undefined" if row.status == "ok" else row.status.replace("_", " ")
            missing.setdefault((label, status), {})[row.length] = row.reason
    for (label, status), reasons in missing.items():
        reason = reasons[min(reasons)] or "no reason is given"
        yield Note(f"{status}: {label} at {list_lengths(reasons)}: {reason}", is_caveat=status != "undefined")


def _failed(row: Row) -> bool:
    return row.status == "failed"


def _missing(lines: Sequence[Line], train_length: int) -> Iterator[Note]:
    """Yield the changes, or intervals of changes, that are missing; the lengths and the lines together."""
    places: dict[tuple[str, str], dict[int, list[str]]] = {}
    for line in lines:
        for length, cell in line.cells.items():
            if cell.missing:
                kind = "no change" if cell.change is None else "a change without an interval"
                places.setdefault((kind, cell.missing), {}).setdefault(length, []).append(line.label)
    for (kind, reason), found in places.items():
        labels = list(dict.fromkeys(label for labels in found.values() for label in labels))
        which = "all" if len(labels) == len(lines) > 1 else ", ".join(labels)
        yield Note(f"{kind}: {which} at {list_lengths(found)}: {reason}", max(found) >= train_length)


def _missing_baseline(lines: Sequence[Line], train_length: int) -> Iterator[Note]:
    places: dict[str, dict[int, list[str]]] = {}
    for line in lines:
        for length, cell in line.cells.items():
            if cell.baseline is not None and cell.baseline.missing:
                places.setdefault(cell.baseline.missing, {}).setdefault(length, []).append(line.label)
    for reason, found in places.items():
        labels = dict.fromkeys(label for labels in found.values() for label in labels)
        text = f"no comparison: {', '.join(labels)} at {list_lengths(found)}: {reason}"
        yield Note(text, max(found) >= train_length)


def _unjudged(lines: Sequence[Line]) -> Iterator[str]:
    """Yield why the use of context is left empty; lines of one reason together."""
    reasons: dict[str, list[str]] = {}
    for line in lines:
        for cell in line.cells.values():
            if cell.use is not None and cell.use.missing:
                reasons.setdefault(cell.use.missing, []).append(line.label)
    for reason, labels in reasons.items():
        yield f"cannot judge context use{_which(labels, lines)}: {reason}"


def _windows(lines: Sequence[Line], rows: Sequence[Row]) -> Iterator[str]:
    """Yield how far information travels all the same under the control."""
    shown = [cell.use for line in lines for cell in line.cells.values() if cell.use is not None]
    if any(use.window_gain is not None for use in shown):
        scored = [row for row in rows if row.control == "window" and has_number(row)]
        yield from (f"window control: {row.reason}" for row in scored if row.reason)


def _offsets(lines: Sequence[Line], rows: Sequence[Row], margin: float) -> Iterator[Note]:
    """Yield how the level at the training length moves where all its positions are later."""
    line_of = _line_of(lines)
    levels = {
        (row.run, row.scored_with, row.target_hash): row.bits_per_byte
        for row in rows
        if row.control == "none" and row.length == row.train_length
    }
    for row in rows:
        line = line_of.get((row.run, row.scored_with))
        if row.control != "offset" or line is None:
            continue
        level = levels.get((row.run, row.scored_with, row.target_hash))
        if row.bits_per_byte is None or level is None:
            yield Note(
                f"offset control: {line.label} up to position {row.length}: {row.reason}", is_caveat=True
            )
            continue
        change = row.bits_per_byte - level
        yield Note(
            f"offset control: {line.label} changes by {change:+.3f} where windows of {row.train_length} "
            f"tokens end at position {row.length} (seed {row.seed})",
            is_caveat=abs(change) > margin,
        )


def _knows_length(lines: Sequence[Line]) -> Iterator[str]:
    labels = [line.label for line in lines if line.knows_length]
    if labels:
        yield f"knows each text's final length: {', '.join(labels)}; not possible while generating"


def _forced(lines: Sequence[Line]) -> Iterator[str]:
    if any(line.forced for line in lines):
        yield "(forced): scored with an encoding that is not compatible with the trained one"


def _rates(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the encodings whose parameters learned at another rate than the model's."""
    rates = {row.encoding: row.encoding_lr for row in rows if row.encoding_lr != 1}
    if rates:
        which = ", ".join(f"{encoding} {rate:g}" for encoding, rate in rates.items())
        yield f"parameters of the encoding learned at a multiple of train.lr: {which}"


def _speeds(lines: Sequence[Line], machines: Mapping[str, TrainingMachine]) -> Iterator[str]:
    """Yield what differs between the machines of training, which tokens a second depend on."""
    known = {run: machines[run] for line in lines for run in line.runs if machines[run]}
    values = {
        name: {machine[name] for machine in known.values()} - {""}
        for machine in known.values()
        for name in machine
    }
    differing = [name for name, found in values.items() if len(found) > 1]
    labels: dict[str, list[str]] = {}
    for line in lines:
        for run in line.runs:
            words = [known[run][name] for name in differing if known.get(run, {}).get(name)]
            labels.setdefault(", ".join(words) or "unknown", []).append(line.label)
    if differing:
        which = "; ".join(f"{words}{_which(found, lines)}" for words, found in labels.items())
        yield f"tokens/s were measured under different conditions: {which}"


def _not_shown(lines: Sequence[Line], rows: Sequence[Row]) -> Iterator[str]:
    """Yield the scores on a set of targets that is not shown; the training length is scored on each."""
    line_of = _line_of(lines)
    places: dict[str, set[int]] = {}
    for row in rows:
        line = line_of.get((row.run, row.scored_with))
        cell = line.cells.get(row.length) if line is not None else None
        if line is None or cell is None or not cell.levels or row.length == row.train_length:
            continue
        compared_on = cell.baseline.target_hash if cell.baseline is not None else ""
        if row.target_hash not in (cell.target_hash, cell.change_hash, compared_on):
            places.setdefault(line.label, set()).add(row.length)
    for label, lengths in places.items():
        yield f"not shown: {label} at {list_lengths(lengths)} on another set of targets; results.csv has it"


def _line_of(lines: Sequence[Line]) -> dict[tuple[str, str], Line]:
    """Return each line under every run of it and the encoding that this run was scored with."""
    return {(run, line.scored_with): line for line in lines for run in line.runs}


def _which(labels: Sequence[str], lines: Sequence[Line]) -> str:
    """Return the labels in brackets, a few of many; nothing where they are all."""
    names = list(dict.fromkeys(labels))
    return "" if len(names) == len(lines) else f" ({few_names(names)})"
