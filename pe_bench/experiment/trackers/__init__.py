"""Trackers, which record the losses and scores of a run too: one file for each, none by default.

The run's own files are the truth. Whatever a tracker does, a run goes on: when it fails, that is said once.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from pe_bench.config.schema import Config
from pe_bench.errors import first_line, require
from pe_bench.runs.rows import TASK, Row
from pe_bench.system.terminal import say
from pe_bench.training.checkpoint import latest_checkpoint
from pe_bench.training.log import Step

# A file here is named as `tracker=` spells it, and has a `begin` of these: the run's directory, its
# configuration, and the step from which it goes on.
Begin = Callable[[Path, Config, int], "Tracker"]


class Tracker(Protocol):
    def step(self, step: Step) -> None:
        """One row of train.csv."""
        ...

    def scores(self, rows: Sequence[Row]) -> None:
        """All rows of the run under its own encoding, some of which it may have been given before."""
        ...

    def end(self) -> None: ...


class Tracking:
    """The tracker of a run, if it has one, for as long as that works."""

    def __init__(self, config: Config):
        self.name, self.log_every = config.tracker, config.train.log_every
        self.tracker: Tracker | None = None

    def begin(self, run: Path, config: Config) -> None:
        with self._forgiven():
            if self.name is not None:
                found = latest_checkpoint(run / "checkpoints")
                begin: Begin = importlib.import_module(f"{__name__}.{self.name}").begin
                self.tracker = begin(run, config, found.meta.step if found else 0)

    def step(self, step: Step) -> None:
        due = step.step % self.log_every == 0 or step.validation_loss is not None
        with self._forgiven():
            if self.tracker is not None and due:
                self.tracker.step(step)

    def scores(self, rows: Sequence[Row]) -> None:
        with self._forgiven():
            if self.tracker is not None:
                self.tracker.scores([row for row in rows if row.scored_with == row.encoding])

    def end(self) -> None:
        with self._forgiven():
            if self.tracker is not None:
                self.tracker.end()

    @contextmanager
    def _forgiven(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.tracker = None
            reason = f"{type(error).__name__}: {first_line(error)}"
            say(f"warning: tracker={self.name} failed, and the run continues without it ({reason})")


@contextmanager
def tracking(run: Path, config: Config) -> Iterator[Tracking]:
    """Open the tracker that `tracker=` names, and close it; a run that has a record there continues it."""
    tracking = Tracking(config)
    tracking.begin(run, config)
    try:
        yield tracking
    finally:
        tracking.end()


def check_tracker(name: str | None) -> None:
    """Raises `UserError` where its package is missing."""
    require(
        name is None or importlib.util.find_spec(name) is not None,
        f"tracker={name} is not installed: pip install 'pe-bench[{name}]'",
    )


def values_of(step: Step) -> dict[str, float]:
    """Return the values that trackers draw against the step."""
    values = {"loss": step.loss, "lr": step.lr, "gradient_norm": step.gradient_norm, "seconds": step.seconds}
    return values if step.validation_loss is None else {**values, "validation_loss": step.validation_loss}


def score_name(row: Row) -> str:
    """Return the name of a value that trackers draw against the length."""
    control = "" if row.control == "none" else f"_{row.control}"
    name = "exact" if row.protocol == TASK else "bits_per_byte"
    return f"{name}/{row.protocol}{control}"


def level_of(row: Row) -> float | None:
    """Return the number of a row that trackers draw; None where it has none."""
    return row.exact if row.protocol == TASK else row.bits_per_byte
