"""The lines under a table: what its numbers do not say, and why some are missing.

Most are predicates over records: what is said of several is said once, with their lines and lengths.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite
from typing import NamedTuple, TypeVar

from pe_bench.report.lines import on_other_targets
from pe_bench.report.pairs import has_number
from pe_bench.report.records import Line, Record, is_checkpoint, label_of
from pe_bench.report.selection import RunKeys
from pe_bench.report.verdicts import SOLVED
from pe_bench.runs.find import one_a_run
from pe_bench.runs.gather import COPYING
from pe_bench.runs.rows import TASK, Row
from pe_bench.runs.scores import MIN_DOCUMENTS

MAX_NAMES = 4  # of lines in one note

LineRow = tuple[Line, Row]
Said = TypeVar("Said")
Places = dict[str, list[int]]  # the lengths of each line, by its label


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
    keys: RunKeys,
) -> list[Note]:
    """Return the notes, each once, the most important first.

    rows: all that the table shows, and their controls, of all targets; slice_rows: those of its slice.
    order_note: the note on how the lines are ordered.
    """
    anchors = [line for line in lines if line.is_anchor]
    lines = [line for line in lines if not line.is_anchor]
    if not lines:
        return []
    first = keys.first_stage(rows[0])
    train_length = first.train_length
    line_of = {(run, line.scored_with): line for line in lines for run in line.runs}
    of_lines, slice_of_lines = (
        [(line_of[key], row) for row in part if (key := (row.run, row.scored_with)) in line_of]
        for part in (rows, slice_rows)
    )
    notes = [
        *([order_note] if len(lines) > 1 else []),
        *_caveats(_checkpoints(slice_rows, keys), _holding(NOT_LEARNED, lines, first), _statuses(of_lines)),
        *_caveats(_protocol(first.protocol), _runs_apart(lines)),
        *_caveats(_holding(FEW_SEEDS, lines, first), _other_seeds(lines)),
        *_caveats(_unclear_changes(lines, rows), _holding(SCORED_WITH, lines, first)),
        *_caveats(
            _few_documents(lines), _unequal_targets(lines), _other_sets(lines, first), _own_sets(lines)
        ),
        *_missing(lines, train_length),
        *(Note(text, is_caveat=False) for text in (*_unjudged(lines), *_windows(lines, rows))),
        *_offsets(slice_of_lines, margin),
        *_caveats(_anchors(anchors)),
    ]
    return list(dict.fromkeys(notes))


def _caveats(*groups: Iterable[str]) -> list[Note]:
    return [Note(text, is_caveat=True) for texts in groups for text in texts]


# Lines and lengths


def few_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"


def _list_lengths(lengths: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(lengths))))


def _which(labels: Iterable[str], lines: Sequence[Line]) -> str:
    """Return the labels in brackets, or only the first few; empty if they are those of all lines."""
    names = list(dict.fromkeys(labels))
    return "" if len(names) == len(lines) else f" ({few_names(names)})"


def _places_of(lines: Sequence[Line], say: Callable[[Line, Record], Said | None]) -> dict[Said, Places]:
    """Return the lengths, by label, of each result of `say`, which is None or empty for most records."""
    places: dict[Said, Places] = {}
    for line in lines:
        for length, record in sorted(line.records.items()):
            said = say(line, record)
            if said:
                places.setdefault(said, {}).setdefault(line.label, []).append(length)
    return places


def _by_lengths(places: Places) -> dict[tuple[int, ...], list[str]]:
    """Group the labels by their lengths."""
    labels: dict[tuple[int, ...], list[str]] = {}
    for label, lengths in places.items():
        labels.setdefault(tuple(lengths), []).append(label)
    return labels


# What the lines are

# What is said of the lines for which something holds.
Kinds = dict[str, Callable[[Line], bool]]

NOT_LEARNED: Kinds = {
    "* not learned yet, so without a rank{which}: surely worse at {length} than a trigram counted on the "
    "same training tokens": lambda line: line.unlearned == "trigram",
    "* no better than {token} frequencies, so with neither rank nor verdicts{which}: not surely better at "
    "{length} than how often each {token} is": lambda line: line.unlearned == "frequencies",
    "* not learned, so with neither rank nor verdicts past {length}{which}: not surely right on more than "
    "{solved:g} % of the examples at {length}": lambda line: line.unlearned == "task",
}
FEW_SEEDS: Kinds = {
    "one seed{which}: results describe these models, not the encodings": lambda line: line.seeds == 1,
    "two seeds{which}: too few to know how seeds differ, so intervals are very wide": lambda line: (
        line.seeds == 2
    ),
}
SCORED_WITH: Kinds = {
    "knows each text's final length: {names}; not possible while generating": lambda line: line.knows_length,
    "(forced): scored with an encoding that is not compatible with the trained one": lambda line: line.forced,
}


def _holding(kinds: Kinds, lines: Sequence[Line], row: Row) -> Iterator[str]:
    """Yield the note of each kind that is true of some lines. row: any row of the table."""
    token = "byte" if row.tokenizer == "bytes" else "token"
    facts = {"length": row.train_length, "token": token, "solved": 100 * SOLVED}
    for text, is_so in kinds.items():
        labels = [line.label for line in lines if is_so(line)]
        if labels:
            yield text.format(which=_which(labels, lines), names=", ".join(labels), **facts)


def _checkpoints(rows: Sequence[Row], keys: RunKeys) -> Iterator[str]:
    """Yield what is known of the checkpoints among the runs, which pe-bench did not train."""
    for row in one_a_run(rows):
        config = keys.config_of(row)
        if "checkpoint.source" not in config:
            continue
        layers, of_layers = config.get("checkpoint.layers"), config["model.n_layers"]
        begin = config.get("checkpoint.begin")
        about = f"{row.model}: trained at {row.train_length} tokens according to "
        about += str(config.get("checkpoint.train_length_from"))
        if layers and layers < of_layers:
            about += f"; {layers} of {of_layers} layers have this encoding, the others keep their own"
        if begin is not None:
            about += f"; each window begins with token {begin}, as its tokenizer has it"
        yield about


def _anchors(anchors: Sequence[Line]) -> Iterator[str]:
    if anchors:
        names = ", ".join(line.label for line in anchors)
        copies = "; +copy copies what followed the longest match in reach" if COPYING in names else ""
        yield f"{names}: no encodings, but counts of the training tokens{copies}"


def _protocol(protocol: str) -> Iterator[str]:
    if protocol == "nonoverlapping":
        yield (
            "nonoverlapping: the first tokens of a window see little, and long windows have fewer of them, "
            "so scores improve with length by themselves"
        )
    if protocol == TASK:
        yield "each length has examples of its own: encodings are compared on the same ones, lengths are not"


def _runs_apart(lines: Sequence[Line]) -> Iterator[str]:
    for label in dict.fromkeys(label_of(line) for line in lines if line.run):
        yield (
            f"{label}: several runs have the same seed and differ in what the name does not show "
            "(such as another version of its code), so each is a line of its own and none are averaged"
        )


# Seeds and documents


def _other_seeds(lines: Sequence[Line]) -> Iterator[str]:
    """Yield where numbers are means over different seeds, and so of different models."""
    counts = {line.seeds for line in lines}
    if len(counts) > 1:
        yield (
            f"lines have {min(counts)} to {max(counts)} seeds, which also affects their levels and order: "
            "--baseline compares only seeds that both have"
        )

    def compared(record: Record) -> int:
        interval = record.baseline.interval if record.baseline is not None else None
        return 0 if interval is None else interval.seeds

    yield from _fewer_seeds(lines, "of", lambda record: len(record.levels))
    yield from _fewer_seeds(lines, "compared over", compared)


def _fewer_seeds(lines: Sequence[Line], verb: str, count: Callable[[Record], int]) -> Iterator[str]:
    """Yield which numbers rest on fewer seeds than their line has; count: the seeds of a record."""

    def fewer(line: Line, record: Record) -> tuple[int, int] | None:
        return (count(record), line.seeds) if 0 < count(record) < line.seeds else None

    for (seeds, of_all), places in _places_of(lines, fewer).items():
        for lengths, labels in _by_lengths(places).items():
            yield (
                f"{few_names(labels)} at {_list_lengths(lengths)}: {verb} {seeds} of {of_all} seeds only; a "
                "difference is always between the same seeds"
            )


def _few_documents(lines: Sequence[Line]) -> Iterator[str]:
    scored = [record for line in lines for record in line.records.values() if record.levels]
    few = [record for record in scored if record.documents < MIN_DOCUMENTS]
    if not few:
        return
    fewest = min(record.documents for record in few)
    segments = max(record.compared.segments for record in few)
    documents = "1 document" if fewest == 1 else f"{fewest} documents"
    if segments > 1:
        yield (
            f"{documents} only: intervals are over {segments} segments of each, which are more alike than "
            "documents are, so they say little about other texts"
        )
    else:
        yield f"{documents} only: intervals over so few say little about others"


def _unclear_changes(lines: Sequence[Line], rows: Sequence[Row]) -> Iterator[str]:
    """Yield how bad the unclear changes can be at most, and what would settle them."""
    changes: dict[bool, list[str]] = {}
    for line in lines:
        unclear = [record for record in line.records.values() if record.verdict == "unclear"]
        bounded = [
            (record.length, record.interval)
            for record in unclear
            if record.interval is not None and isfinite(record.interval.high)
        ]
        for by_seeds in (False, True):
            alike = [
                (length, interval.high)
                for length, interval in bounded
                if (interval.spread is not None and interval.spread.seed_share > 0.5) is by_seeds
            ]
            if alike:
                where = f"{line.label} at {_list_lengths(length for length, _ in alike)}"
                bound = max(high for _, high in alike)
                changes.setdefault(by_seeds, []).append(f"{where} (at most {bound:+.3f})")
    for by_seeds, words in sorted(changes.items()):
        more_seeds = "Most of this is how seeds differ: train more seeds"
        yield f"unclear changes: {'; '.join(words)}. {more_seeds if by_seeds else _more_targets(lines, rows)}"


def _more_targets(lines: Sequence[Line], rows: Sequence[Row]) -> str:
    """Return the command that scores four times the targets; without blocks there is more text alone."""
    blocks = rows[0].target_tokens
    if rows[0].protocol != "paired" or not blocks:
        return "More text would narrow these: raise eval.tokens"
    encodings = {line.encoding for line in lines}
    # Where a checkpoint and runs of our own have one encoding, its name is for the latter alone.
    names = {
        shlex.quote(row.run if is_checkpoint(row.model) else row.encoding)
        for row in rows
        if row.encoding in encodings
    }
    runs = " ".join(sorted(names)) if len(names) <= MAX_NAMES else "--all"
    targets = 4 * max(row.targets for row in rows) // blocks
    return f"4 times the targets would narrow these by up to half: pe-bench eval {runs} --targets {targets}"


# Sets of targets


def _unequal_targets(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the lengths at which levels are of different text from line to line."""
    lengths = sorted({length for line in lines for length in line.records})
    labels_at = {length: tuple(on_other_targets(lines, length)) for length in lengths}
    for labels in dict.fromkeys(filter(None, labels_at.values())):
        alike = [length for length in lengths if labels_at[length] == labels]
        yield (
            f"{_list_lengths(alike)}: not all rows were scored on the same targets "
            f"({few_names(labels)} on others), which also affects their levels"
        )


