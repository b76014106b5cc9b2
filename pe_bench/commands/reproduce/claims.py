"""A paper's claims against what a study measured: each holds, is contradicted, or stays unclear.

All follow from 95 % intervals of paired differences by the rules of statistics.py. A claim is judged alone:
with twenty of them, one is judged wrongly by chance.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from pe_bench.commands.reproduce.papers import ALIKE, KINDS, OF_LEVELS, WINDOWS, Claim
from pe_bench.commands.reproduce.study import Step
from pe_bench.config.schema import quarter_of
from pe_bench.report.records import BreakPoint, ContextUse, Paired, Record, Unlearned, label_of
from pe_bench.report.statistics import (
    MARGIN,
    Interval,
    Verdict,
    breaks_at,
    judge_change,
    judge_gain_over_control,
)
from pe_bench.report.verdicts import (
    TaskVerdict,
    answers_of,
    find_break_point,
    judge_answers,
    judge_context,
    judge_intervals,
    paired,
    paired_changes,
    pairs_of,
    unlearned,
    why_open_within,
)
from pe_bench.runs.find import ScoredRuns, read_anchors
from pe_bench.runs.folder import folders_in
from pe_bench.runs.rows import ALL, BY_SEED, TASK, Row, has_number

Outcome = Literal["contradicted", "holds", "unclear"]
Judgement = tuple[Outcome, Paired, int]  # what was measured, and the length that decides
OPPOSITE: dict[Outcome, Outcome] = {"holds": "contradicted", "contradicted": "holds", "unclear": "unclear"}
GAINS: dict[str, Outcome] = {"yes": "holds", "no": "contradicted", "unclear": "unclear"}
OPPOSED = ("rises", "breaks", "early_tokens", "stays_in_window", "misses")  # say that another kind is wrong
OF_BREAKING = ("holds", "breaks", "breaks_first")  # whose evidence also says how far encodings work
BROKEN, HELD = ("degrades", "fails"), ("holds", "improves")
UNLEARNED: dict[Unlearned, str] = {
    "frequencies": "not learned: at the training length no better than token frequencies",
    "trigram": "not learned yet: at the training length worse than a trigram",
    "task": "not learned: the task is not solved at the training length",
}
NOT_SCORED = "not scored"
UNDECIDED = "no length where one surely breaks and the other surely holds"
UNSOLVED = "no encoding solves it at the training length: the training may be too short"


class Series(NamedTuple):
    """An encoding of a sweep, by the name that tables give it; without a name, as it was trained."""

    label: str
    sweep: str = ""

    def __str__(self) -> str:
        if self.label and self.sweep:
            return f"{self.label} ({self.sweep})"
        return self.label or self.sweep

    def has(self, row: Row) -> bool:
        return self.label == label_of(row) if self.label else row.scored_with == row.encoding


class Scores(Protocol):
    """The scores that judge claims: the rows of a study's runs, or the levels of its table."""

    length: int

    def labels(self, sweep: str) -> set[str]: ...
    def unlearned(self, series: Series) -> str: ...
    def is_later_stage(self, series: Series) -> bool: ...
    def change(self, series: Series, length: int, protocol: str, *, since: int = 0) -> Paired: ...
    def context_use(self, series: Series, length: int) -> ContextUse | None: ...
    def verdicts(self, series: Series, protocol: str) -> dict[int, Verdict]: ...
    def break_point(self, series: Series, protocol: str) -> BreakPoint: ...
    def difference_of_levels(self, claim: Claim, length: int) -> Paired: ...
    def difference_of_changes(self, claim: Claim, length: int) -> Paired: ...
    def gain(self, series: Series, length: int, *kinds: tuple[str, str]) -> Paired: ...
    def answers(self, series: Series, length: int) -> tuple[Interval, TaskVerdict] | None: ...


