"""A paper's claims against what a study measured: each holds, is contradicted, or stays unclear.

All follow from 95 % intervals of paired differences by the rules of statistics.py. A claim is judged alone:
with twenty of them, one is judged wrongly by chance.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from pe_bench.report.lines import make_record, unlearned
from pe_bench.report.measures import TaskVerdict, judge_answers
from pe_bench.report.pairs import (
    Paired,
    ScoreFiles,
    has_number,
    level_of,
    paired,
    paired_changes,
    pairs_by_run,
    pairs_by_seed,
)
from pe_bench.report.records import Unlearned, label_of
from pe_bench.report.statistics import (
    MARGIN,
    Bounds,
    Interval,
    Verdict,
    breaks_at,
    holds_up_to,
    judge_change,
    judge_gain_over_control,
    student_interval,
)
from pe_bench.runs.anchors import read_anchors
from pe_bench.runs.folder import folders_in
from pe_bench.runs.gather import runs_folder
from pe_bench.runs.rows import TASK, Row
from pe_bench.studies.study import MIN_RANKED, Claim, Kind, Measure, Ranking, RowKey, Step

Outcome = Literal["contradicted", "holds", "unclear"]
OPPOSITE: dict[Outcome, Outcome] = {"holds": "contradicted", "contradicted": "holds", "unclear": "unclear"}
UNLEARNED: dict[Unlearned, str] = {
    "frequencies": "not learned: at the training length no better than token frequencies",
    "trigram": "not learned yet: at the training length worse than a trigram",
    "task": "not learned: the task is not solved at the training length",
}
NOT_SCORED = Paired(None, None, "not scored")
UNDECIDED = "no length where one surely breaks and the other surely holds"
UNSOLVED = "no encoding solves it at the training length: the training may be too short"
WINDOWS = ("nonoverlapping", "sliding")
CODE_VERSION = re.compile("@[0-9a-f]{4}")  # in labels


class Series(NamedTuple):
    """An encoding, by the name that tables give it, in one sweep of a study."""

    label: str
    sweep: str = ""

    def __str__(self) -> str:
        return f"{self.label} ({self.sweep})" if self.sweep else self.label

    def has(self, row: Row) -> bool:
        """Return whether a row is of the series; the version of a user's own encoding need not be named."""
        label = label_of(row)
        return self.label in (label, CODE_VERSION.sub("", label))


