"""Tables of probes: the share of spans in a window that lines find, by length and by depth."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, product
from typing import Literal

import numpy as np
from rich.console import Console

from pe_bench.errors import RunError
from pe_bench.render import grid as grids
from pe_bench.render.grid import MISSING, Cell, Column, Grid
from pe_bench.report.cells import number_text
from pe_bench.report.columns import NAME_COLUMN, half_width_cell
from pe_bench.report.groups import Selection, explain_separation, labels_by
from pe_bench.report.marks import verdict_cell
from pe_bench.report.records import TableKey, label_of, short_label_of
from pe_bench.report.statistics import MARGIN, Interval, difference_of_shares, paired_interval
from pe_bench.report.verdicts import largest_set
from pe_bench.runs.find import ScoredRuns
from pe_bench.runs.rows import BY_RUN, Row, grouped
from pe_bench.runs.scores import Scores, load_scores, score_file
from pe_bench.system.terminal import one_line_texts

ANSWER_TOKENS = 16  # targets of a window
FOUND_SHARE = 0.9  # a model finds the span if this share of answers is right
MIN_LIFT = 0.05  # a smaller gain in accuracy, over a window without the span or over guessing, counts as none
ProbeVerdict = Literal["finds", "partly", "chance", "unclear"]
ReadScores = Callable[[Row], Scores]
LabelRow = Callable[[Row], str]


@dataclass(frozen=True)
class ProbeNumbers:
    """The numbers of a line in a probe, at a length and at one depth or over all depths."""

    # Bits per byte of the answer that the span saves, or nats per token if the tokenizer loses text.
    gain: Interval
    accuracy: Interval  # the share of right answers
    lift: Interval  # the accuracy minus `without`
    without: float  # the accuracy with the span replaced
    windows: int  # the number of windows at each depth
    documents: int  # the number of documents of all windows
    verdict: ProbeVerdict


@dataclass(frozen=True)
class ProbeLine:
    """A line of a probe's table: one encoding, its seeds together."""

    label: str
    scored_with: str  # the label of the encoding under which the weights were scored
    runs: tuple[str, ...]  # the names of the runs
    # By length and depth, None for all depths; in place of a finding, the reason why there is no number.
    found: Mapping[tuple[int, float | None], ProbeNumbers | str]


@dataclass(frozen=True)
class ProbeTable:
    """Encodings that were probed with the same windows."""

    key: TableKey
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    lines: tuple[ProbeLine, ...]
    chance: float  # the accuracy of guessing
    why: str = ""  # why there are other tables; empty for the only table
    notes: tuple[str, ...] = ()  # sentences below the table

    @property
    def title(self) -> list[str]:
        return self.key.title(len(line.runs) for line in self.lines)


def probe_tables(
    groups: Mapping[TableKey, Sequence[Row]], runs: ScoredRuns, selection: Selection
) -> list[ProbeTable]:
    """Return a table for each group that has probe rows at shown lengths and encodings.

    groups: rows of a probe by the key of their table, as `group_rows` returns them.
    """

    @cache
    def read_scores(row: Row) -> Scores:
        return load_scores(score_file(runs.folder_of(row.run).path, row))

    def is_shown(row: Row) -> bool:
        return selection.shows(row.length, row.train_length, row.scored_with)

    shown = {}
    for key, rows in groups.items():
        shown_rows = list(filter(is_shown, rows))
        if shown_rows:
            shown[key] = shown_rows
    by = labels_by(list(chain.from_iterable(shown.values())), runs, selection.by)
    tables = []
    for number, (key, rows) in enumerate(shown.items()):
        table = _make_table(key, rows, _short_labels(rows, by), read_scores)
        if len(shown) > 1:
            table = replace(table, why=explain_separation(number, list(shown)))
        tables.append(table)
    return one_line_texts(tables)


def _short_labels(rows: Sequence[Row], by: LabelRow) -> LabelRow:
    """Return a function that labels rows by `short_label_of`, or by `label_of` if short labels are the same.

    by: returns the text that follows the label, such as `train.lr=0.003`; empty without one.
    """
    labels_by_short: dict[str, set[str]] = {}
    for row in rows:
        labels_by_short.setdefault(short_label_of(row), set()).add(label_of(row))

    def label(row: Row) -> str:
        short = short_label_of(row)
        name = short if len(labels_by_short[short]) == 1 else label_of(row)
        return f"{name} {by(row)}".rstrip()

    return label