class Measurements:
    """The scores that the steps of a study made. All lengths are in tokens.

    A run may also have scores that other studies or its owner asked for. They are left out, so that the
    answers do not depend on what was scored before.
    """

    def __init__(self, results_dir: Path, steps: Iterable[Step]) -> None:
        folder_of = folders_in(results_dir / "runs")
        self._runs = ScoredRuns(folder_of, read_anchors(results_dir / "anchors"))
        rows: dict[str, dict[tuple[str, ...], Row]] = {}
        for step in steps:
            rows_by_key = rows.setdefault(step.sweep, {})
            for run in step.runs:
                rows_by_key |= {row.key: row for row in folder_of(run).rows if row.key in step.keys}
        # All rows of each sweep that a step asked for, those of controls included.
        self.rows = {sweep: list(rows_by_key.values()) for sweep, rows_by_key in rows.items()}
        # The training length of the study, which is that of its first sweep.
        self.length = next(chain.from_iterable(self.rows.values())).train_length

    def at(self, series: Series, length: int, protocol: str, control: str = "none") -> list[Row]:
        """Return the rows of a series at one length; those of a failed score are left out."""
        rows = [row for row in self.rows.get(series.sweep, []) if series.has(row) and has_number(row)]
        return [row for row in rows if (row.length, row.protocol, row.control) == (length, protocol, control)]

    def as_trained(self, series: Series) -> list[Row]:
        """Return the rows of a series' runs under the encoding that they were trained with."""
        rows = self.rows.get(series.sweep, [])
        runs = {row.run for row in rows if series.has(row)}
        trained = [row for row in rows if row.run in runs and row.scored_with == row.encoding]
        return [row for row in trained if row.control == "none"]

    def unlearned(self, series: Series) -> str:
        """Return why a series counts as not learned at its training length; empty if it has learned.

        A model that knows nothing would hold, and break after all others. A later stage is compared with the
        n-grams of its first stage's training tokens.
        """
        rows = [row for row in self.as_trained(series) if row.protocol in ("paired", TASK)]
        row_of = {row.run: row for row in chain.from_iterable(self.rows.values())}
        counted_on = {}
        for row in rows:
            first = self._runs.folder_of(row.run).first_stage
            if first is not None and first.run in row_of:
                counted_on[row.run] = row_of[first.run]
        reason = unlearned(rows, self._runs, counted_on)
        return reason and UNLEARNED[reason]

    def is_later_stage(self, series: Series) -> bool:
        return any(self._runs.folder_of(row.run).first_stage for row in self.as_trained(series))

    def labels(self, sweep: str) -> set[str]:
        """Return the names that tables give the encodings of a sweep."""
        return {label_of(row) for row in self.rows.get(sweep, [])}

    def changes(self, series: Series, length: int, protocol: str, since: int = 0) -> list[tuple[Row, Row]]:
        """Return pairs of rows, at `length` and at `since`, of runs scored as they were trained.

        since: a length in tokens; 0 for the study's training length.
        """
        trained = [row for row in self.as_trained(series) if row.protocol == protocol]
        first = [row for row in trained if row.length == (since or self.length)]
        return pairs_of(self.at(series, length, protocol), first)

    def change(
        self, series: Series, length: int, protocol: str, part: str = ALL, *, since: int = 0
    ) -> Paired:
        """Return the change from `since` to `length`, of all targets or of a slice of the targets.

        since: a length in tokens; 0 for the study's training length.
        """
        changes = self.changes(series, length, protocol, since)
        if part != ALL:
            rows = list(chain.from_iterable(changes))
            row_of = {(row.run, row.length): row for row in self._runs.slice_rows(rows, part)}
            pairs = [
                (row_of.get((row.run, row.length)), row_of.get((first.run, first.length)))
                for row, first in changes
            ]
            changes = [(row, first) for row, first in pairs if row is not None and first is not None]
        return paired(changes, self._runs, NOT_SCORED)

    def context_use(self, series: Series, length: int) -> ContextUse | None:
        """Return the use of text beyond the training length by the controls; None without a score."""
        swaps = self.at(series, length, "paired", "swap")
        windows = self.at(series, length, "paired", "window")
        if not swaps and not windows:
            return None
        within = self.change(series, quarter_of(self.length), "paired")
        why_open = why_open_within(self.length, within, MARGIN)
        rows = self.at(series, length, "paired")
        trained = self.at(series, self.length, "paired")
        return judge_context(rows, [*swaps, *windows], trained, why_open, MARGIN, self._runs)

    def machines(self, rows: Iterable[Row]) -> str:
        """Return the processors or GPUs that the runs of rows were trained on."""
        return "; ".join(sorted({self._runs.folder_of(row.run).machine for row in rows} - {""}))

    def verdicts(self, series: Series, protocol: str) -> dict[int, Verdict]:
        """Return the verdicts on the changes beyond the training length that have an interval."""
        lengths = {row.length for row in self.rows.get(series.sweep, []) if row.length > self.length}
        changes = {length: self.change(series, length, protocol).interval for length in sorted(lengths)}
        return {length: judge_change(interval) for length, interval in changes.items() if interval}

    def break_point(self, series: Series, protocol: str) -> BreakPoint:
        """Return the break point of a series, by the rule of the tables."""
        rows = [row for row in self.rows.get(series.sweep, []) if series.has(row)]
        rows = [row for row in rows if (row.protocol, row.control) == (protocol, "none")]
        records: dict[int, Record] = {}
        for row in rows:
            is_trained = row.length == self.length and row.scored_with == row.encoding
            if row.length >= self.length and not is_trained and row.length not in records:
                records[row.length] = self._judged_record(series, row)
        return find_break_point(records, self.length)

    def _judged_record(self, series: Series, row: Row) -> Record:
        """Return the record of a series at the length and under the protocol of one of its rows."""
        if not self.at(series, row.length, row.protocol):
            return Record(row.length, row.status, verdict="undefined")
        change = self.change(series, row.length, row.protocol)
        verdicts = judge_intervals(judge_change, change.interval, change.of_models, change.of_seeds)
        return Record(row.length, compared=change, **verdicts)

    def difference_of_levels(self, claim: Claim, length: int) -> Paired:
        """Return the level of the first series minus that of the second, seed by seed."""
        first, second = (self.at(series, length, claim.protocol) for series in series_of(claim))
        return paired(pairs_of(first, second, BY_SEED), self._runs, NOT_SCORED)

    def difference_of_changes(self, claim: Claim, length: int) -> Paired:
        """Return the change of the first series minus that of the second, seed by seed."""
        first, second = series_of(claim)
        ours = {pair[0].seed: pair for pair in self.changes(first, length, claim.protocol)}
        theirs = {pair[0].seed: pair for pair in self.changes(second, length, claim.protocol)}
        seeds = sorted(ours.keys() & theirs.keys())
        if not seeds:
            return Paired(missing=NOT_SCORED)
        return paired_changes([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds], self._runs)

    def gain(self, series: Series, length: int, *kinds: tuple[str, str]) -> Paired:
        """Return the level of one protocol and control minus that of another."""
        first, second = (self.at(series, length, *kind) for kind in kinds)
        return paired(pairs_of(first, second), self._runs, NOT_SCORED)

    def answers(self, series: Series, length: int) -> tuple[Interval, TaskVerdict] | None:
        """Return the share of a task's examples that are right, and the verdict on it; None without any."""
        rows = self.at(series, length, TASK)
        if not rows:
            return None
        answers, *_ = answers_of(rows, self._runs)
        return answers.exact, judge_answers(answers)


