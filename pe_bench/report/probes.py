"""Probes: how often lines find a span of the window, by length and by depth, and their table."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Literal

import numpy as np
from rich.console import Console

from pe_bench.errors import RunError
from pe_bench.render import grid as grids
from pe_bench.render.grid import MISSING, Cell, Column, Grid
from pe_bench.report.columns import NAME, half_width
from pe_bench.report.groups import Selection, explain_separation, labels_by
from pe_bench.report.marks import verdict_cell
from pe_bench.report.records import TableKey, label_of, short_label_of
from pe_bench.report.statistics import MARGIN, Interval, difference_of_shares, paired_interval
from pe_bench.report.verdicts import largest_set
from pe_bench.runs.find import ScoredRuns
from pe_bench.runs.rows import BY_RUN, Row, grouped
from pe_bench.runs.scores import Scores, load_scores, score_file
from pe_bench.system.terminal import in_one_line

ANSWER = 16  # targets of a window
FINDS = 0.9  # of the answers are right
NO_LIFT = 0.05  # of the answers: a smaller part that is right by the span alone is of no use
Finding = Literal["finds", "partly", "chance", "unclear"]
Read = Callable[[Row], Scores]
Label = Callable[[Row], str]


@dataclass(frozen=True)
class Found:
    """How often a line finds spans at a length, at one depth or all.

    gain: bits per byte of the answer that the span saves, or nats per token where the tokenizer loses text.
    accuracy: the share of answers that are right;
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


@dataclass(frozen=True)
class ProbeLine:
    """What an encoding finds at each length and depth, None for all, or why there is no number."""

    label: str
    scored_with: str
    runs: tuple[str, ...]
    found: Mapping[tuple[int, float | None], Found | str]


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
    def title(self) -> list[str]:
        return self.key.title(len(line.runs) for line in self.lines)


def probe_tables(
    groups: Mapping[TableKey, Sequence[Row]], runs: ScoredRuns, selection: Selection
) -> list[ProbeTable]:
    """Return a table for each group of a probe's rows; none where nothing of it is to be shown."""

    @cache
    def read(row: Row) -> Scores:
        return load_scores(score_file(runs.folder_of(row.run).path, row))

    def is_shown(row: Row) -> bool:
        return selection.shows(row.length, row.train_length, row.scored_with)

    shown = {key: list(filter(is_shown, rows)) for key, rows in groups.items()}
    shown = {key: rows for key, rows in shown.items() if rows}
    by = labels_by(list(chain.from_iterable(shown.values())), runs, selection.by)
    tables = []
    for number, (key, rows) in enumerate(shown.items()):
        table = _table(key, rows, _short_labels(rows, by), read)
        why = explain_separation(number, list(shown)) if len(shown) > 1 else ""
        tables.append(replace(table, why=why))
    return in_one_line(tables)


def _short_labels(rows: Sequence[Row], by: Label) -> Label:
    """Return a function that labels rows, with options that two sides share only once.

    Encodings whose short labels would be the same keep their long ones.
    """
    longs: dict[str, set[str]] = {}
    for row in rows:
        longs.setdefault(short_label_of(row), set()).add(label_of(row))

    def label(row: Row) -> str:
        short = short_label_of(row)
        name = short if len(longs[short]) == 1 else label_of(row)
        return f"{name} {by(row)}".rstrip()

    return label


def _table(key: TableKey, rows: Sequence[Row], label: Label, read: Read) -> ProbeTable:
    """Return the table of the windows that most rows have at each length and depth; of such, the largest."""
    chosen = {at: largest_set(rows_at) for at, rows_at in grouped(rows, _length_and_depth).items()}
    shown = [row for row in rows if row.target_hash == chosen[_length_and_depth(row)]]
    # A line's number at a length is over the depths that most rows have there.
    counts = Counter(map(_length_and_depth, shown))
    most: dict[int, int] = {}
    for (length, _), count in counts.items():
        most[length] = max(count, most.get(length, 0))
    common = {at for at, count in counts.items() if count == most[at[0]]}
    lines = [
        _line(name, line_rows, common, read) for name, line_rows in sorted(grouped(shown, label).items())
    ]
    notes = _notes(lines)
    left_out = sorted({label(row) for row in rows} - {line.label for line in lines})
    if left_out:
        why_left = "with other windows than most runs: probe all of them with the same --windows"
        notes.append(f"left out: {', '.join(left_out)}, {why_left}")
    depths = {row.depth for row in shown if row.depth is not None}
    return ProbeTable(
        key=key,
        lengths=tuple(sorted({row.length for row in shown})),
        depths=tuple(sorted(depths)),
        lines=tuple(lines),
        chance=max(row.chance or 0.0 for row in shown),
        notes=tuple(notes),
    )