def _make_table(key: TableKey, rows: Sequence[Row], label: LabelRow, read: ReadScores) -> ProbeTable:
    """Return the table of a group of rows.

    Shown are the windows that most rows have at each length and depth; of several such sets, the largest.
    """
    chosen = {at: largest_set(rows_at) for at, rows_at in grouped(rows, _length_and_depth).items()}
    shown = [row for row in rows if row.target_hash == chosen[_length_and_depth(row)]]
    common = _common_depths(shown)
    lines = []
    for name, line_rows in sorted(grouped(shown, label).items()):
        lines.append(_make_line(name, line_rows, common, read))
    notes = _missing_number_notes(lines)
    left_out = set(map(label, rows)) - {line.label for line in lines}
    if left_out:
        names = ", ".join(sorted(left_out))
        why_left = "with other windows than most runs: probe all of them with the same --windows"
        notes.append(f"left out: {names}, {why_left}")
    lengths = {row.length for row in shown}
    depths = {row.depth for row in shown if row.depth is not None}
    return ProbeTable(
        key=key,
        lengths=tuple(sorted(lengths)),
        depths=tuple(sorted(depths)),
        lines=tuple(lines),
        chance=max(row.chance or 0.0 for row in shown),
        notes=tuple(notes),
    )


def _length_and_depth(row: Row) -> tuple[int, float]:
    return row.length, row.depth or 0.0


def _common_depths(rows: Sequence[Row]) -> set[tuple[int, float]]:
    """Return the pairs of a length and a depth: for each length, the depths that most rows have.

    A line's number at a length is the mean over these depths.
    """
    counts = Counter(map(_length_and_depth, rows))
    most_rows_at_length: dict[int, int] = {}
    for (length, _), count in counts.items():
        most_rows_at_length[length] = max(count, most_rows_at_length.get(length, 0))
    return {
        (length, depth) for (length, depth), count in counts.items() if count == most_rows_at_length[length]
    }


def _make_line(
    label: str, rows: Sequence[Row], common: Collection[tuple[int, float]], read: ReadScores
) -> ProbeLine:
    """Return the line of `rows`, with its numbers at each depth and over all depths.

    common: pairs of a length and a depth; the numbers over all depths at a length are over these depths.
    """
    ordered = sorted(rows, key=lambda row: (*_length_and_depth(row), row.run, row.control))
    rows_by_run_at: dict[tuple[int, float], Mapping[str, Sequence[Row]]] = {}
    for at, rows_at in grouped(ordered, _length_and_depth).items():
        rows_by_run_at[at] = grouped(rows_at, BY_RUN)
    findings: dict[tuple[int, float | None], ProbeNumbers | str] = {}
    for length in dict.fromkeys(row.length for row in ordered):
        places = [place for place in sorted(common) if place[0] == length]
        findings[length, None] = _finding_of_runs([rows_by_run_at.get(place, {}) for place in places], read)
    for at, rows_of_runs in rows_by_run_at.items():
        findings[at] = _finding_of_runs([rows_of_runs], read)
    runs = sorted({row.run for row in rows})
    return ProbeLine(label, rows[0].scored_with, tuple(runs), findings)


def _finding_of_runs(depths: Sequence[Mapping[str, Sequence[Row]]], read: ReadScores) -> ProbeNumbers | str:
    """Return the numbers of a line's runs over these depths together, or the reason why there are none.

    depths: for each depth, the two rows of each run: with the span, and with the span replaced. A run counts
    if it has both rows at each depth.
    """

    def is_scored(run: str) -> bool:
        statuses = [[row.status for row in rows.get(run, ())] for rows in depths]
        return all(status == ["ok", "ok"] for status in statuses)

    runs = list(filter(is_scored, depths[0]))
    if not runs:
        by_run = chain.from_iterable(rows_of_runs.values() for rows_of_runs in depths)
        reasons = (row.reason for row in chain.from_iterable(by_run) if row.status != "ok")
        return next(reasons, "not scored at all depths")
    with_span = []
    without = []
    try:
        for run in runs:
            with_span.append(_join_depths([read(rows[run][0]) for rows in depths]))
            without.append(_join_depths([read(rows[run][1]) for rows in depths]))
    except RunError as error:
        return str(error)
    first_rows = [rows[runs[0]][0] for rows in depths]
    windows = max(row.targets for row in first_rows) // ANSWER_TOKENS
    return _judge_spans(with_span, without, windows, first_rows[0].chance or 0.0)


