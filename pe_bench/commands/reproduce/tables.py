"""Judge claims by a study's table, for a study without stored pieces.

A table has means over seeds and their standard deviations, and no pairs of scores. An interval is therefore
only over seeds (Student's t), and as wide as possible: the deviation of a difference is at most the sum of
the deviations. If such an interval decides a claim, the pairs would decide it too, unless documents differ
much more than seeds; many other claims stay unclear.
"""

import math
import re
from collections.abc import Sequence

from scipy.special import stdtrit

from pe_bench.commands.reproduce.claims import NOT_SCORED, UNLEARNED_REASONS, Series, series_of
from pe_bench.commands.reproduce.outcomes import LevelRow
from pe_bench.commands.reproduce.papers import Claim
from pe_bench.report.records import BreakPoint, ContextUse, Number
from pe_bench.report.statistics import CONFIDENCE, Interval, judge_change
from pe_bench.report.verdicts import SOLVED, TaskVerdict
from pe_bench.runs.rows import TASK

# In the label of a later stage, such as `rope, then yarn x4 at 512 (128k)`; lists in options have commas too.
LATER_STAGE = re.compile(r", (then|trained) ")
LATER_STAGE_REASON = "no score of an n-gram in the table, which would say whether it has learned"


class TableScores:
    """The levels of a study's table. length: the training length in tokens."""

    def __init__(self, levels: Sequence[LevelRow], length: int) -> None:
        self.length = length
        self._level_of = {self._key_of_level(level): level for level in levels}

    @staticmethod
    def _key_of_level(level: LevelRow) -> tuple[str, str, str, str, int]:
        names = ("sweep", "encoding", "protocol", "control")
        return *(level[name] for name in names), int(level["length"])  # type: ignore[return-value]

    def labels(self, sweep: str) -> set[str]:
        return {level["encoding"] for level in self._level_of.values() if level["sweep"] == sweep}

    def unlearned(self, series: Series) -> str:
        """Return the reason why a series counts as not learned; empty if it counts as learned.

        A first stage on text counts as learned, a later stage does not: a table has no level of an anchor.
        """
        answers = self.task_result(self._as_trained(series), self.length)
        if answers:
            return "" if answers[1] == "solves" else UNLEARNED_REASONS["task"]
        return LATER_STAGE_REASON if self.is_later_stage(series) else ""

    def is_later_stage(self, series: Series) -> bool:
        return LATER_STAGE.search(self._level_label(series)) is not None

    def change(self, series: Series, length: int, protocol: str, *, since: int = 0) -> Number:
        first = (self._as_trained(series), since or self.length, protocol)
        return self._difference_of_sums([(series, length, protocol)], [first])

    def context_use(self, series: Series, length: int) -> ContextUse | None:
        """Return None, because the rule needs the gains of documents, which a table does not have."""
        return None

    def verdicts(self, series: Series, protocol: str) -> dict[int, str]:
        lengths = {int(level["length"]) for level in self._level_of.values()}
        longer = sorted(length for length in lengths if length > self.length)
        changes = {length: self.change(series, length, protocol).interval for length in longer}
        return {length: judge_change(change) for length, change in changes.items() if change}

    def break_point(self, series: Series, protocol: str) -> BreakPoint:
        return BreakPoint()

    def difference_of_levels(self, claim: Claim, length: int) -> Number:
        first, second = ((series, length, claim.protocol) for series in series_of(claim))
        return self._difference_of_sums([first], [second])

    def difference_of_changes(self, claim: Claim, length: int) -> Number:
        of, than = series_of(claim)
        protocol = claim.protocol
        ours = [(of, length, protocol), (self._as_trained(than), self.length, protocol)]
        theirs = [(self._as_trained(of), self.length, protocol), (than, length, protocol)]
        return self._difference_of_sums(ours, theirs)

    def gain(self, series: Series, length: int, *kinds: tuple[str, str]) -> Number:
        first, second = ((series, length, *kind) for kind in kinds)
        return self._difference_of_sums([first], [second])

    def task_result(self, series: Series, length: int) -> tuple[Interval, TaskVerdict] | None:
        """Return the share of a task's right examples and the verdict; None without a score."""
        interval = self._difference_of_sums([(series, length, TASK)], []).interval
        if interval is None:
            return None
        if interval.low > SOLVED:
            return interval, "solves"
        return interval, "partial" if interval.high < SOLVED else "unclear"

    def restored_share(self, series: Series, change: str, length: int) -> Number:
        """Return no number: a table has levels of whole models alone."""
        return Number(missing=NOT_SCORED)

    def _level_label(self, series: Series) -> str:
        """Return the label of a series; if empty, the label of the sweep's only encoding, as trained."""
        trained = (label for label in sorted(self.labels(series.sweep)) if "->" not in label)
        return series.label or next(trained, "")

    def _as_trained(self, series: Series) -> Series:
        """Return the series of the same runs, scored with the encoding that they were trained with."""
        return Series(self._level_label(series).partition(" -> ")[0], series.sweep)

    def _difference_of_sums(self, plus: Sequence[tuple], minus: Sequence[tuple]) -> Number:
        """Return the sum of the levels `plus` less the sum of the levels `minus`.

        plus, minus: the series, length, protocol and, unless it is `none`, control of each level.
        """
        first = [self._find_level(*place) for place in plus]
        second = [self._find_level(*place) for place in minus]
        if None in first or None in second:
            return Number(missing=NOT_SCORED)
        levels = [level for level in (*first, *second) if level is not None]
        values = [float(level["level"]) for level in levels]
        mean = sum(values[: len(first)]) - sum(values[len(first) :])
        deviation = sum(float(level["seed_sd"]) for level in levels)
        seeds = min(int(level["seeds"]) for level in levels)
        half = math.inf
        if seeds > 1:
            critical = float(stdtrit(seeds - 1, (1 + CONFIDENCE) / 2))
            half = critical * deviation / math.sqrt(seeds)
        interval = Interval(mean, mean - half, mean + half, seeds, documents=0)
        return Number(mean, interval)

    def _find_level(
        self, series: Series, length: int, protocol: str, control: str = "none"
    ) -> LevelRow | None:
        """Return the table's level of a series; None without such a level."""
        key = (series.sweep, self._level_label(series), protocol, control, length)
        return self._level_of.get(key)
