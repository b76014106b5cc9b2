"""Tables of probes: how often lines find a span of the window, by length and by depth."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pe_bench.errors import RunError
from pe_bench.report.groups import explain_separation
from pe_bench.report.measures import Finding, judge_finding, share_interval
from pe_bench.report.pairs import grouped
from pe_bench.report.records import TableKey, label_of
from pe_bench.report.selection import RunKeys, Selection
from pe_bench.report.statistics import Interval, difference_of_shares, paired_interval
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.rows import Row
from pe_bench.runs.scores import Scores, load_scores, score_file
from pe_bench.system.terminal import in_one_line

ANSWER = 16  # targets of a window
Place = tuple[int, float]  # a length and a depth
Read = Callable[[Row], Scores]


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
        return min(1.0, max(0.0, (self.accuracy.mean - self.without) / missing)) if missing > 0 else 0.0


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
        cells = [found for line in self.lines for found in line.by_depth.values()]
        return sorted({found.windows for found in cells if isinstance(found, Found)})


def probe_tables(
    groups: Mapping[TableKey, Sequence[Row]],
    keys: RunKeys,
    selection: Selection,
    folder_of: Callable[[str], RunFolder],
) -> list[ProbeTable]:
    """Return a table for each group of a probe's rows; none where nothing of it is to be shown."""
    scores_of: dict[tuple[str, ...], Scores] = {}

    def read(row: Row) -> Scores:
        """Return the scores of a row, each read once. Raise `RunError` where they are lost or damaged."""
        if row.key not in scores_of:
            scores_of[row.key] = load_scores(score_file(folder_of(row.run).path, row))
        return scores_of[row.key]

    shown = {
        key: [
            row
            for row in rows
            if selection.shows(row.length, row.train_length) and selection.takes(row.scored_with)
        ]
        for key, rows in groups.items()
    }
    shown = {key: rows for key, rows in shown.items() if rows}
    return in_one_line(
        [
            _table(
                key,
                rows,
                explain_separation(number, list(shown)),
                lambda row: f"{label_of(row)} {keys.label(row, selection.by)}".rstrip(),
                read,
            )
            for number, (key, rows) in enumerate(shown.items())
        ]
    )


def _table(
    key: TableKey, rows: Sequence[Row], why: str, label: Callable[[Row], str], read: Read
) -> ProbeTable:
    shown = _of_one_set_each(rows)
    common = _common_places(shown)
    lines = [_line(name, of_line, common, read) for name, of_line in sorted(grouped(shown, label).items())]
    return ProbeTable(
        key=key,
        lengths=tuple(sorted({row.length for row in shown})),
        depths=tuple(sorted({row.depth for row in shown if row.depth is not None})),
        lines=tuple(lines),
        chance=max(row.chance or 0.0 for row in shown),
        why=why,
        notes=(*_notes(lines), *_left_out(rows, shown, label)),
    )


def _of_one_set_each(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of one set of windows at each length and depth: of that which most runs have.

    Of several such, it is the largest.
    """
    sizes = {row.target_hash: row.targets for row in rows}
    chosen = {}
    for place, there in grouped(rows, _place).items():
        counts = Counter(row.target_hash for row in there)
        chosen[place] = max(counts, key=lambda name: (counts[name], sizes[name], name))
    return [row for row in rows if row.target_hash == chosen[_place(row)]]


def _left_out(rows: Sequence[Row], shown: Sequence[Row], label: Callable[[Row], str]) -> list[str]:
    """Return a line on the runs that have only other windows than those that are shown, at some lengths."""
    there = {(row.run, row.scored_with, row.length) for row in shown}
    lacking = grouped((row for row in rows if (row.run, row.scored_with, row.length) not in there), label)
    lengths = {name: sorted({row.length for row in lacking[name]}) for name in sorted(lacking)}
    lines = [f"{name} at {', '.join(map(str, of_line))}" for name, of_line in lengths.items()]
    why = "with other windows than most runs: probe all of them with the same --windows"
    return [f"left out: {'; '.join(lines)}, {why}"] if lines else []


def _common_places(rows: Sequence[Row]) -> set[Place]:
    """Return the depths at each length that most rows have: a line's number at a length is over these."""
    counts = Counter(map(_place, rows))
    most = {length: max(counts[place] for place in counts if place[0] == length) for length, _ in counts}
    return {place for place, count in counts.items() if count == most[place[0]]}


def _place(row: Row) -> Place:
    return row.length, row.depth or 0.0


def _line(label: str, rows: Sequence[Row], common: Collection[Place], read: Read) -> ProbeLine:
    ordered = sorted(rows, key=lambda row: (*_place(row), row.run, row.control))
    places = {place: grouped(there, lambda row: row.run) for place, there in grouped(ordered, _place).items()}
    whole = {
        length: _found([places.get(place, {}) for place in sorted(common) if place[0] == length], read)
        for length in sorted({length for length, _ in places})
    }
    by_depth = {place: _found([of_runs], read) for place, of_runs in places.items()}
    return ProbeLine(label, rows[0].scored_with, tuple(sorted({row.run for row in rows})), whole, by_depth)


def _found(depths: Sequence[Mapping[str, Sequence[Row]]], read: Read) -> Found | str:
    """Return what runs found at these depths together, or why there is no number.

    A run counts if it has a row of each depth and its control.
    """
    runs = [run for run in depths[0] if all(_is_complete(of_runs.get(run, ())) for of_runs in depths)]
    if not runs:
        rows = (row for of_runs in depths for rows in of_runs.values() for row in rows)
        lacking = next((row for row in rows if row.status != "ok"), None)
        if lacking is None:
            return "not scored at all depths"
        # A length out of an encoding's reach needs no status.
        status = "" if lacking.status == "undefined" else f"{lacking.status.replace('_', ' ')}: "
        return status + lacking.reason
    try:
        # With the span, and with another in its place, run by run.
        with_span, without = (
            [_joined([read(of[run][which]) for of in depths]) for run in runs] for which in (0, 1)
        )
        windows = max(of[runs[0]][0].targets for of in depths) // ANSWER
        return _judged(with_span, without, windows, depths[0][runs[0]][0].chance or 0.0)
    except RunError as error:
        return str(error)


def _is_complete(rows: Sequence[Row]) -> bool:
    return len(rows) == 2 and all(row.status == "ok" for row in rows)


def _joined(parts: Sequence[Scores]) -> Scores:
    """Return the scores of several depths as those of one set of targets."""
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


def _judged(with_span: Sequence[Scores], without: Sequence[Scores], windows: int, chance: float) -> Found:
    """Return what the scores of each run show with its span and without; windows: at each depth."""
    clusters = with_span[0].clusters
    bits, right = (
        [np.stack([values(scores) for scores in part]) for part in (with_span, without)]
        for values in (lambda scores: scores.by_cluster()[1], Scores.accuracy_by_cluster)
    )
    gain, documents = paired_interval(bits[1] - bits[0]), len(clusters.documents)
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
