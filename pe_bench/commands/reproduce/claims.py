"""A paper's claims against a study's measurements: each claim holds, is contradicted, or stays unclear.

The outcome follows from the 95 % interval of a paired difference by the rules of statistics.py. Claims are
not corrected together: of twenty, one is judged wrongly by chance.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from pe_bench.commands.reproduce.papers import (
    ALIKE_BITS,
    CLAIM_KINDS,
    KINDS_OF_LEVELS,
    KINDS_OF_RESTORING,
    WINDOW_PROTOCOLS,
    Claim,
)
from pe_bench.commands.reproduce.study import FinishedStep
from pe_bench.config.schema import quarter_of
from pe_bench.report.lines import TableRows, make_record
from pe_bench.report.records import BreakPoint, ContextUse, Number, Record, Unlearned, label_of
from pe_bench.report.statistics import (
    MARGIN,
    Interval,
    breaks_at,
    judge_gain_over_control,
)
from pe_bench.report.verdicts import (
    Pair,
    TaskVerdict,
    answers_of,
    difference_of_changes,
    find_break_point,
    judge_answers,
    judge_context,
    largest_set,
    mean_difference,
    pairs_of,
    rank_sets,
    unlearned,
    why_context_use_stays_open,
)
from pe_bench.runs.find import ScoredRuns, read_anchors
from pe_bench.runs.folder import folder_finder
from pe_bench.runs.rows import ALL, BY_SEED, TASK, Row, grouped, has_number
from pe_bench.values import unknown

Outcome = Literal["contradicted", "holds", "unclear"]
# The outcome, the number that was measured, and the length that decides.
Judgement = tuple[Outcome, Number, int]
OPPOSITE: dict[Outcome, Outcome] = {"holds": "contradicted", "contradicted": "holds", "unclear": "unclear"}
OUTCOME_OF_GAIN: dict[str, Outcome] = {"yes": "holds", "no": "contradicted", "unclear": "unclear"}
# Kinds that are judged as the opposite of another kind: `rises` holds where `falls` is contradicted.
NEGATED_KINDS = ("rises", "breaks", "early_tokens", "stays_in_window", "misses", "restores")
HALF_OF_LOSS = 0.5
# Kinds of claims whose evidence is the lengths that encodings work to.
KINDS_OF_BREAKING = ("holds", "breaks", "breaks_first")
BROKEN_VERDICTS, HELD_VERDICTS = ("degrades", "fails"), ("holds", "improves")
UNLEARNED_REASONS: dict[Unlearned, str] = {
    "frequencies": "not learned: at the training length no better than token frequencies",
    "trigram": "not learned yet: at the training length worse than a trigram",
    "task": "not learned: the task is not solved at the training length",
}
NOT_SCORED = "not scored"
UNDECIDED = "no length where one surely breaks and the other surely holds"
UNSOLVED = "no encoding solves it at the training length: the training may be too short"


class Series(NamedTuple):
    """An encoding of a sweep; each of its seeds has one run."""

    label: str  # the label in tables; empty for the encoding that the sweep trained
    sweep: str = ""  # the name of the sweep

    def __str__(self) -> str:
        if self.label and self.sweep:
            return f"{self.label} ({self.sweep})"
        return self.label or self.sweep

    def has(self, row: Row) -> bool:
        """Return whether a row is of the series' encoding."""
        return self.label == label_of(row) if self.label else row.scored_with == row.encoding


