"""Where notes find what they say, and the notes on unclear changes: how bad, and what would settle them."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite
from typing import TypeVar

from pe_bench.report.records import Line, Record, is_checkpoint
from pe_bench.runs.rows import Row

MAX_NAMES = 4  # of lines in one note

Said = TypeVar("Said")
Places = dict[str, list[int]]  # the lengths of each line, by its label


def few_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"


def list_lengths(lengths: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(lengths))))


def which(labels: Iterable[str], lines: Sequence[Line]) -> str:
    """Return the labels in brackets, a few of many; nothing where they are all."""
    names = list(dict.fromkeys(labels))
    return "" if len(names) == len(lines) else f" ({few_names(names)})"


def places_of(lines: Sequence[Line], say: Callable[[Line, Record], Said | None]) -> dict[Said, Places]:
    """Return where each thing is that `say` finds in records; it says None, or nothing, of most."""
    places: dict[Said, Places] = {}
    for line in lines:
        for length, record in sorted(line.records.items()):
            said = say(line, record)
            if said:
                places.setdefault(said, {}).setdefault(line.label, []).append(length)
    return places


def where_text(places: Places) -> str:
    return "; ".join(f"{label} at {list_lengths(lengths)}" for label, lengths in places.items())


def all_lengths(places: Places) -> list[int]:
    return [length for lengths in places.values() for length in lengths]


def by_lengths(places: Places) -> dict[tuple[int, ...], list[str]]:
    """Return the labels that have the same lengths, by these."""
    labels: dict[tuple[int, ...], list[str]] = {}
    for label, lengths in places.items():
        labels.setdefault(tuple(lengths), []).append(label)
    return labels


def unclear_changes(lines: Sequence[Line], rows: Sequence[Row]) -> Iterator[str]:
    """Yield how bad the unclear changes can be at most, and what would settle them."""
    changes: dict[bool, list[str]] = {}
    for line in lines:
        for of_seeds in (False, True):
            unclear = [record for record in line.records.values() if _is_unclear(record, of_seeds)]
            if unclear:
                bound = max(record.interval.high for record in unclear if record.interval is not None)
                where = f"{line.label} at {list_lengths(record.length for record in unclear)}"
                changes.setdefault(of_seeds, []).append(f"{where} (at most {bound:+.3f})")
    for of_seeds, words in sorted(changes.items()):
        more_seeds = "Most of this is how seeds differ: train more seeds"
        yield f"unclear changes: {'; '.join(words)}. {more_seeds if of_seeds else _more_targets(lines, rows)}"


def _is_unclear(record: Record, of_seeds: bool) -> bool:
    """Return whether a change is unclear with a finite bound, and its width is that of seeds or is not."""
    interval = record.interval
    is_unclear = record.verdict == "unclear" and interval is not None and isfinite(interval.high)
    return is_unclear and _is_decided_by_seeds(record) is of_seeds


def _is_decided_by_seeds(record: Record) -> bool:
    spread = record.interval.spread if record.interval is not None else None
    return spread is not None and spread.seed_share > 0.5


def _more_targets(lines: Sequence[Line], rows: Sequence[Row]) -> str:
    """Return the command that scores four times the targets; without blocks there is more text alone."""
    blocks = rows[0].target_tokens
    if rows[0].protocol != "paired" or not blocks:
        return "More text would narrow these: raise eval.tokens"
    encodings = {line.encoding for line in lines}
    # Where a checkpoint and runs of our own have one encoding, its name is for the latter alone.
    names = sorted(
        {
            shlex.quote(row.run if is_checkpoint(row.model) else row.encoding)
            for row in rows
            if row.encoding in encodings
        }
    )
    runs = " ".join(names) if len(names) <= MAX_NAMES else "--all"
    targets = 4 * max(row.targets for row in rows) // blocks
    return f"4 times the targets would narrow these by up to half: pe-bench eval {runs} --targets {targets}"


def agreeing_seeds(lines: Sequence[Line], train_length: int, margin: float) -> Iterator[str]:
    """Yield the unclear verdicts that more seeds settle: each alone is worse by more than the margin."""

    def agree(line: Line, record: Record) -> bool:
        is_unclear = record.length >= train_length and record.verdict == "unclear"
        is_worse = len(record.changes) > 1 and min(record.changes) > margin
        return is_unclear and is_worse and _is_decided_by_seeds(record)

    for places in places_of(lines, agree).values():
        yield (
            "unclear for lack of seeds, though each seed alone is worse by more than the margin: "
            f"{where_text(places)}"
        )