def _join_depths(parts: Sequence[Scores]) -> Scores:
    """Return the scores at several depths as the scores of one set of targets.

    Windows of the same part of a document follow each other, whatever their depth. If documents are few, they
    are cut into parts: each part then has windows of all depths, so that a difference between depths does not
    look like a difference between parts. Raises `RunError` for scores without answers.
    """
    correct = [part.correct for part in parts if part.correct is not None]
    if len(correct) < len(parts):
        raise RunError("its scores have no answers: delete its eval.csv and probe the run again")
    places = []  # the place of each target's window in its document, 0 to 1
    for part in parts:
        clusters = part.clusters
        before = clusters.rank // ANSWER_TOKENS * ANSWER_TOKENS
        places.append(before / clusters.counts[clusters.group])
    nll = np.concatenate([part.nll for part in parts])
    document = np.concatenate([part.document for part in parts])
    size = np.concatenate([part.bytes for part in parts])
    is_correct = np.concatenate(correct)
    order = np.lexsort((np.concatenate(places), document))
    return Scores(nll[order], document[order], size[order], is_correct[order])


def _judge_spans(
    with_span: Sequence[Scores], without: Sequence[Scores], windows: int, chance: float
) -> ProbeNumbers:
    """Return gain, accuracy and verdict from the scores of each run, with the span and without.

    windows: the number of windows at each depth.
    """
    clusters = with_span[0].clusters
    documents = len(clusters.documents)
    count = documents if clusters.segments == 1 else windows
    with np.errstate(invalid="ignore"):  # infinity less infinity
        losses = _bits_by_cluster(with_span) - _bits_by_cluster(without)
    gain = paired_interval(losses).mirrored  # a score that broke down is the greatest loss, not a gain
    right = _shares_right(with_span)
    right_without = _shares_right(without)
    accuracy = share_interval(right, count)
    lift = difference_of_shares(right - right_without, count)
    verdict = judge_finding(gain, accuracy, lift, chance)
    return ProbeNumbers(gain, accuracy, lift, float(right_without.mean()), windows, documents, verdict)


def _bits_by_cluster(scores_of_runs: Sequence[Scores]) -> np.ndarray:
    """Return bits per byte, float64 [runs, clusters]."""
    return np.stack([scores.by_cluster()[1] for scores in scores_of_runs])


def _shares_right(scores_of_runs: Sequence[Scores]) -> np.ndarray:
    """Return the shares of right answers, float64 [runs, clusters]."""
    return np.stack([scores.accuracy(scores.clusters.index) for scores in scores_of_runs])


def share_interval(shares: np.ndarray, count: int) -> Interval:
    """Return the interval of the mean of shares of answers [seeds, clusters], cut to the range 0 to 1.

    count: the number of independent units, as in `difference_of_shares`.
    """
    interval = difference_of_shares(shares, count)
    return replace(interval, low=max(0.0, interval.low), high=min(1.0, interval.high))


def judge_finding(gain: Interval, accuracy: Interval, lift: Interval, chance: float) -> ProbeVerdict:
    """Return the verdict on the spans that a model finds; positive gains mean that it reads them.

    gain: bits per byte that the answer costs less with the span than without. lift: the accuracy with the
    span minus the accuracy without, which knowing the language gives. chance: the accuracy of guessing.

        finds     surely 90 % of the answers are right, and the span surely makes the answer likelier
        chance    the accuracy is surely less than 5 points above that without the span, or above guessing; or
                  the span surely saves less than MARGIN, 0.01 bits per byte
        partly    the accuracy is surely above that without the span, and above guessing
        unclear   anything else

    Without the span, the right answer is the only one of the eight that is not in the window. A model that
    prefers whatever the window holds is therefore right more often with the span, and still only guesses.
    If the span changes no score, as past an attention window, all lifts are zero: their interval is wide.
    """
    if accuracy.low >= FOUND_SHARE and gain.low > 0:
        return "finds"
    if lift.high < MIN_LIFT or accuracy.high < chance + MIN_LIFT or gain.high < MARGIN:
        return "chance"
    return "partly" if lift.low > 0 and accuracy.low > chance else "unclear"