def _length_and_depth(row: Row) -> tuple[int, float]:
    return row.length, row.depth or 0.0


def _line(label: str, rows: Sequence[Row], common: Collection[tuple[int, float]], read: Read) -> ProbeLine:
    ordered = sorted(rows, key=lambda row: (*_length_and_depth(row), row.run, row.control))
    runs_at = {at: grouped(rows_at, BY_RUN) for at, rows_at in grouped(ordered, _length_and_depth).items()}
    findings: dict[tuple[int, float | None], Found | str] = {}
    for length in dict.fromkeys(row.length for row in ordered):
        depths = [runs_at.get(at, {}) for at in sorted(common) if at[0] == length]
        findings[length, None] = _find(depths, read)
    for at, rows_of_runs in runs_at.items():
        findings[at] = _find([rows_of_runs], read)
    runs = sorted({row.run for row in rows})
    return ProbeLine(label, rows[0].scored_with, tuple(runs), findings)


def _find(depths: Sequence[Mapping[str, Sequence[Row]]], read: Read) -> Found | str:
    """Return the findings of runs at these depths together, or the reason why there is no number.

    A run counts if it has a row of each depth and its control.
    """

    def is_scored(run: str) -> bool:
        statuses = [[row.status for row in rows.get(run, ())] for rows in depths]
        return all(status == ["ok", "ok"] for status in statuses)

    runs = list(filter(is_scored, depths[0]))
    if not runs:
        rows = chain.from_iterable(chain.from_iterable(rows_of_runs.values() for rows_of_runs in depths))
        return next((row.reason for row in rows if row.status != "ok"), "not scored at all depths")
    with_span = []
    without = []
    try:
        for run in runs:
            with_span.append(_joined([read(rows[run][0]) for rows in depths]))
            without.append(_joined([read(rows[run][1]) for rows in depths]))
    except RunError as error:
        return str(error)
    first_rows = [rows[runs[0]][0] for rows in depths]
    windows = max(row.targets for row in first_rows) // ANSWER
    return _judge(with_span, without, windows, first_rows[0].chance or 0.0)