class Measurements:
    """The scores that the steps of a study made. All lengths are in tokens.

    A run may also have scores that other studies or its owner asked for. They are left out, so that the
    answers do not depend on what was scored before.
    """

    def __init__(self, results_dir: Path, steps: Iterable[Step]) -> None:
        folder_of = folders_in(runs_folder(results_dir))
        self._anchors = read_anchors(results_dir / "anchors")
        self._files = ScoreFiles(self._anchors.with_folders(folder_of))
        runs: dict[str, dict[str, None]] = {}
        keys: dict[str, set[RowKey]] = {}
        for step in steps:
            runs.setdefault(step.sweep, {}).update(dict.fromkeys(step.runs))
            keys.setdefault(step.sweep, set()).update(step.keys)
        # All rows of each sweep, those of controls included.
        self.rows = {
            sweep: [row for name in names for row in folder_of(name).rows if row.key in keys[sweep]]
            for sweep, names in runs.items()
        }

    @property
    def length(self) -> int:
        """Return the training length."""
        return next(row.train_length for rows in self.rows.values() for row in rows)

    def at(self, series: Series, length: int, protocol: str, control: str = "none") -> list[Row]:
        """Return the rows of a series at one length; those of a failed score are left out."""
        rows = [row for row in self.rows.get(series.sweep, []) if series.has(row) and has_number(row)]
        return [row for row in rows if (row.length, row.protocol, row.control) == (length, protocol, control)]

    def as_trained(self, series: Series) -> list[Row]:
        """Return the rows of a series' runs under the encoding that they were trained with."""
        rows = self.rows.get(series.sweep, [])
        runs = {row.run for row in rows if series.has(row)}
        return [
            row
            for row in rows
            if row.run in runs and row.scored_with == row.encoding and row.control == "none"
        ]

    def unlearned(self, series: Series) -> Unlearned:
        """Return why a series counts as not learned at its training length; empty if it has learned.

        A model that knows nothing holds, and breaks after all others.
        """
        rows = [row for row in self.as_trained(series) if row.protocol in ("paired", TASK)]
        return unlearned(rows, self._anchors, self._files)

    def change(self, series: Series, length: int, protocol: str) -> Paired:
        """Return the change from the training length, where runs are scored as they were trained."""
        return self.paired(self._changes(series, length, protocol))

    def verdicts(self, series: Series, protocol: str) -> dict[int, Verdict]:
        """Return the verdicts on the changes beyond the training length that have an interval."""
        rows = [row for row in self.rows.get(series.sweep, []) if series.has(row) and has_number(row)]
        lengths = {row.length for row in rows if (row.protocol, row.control) == (protocol, "none")}
        changes = {
            length: self.change(series, length, protocol).interval
            for length in sorted(lengths)
            if length > self.length
        }
        return {length: judge_change(interval, MARGIN) for length, interval in changes.items() if interval}

    def difference(self, first: Series, second: Series, length: int, protocol: str, of: Measure) -> Paired:
        """Return the level, or the change, of the first minus that of the second, seed by seed."""
        if of == "level":
            rows = [self.at(series, length, protocol) for series in (first, second)]
            return self.paired(pairs_by_seed(*rows))
        ours, theirs = (
            {pair[0].seed: pair for pair in self._changes(series, length, protocol)}
            for series in (first, second)
        )
        seeds = sorted(ours.keys() & theirs.keys())
        if not seeds:
            return NOT_SCORED
        return paired_changes([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds], self._files)

    def answers(self, series: Series, length: int) -> tuple[Interval | None, TaskVerdict | None]:
        """Return the share of a task's examples that are right, and the verdict on it."""
        rows = self.at(series, length, TASK)
        answers = make_record(rows, [], self._files).answers if rows else None
        if answers is None:
            return None, None
        return answers.intervals.exact, judge_answers(answers.intervals, answers.chance)

    def by_seed(self, series: Series, length: int, of: Measure) -> dict[int, float]:
        """Return the level, or the change, of each seed."""
        if of == "level":
            return {row.seed: level_of(row) for row in self.at(series, length, "paired")}
        changes = self._changes(series, length, "paired")
        return {row.seed: level_of(row) - level_of(trained) for row, trained in changes}

    def paired(self, pairs: Sequence[tuple[Row, Row]]) -> Paired:
        return paired(pairs, self._files) if pairs else NOT_SCORED

    def _changes(self, series: Series, length: int, protocol: str) -> list[tuple[Row, Row]]:
        rows = self.at(series, length, protocol)
        trained = [
            row for row in self.as_trained(series) if (row.length, row.protocol) == (self.length, protocol)
        ]
        return pairs_by_run(rows, trained)


class Finding(NamedTuple):
    """What our runs say of a claim, and the difference that decides it, at the length that decides it."""

    outcome: Outcome
    measured: Paired
    length: int


@dataclass(frozen=True)
class Judged:
    """A claim with what our runs say of it.

    length: the length in the claim. decided_at: the length of `interval`. missing: why there is no interval,
    or why it decides nothing.
    """

    claim: Claim
    length: int
    outcome: Outcome
    interval: Interval | None
    decided_at: int
    missing: str = ""


def judge_claim(claim: Claim, scores: Measurements) -> Judged:
    """Return what our runs say of a claim; unclear where they do not have its scores."""
    length = round(claim.at * scores.length)
    if claim.protocol != TASK or length > scores.length:  # a claim may be about whether a task is learned
        for series in dict.fromkeys(_series(claim)):
            if reason := scores.unlearned(series):
                return Judged(claim, length, "unclear", None, length, f"{series} has {UNLEARNED[reason]}")
    finding = _KINDS[claim.kind].judge(claim, scores, length)
    measured = finding.measured
    return Judged(claim, length, finding.outcome, measured.interval, finding.length, measured.missing)


def _series(claim: Claim) -> tuple[Series, Series]:
    """Return what a claim is of, and what it compares that with."""
    second = Series(claim.than or claim.of, claim.than_sweep or claim.sweep)
    return Series(claim.of, claim.sweep), second


def _order(claim: Claim, scores: Measurements, length: int) -> Finding:
    """`of` is better than `than`."""
    measured = scores.difference(*_series(claim), length, claim.protocol, claim.measure)
    below = _below(measured.interval, 0.0)
    outcome = OPPOSITE[below] if claim.protocol == TASK else below  # of answers, more is better
    return Finding(outcome, measured, length)