def _missing_number_notes(lines: Sequence[ProbeLine]) -> list[str]:
    """Return a sentence for each reason why numbers are missing."""
    places_by_reason: dict[str, list[str]] = {}
    for line in lines:
        for (length, depth), finding in line.found.items():
            if depth is None and isinstance(finding, str):
                place = f"{line.label} at {length:,}"
                places_by_reason.setdefault(finding, []).append(place)
    return [f"no number for {', '.join(places)}: {reason}" for reason, places in places_by_reason.items()]


# Tables


def grid_of(table: ProbeTable) -> Grid:
    """Return the table as a grid with a row for each line and length."""
    headings = ("length", "gain", "±", "accuracy", "95 %", "without")
    depths = [Column(f"at\n{_depth_text(depth)}") for depth in table.depths]
    verdict = Column("verdict", is_left=True)
    columns = [NAME_COLUMN, *map(Column, headings), verdict, *depths]
    rows = []
    for line, length in product(table.lines, table.lengths):
        if (length, None) not in line.found:
            continue
        row = [Cell(line.label), Cell(f"{length:,}"), *_finding_cells(line.found[length, None])]
        for depth in table.depths:
            row.append(_accuracy_cell(line.found.get((length, depth))))
        rows.append(row)
    return Grid(columns, rows, table.title, table.why, _legend(table), keys=2)


def _finding_cells(finding: ProbeNumbers | str) -> list[Cell]:
    """Return six cells: gain, half its interval, accuracy, its interval, accuracy without span, verdict."""
    if isinstance(finding, str):
        return [Cell(MISSING)] * 6
    gain = finding.gain
    accuracy = finding.accuracy
    bounds = f"{100 * accuracy.low:.0f} to {_percent(accuracy.high)}"
    gain_cell = Cell(number_text(gain.mean, "+"), value=gain.mean)
    shares = map(Cell, (_percent(accuracy.mean), bounds, _percent(finding.without)))
    return [gain_cell, half_width_cell(gain), *shares, verdict_cell(finding.verdict)]


def _accuracy_cell(finding: ProbeNumbers | str | None) -> Cell:
    if isinstance(finding, ProbeNumbers):
        return Cell(_percent(finding.accuracy.mean))
    return Cell(MISSING)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _depth_text(depth: float) -> str:
    return f"{100 * depth:.3g} %"


def _legend(table: ProbeTable) -> list[str]:
    """Return the meanings of the columns and of the verdicts, a paragraph each."""
    findings = chain.from_iterable(line.found.values() for line in table.lines)
    counts = [finding.windows for finding in findings if isinstance(finding, ProbeNumbers)]
    windows = max(counts, default=0)
    depths = ", ".join(map(_depth_text, table.depths))
    return [
        "can it find a span of 32 tokens, once it reads the first 16 of them again at the end? up to "
        f"{windows:,} windows at each depth: {depths}",
        f"gain: {table.key.loss.unit} by which the other 16 are cheaper than where another span is in its "
        "place (±: half of its 95 % interval); accuracy: they are the likeliest of eight endings of spans in "
        f"the window, in all and at each depth; chance: {100 * table.chance:.3g} %; without: the accuracy "
        "with the span replaced, which knowing the language gives",
        f"finds: surely {100 * FOUND_SHARE:g} % are right; partly: surely above without and above guessing; "
        f"chance: surely less than {100 * MIN_LIFT:g} points above one of these, or a gain surely below "
        f"{MARGIN:g}",
        *table.notes,
    ]


def show_probes(tables: Sequence[ProbeTable], console: Console | None = None, hint: str = "") -> None:
    """Print tables of probes on the console, standard output by default, with a line `hint` below them."""
    grids.show([grid_of(table).draw for table in tables], console, hint)
