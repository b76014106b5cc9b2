"""A paper's claims against what a study measured: each holds, is contradicted, or stays unclear.

All follow from 95 % intervals of paired differences by the rules of statistics.py. A claim is judged alone:
with twenty of them, one is judged wrongly by chance.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from pe_bench.report.lines import make_record, unlearned
from pe_bench.report.pairs import BY_SEED, ScoreFiles, has_number, paired, paired_changes, pairs_of
from pe_bench.report.records import Paired, Unlearned, label_of
from pe_bench.report.statistics import (
    MARGIN,
    Interval,
    Verdict,
    breaks_at,
    holds_up_to,
    judge_change,
    judge_gain_over_control,
)
from pe_bench.report.verdicts import TaskVerdict, judge_answers
from pe_bench.runs.folder import folders_in
from pe_bench.runs.gather import read_anchors, runs_folder
from pe_bench.runs.rows import TASK, Row
from pe_bench.studies.study import ALIKE, KINDS, OF_TASK, WINDOWS, Claim, Measure, Step

Outcome = Literal["contradicted", "holds", "unclear"]
OPPOSITE: dict[Outcome, Outcome] = {"holds": "contradicted", "contradicted": "holds", "unclear": "unclear"}
GAINS: dict[str, Outcome] = {"yes": "holds", "no": "contradicted", "unclear": "unclear"}
OPPOSED = ("rises", "breaks", "early_tokens", "stays_in_window", "misses")  # say that another kind is wrong
UNLEARNED: dict[Unlearned, str] = {
    "frequencies": "not learned: at the training length no better than token frequencies",
    "trigram": "not learned yet: at the training length worse than a trigram",
    "task": "not learned: the task is not solved at the training length",
}
NOT_SCORED = Paired(None, None, "not scored")
UNDECIDED = "no length where one surely breaks and the other surely holds"
UNSOLVED = "no encoding solves it at the training length: the training may be too short"
CODE_VERSION = re.compile("@[0-9a-f]{4}")  # in labels


class Series(NamedTuple):
    """An encoding of a sweep, by the name that tables give it; without a name, as it was trained."""

    label: str
    sweep: str = ""

    def __str__(self) -> str:
        return f"{self.label} ({self.sweep})" if self.label and self.sweep else self.label or self.sweep

    def has(self, row: Row) -> bool:
        """Return whether a row is of the series; the version of a user's own encoding need not be named."""
        label = label_of(row)
        names = (label, CODE_VERSION.sub("", label))
        return self.label in names if self.label else row.scored_with == row.encoding


class Measurements:
    """The scores that the steps of a study made. All lengths are in tokens.

    A run may also have scores that other studies or its owner asked for. They are left out, so that the
    answers do not depend on what was scored before.
    """

    def __init__(self, results_dir: Path, steps: Iterable[Step]) -> None:
        folder_of = folders_in(runs_folder(results_dir))
        self._anchors = read_anchors(results_dir / "anchors")
        self._files = ScoreFiles(self._anchors.with_folders(folder_of))
        rows: dict[str, dict[tuple[str, ...], Row]] = {}
        for step in steps:
            keys = set(step.keys)
            of_step = (row for run in step.runs for row in folder_of(run).rows if row.key in keys)
            rows.setdefault(step.sweep, {}).update((row.key, row) for row in of_step)
        # All rows of each sweep that a step asked for, those of controls included.
        self.rows = {sweep: list(of_sweep.values()) for sweep, of_sweep in rows.items()}

    @property
    def length(self) -> int:
        """Return the training length of the study, which is that of its first sweep."""
        return next(row.train_length for rows in self.rows.values() for row in rows)

    def at(self, series: Series, length: int, protocol: str, control: str = "none") -> list[Row]:
        """Return the rows of a series at one length; those of a failed score are left out."""
        return [
            row
            for row in self.rows.get(series.sweep, [])
            if (row.length, row.protocol, row.control) == (length, protocol, control)
            and series.has(row)
            and has_number(row)
        ]

    def as_trained(self, series: Series) -> list[Row]:
        """Return the rows of a series' runs under the encoding that they were trained with."""
        rows = self.rows.get(series.sweep, [])
        runs = {row.run for row in rows if series.has(row)}
        trained = [row for row in rows if row.run in runs and row.scored_with == row.encoding]
        return [row for row in trained if row.control == "none"]

    def unlearned(self, series: Series) -> Unlearned:
        """Return why a series counts as not learned at its training length; empty if it has learned.

        A model that knows nothing holds, and breaks after all others.
        """
        rows = [row for row in self.as_trained(series) if row.protocol in ("paired", TASK)]
        return unlearned(rows, self._anchors, self._files)

    def changes(self, series: Series, length: int, protocol: str) -> list[tuple[Row, Row]]:
        """Return rows with those of the study's training length, of runs scored as they were trained."""
        trained = [row for row in self.as_trained(series) if row.length == self.length]
        trained = [row for row in trained if row.protocol == protocol]
        return pairs_of(self.at(series, length, protocol), trained)

    def verdicts(self, series: Series, protocol: str) -> dict[int, Verdict]:
        """Return the verdicts on the changes beyond the training length that have an interval."""
        lengths = {row.length for row in self.rows.get(series.sweep, []) if row.length > self.length}
        changes = {length: self.paired(self.changes(series, length, protocol)) for length in sorted(lengths)}
        return {length: judge_change(each.interval) for length, each in changes.items() if each.interval}

    def difference(self, first: Series, second: Series, length: int, protocol: str, of: Measure) -> Paired:
        """Return the level, or the change, of the first minus that of the second, seed by seed."""
        if of == "level":
            rows, others = (self.at(one, length, protocol) for one in (first, second))
            return self.paired(pairs_of(rows, others, BY_SEED))
        changes = (self.changes(series, length, protocol) for series in (first, second))
        ours, theirs = ({pair[0].seed: pair for pair in pairs} for pairs in changes)
        seeds = sorted(ours.keys() & theirs.keys())
        if not seeds:
            return NOT_SCORED
        return paired_changes([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds], self._files)

    def answers(self, series: Series, length: int) -> tuple[Interval, TaskVerdict] | None:
        """Return the share of a task's examples that are right, and the verdict on it; None without any."""
        rows = self.at(series, length, TASK)
        answers = make_record(rows, [], self._files).answers if rows else None
        return answers and (answers.intervals.exact, judge_answers(answers.intervals, answers.chance))

    def paired(self, pairs: Sequence[tuple[Row, Row]]) -> Paired:
        return paired(pairs, self._files, NOT_SCORED.missing)


