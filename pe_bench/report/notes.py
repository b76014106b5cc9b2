"""The lines under a table: what its numbers do not say, and why some are missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pe_bench.report.cells import has_number, label_of
from pe_bench.report.target_sets import lengths_on_other_sets
from pe_bench.results import Row

if TYPE_CHECKING:
    from pe_bench.report.tables import Line

FEW_DOCUMENTS = 20


def make_notes(lines: Sequence[Line], rows: Sequence[Row], ranked_at: int | None) -> tuple[str, ...]:
    """Whole sentences, each once, the most important first."""
    notes = [
        *_ranking(lines, ranked_at),
        *_runs_apart(lines),
        *_one_seed(lines),
        *_few_documents(lines),
        *_unequal_targets(lines),
        *_other_sets(lines, rows[0].train_length),
        *_statuses(rows),
        *_missing(lines),
    ]
    return tuple(dict.fromkeys(notes))


def _ranking(lines: Sequence[Line], ranked_at: int | None) -> Iterator[str]:
    if len(lines) > 1 and ranked_at is None:
        yield "no length has a number for all: the order is that of the names"
    elif len(lines) > 1:
        yield f"ranked by bits/byte at {ranked_at}, the longest length that all have a number at"


def _runs_apart(lines: Sequence[Line]) -> Iterator[str]:
    for label in dict.fromkeys(label_of(line) for line in lines if line.run):
        yield (
            f"{label}: several runs have the same seed and differ in what the name does not show "
            "(such as another version of its code), so each is a line of its own and none are averaged"
        )


def _one_seed(lines: Sequence[Line]) -> Iterator[str]:
    alone = [line.label for line in lines if line.seeds == 1]
    if alone:
        which = "" if len(alone) == len(lines) else f" ({', '.join(alone)})"
        yield f"one seed{which}: this says something of these models only"


def _few_documents(lines: Sequence[Line]) -> Iterator[str]:
    counts = [cell.documents for line in lines for cell in line.cells.values() if cell.levels]
    fewest = min(counts, default=FEW_DOCUMENTS)
    if fewest < FEW_DOCUMENTS:
        documents = "1 document" if fewest == 1 else f"{fewest} documents"
        yield f"{documents} only: intervals over so few say little of others"


def _unequal_targets(lines: Sequence[Line]) -> Iterator[str]:
    hashes: dict[int, set[str]] = {}
    for line in lines:
        for length, cell in line.cells.items():
            if cell.levels:
                hashes.setdefault(length, set()).add(cell.target_hash)
    for length in sorted(length for length, found in hashes.items() if len(found) > 1):
        yield f"{length}: not all rows were scored on the same targets, so their levels differ by those too"


def _other_sets(lines: Sequence[Line], train_length: int) -> Iterator[str]:
    """The lengths at which a row's levels are of other targets than its other levels."""
    places: dict[tuple[int, ...], list[str]] = {}
    for line in lines:
        found = lengths_on_other_sets(line.cells, train_length)
        if found:
            places.setdefault(found, []).append(line.label)
    for lengths, labels in places.items():
        which = "" if len(labels) == len(lines) else f" ({', '.join(labels)})"
        yield (
            f"{_numbers(lengths)}{which}: scored on another set of targets than the other lengths, so levels "
            "are not comparable along the row; a change is always within one set"
        )


def _statuses(rows: Sequence[Row]) -> Iterator[str]:
    """Once for an encoding and a status: all lengths, and the reason at the shortest of them."""
    missing: dict[tuple[str, str], dict[int, str]] = {}
    for row in rows:
        if not has_number(row):
            status = "undefined" if row.status == "ok" else row.status.replace("_", " ")
            missing.setdefault((label_of(row), status), {})[row.length] = row.reason
    for (label, status), reasons in missing.items():
        yield f"{status}: {label} at {_numbers(reasons)}: {reasons[min(reasons)] or 'no reason is given'}"


def _missing(lines: Sequence[Line]) -> Iterator[str]:
    """Changes, or intervals of changes, that are missing; the lengths and the lines together."""
    places: dict[tuple[str, str], dict[int, list[str]]] = {}
    for line in lines:
        for length, cell in line.cells.items():
            if cell.missing:
                kind = "no change" if cell.change is None else "a change without an interval"
                places.setdefault((kind, cell.missing), {}).setdefault(length, []).append(line.label)
    for (kind, reason), found in places.items():
        labels = list(dict.fromkeys(label for some in found.values() for label in some))
        which = "all" if len(labels) == len(lines) > 1 else ", ".join(labels)
        yield f"{kind}: {which} at {_numbers(found)}: {reason}"


def _numbers(lengths: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(lengths)))