def _joined(parts: Sequence[Scores]) -> Scores:
    """Return the scores of several depths as those of one set of targets.

    Windows of the same part of a document stand together, whatever their depth. Where documents are few, they
    are cut into parts. Each part then has windows of all depths, so that a difference between depths does not
    look like one between parts.
    """
    correct = [part.correct for part in parts if part.correct is not None]
    if len(correct) < len(parts):
        raise RunError("its scores have no answers: delete its eval.csv and probe the run again")
    shares = []  # of its document that lies before each window
    for part in parts:
        clusters = part.clusters
        shares.append(clusters.rank // ANSWER * ANSWER / clusters.counts[clusters.group])
    nll = np.concatenate([part.nll for part in parts])
    document = np.concatenate([part.document for part in parts])
    size = np.concatenate([part.bytes for part in parts])
    order = np.lexsort((np.concatenate(shares), document))
    return Scores(nll[order], document[order], size[order], np.concatenate(correct)[order])


def _judge(with_span: Sequence[Scores], without: Sequence[Scores], windows: int, chance: float) -> Found:
    """Return the finding from the scores of each run with the span and without; windows: at each depth."""
    clusters = with_span[0].clusters
    documents = len(clusters.documents)
    count = documents if clusters.segments == 1 else windows
    gain = paired_interval(_bits(without) - _bits(with_span))
    right = _shares_right(with_span)
    right_without = _shares_right(without)
    accuracy = share_interval(right, count)
    lift = difference_of_shares(right - right_without, count)
    verdict = judge_finding(gain, accuracy, lift, chance)
    return Found(gain, accuracy, lift, float(right_without.mean()), windows, documents, verdict)


def _bits(scores_of_runs: Sequence[Scores]) -> np.ndarray:
    """Return bits per byte, float64 [runs, clusters]."""
    return np.stack([scores.by_cluster()[1] for scores in scores_of_runs])


def _shares_right(scores_of_runs: Sequence[Scores]) -> np.ndarray:
    """Return the shares of right answers, float64 [runs, clusters]."""
    return np.stack([scores.accuracy(scores.clusters.index) for scores in scores_of_runs])


def share_interval(shares: np.ndarray, count: int) -> Interval:
    """Return the interval of the mean of shares of answers, 0 to 1, float64 [seeds, documents].

    count: as in `difference_of_shares`.
    """
    interval = difference_of_shares(shares, count)
    return replace(interval, low=max(0.0, interval.low), high=min(1.0, interval.high))


def judge_finding(gain: Interval, accuracy: Interval, lift: Interval, chance: float) -> Finding:
    """Return whether a model finds spans; positive gains mean that it reads them.

    gain: bits per byte that the answer costs less with the span than without. lift: the accuracy with the
    span minus that without, which knowing the language gives. chance: the accuracy of guessing.

        finds     surely 90 % of the answers are right, and the span surely makes the answer likelier
        chance    the accuracy is surely less than 5 points above that without the span, or above guessing; or
                  the span surely saves less than MARGIN, 0.01 bits per byte
        partly    the accuracy is surely above both
        unclear   anything else

    Without the span, the right answer is the only one of the eight that is not in the window. A model that
    prefers whatever the window holds is therefore right more often with the span, and still only guesses.
    Where the span changes no score, as past an attention window, all lifts are zero: their interval is wide.
    """
    if accuracy.low >= FINDS and gain.low > 0:
        return "finds"
    if lift.high < NO_LIFT or accuracy.high < chance + NO_LIFT or gain.high < MARGIN:
        return "chance"
    return "partly" if lift.low > 0 and accuracy.low > chance else "unclear"


def _notes(lines: Sequence[ProbeLine]) -> list[str]:
    """Return a line for each reason why numbers are missing."""
    lacking: dict[str, list[str]] = {}
    for line in lines:
        for (length, depth), finding in line.found.items():
            if depth is None and isinstance(finding, str):
                lacking.setdefault(finding, []).append(f"{line.label} at {length:,}")
    return [f"no number for {', '.join(where)}: {reason}" for reason, where in lacking.items()]


# Tables


def grid_of(table: ProbeTable) -> Grid:
    """Return a row for each line and length."""
    headings = ("length", "gain", "±", "accuracy", "95 %", "without")
    depths = [Column(f"at\n{100 * depth:.3g} %") for depth in table.depths]
    columns = [NAME, *map(Column, headings), Column("verdict", is_left=True), *depths]
    rows = []
    for line in table.lines:
        for length in table.lengths:
            if (length, None) in line.found:
                at_all_depths = _cells(line.found[length, None])
                by_depth = [_accuracy(line.found.get((length, depth))) for depth in table.depths]
                rows.append([Cell(line.label), Cell(f"{length:,}"), *at_all_depths, *by_depth])
    return Grid(columns, rows, table.title, table.why, _legend(table), keys=2)


def _cells(finding: Found | str) -> list[Cell]:
    if isinstance(finding, str):
        return [Cell(MISSING)] * 6
    gain = finding.gain
    accuracy = finding.accuracy
    bounds = f"{100 * accuracy.low:.0f} to {_percent(accuracy.high)}"
    return [
        Cell(f"{gain.mean:+.3f}", value=gain.mean),
        half_width(gain),
        *map(Cell, (_percent(accuracy.mean), bounds, _percent(finding.without))),
        verdict_cell(finding.verdict),
    ]


def _accuracy(finding: Found | str | None) -> Cell:
    if isinstance(finding, Found):
        return Cell(_percent(finding.accuracy.mean))
    return Cell(MISSING)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _legend(table: ProbeTable) -> list[str]:
    """Return the meanings of the columns and of the verdicts, a paragraph each."""
    findings = chain.from_iterable(line.found.values() for line in table.lines)
    windows = max((finding.windows for finding in findings if isinstance(finding, Found)), default=0)
    depths = ", ".join(f"{100 * depth:.3g} %" for depth in table.depths)
    return [
        "can it find a span of 32 tokens, once it reads the first 16 of them again at the end? up to "
        f"{windows:,} windows at each depth: {depths}",
        f"gain: {table.key.loss.unit} by which the other 16 are cheaper than where another span is in its "
        "place (±: half of its 95 % interval); accuracy: they are the likeliest of eight endings of spans in "
        f"the window, in all and at each depth; chance: {100 * table.chance:.3g} %; without: the accuracy "
        "with the span replaced, which knowing the language gives",
        f"finds: surely {100 * FINDS:g} % are right; partly: surely above without and above guessing; "
        f"chance: surely less than {100 * NO_LIFT:g} points above one of these, or a gain surely below "
        f"{MARGIN:g}",
        *table.notes,
    ]


def show_probes(tables: Sequence[ProbeTable], console: Console | None = None, hint: str = "") -> None:
    """Print tables of probes on the console, standard output by default."""
    grids.show([grid_of(table).draw for table in tables], console, hint)
