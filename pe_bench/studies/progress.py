"""How far a study has come in a folder of results: which of its steps are done, and which runs they made."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_bench.runs.gather import runs_folder
from pe_bench.system.files import write_text

FOLDER = "studies"


@dataclass(frozen=True)
class Step:
    """A sweep of a study, or a scoring of its runs. is_done: it came to its end."""

    sweep: str
    runs: tuple[str, ...]
    target_hashes: tuple[str, ...]
    is_done: bool = True


class Progress:
    """A file with the steps of a study: repeating the command does those that are not done.

    A step has a key (`Variant.key`), so that a changed study, or another Python, has other steps. A step is
    done only while all of its runs are there.
    """

    def __init__(self, results_dir: Path, name: str) -> None:
        self.results_dir, self.runs = results_dir, runs_folder(results_dir)
        self.path = results_dir / FOLDER / f"{name}.json"

    def find(self, key: str) -> Step | None:
        """Return the finished step of that key; None where it is still to do."""
        step = self._steps().get(key)
        is_done = step is not None and step.is_done and all(map(self._is_finished, step.runs))
        return step if is_done else None

    def add(self, key: str, step: Step) -> None:
        values = {known: vars(other) for known, other in self._steps().items()} | {key: vars(step)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, json.dumps(values, indent=1))

    def finished_runs(self, keys: Iterable[str]) -> int:
        """Return how many runs of the steps of these keys are finished."""
        steps = self._steps()
        names = {run for key in keys if key in steps for run in steps[key].runs}
        return sum(map(self._is_finished, names))

    def _is_finished(self, run: str) -> bool:
        return (self.runs / run / "result.json").is_file()

    def _steps(self) -> dict[str, Step]:
        """Return the steps by their keys; none where the file is missing or damaged: runs are found again."""
        try:
            values: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
            return {key: _step(step) for key, step in values.items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}


def _step(values: dict[str, Any]) -> Step:
    def texts(name: str) -> tuple[str, ...]:
        found: Sequence[Any] = values[name]
        return tuple(str(value) for value in found)

    return Step(str(values["sweep"]), texts("runs"), texts("target_hashes"), bool(values["is_done"]))