def _falls(claim: Claim, scores: Measurements, length: int, bound: float = 0.0) -> Finding:
    """The change from the training length is below the bound."""
    measured = scores.change(_series(claim)[0], length, claim.protocol)
    return Finding(_below(measured.interval, bound), measured, length)


def _holds(claim: Claim, scores: Measurements, length: int) -> Finding:
    """Decide at the first length that surely breaks, or does not surely hold, if there is one."""
    series = _series(claim)[0]
    verdicts = {
        scored: verdict
        for scored, verdict in scores.verdicts(series, claim.protocol).items()
        if scored <= length
    }
    broken, held = breaks_at(verdicts), holds_up_to(verdicts)
    unsure = min((scored for scored in verdicts if held is None or scored > held), default=None)
    if length not in verdicts:
        return Finding("unclear", scores.change(series, length, claim.protocol), length)
    decided_at = broken or unsure or length
    outcome: Outcome = "contradicted" if broken else "unclear" if unsure else "holds"
    return Finding(outcome, scores.change(series, decided_at, claim.protocol), decided_at)


def _breaks_first(claim: Claim, scores: Measurements, length: int) -> Finding:
    """Decide at the first length at which one of two surely breaks while the other surely holds.

    Where the two change places there is none.
    """
    series = _series(claim)
    first, second = (scores.verdicts(one, claim.protocol) for one in series)
    earlier, later = _breaks_where_other_holds(first, second), _breaks_where_other_holds(second, first)
    if bool(earlier) is bool(later):
        return Finding("unclear", Paired(None, None, UNDECIDED), length)
    decided_at = min(earlier | later)
    measured = scores.difference(*series, decided_at, claim.protocol, "change")
    return Finding("holds" if earlier else "contradicted", measured, decided_at)


def _breaks_where_other_holds(verdicts: Mapping[int, str], other: Mapping[int, str]) -> set[int]:
    broken = {length for length, verdict in verdicts.items() if verdict in ("degrades", "fails")}
    return broken & {length for length, verdict in other.items() if verdict in ("holds", "improves")}


def _late_tokens(claim: Claim, scores: Measurements, length: int) -> Finding:
    """Nonoverlapping windows score better than sliding ones, whose targets have more context."""
    measured = scores.paired(
        pairs_by_run(*(scores.at(_series(claim)[0], length, protocol) for protocol in WINDOWS))
    )
    return Finding(_below(measured.interval, 0.0), measured, length)


def _reads_past_window(claim: Claim, scores: Measurements, length: int) -> Finding:
    """The level is better than with every layer limited to the training length."""
    rows = (scores.at(_series(claim)[0], length, "paired", control) for control in ("window", "none"))
    measured = scores.paired(pairs_by_run(*rows))
    if measured.interval is None:
        return Finding("unclear", measured, length)
    answers: dict[str, Outcome] = {"yes": "holds", "no": "contradicted", "unclear": "unclear"}
    return Finding(answers[judge_gain_over_control(measured.interval, MARGIN)], measured, length)


def _solves(claim: Claim, scores: Measurements, length: int) -> Finding:
    """A task is solved, by the rules of measures.py."""
    interval, verdict = scores.answers(_series(claim)[0], length)
    if interval is None or verdict is None:
        return Finding("unclear", NOT_SCORED, length)
    if verdict == "unclear":
        return Finding("unclear", Paired(interval.mean, interval, ""), length)
    if verdict != "solves" and length <= scores.length:
        labels = {label_of(row) for row in scores.rows.get(claim.sweep, [])}
        verdicts = [scores.answers(Series(label, claim.sweep), scores.length)[1] for label in labels]
        if "solves" not in verdicts:
            return Finding("unclear", Paired(interval.mean, interval, UNSOLVED), length)
    outcome: Outcome = "holds" if verdict == "solves" else "contradicted"
    return Finding(outcome, Paired(interval.mean, interval, ""), length)


def _below(interval: Interval | None, bound: float) -> Outcome:
    """Return whether a difference is surely below a bound; infinite ones are sure where both ends are."""
    if interval is None or math.isnan(interval.low) or math.isnan(interval.high):
        return "unclear"
    if interval.high < bound:
        return "holds"
    return "contradicted" if interval.low > bound else "unclear"


Judge = Callable[[Claim, Measurements, int], Finding]


