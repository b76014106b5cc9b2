"""Names and lengths as notes list them, and where a note finds what it says."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from pe_bench.report.records import Line, Record

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