@dataclass(frozen=True)
class Judged:
    """A claim with what our runs say of it.

    length: the length in the claim. decided_at: the length of what was measured, which says why it has no
    interval, or why that decides nothing. works_to: how far each encoding of a claim about breaking works.
    """

    claim: Claim
    length: int
    outcome: Outcome
    measured: Paired
    decided_at: int
    works_to: Mapping[str, BreakPoint] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the claim as a sentence."""
        claim = self.claim
        of, than = series_of(claim)
        first = f"{round(self.length / claim.at * claim.since):,}"
        return claim.say(str(of), str(than), f"{self.length:,}", first)

    @property
    def evidence(self) -> str:
        """Return the measured difference with its interval, and the lengths that the encodings work to."""
        judged = {name: point for name, point in self.works_to.items() if point.works_to is not None}
        works_to = [f"{name} {point.predicate}" for name, point in judged.items()]
        return "; ".join([self._measured_text, *works_to])

    @property
    def _measured_text(self) -> str:
        interval = self.measured.interval
        missing = self.measured.missing
        if interval is None:
            return missing or "no interval"
        quantity = KINDS[self.claim.kind][1]
        if self.decided_at != self.length:
            quantity += f" at {self.decided_at:,}"
        bounds = f"[{interval.low:+.3f}, {interval.high:+.3f}]"
        text = f"{quantity} {interval.mean:+.3f} {bounds}, seeds: {interval.seeds}"
        return f"{text}: {missing}" if missing else text


def judge_claim(claim: Claim, scores: Scores) -> Judged:
    """Return the outcome of a claim by our runs; it is unclear if they lack scores for the claim."""
    length = round(claim.at * scores.length)
    if claim.protocol != TASK or length > scores.length:  # a claim may be about whether a task is learned
        for series in dict.fromkeys(series_of(claim)):
            # A later stage had learned before: its level says how much of that is left.
            is_judged = claim.kind in OF_LEVELS and scores.is_later_stage(series)
            if not is_judged and (reason := scores.unlearned(series)):
                missing = Paired(missing=f"{series} has {reason}")
                return Judged(claim, length, "unclear", missing, length)
    judges = {"holds": _judge_holding, "breaks_first": _judge_first_break}
    judges |= dict.fromkeys(("solves", "misses"), _judge_solution)
    judges["reads_far"] = _judge_reading
    judge = judges.get(claim.kind, _judge_difference)
    outcome, measured, decided_at = judge(claim, scores, length)
    if claim.kind in OPPOSED:
        outcome = OPPOSITE[outcome]
    judged = Judged(claim, length, outcome, measured, decided_at)
    if claim.kind not in OF_BREAKING or claim.protocol == TASK:
        return judged
    points = {str(series): scores.break_point(series, claim.protocol) for series in series_of(claim)}
    return replace(judged, works_to=points)


def series_of(claim: Claim) -> tuple[Series, Series]:
    """Return the two series of a claim: the series it is about, and the series it is compared with."""
    return Series(claim.of, claim.sweep), Series(claim.than or claim.of, claim.than_sweep or claim.sweep)


def _judge_difference(claim: Claim, scores: Scores, length: int) -> Judgement:
    """Judge a claim by one difference; for one in `OPPOSED`, judge the opposite claim."""
    series, _ = series_of(claim)
    if claim.kind in OF_LEVELS:
        measured = scores.difference_of_levels(claim, length)
    elif claim.kind == "loses_less":
        measured = scores.difference_of_changes(claim, length)
    elif claim.kind == "early_tokens":  # late ones would score better in nonoverlapping windows
        measured = scores.gain(series, length, *((windows, "none") for windows in WINDOWS))
    elif claim.kind in ("reads_past_window", "stays_in_window"):
        measured = scores.gain(series, length, ("paired", "window"), ("paired", "none"))
    else:  # falls, rises, breaks, changes_by
        since = round(claim.since * scores.length)
        measured = scores.change(series, length, claim.protocol, since=since)
    return _outcome(claim, measured.interval), measured, length


def _outcome(claim: Claim, interval: Interval | None) -> Outcome:
    if interval is None:
        return "unclear"
    if claim.kind in ("reads_past_window", "stays_in_window"):
        return GAINS[judge_gain_over_control(interval)]
    if claim.kind == "alike":
        return _between(interval, -ALIKE, ALIKE)
    if claim.kind == "changes_by":
        return _between(interval, claim.low, claim.high)
    outcome = _below(interval, MARGIN if claim.kind == "breaks" else 0.0)
    more_is_better = claim.kind == "order" and claim.protocol == TASK
    return OPPOSITE[outcome] if more_is_better else outcome


def _below(interval: Interval, bound: float) -> Outcome:
    """Return whether a difference is surely below a bound; infinite ones are sure where both ends are."""
    if interval.high < bound:
        return "holds"
    return "contradicted" if interval.low > bound else "unclear"


def _between(interval: Interval, low: float | None, high: float | None) -> Outcome:
    """Return whether a difference surely lies between two bounds; None for no bound."""
    sides: set[Outcome] = set()
    if low is not None:
        sides.add(OPPOSITE[_below(interval, low)])
    if high is not None:
        sides.add(_below(interval, high))
    if "contradicted" in sides:
        return "contradicted"
    return "unclear" if "unclear" in sides else "holds"


def _judge_holding(claim: Claim, scores: Scores, length: int) -> Judgement:
    """Decide at the first length that surely breaks, or does not surely hold, if there is one."""
    series, _ = series_of(claim)
    verdicts = {at: said for at, said in scores.verdicts(series, claim.protocol).items() if at <= length}
    broken = breaks_at(verdicts)
    unsure = next((at for at, verdict in verdicts.items() if verdict not in HELD), None)
    decided_at = length
    outcome: Outcome = "unclear"
    if length in verdicts:
        decided_at = broken or unsure or length
        outcome = "unclear" if unsure else "holds"
        if broken:
            outcome = "contradicted"
    return outcome, scores.change(series, decided_at, claim.protocol), decided_at


def _judge_first_break(claim: Claim, scores: Scores, length: int) -> Judgement:
    """Decide at the first length at which one of two surely breaks while the other surely holds.

    Where the two change places there is none.
    """
    first, second = (scores.verdicts(series, claim.protocol) for series in series_of(claim))
    both = first.keys() & second.keys()
    earlier = {at for at in both if first[at] in BROKEN and second[at] in HELD}
    later = {at for at in both if second[at] in BROKEN and first[at] in HELD}
    if bool(earlier) is bool(later):
        return "unclear", Paired(missing=UNDECIDED), length
    decided_at = min(earlier | later)
    measured = scores.difference_of_changes(claim, decided_at)
    return "holds" if earlier else "contradicted", measured, decided_at


def _judge_reading(claim: Claim, scores: Scores, length: int) -> Judgement:
    """Decide by the rule of `uses context`; what is measured is what another document's far text costs."""
    use = scores.context_use(series_of(claim)[0], length)
    if use is None or use.swap_gain is None:
        return "unclear", Paired(missing=use.missing if use else NOT_SCORED), length
    measured = Paired(use.swap_gain.mean, use.swap_gain, use.missing)
    return GAINS.get(use.uses_context, "unclear"), measured, length


def _judge_solution(claim: Claim, scores: Scores, length: int) -> Judgement:
    """Decide whether a task is solved, by the rules of verdicts.py."""
    answers = scores.answers(series_of(claim)[0], length)
    if answers is None:
        return "unclear", Paired(missing=NOT_SCORED), length
    interval, verdict = answers
    measured = Paired(interval.mean, interval)
    if verdict in ("unclear", "solves"):
        return "unclear" if verdict == "unclear" else "holds", measured, length
    labels = scores.labels(claim.sweep)
    trained = [scores.answers(Series(label, claim.sweep), scores.length) for label in labels]
    if length > scores.length or any(each and each[1] == "solves" for each in trained):
        return "contradicted", measured, length
    return "unclear", Paired(interval.mean, interval, UNSOLVED), length
