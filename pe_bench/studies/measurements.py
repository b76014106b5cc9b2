"""What a study's runs measured: differences with their paired intervals, from the runs' own scores."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from pe_bench.report.statistics import MARGIN, Interval, Verdict, judge_change
from pe_bench.report.tables.anchors import unlearned
from pe_bench.report.tables.cells import label_of
from pe_bench.report.tables.differences import (
    Paired,
    ScoreFiles,
    has_number,
    level_of,
    paired,
    paired_changes,
    pairs_by_run,
    pairs_by_seed,
)
from pe_bench.report.tables.lines import Unlearned
from pe_bench.report.tables.task_cells import make_task_cell
from pe_bench.report.task_statistics import TaskVerdict, judge_answers
from pe_bench.runs.anchors import read_anchors
from pe_bench.runs.folder import folders_in
from pe_bench.runs.gather import runs_folder
from pe_bench.runs.rows import TASK, Row
from pe_bench.studies.definition import Measure
from pe_bench.studies.progress import RowKey, Step

NOTHING = "not scored"
CODE_VERSION = re.compile("@[0-9a-f]{4}")  # in labels


class Series(NamedTuple):
    """An encoding, by the name that tables give it, in one sweep of a study."""

    label: str
    sweep: str = ""


def _is_of(row: Row, series: Series) -> bool:
    """Return whether a row is of a series; the version of a user's own encoding need not be named."""
    label = label_of(row)
    return series.label in (label, CODE_VERSION.sub("", label))


class Measurements:
    """The scores that the steps of a study made. All lengths are in tokens.

    A run may also have scores that other studies or its owner asked for. They are left out, so that the
    answers do not depend on what was scored before.
    """

    def __init__(self, results_dir: Path, steps: Iterable[Step], margin: float = MARGIN) -> None:
        folder_of = folders_in(runs_folder(results_dir))
        self._anchors = read_anchors(results_dir / "anchors")
        self._files = ScoreFiles(self._anchors.with_folders(folder_of))
        self.margin = margin
        runs: dict[str, dict[str, None]] = {}
        keys: dict[str, set[RowKey]] = {}
        for step in steps:
            runs.setdefault(step.sweep, {}).update(dict.fromkeys(step.runs))
            keys.setdefault(step.sweep, set()).update(step.keys)
        self._rows = {
            sweep: [row for name in names for row in folder_of(name).rows if row.key in keys[sweep]]
            for sweep, names in runs.items()
        }

    @property
    def rows(self) -> dict[str, list[Row]]:
        """Return all rows of each sweep, those of controls included."""
        return self._rows

    @property
    def length(self) -> int:
        """Return the training length."""
        return next(row.train_length for rows in self._rows.values() for row in rows)

    def at(self, series: Series, length: int, protocol: str, control: str = "none") -> list[Row]:
        """Return the rows of a series at one length; those of a failed score are left out."""
        return [
            row
            for row in self._rows.get(series.sweep, [])
            if _is_of(row, series)
            and (row.length, row.protocol, row.control) == (length, protocol, control)
            and has_number(row)
        ]

    def lengths(self, series: Series, protocol: str) -> list[int]:
        """Return the lengths of a series, in rising order."""
        rows = self._rows.get(series.sweep, [])
        own = [row for row in rows if _is_of(row, series) and has_number(row)]
        return sorted({row.length for row in own if (row.protocol, row.control) == (protocol, "none")})

    def unlearned(self, series: Series) -> Unlearned:
        """Return why a series counts as not learned at its training length; empty if it has learned.

        A model that knows nothing holds, and breaks after all others.
        """
        rows = self._rows.get(series.sweep, [])
        runs = {row.run for row in rows if _is_of(row, series)}
        own = [
            row
            for row in rows
            if row.run in runs
            and row.scored_with == row.encoding
            and row.protocol in ("paired", TASK)
            and row.control == "none"
        ]
        return unlearned(own, self._anchors, self._files)

    def change(self, series: Series, length: int, protocol: str) -> Paired:
        """Return the change from the training length, where runs are scored as they were trained."""
        return self._paired(self._changes(series, length, protocol))

    def verdicts(self, series: Series, protocol: str) -> dict[int, Verdict]:
        """Return the verdicts on the changes beyond the training length that have an interval."""
        changes = {
            length: self.change(series, length, protocol).interval
            for length in self.lengths(series, protocol)
            if length > self.length
        }
        return {
            length: judge_change(interval, self.margin) for length, interval in changes.items() if interval
        }

    def difference(self, first: Series, second: Series, length: int, protocol: str, of: Measure) -> Paired:
        """Return the level, or the change, of the first minus that of the second, seed by seed."""
        if of == "level":
            return self._paired(
                pairs_by_seed(self.at(first, length, protocol), self.at(second, length, protocol))
            )
        changes = {row.seed: (row, other) for row, other in self._changes(first, length, protocol)}
        others = {row.seed: (row, other) for row, other in self._changes(second, length, protocol)}
        seeds = sorted(changes.keys() & others.keys())
        if not seeds:
            return Paired(None, None, NOTHING)
        return paired_changes(
            [changes[seed] for seed in seeds], [others[seed] for seed in seeds], self._files
        )

    def between_protocols(self, series: Series, length: int, first: str, second: str) -> Paired:
        """Return the level under the first protocol minus that under the second, on the same targets."""
        return self._paired(pairs_by_run(self.at(series, length, first), self.at(series, length, second)))

    def gain_over_window(self, series: Series, length: int) -> Paired:
        """Return how much better a level is than with every layer limited to the training length."""
        window = self.at(series, length, "paired", "window")
        return self._paired(pairs_by_run(window, self.at(series, length, "paired")))

    def answers(self, series: Series, length: int) -> tuple[Interval | None, TaskVerdict | None]:
        """Return the share of a task's examples that are right, and the verdict on it."""
        rows = self.at(series, length, TASK)
        found = make_task_cell(rows, Counter(), self._files).answers if rows else None
        if found is None:
            return None, None
        return found.intervals.exact, judge_answers(found.intervals, found.chance)

    def is_solved_by_any(self, sweep: str) -> bool:
        """Return whether any encoding of a sweep surely solves its task at the training length."""
        labels = {label_of(row) for row in self._rows.get(sweep, [])}
        return any(self.answers(Series(label, sweep), self.length)[1] == "solves" for label in labels)

    def by_seed(self, series: Series, length: int, of: Measure) -> dict[int, float]:
        """Return the level, or the change, of each seed."""
        if of == "level":
            return {row.seed: level_of(row) for row in self.at(series, length, "paired")}
        return {
            row.seed: level_of(row) - level_of(other)
            for row, other in self._changes(series, length, "paired")
        }

    def _changes(self, series: Series, length: int, protocol: str) -> list[tuple[Row, Row]]:
        rows = self.at(series, length, protocol)
        runs = {row.run for row in rows}
        own = [
            row
            for row in self._rows.get(series.sweep, [])
            if row.run in runs
            and row.scored_with == row.encoding
            and (row.length, row.protocol, row.control) == (self.length, protocol, "none")
        ]
        return pairs_by_run(rows, own)

    def _paired(self, pairs: Sequence[tuple[Row, Row]]) -> Paired:
        return paired(pairs, self._files) if pairs else Paired(None, None, NOTHING)