class StudyScores(Protocol):
    """The scores of a study that judge claims: from the rows of its runs, or from its table."""

    length: int  # the training length

    def labels(self, sweep: str) -> set[str]:
        """Return the names that tables give the encodings of a sweep."""
        ...

    def unlearned(self, series: Series) -> str:
        """Return the reason why a series counts as not learned; empty if it has learned."""
        ...

    def is_later_stage(self, series: Series) -> bool:
        """Return whether the runs of a series went on from other runs."""
        ...

    def change(self, series: Series, length: int, protocol: str, *, since: int = 0) -> Number:
        """Return the change of a level from `since` (0: the training length) to `length`."""
        ...

    def context_use(self, series: Series, length: int) -> ContextUse | None:
        """Return whether text beyond the training length is used, and its gain; None if unknown."""
        ...

    def verdicts(self, series: Series, protocol: str) -> dict[int, str]:
        """Return, by length, the verdict on the change from the training length to each longer length."""
        ...

    def break_point(self, series: Series, protocol: str) -> BreakPoint:
        """Return the last length at which a series holds and the first at which it fails, as in tables."""
        ...

    def difference_of_levels(self, claim: Claim, length: int) -> Number:
        """Return the level of the claim's first series minus the level of its second."""
        ...

    def difference_of_changes(self, claim: Claim, length: int) -> Number:
        """Return the change of the claim's first series minus the change of its second."""
        ...

    def gain(self, series: Series, length: int, *kinds: tuple[str, str]) -> Number:
        """Return the level in some windows minus the level in others.

        kinds: the protocol and the control of the first windows, then of the second.
        """
        ...

    def task_result(self, series: Series, length: int) -> tuple[Interval, TaskVerdict] | None:
        """Return the share of a task's right examples and the verdict; None without a score."""
        ...

    def restored_share(self, series: Series, change: str, length: int) -> Number:
        """Return the share of the loss at `length` that a change of all layers restores: 1 for all of it.

        The loss is the level at `length` minus the level at the training length. change: such as `window`.
        """
        ...


class RestoredShares(NamedTuple):
    """The shares of an encoding's losses that changes of all layers restore, as `explain` measured them."""

    series: Series
    # The shares, or why there is none, by the name of the change and the length.
    shares: Mapping[tuple[str, int], Number]
    missing: Mapping[int, str]  # why a length without a sure loss has no share

    def share(self, change: str, length: int) -> Number:
        """Return the share of the loss at `length` that the change restores, or why there is none."""
        changes = sorted({name for name, _ in self.shares})
        if changes and change not in changes:
            return Number(missing=unknown(change, "change of all layers", changes))
        missing = self.missing.get(length, NOT_SCORED)
        return self.shares.get((change, length), Number(missing=missing))


