"""How far a study has come in a folder of results: which of its steps are done, and what they scored."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pe_bench.errors import RunError
from pe_bench.runs.gather import runs_folder
from pe_bench.runs.rows import read_rows
from pe_bench.system.files import write_text

FOLDER = "studies"

RowKey = tuple[str, ...]  # `Row.key`


@dataclass(frozen=True)
class Step:
    """A sweep of a study, or a scoring of its runs. is_done: it came to its end.

    runs: the names of its runs. keys: of the rows that this step asked for; a run that several studies share
    has more rows.
    """

    sweep: str
    runs: tuple[str, ...]
    keys: tuple[RowKey, ...]
    is_done: bool = True


class Progress:
    """A file with the steps of a study: repeating the command does those that are not done.

    A step has a key (`Variant.key`), so that a changed study, or another Python, has other steps. A step is
    done only while all of its runs and rows are there.
    """

    def __init__(self, results_dir: Path, name: str) -> None:
        self.results_dir, self.runs = results_dir, runs_folder(results_dir)
        self.path = results_dir / FOLDER / f"{name}.json"

    def find(self, key: str) -> Step | None:
        """Return the finished step of that key; None where it is still to do."""
        step = self._steps().get(key)
        return step if step is not None and step.is_done and self._has_all(step) else None

    def add(self, key: str, step: Step) -> None:
        values = {known: asdict(other) for known, other in self._steps().items()} | {key: asdict(step)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, json.dumps(values))

    def finished_runs(self, keys: Iterable[str]) -> int:
        """Return how many runs of the steps of these keys are finished."""
        steps = self._steps()
        names = {run for key in keys if key in steps for run in steps[key].runs}
        return sum(map(self._is_finished, names))

    def _has_all(self, step: Step) -> bool:
        """Return whether all rows of the step are there: training a run again deletes its earlier rows."""
        try:
            rows = {row.key for run in step.runs for row in read_rows(self.runs / run / "eval.csv")}
        except RunError:
            return False
        return rows.issuperset(step.keys) and all(map(self._is_finished, step.runs))

    def _is_finished(self, run: str) -> bool:
        return (self.runs / run / "result.json").is_file()

    def _steps(self) -> dict[str, Step]:
        """Return the steps by their keys; none where the file is missing or damaged: runs are found again."""
        try:
            values: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
            return {key: _step(step) for key, step in values.items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return {}


def _step(values: dict[str, Any]) -> Step:
    keys = tuple(tuple(map(str, key)) for key in values["keys"])
    return Step(str(values["sweep"]), tuple(map(str, values["runs"])), keys, bool(values["is_done"]))