@dataclass(frozen=True)
class Judged:
    """A claim with what our runs say of it.

    length: the length in the claim. decided_at: the length of what was measured, which says why it has no
    interval, or why that decides nothing.
    """

    claim: Claim
    length: int
    outcome: Outcome
    measured: Paired
    decided_at: int

    def __str__(self) -> str:
        """Return the claim as a sentence."""
        claim, (of, than) = self.claim, series_of(self.claim)
        sentence, first = KINDS[claim.kind][0], f"{round(self.length / claim.at):,}"
        if claim.kind == "order" and claim.measure == "change":
            sentence = "{of} loses less than {than} from its training length to {at}"
        windows = f" ({claim.protocol} windows)" if claim.protocol in WINDOWS else ""
        return sentence.format(of=of, than=than, at=f"{self.length:,}", first=first) + windows

    @property
    def evidence(self) -> str:
        """Return what was measured, with its interval."""
        interval, missing = self.measured.interval, self.measured.missing
        if interval is None:
            return missing or "no interval"
        where = f" at {self.decided_at:,}" if self.decided_at != self.length else ""
        reason = f": {missing}" if missing else ""
        bounds = f"[{interval.low:+.3f}, {interval.high:+.3f}], {count_of(interval.seeds, 'seed')}"
        return f"{KINDS[self.claim.kind][1]}{where} {interval.mean:+.3f} {bounds}{reason}"


def judge_claim(claim: Claim, scores: Measurements) -> Judged:
    """Return what our runs say of a claim; unclear where they do not have its scores."""
    length = round(claim.at * scores.length)
    if claim.protocol != TASK or length > scores.length:  # a claim may be about whether a task is learned
        for series in dict.fromkeys(series_of(claim)):
            if reason := scores.unlearned(series):
                unclear = Paired(None, None, f"{series} has {UNLEARNED[reason]}")
                return Judged(claim, length, "unclear", unclear, length)
    judge = {"holds": _judge_holding, "breaks_first": _judge_first_break}.get(claim.kind, _judge_sign)
    judged = (_judge_solution if claim.kind in OF_TASK else judge)(claim, scores, length)
    return replace(judged, outcome=OPPOSITE[judged.outcome]) if claim.kind in OPPOSED else judged


def series_of(claim: Claim) -> tuple[Series, Series]:
    """Return what a claim is of, and what it compares that with."""
    return Series(claim.of, claim.sweep), Series(*claim.second)