class Measurements:
    """The scores that the steps of a study made. All lengths are in tokens.

    A run may also have scores that other studies or its owner asked for. They are left out, so that outcomes
    do not depend on earlier commands.

    length: the training length of the study; a sweep may have another one.
    """

    def __init__(
        self,
        results_dir: Path,
        steps: Iterable[FinishedStep],
        length: int,
        restored_shares: Sequence[RestoredShares] = (),
    ) -> None:
        self.length = length
        self._restored_shares = restored_shares
        folder_of = folder_finder(results_dir / "runs")
        self._runs = ScoredRuns(folder_of, read_anchors(results_dir / "anchors"))
        rows_of_sweeps: dict[str, dict[tuple[str, ...], Row]] = {}
        for step in steps:
            rows_by_key = rows_of_sweeps.setdefault(step.sweep, {})
            for row in chain.from_iterable(folder_of(run).rows for run in step.runs):
                if row.key in step.keys:
                    rows_by_key[row.key] = row
        # All rows of each sweep that a step asked for, those of controls included.
        self.rows = {sweep: list(rows_by_key.values()) for sweep, rows_by_key in rows_of_sweeps.items()}
        # Many claims are about the same series.
        self._unlearned: dict[Series, str] = {}
        self._records: dict[tuple[Series, str], dict[int, Record]] = {}

    def rows_at(self, series: Series, length: int, protocol: str, control: str = "none") -> list[Row]:
        """Return the rows of a series at one length; those of a failed score are left out."""
        rows = self._rows_of(series, protocol, control)
        return [row for row in rows if row.length == length and has_number(row)]

    def _rows_of(self, series: Series, protocol: str, control: str = "none") -> list[Row]:
        rows = [row for row in self.rows.get(series.sweep, []) if series.has(row)]
        return [row for row in rows if (row.protocol, row.control) == (protocol, control)]

    def as_trained(self, series: Series) -> list[Row]:
        """Return the rows of a series' runs under the encoding that they were trained with."""
        rows = self.rows.get(series.sweep, [])
        runs = {row.run for row in rows if series.has(row)}
        trained = [row for row in rows if row.run in runs and row.scored_with == row.encoding]
        return [row for row in trained if row.control == "none"]

    def unlearned(self, series: Series) -> str:
        """Return the reason why a series counts as not learned; empty if it has learned.

        A model that has learned nothing would hold, and break after all others. A later stage is compared
        with the anchors of its first stage's training tokens.
        """
        if series not in self._unlearned:
            self._unlearned[series] = self._find_unlearned(series)
        return self._unlearned[series]

    def _find_unlearned(self, series: Series) -> str:
        """Compute the reason of `unlearned` from the rows of the series, of first stages and of anchors."""
        rows = [row for row in self.as_trained(series) if row.protocol in ("paired", TASK)]
        row_of = {row.run: row for row in chain.from_iterable(self.rows.values())}
        counted_on = {}
        for row in rows:
            first = self._runs.folder_of(row.run).first_stage
            if first is not None and first.run in row_of:
                counted_on[row.run] = row_of[first.run]
        reason = unlearned(rows, self._runs, counted_on)
        return reason and UNLEARNED_REASONS[reason]

    def is_later_stage(self, series: Series) -> bool:
        return any(self._runs.folder_of(row.run).first_stage for row in self.as_trained(series))

    def labels(self, sweep: str) -> set[str]:
        """Return the names that tables give the encodings of a sweep."""
        return {label_of(row) for row in self.rows.get(sweep, [])}

    def changes(self, series: Series, length: int, protocol: str, since: int = 0) -> list[Pair]:
        """Return, for each run of a series, its row at `length` with the row of its own encoding at `since`.

        since: a length in tokens; 0 for the study's training length.
        """
        trained = [row for row in self.as_trained(series) if row.protocol == protocol]
        first = [row for row in trained if row.length == (since or self.length)]
        return pairs_of(self.rows_at(series, length, protocol), first)

    def change(
        self, series: Series, length: int, protocol: str, part: str = ALL, *, since: int = 0
    ) -> Number:
        """Return the change of the level from `since` to `length`, of all targets or of a slice of them.

        part: the name of the slice. since: a length in tokens; 0 for the study's training length.
        """
        changes = self.changes(series, length, protocol, since)
        if part != ALL:
            changes = self._of_slice(changes, part)
        return mean_difference(changes, self._runs, NOT_SCORED)

    def _of_slice(self, changes: Sequence[Pair], part: str) -> list[Pair]:
        """Return the changes restricted to the slice `part`, without changes whose rows lack the slice."""
        row_of = {}
        for row in self._runs.slice_rows(list(chain.from_iterable(changes)), part):
            row_of[row.run, row.length] = row
        sliced = []
        for row, first in changes:
            places = [(row.run, row.length), (first.run, first.length)]
            if row_of.keys() >= set(places):
                sliced.append((row_of[places[0]], row_of[places[1]]))
        return sliced

    def context_use(self, series: Series, length: int) -> ContextUse | None:
        """Return whether text beyond the training length is used, and its gain; None without controls."""
        swaps = self.rows_at(series, length, "paired", "swap")
        windows = self.rows_at(series, length, "paired", "window")
        if not swaps and not windows:
            return None
        within = self.change(series, quarter_of(self.length), "paired")
        why_open = why_context_use_stays_open(self.length, within, MARGIN)
        rows = self.rows_at(series, length, "paired")
        trained = self.rows_at(series, self.length, "paired")
        return judge_context(rows, [*swaps, *windows], trained, why_open, MARGIN, self._runs)

    def machines(self, rows: Iterable[Row]) -> str:
        """Return the processors or GPUs that the runs of rows were trained on."""
        names = {self._runs.folder_of(row.run).machine for row in rows}
        return "; ".join(sorted(names - {""}))

    def verdicts(self, series: Series, protocol: str) -> dict[int, str]:
        """Return, by length, the verdicts on the changes above the training length that have an interval."""
        verdicts = {}
        for length, record in self._records_by_length(series, protocol).items():
            if length > self.length and record.interval is not None:
                verdicts[length] = record.verdict
        return verdicts

    def break_point(self, series: Series, protocol: str) -> BreakPoint:
        """Return the break point of a series by the rule of `find_break_point`, as in tables."""
        return find_break_point(self._records_by_length(series, protocol), self.length)

    def _records_by_length(self, series: Series, protocol: str) -> dict[int, Record]:
        """Return the records of `_make_records`, which are computed once for each series and protocol."""
        key = (series, protocol)
        if key not in self._records:
            self._records[key] = self._make_records(series, protocol)
        return self._records[key]

    def _make_records(self, series: Series, protocol: str) -> dict[int, Record]:
        """Compute the record of a series at each length, the shortest first."""
        rows = self._rows_of(series, protocol)
        trained = [row for row in self.as_trained(series) if row.protocol == protocol]
        first = [row for row in trained if row.length == self.length]
        table_rows = TableRows(rows, rows, rank_sets(rows), self._runs, MARGIN, self.length)
        records = {}
        for length, rows_at in sorted(grouped(rows, lambda row: row.length).items()):
            records[length] = make_record(rows_at, first, {}, table_rows, has_verdict=True)
        return records

    def difference_of_levels(self, claim: Claim, length: int) -> Number:
        """Return the level of the first series minus the level of the second, seed by seed."""
        of, than = series_of(claim)
        first = self.rows_at(of, length, claim.protocol)
        second = self.rows_at(than, length, claim.protocol)
        return mean_difference(pairs_of(first, second, BY_SEED), self._runs, NOT_SCORED)

    def difference_of_changes(self, claim: Claim, length: int) -> Number:
        """Return the first series' change minus the second's, seed by seed, on the same targets."""
        of, than = series_of(claim)
        ours = self._by_seed_and_targets(self.changes(of, length, claim.protocol))
        theirs = self._by_seed_and_targets(self.changes(than, length, claim.protocol))
        shared = sorted(ours.keys() & theirs.keys())
        chosen = largest_set([ours[key][0] for key in shared])
        keys = [key for key in shared if key[1] == chosen]
        if not keys:
            return Number(missing=NOT_SCORED)
        first = [ours[key] for key in keys]
        second = [theirs[key] for key in keys]
        return difference_of_changes(first, second, self._runs)

    @staticmethod
    def _by_seed_and_targets(changes: Iterable[Pair]) -> dict[tuple[int, str], Pair]:
        """Return the changes by the seed of their runs and the hash of their targets."""
        return {(row.seed, row.target_hash): (row, first) for row, first in changes}

    def gain(self, series: Series, length: int, *kinds: tuple[str, str]) -> Number:
        """Return the level in some windows minus the level in others, run by run.

        kinds: the protocol and the control of the first windows, then of the second.
        """
        first, second = (self.rows_at(series, length, *kind) for kind in kinds)
        return mean_difference(pairs_of(first, second), self._runs, NOT_SCORED)

    def task_result(self, series: Series, length: int) -> tuple[Interval, TaskVerdict] | None:
        """Return the share of a task's right examples, and the verdict on the task; None without a score."""
        rows = self.rows_at(series, length, TASK)
        if not rows:
            return None
        answers, *_ = answers_of(rows, self._runs)
        return answers.exact, judge_answers(answers)

    def restored_share(self, series: Series, change: str, length: int) -> Number:
        """Return the share of the loss at `length` that a change of all layers restores: 1 for all of it.

        The loss is the level at `length` minus the level at the training length. change: such as `window`.
        """
        for shares in self._restored_shares:
            label, sweep = shares.series
            if sweep == series.sweep and series.label in ("", label):
                return shares.share(change, length)
        return Number(missing=NOT_SCORED)


