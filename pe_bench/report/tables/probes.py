"""Tables of probes: how often lines find a span of the window, by length and by depth."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pe_bench.errors import RunError
from pe_bench.report.needle_statistics import Finding, judge_finding, share_interval
from pe_bench.report.statistics import Interval, difference_of_shares, paired_interval
from pe_bench.report.tables.cells import label_of
from pe_bench.report.tables.grouping import explain_separation
from pe_bench.report.tables.selection import RunKeys, Selection
from pe_bench.report.tables.table import TableKey
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.rows import Row
from pe_bench.runs.scores import Scores, load_scores, score_file
from pe_bench.system.outside_text import in_one_line

ANSWER = 16  # targets of a window
Place = tuple[int, float]  # a length and a depth
Pair = tuple[Scores, Scores]  # with the span, and with another in its place


@dataclass(frozen=True)
class Found:
    """How often a line finds spans at a length, at one depth or all.

    gain: bits per byte of the answer that the span saves. accuracy: the share of answers that are right;
    without: the same where the span is replaced; lift: the difference of both. windows: their number at each
    depth. documents: how many these windows come from.
    """

    gain: Interval
    accuracy: Interval
    lift: Interval
    without: float
    windows: int
    documents: int
    verdict: Finding

    @property
    def by_span(self) -> float:
        """Return how far it is from the accuracy without the span, 0, to all answers being right, 1."""
        missing = 1 - self.without
        if missing <= 0:
            return 0.0
        return min(1.0, max(0.0, (self.accuracy.mean - self.without) / missing))


@dataclass(frozen=True)
class ProbeLine:
    """An encoding: at each length over all depths, and at each depth, or why there is no number."""

    label: str
    scored_with: str
    runs: tuple[str, ...]
    whole: Mapping[int, Found | str]
    by_depth: Mapping[Place, Found | str]

    @property
    def seeds(self) -> int:
        return len(self.runs)


@dataclass(frozen=True)
class ProbeTable:
    """Encodings that were probed with the same windows.

    why: why this is not the only table. chance: the accuracy of guessing. notes: lines to read below.
    """

    key: TableKey
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    lines: tuple[ProbeLine, ...]
    chance: float
    why: str = ""
    notes: tuple[str, ...] = ()

    @property
    def windows(self) -> list[int]:
        """Return the numbers of windows at each depth, each once."""
        found = [found for line in self.lines for found in line.by_depth.values()]
        return sorted({each.windows for each in found if isinstance(each, Found)})


def probe_tables(
    groups: Mapping[TableKey, Sequence[Row]],
    keys: RunKeys,
    selection: Selection,
    folder_of: Callable[[str], RunFolder],
) -> list[ProbeTable]:
    """Return a table for each group of a probe's rows; none where nothing of it is to be shown."""
    read = ScoreReader(folder_of)
    found = [(key, _shown(rows, selection)) for key, rows in groups.items()]
    found = [(key, rows) for key, rows in found if rows]
    shown = [key for key, _ in found]
    tables = []
    for place, (key, rows) in enumerate(found):
        why = explain_separation(place, shown, [], [])
        tables.append(_table(key, rows, why, lambda row: keys.label(row, selection.by), read))
    return in_one_line(tables)


class ScoreReader:
    """The scores of rows, each file read once."""

    def __init__(self, folder_of: Callable[[str], RunFolder]) -> None:
        self._folder_of = folder_of
        self._known: dict[tuple[str, ...], Scores] = {}

    def __call__(self, row: Row) -> Scores:
        """Return the scores of a row. Raise `RunError` where they are lost or damaged."""
        if row.key not in self._known:
            self._known[row.key] = load_scores(score_file(self._folder_of(row.run).path, row))
        return self._known[row.key]


def _shown(rows: Iterable[Row], selection: Selection) -> list[Row]:
    return [row for row in rows if selection.shows(row.length) and selection.takes(row.scored_with)]


def _table(
    key: TableKey,
    rows: Sequence[Row],
    why: str,
    by: Callable[[Row], str],
    read: Callable[[Row], Scores],
) -> ProbeTable:
    def label(row: Row) -> str:
        return f"{label_of(row)} {by(row)}".rstrip()

    found, rows = rows, _of_one_set_each(rows)
    by_line: dict[str, list[Row]] = {}
    for row in rows:
        by_line.setdefault(label(row), []).append(row)
    common = _common_places(rows)
    lines = [_line(label, own, common, read) for label, own in sorted(by_line.items())]
    return ProbeTable(
        key=key,
        lengths=tuple(sorted({row.length for row in rows})),
        depths=tuple(sorted({row.depth for row in rows if row.depth is not None})),
        lines=tuple(lines),
        chance=max(row.chance or 0.0 for row in rows),
        why=why,
        notes=(*_notes(lines), *_left_out(found, rows, label)),
    )