def _judge_sign(claim: Claim, scores: Measurements, length: int) -> Judged:
    """Judge a claim by the sign of one difference; of a claim in `OPPOSED`, the one that says otherwise."""
    kind, protocol, (of, than) = claim.kind, claim.protocol, series_of(claim)
    if kind in ("order", "alike"):
        measured = scores.difference(of, than, length, protocol, claim.measure)
    elif kind == "early_tokens":  # late ones would score better in nonoverlapping windows
        early, late = (scores.at(of, length, windows) for windows in WINDOWS)
        measured = scores.paired(pairs_of(early, late))
    elif kind in ("reads_past_window", "stays_in_window"):
        within, all_keys = (scores.at(of, length, "paired", control) for control in ("window", "none"))
        measured = scores.paired(pairs_of(within, all_keys))
    else:  # falls, rises, breaks
        measured = scores.paired(scores.changes(of, length, protocol))
    return Judged(claim, length, _outcome(claim, measured.interval), measured, length)


def _outcome(claim: Claim, interval: Interval | None) -> Outcome:
    kind = claim.kind
    if interval is None or math.isnan(interval.low) or math.isnan(interval.high):
        return "unclear"
    if kind in ("reads_past_window", "stays_in_window"):
        return GAINS[judge_gain_over_control(interval)]
    if kind == "alike":
        sides = {_below(interval, ALIKE), OPPOSITE[_below(interval, -ALIKE)]}
        return "contradicted" if "contradicted" in sides else "unclear" if "unclear" in sides else "holds"
    outcome = _below(interval, MARGIN if kind == "breaks" else 0.0)
    more_is_better = kind == "order" and claim.protocol == TASK
    return OPPOSITE[outcome] if more_is_better else outcome


def _below(interval: Interval, bound: float) -> Outcome:
    """Return whether a difference is surely below a bound; infinite ones are sure where both ends are."""
    if interval.high < bound:
        return "holds"
    return "contradicted" if interval.low > bound else "unclear"


def _judge_holding(claim: Claim, scores: Measurements, length: int) -> Judged:
    """Decide at the first length that surely breaks, or does not surely hold, if there is one."""
    series, _ = series_of(claim)
    verdicts = scores.verdicts(series, claim.protocol)
    if length not in verdicts:
        return Judged(
            claim, length, "unclear", scores.paired(scores.changes(series, length, claim.protocol)), length
        )
    verdicts = {scored: verdict for scored, verdict in verdicts.items() if scored <= length}
    broken, held = breaks_at(verdicts), holds_up_to(verdicts)
    unsure = min((scored for scored in verdicts if held is None or scored > held), default=None)
    decided_at = broken or unsure or length
    outcome: Outcome = "contradicted" if broken else "unclear" if unsure else "holds"
    measured = scores.paired(scores.changes(series, decided_at, claim.protocol))
    return Judged(claim, length, outcome, measured, decided_at)


def _judge_first_break(claim: Claim, scores: Measurements, length: int) -> Judged:
    """Decide at the first length at which one of two surely breaks while the other surely holds.

    Where the two change places there is none.
    """
    series = series_of(claim)
    first, second = (scores.verdicts(one, claim.protocol) for one in series)
    earlier, later = _breaks_where_other_holds(first, second), _breaks_where_other_holds(second, first)
    if bool(earlier) is bool(later):
        return Judged(claim, length, "unclear", Paired(None, None, UNDECIDED), length)
    decided_at = min(earlier | later)
    measured = scores.difference(*series, decided_at, claim.protocol, "change")
    return Judged(claim, length, "holds" if earlier else "contradicted", measured, decided_at)


def _breaks_where_other_holds(verdicts: Mapping[int, str], other: Mapping[int, str]) -> set[int]:
    broken = {length for length, verdict in verdicts.items() if verdict in ("degrades", "fails")}
    return broken & {length for length, verdict in other.items() if verdict in ("holds", "improves")}


def _judge_solution(claim: Claim, scores: Measurements, length: int) -> Judged:
    """Decide whether a task is solved, by the rules of verdicts.py."""
    answers = scores.answers(series_of(claim)[0], length)
    if answers is None:
        return Judged(claim, length, "unclear", NOT_SCORED, length)
    (interval, verdict), missing = answers, ""
    outcome: Outcome = "unclear" if verdict == "unclear" else "contradicted"
    outcome = "holds" if verdict == "solves" else outcome
    if outcome == "contradicted" and length <= scores.length:
        labels = {label_of(row) for row in scores.rows.get(claim.sweep, [])}
        trained = [scores.answers(Series(label, claim.sweep), scores.length) for label in labels]
        if not any(answers and answers[1] == "solves" for answers in trained):
            outcome, missing = "unclear", UNSOLVED
    return Judged(claim, length, outcome, Paired(interval.mean, interval, missing), length)


def count_of(count: int, name: str) -> str:
    return f"1 {name}" if count == 1 else f"{count} {name}s"