@dataclass(frozen=True)
class Judged:
    """A claim with its outcome by our runs, and the number that decides it."""

    claim: Claim
    length: int  # the length in the claim
    outcome: Outcome
    measured: Number  # its `missing` is the reason for no interval, or why the interval decides nothing
    decided_at: int  # the length of `measured`
    # The break point of each encoding, for claims about breaking.
    works_to: Mapping[str, BreakPoint] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the claim as a sentence."""
        claim = self.claim
        of, than = series_of(claim)
        since = round(self.length / claim.at * claim.since)
        return claim.as_sentence(str(of), str(than), f"{self.length:,}", f"{since:,}")

    @property
    def evidence(self) -> str:
        """Return the measured difference with its interval, and the lengths that the encodings work to."""
        parts = [self._measured_text]
        for name, point in self.works_to.items():
            if point.works_to is not None:
                parts.append(f"{name} {point.predicate}")
        return "; ".join(parts)

    @property
    def _measured_text(self) -> str:
        interval = self.measured.interval
        missing = self.measured.missing
        if interval is None:
            return missing or "no interval"
        quantity = CLAIM_KINDS[self.claim.kind][1]
        if self.decided_at != self.length:
            quantity += f" at {self.decided_at:,}"
        bounds = f"[{interval.low:+.3f}, {interval.high:+.3f}]"
        text = f"{quantity} {interval.mean:+.3f} {bounds}, seeds: {interval.seeds}"
        return f"{text}: {missing}" if missing else text


def judge_claim(claim: Claim, scores: StudyScores) -> Judged:
    """Return a claim with its outcome by our runs.

    The outcome is unclear if the claim lacks scores, or if one of its encodings has not learned.
    """
    length = round(claim.at * scores.length)
    if claim.protocol != TASK or length > scores.length:  # a claim may be about whether a task is learned
        for series in dict.fromkeys(series_of(claim)):
            # A later stage had learned before: its level shows how much of it is left.
            is_judged = claim.kind in KINDS_OF_LEVELS and scores.is_later_stage(series)
            reason = "" if is_judged else scores.unlearned(series)
            if reason:
                missing = Number(missing=f"{series} has {reason}")
                return Judged(claim, length, "unclear", missing, length)
    judges = {"holds": _judge_holding, "breaks_first": _judge_first_break}
    judges |= dict.fromkeys(("solves", "misses"), _judge_solution)
    judges["reads_far"] = _judge_reading
    judge = judges.get(claim.kind, _judge_difference)
    outcome, measured, decided_at = judge(claim, scores, length)
    if claim.kind in NEGATED_KINDS:
        outcome = OPPOSITE[outcome]
    judged = Judged(claim, length, outcome, measured, decided_at)
    if claim.kind not in KINDS_OF_BREAKING or claim.protocol == TASK:
        return judged
    points = {str(series): scores.break_point(series, claim.protocol) for series in series_of(claim)}
    return replace(judged, works_to=points)


def series_of(claim: Claim) -> tuple[Series, Series]:
    """Return the two series of a claim: its subject, and the series that it is compared with."""
    of = Series(claim.of, claim.sweep)
    return of, Series(claim.than or claim.of, claim.than_sweep or claim.sweep)


def _judge_difference(claim: Claim, scores: StudyScores, length: int) -> Judgement:
    """Judge a claim by one difference; a claim of a kind in `NEGATED_KINDS` is judged as its opposite."""
    series, _ = series_of(claim)
    if claim.kind in KINDS_OF_LEVELS:
        measured = scores.difference_of_levels(claim, length)
    elif claim.kind == "loses_less":
        measured = scores.difference_of_changes(claim, length)
    elif claim.kind == "early_tokens":  # late ones would score better in nonoverlapping windows
        measured = scores.gain(series, length, *((windows, "none") for windows in WINDOW_PROTOCOLS))
    elif claim.kind in KINDS_OF_RESTORING:
        measured = scores.restored_share(series, claim.change, length)
    elif claim.kind in ("reads_past_window", "stays_in_window"):
        measured = scores.gain(series, length, ("paired", "window"), ("paired", "none"))
    else:  # falls, rises, breaks, changes_by
        since = round(claim.since * scores.length)
        measured = scores.change(series, length, claim.protocol, since=since)
    return _outcome_by_interval(claim, measured.interval), measured, length


def _outcome_by_interval(claim: Claim, interval: Interval | None) -> Outcome:
    """Return the outcome of a claim about one difference, from the difference's interval."""
    if interval is None:
        return "unclear"
    if claim.kind in ("reads_past_window", "stays_in_window"):
        return OUTCOME_OF_GAIN[judge_gain_over_control(interval)]
    if claim.kind == "alike":
        return _judge_between(interval, -ALIKE_BITS, ALIKE_BITS)
    if claim.kind == "changes_by":
        return _judge_between(interval, claim.low, claim.high)
    if claim.kind in KINDS_OF_RESTORING:
        return _judge_below(interval, HALF_OF_LOSS)
    outcome = _judge_below(interval, MARGIN if claim.kind == "breaks" else 0.0)
    more_is_better = claim.kind == "order" and claim.protocol == TASK
    return OPPOSITE[outcome] if more_is_better else outcome