def _of_one_set_each(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of one set of windows at each length and depth: of that which most runs have.

    Of several such, it is the largest.
    """
    sets: dict[Place, Counter[str]] = {}
    sizes = {row.target_hash: row.targets for row in rows}
    for row in rows:
        sets.setdefault(_place(row), Counter())[row.target_hash] += 1
    chosen = {
        place: max(counts, key=lambda target_hash: (counts[target_hash], sizes[target_hash], target_hash))
        for place, counts in sets.items()
    }
    return [row for row in rows if row.target_hash == chosen[_place(row)]]


def _left_out(found: Sequence[Row], shown: Sequence[Row], label: Callable[[Row], str]) -> list[str]:
    """Return a line on the runs that have only other windows than those that are shown, at some lengths."""
    there = {(row.run, row.scored_with, row.length) for row in shown}
    lacking: dict[str, set[int]] = {}
    for row in found:
        if (row.run, row.scored_with, row.length) not in there:
            lacking.setdefault(label(row), set()).add(row.length)
    if not lacking:
        return []
    lines = [f"{name} at {', '.join(map(str, sorted(lengths)))}" for name, lengths in sorted(lacking.items())]
    return [
        f"left out: {'; '.join(lines)}, with other windows than most runs: "
        "probe all of them with the same --windows"
    ]


def _common_places(rows: Sequence[Row]) -> set[Place]:
    """Return the depths at each length that most rows have: a line's number at a length is over these."""
    counts = Counter(map(_place, rows))
    most = {length: max(counts[place] for place in counts if place[0] == length) for length, _ in counts}
    return {place for place, count in counts.items() if count == most[place[0]]}


def _place(row: Row) -> Place:
    return row.length, row.depth or 0.0


def _line(
    label: str, rows: Sequence[Row], common: Collection[Place], read: Callable[[Row], Scores]
) -> ProbeLine:
    places: dict[Place, dict[str, list[Row]]] = {}
    for row in sorted(rows, key=lambda row: (row.length, row.depth or 0.0, row.run, row.control)):
        places.setdefault(_place(row), {}).setdefault(row.run, []).append(row)
    whole = {}
    for length in sorted({length for length, _ in places}):
        wanted = [places.get(place, {}) for place in sorted(common) if place[0] == length]
        whole[length] = _found(wanted, read)
    by_depth = {place: _found([of_runs], read) for place, of_runs in places.items()}
    runs = tuple(sorted({row.run for row in rows}))
    return ProbeLine(label, rows[0].scored_with, runs, whole, by_depth)


def _found(depths: Sequence[Mapping[str, Sequence[Row]]], read: Callable[[Row], Scores]) -> Found | str:
    """Return what runs found at these depths together, or why there is no number.

    A run counts if it has a row of each depth and its control.
    """
    runs = [run for run in depths[0] if all(_is_whole(of_runs.get(run, ())) for of_runs in depths)]
    if not runs:
        lacking = [row for of_runs in depths for rows in of_runs.values() for row in rows]
        return next((_reason(row) for row in lacking if row.status != "ok"), "not scored at all depths")
    try:
        pairs = [_pooled([(read(of[run][0]), read(of[run][1])) for of in depths]) for run in runs]
        windows = max(of[runs[0]][0].targets for of in depths) // ANSWER
        return _judged(pairs, windows, depths[0][runs[0]][0].chance or 0.0)
    except RunError as error:
        return str(error)


def _reason(row: Row) -> str:
    """Return why a row has no number; a length out of an encoding's reach needs no status."""
    status = row.status.replace("_", " ")
    return row.reason if row.status == "undefined" else f"{status}: {row.reason}"


def _is_whole(rows: Sequence[Row]) -> bool:
    return len(rows) == 2 and all(row.status == "ok" for row in rows)


def _pooled(pairs: Sequence[Pair]) -> Pair:
    """Return the scores of several depths as those of one set of targets."""
    first, second = (_joined(scores) for scores in zip(*pairs, strict=True))
    return first, second.sharing(first.clusters)


def _joined(parts: Sequence[Scores]) -> Scores:
    correct = [part.correct for part in parts if part.correct is not None]
    if len(correct) < len(parts):
        raise RunError("its scores have no answers: delete its eval.csv and probe the run again")
    order = _in_text_order(parts)
    return Scores(
        np.concatenate([part.nll for part in parts])[order],
        np.concatenate([part.document for part in parts])[order],
        np.concatenate([part.bytes for part in parts])[order],
        np.concatenate(correct)[order],
    )


def _in_text_order(parts: Sequence[Scores]) -> np.ndarray:
    """Return an order that puts windows of the same part of a document together, whatever their depth.

    Where documents are few, they are cut into parts. Each part then has windows of all depths, so that a
    difference between depths does not look like one between parts.
    """
    shares = []  # of its document that lies before each window
    for clusters in (part.clusters for part in parts):
        shares.append(clusters.place // ANSWER * ANSWER / clusters.counts[clusters.group])
    return np.lexsort((np.concatenate(shares), np.concatenate([part.document for part in parts])))


def _judged(pairs: Sequence[Pair], windows: int, chance: float) -> Found:
    """Return what pairs of scores, one of each run, show; windows: at each depth."""

    def stack(values: Callable[[Scores], np.ndarray], which: int) -> np.ndarray:
        return np.stack([values(pair[which]) for pair in pairs])

    bits = [stack(lambda scores: scores.by_cluster()[1], which) for which in (0, 1)]
    right = [stack(Scores.accuracy_by_cluster, which) for which in (0, 1)]
    gain = paired_interval(bits[1] - bits[0])
    clusters = pairs[0][0].clusters
    documents = len(clusters.documents)
    count = documents if clusters.segments == 1 else windows
    accuracy, lift = share_interval(right[0], count), difference_of_shares(right[0] - right[1], count)
    verdict = judge_finding(gain, accuracy, lift, chance)
    return Found(gain, accuracy, lift, float(right[1].mean()), windows, documents, verdict)


def _notes(lines: Sequence[ProbeLine]) -> list[str]:
    """Return a line for each reason why numbers are missing, and one on lines that lack some runs."""
    lacking: dict[str, list[str]] = {}
    fewer = []
    for line in lines:
        for length, found in line.whole.items():
            if isinstance(found, str):
                lacking.setdefault(found, []).append(f"{line.label} at {length}")
            elif found.gain.seeds < line.seeds:
                fewer.append(f"{line.label} at {length} ({found.gain.seeds} of {line.seeds})")
    notes = [f"no number for {', '.join(places)}: {reason}" for reason, places in lacking.items()]
    return [*notes, *([f"not all runs have a number: {', '.join(fewer)}"] if fewer else [])]