def _opposite_of(judge: Judge) -> Judge:
    def judge_opposite(claim: Claim, scores: Measurements, length: int) -> Finding:
        finding = judge(claim, scores, length)
        return finding._replace(outcome=OPPOSITE[finding.outcome])

    return judge_opposite


class _Kind(NamedTuple):
    """How claims of a kind are judged, what they say, and what their interval is of."""

    judge: Judge
    sentence: str
    measured: str


_KINDS: dict[Kind, _Kind] = {
    "order": _Kind(_order, "{of} is better than {than} at {at}", "difference"),
    "falls": _Kind(_falls, "{of} is better at {at} than at its training length", "change"),
    "rises": _Kind(_opposite_of(_falls), "{of} is worse at {at} than at its training length", "change"),
    "holds": _Kind(_holds, "{of} holds up to {at}", "change"),
    "breaks": _Kind(_opposite_of(partial(_falls, bound=MARGIN)), "{of} degrades or fails at {at}", "change"),
    "breaks_first": _Kind(_breaks_first, "{of} breaks before {than}", "difference of the changes"),
    "early_tokens": _Kind(
        _opposite_of(_late_tokens),
        "{of} at {at}: nonoverlapping windows look worse than sliding ones",
        "nonoverlapping minus sliding",
    ),
    "reads_past_window": _Kind(
        _reads_past_window, "{of} at {at} gains from text beyond its training length", "gain over the window"
    ),
    "stays_in_window": _Kind(
        _opposite_of(_reads_past_window),
        "{of} at {at} gains nothing beyond its training length",
        "gain over the window",
    ),
    "solves": _Kind(_solves, "{of} solves examples of {at} tokens", "right"),
    "misses": _Kind(_opposite_of(_solves), "{of} does not solve examples of {at} tokens", "right"),
}


def sentence_of(judged: Judged) -> str:
    """Return a claim as a sentence."""
    claim = judged.claim
    sentence = _KINDS[claim.kind].sentence
    if claim.kind == "order" and claim.measure == "change":
        sentence = "{of} loses less than {than} from its training length to {at}"
    of, than = _series(claim)
    windows = f" ({claim.protocol} windows)" if claim.protocol in WINDOWS else ""
    return sentence.format(of=of, than=than, at=f"{judged.length:,}") + windows


def evidence_of(judged: Judged) -> str:
    """Return what was measured, with its interval."""
    if judged.interval is None:
        return judged.missing or "no interval"
    where = f" at {judged.decided_at:,}" if judged.decided_at != judged.length else ""
    reason = f": {judged.missing}" if judged.missing else ""
    interval = judged.interval
    bounds = f"{interval.mean:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}], {seeds(interval.seeds)}"
    return f"{_KINDS[judged.claim.kind].measured}{where} {bounds}{reason}"


def seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


@dataclass(frozen=True)
class Agreement:
    """Kendall's tau-b between our order and the paper's: 1 the same, -1 the reverse. bounds: over seeds."""

    ranking: Ranking
    length: int
    encodings: tuple[str, ...]
    seeds: int
    tau: float
    bounds: Bounds


def agreement(ranking: Ranking, scores: Measurements) -> Agreement | None:
    """Return the mean over seeds with its interval; None where it is undefined.

    It is undefined for fewer than four encodings. Encodings that have not learned are not ranked, because
    they have nothing to lose.
    """
    from scipy.stats import kendalltau  # imported here: it takes longer than a report

    length = round(ranking.at * scores.length)
    ours = {name: scores.by_seed(Series(name), length, ranking.measure) for name in ranking.numbers}
    ours = {name: numbers for name, numbers in ours.items() if numbers and not scores.unlearned(Series(name))}
    if len(ours) < MIN_RANKED:
        return None
    paper = [ranking.numbers[name] for name in ours]
    taus: list[float] = []
    for seed in sorted(set.intersection(*(set(numbers) for numbers in ours.values()))):
        result: Any = kendalltau(paper, [numbers[seed] for numbers in ours.values()])  # scipy has no types
        taus.append(float(result.statistic))
    if not taus or any(map(math.isnan, taus)):  # all of them equal
        return None
    low, high = student_interval(np.array(taus))
    bounds = max(-1.0, low), min(1.0, high)
    return Agreement(ranking, length, tuple(ours), len(taus), float(np.mean(taus)), bounds)