def _judge_below(interval: Interval, bound: float) -> Outcome:
    """Return the outcome of the claim that a difference is below a bound.

    It holds, or is contradicted, if the whole interval lies on one side; infinite ends count too.
    """
    if interval.high < bound:
        return "holds"
    return "contradicted" if interval.low > bound else "unclear"


def _judge_between(interval: Interval, low: float | None, high: float | None) -> Outcome:
    """Return the outcome of the claim that a difference lies between two bounds; None for no bound."""
    outcomes_of_bounds: set[Outcome] = set()
    if low is not None:
        outcomes_of_bounds.add(OPPOSITE[_judge_below(interval, low)])
    if high is not None:
        outcomes_of_bounds.add(_judge_below(interval, high))
    if "contradicted" in outcomes_of_bounds:
        return "contradicted"
    return "unclear" if "unclear" in outcomes_of_bounds else "holds"


def _judge_holding(claim: Claim, scores: StudyScores, length: int) -> Judgement:
    """Judge whether a series holds at all lengths up to `length`.

    The deciding length is the first at which the series degrades or fails, else the first at which it does
    not surely hold, else `length`.
    """
    series, _ = series_of(claim)
    all_verdicts = scores.verdicts(series, claim.protocol)
    verdicts = {at: verdict for at, verdict in all_verdicts.items() if at <= length}
    broken = breaks_at(verdicts)
    unsure = next((at for at, verdict in verdicts.items() if verdict not in HELD_VERDICTS), None)
    decided_at = length
    outcome: Outcome = "unclear"
    if length in verdicts:
        decided_at = broken or unsure or length
        outcome = "unclear" if unsure else "holds"
        if broken:
            outcome = "contradicted"
    return outcome, scores.change(series, decided_at, claim.protocol), decided_at