def _other_sets(lines: Sequence[Line], row: Row) -> Iterator[str]:
    """Yield the lengths whose level is of other targets than the training length's, or than most."""
    others: Places = {}
    for line in lines if row.protocol != TASK else []:
        sets = {
            length: record.target_hash for length, record in sorted(line.records.items()) if record.levels
        }
        most = Counter(sets.values()).most_common(1)
        main = sets.get(row.train_length) or (most[0][0] if most else "")
        lengths = [length for length, target_hash in sets.items() if target_hash != main]
        others |= {line.label: lengths} if lengths else {}
    for lengths, labels in _by_lengths(others).items():
        who = "" if len(labels) == len(lines) else f" ({', '.join(labels)})"
        yield (
            f"{_list_lengths(lengths)}{who}: scored on another set of targets than the other lengths, so "
            "levels are not comparable along the row; a change is always within one set"
        )


def _own_sets(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the changes and differences that are of other targets than the levels at their length."""
    for kind, whose in (("change", "the line has"), ("difference", "both lines have")):

        def sizes(line: Line, record: Record, kind: str = kind) -> tuple[int, int] | None:
            compared = record.compared if kind == "change" else record.baseline
            if compared is None or compared.target_hash in ("", record.target_hash):
                return None
            return compared.targets, record.targets

        for (targets, of_levels), places in _places_of(lines, sizes).items():
            where = "; ".join(f"{label} at {_list_lengths(lengths)}" for label, lengths in places.items())
            yield (
                f"{where}: the {kind} is of the largest set of targets that {whose} "
                f"({targets:,}), the level of the set that most lines share ({of_levels:,})"
            )


# What is missing


def _statuses(rows: Sequence[LineRow]) -> Iterator[str]:
    """Yield for each line and status all lengths, and the reason at the shortest of them.

    A control has its own where its code failed though that of the length did not.
    """
    failed = {
        (row.run, row.scored_with, row.length)
        for _, row in rows
        if (row.control, row.status) == ("none", "failed")
    }
    reasons: dict[tuple[str, str], dict[int, str]] = {}
    for line, row in rows:
        is_new = row.status == "failed" and (row.run, row.scored_with, row.length) not in failed
        if has_number(row) or (row.control != "none" and not is_new):
            continue
        label = line.label if row.control == "none" else f"{line.label}, {row.control} control,"
        status = "undefined" if row.status == "ok" else row.status.replace("_", " ")
        reasons.setdefault((label, status), {})[row.length] = row.reason
    for (label, status), reason_at in reasons.items():
        reason = reason_at[min(reason_at)] or "no reason is given"
        yield f"{status}: {label} at {_list_lengths(reason_at)}: {reason}"


def _missing(lines: Sequence[Line], train_length: int) -> Iterator[Note]:
    """Yield the changes and differences, or intervals of changes, that are missing, and why."""

    def change(line: Line, record: Record) -> tuple[str, str] | None:
        kind = "no change" if record.change is None else "a change without an interval"
        return (kind, record.compared.missing) if record.compared.missing else None

    def difference(line: Line, record: Record) -> tuple[str, str] | None:
        missing = record.baseline.missing if record.baseline is not None else ""
        return ("no comparison", missing) if missing else None

    for say in (change, difference):
        for (kind, reason), places in _places_of(lines, say).items():
            is_all = say is change and len(places) == len(lines) > 1
            who = "all" if is_all else ", ".join(places)
            lengths = [length for of_line in places.values() for length in of_line]
            yield Note(f"{kind}: {who} at {_list_lengths(lengths)}: {reason}", max(lengths) >= train_length)


# The controls


def _unjudged(lines: Sequence[Line]) -> Iterator[str]:
    """Yield why the use of context is left empty; lines of one reason together."""
    for reason, places in _places_of(lines, lambda line, record: record.use and record.use.missing).items():
        yield f"cannot judge context use{_which(places, lines)}: {reason}"


def _windows(lines: Sequence[Line], rows: Sequence[Row]) -> Iterator[str]:
    """Yield how far information travels all the same under the control."""
    uses = [record.use for line in lines for record in line.records.values() if record.use is not None]
    if any(use.window_gain is not None for use in uses):
        scored = [row for row in rows if row.control == "window" and has_number(row)]
        yield from (f"window control: {row.reason}" for row in scored if row.reason)


def _offsets(rows: Sequence[LineRow], margin: float) -> Iterator[Note]:
    """Yield how the level at the training length moves where all its positions are later."""
    levels = {
        (row.run, row.scored_with, row.target_hash): row.bits_per_byte
        for _, row in rows
        if row.control == "none" and row.length == row.train_length
    }
    for line, row in rows:
        if row.control != "offset":
            continue
        level = levels.get((row.run, row.scored_with, row.target_hash))
        if row.bits_per_byte is None or level is None:
            text = f"offset control: {line.label} up to position {row.length}: {row.reason}"
            yield Note(text, is_caveat=True)
            continue
        change = row.bits_per_byte - level
        yield Note(
            f"offset control: {line.label} changes by {change:+.3f} where windows of {row.train_length} "
            f"tokens end at position {row.length} (seed {row.seed})",
            is_caveat=abs(change) > margin,
        )