def _judge_first_break(claim: Claim, scores: StudyScores, length: int) -> Judgement:
    """Judge whether the claim's first series breaks before its second series.

    It does at a length at which it surely breaks while the second surely holds; the opposite contradicts the
    claim. Without such lengths, or with lengths of both kinds, the claim stays unclear. The number is of the
    first deciding length.
    """
    first, second = (scores.verdicts(series, claim.protocol) for series in series_of(claim))
    earlier = _lengths_of_break(first, second)
    later = _lengths_of_break(second, first)
    if bool(earlier) is bool(later):
        return "unclear", Number(missing=UNDECIDED), length
    decided_at = min(earlier | later)
    measured = scores.difference_of_changes(claim, decided_at)
    return "holds" if earlier else "contradicted", measured, decided_at


def _lengths_of_break(broken: Mapping[int, str], held: Mapping[int, str]) -> set[int]:
    """Return the lengths at which one series breaks while the other holds, from the verdicts of both."""
    both = broken.keys() & held.keys()
    return {length for length in both if broken[length] in BROKEN_VERDICTS and held[length] in HELD_VERDICTS}


def _judge_reading(claim: Claim, scores: StudyScores, length: int) -> Judgement:
    """Judge whether far text is used, by `judge_context`.

    The number is the rise of the level when another document's text replaces the far text.
    """
    use = scores.context_use(series_of(claim)[0], length)
    if use is None or use.swap_gain is None:
        return "unclear", Number(missing=use.missing if use else NOT_SCORED), length
    measured = Number(use.swap_gain.mean, use.swap_gain, use.missing)
    return OUTCOME_OF_GAIN.get(use.uses_context, "unclear"), measured, length


def _judge_solution(claim: Claim, scores: StudyScores, length: int) -> Judgement:
    """Judge whether a task is solved at `length`, by `judge_answers`.

    At the training length, a miss contradicts the claim only if some encoding of the sweep solves the task.
    """
    answers = scores.task_result(series_of(claim)[0], length)
    if answers is None:
        return "unclear", Number(missing=NOT_SCORED), length
    interval, verdict = answers
    measured = Number(interval.mean, interval)
    if verdict in ("unclear", "solves"):
        return "unclear" if verdict == "unclear" else "holds", measured, length
    if length > scores.length:
        return "contradicted", measured, length
    for label in scores.labels(claim.sweep):
        trained = scores.task_result(Series(label, claim.sweep), scores.length)
        if trained is not None and trained[1] == "solves":
            return "contradicted", measured, length
    return "unclear", Number(interval.mean, interval, UNSOLVED), length
