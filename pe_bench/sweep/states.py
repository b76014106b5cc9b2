"""A sweep's folder: for each job a small file with its state and its output; and a file that asks to stop."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pe_bench.system.files import TEMPORARY

RUNNING, DONE, SKIPPED, FAILED, STOPPED = "running", "done", "skipped", "failed", "stopped"


@dataclass(frozen=True)
class JobState:
    """The state of one job of a sweep."""

    number: int
    label: str  # the overrides that make it another than the rest of its sweep
    command: str  # that makes this run alone
    state: str = RUNNING
    run: str | None = None  # its directory, once it is known
    reason: str = ""  # why it failed
    has_rows: bool = False  # it was scored; a job that failed at some lengths was too
    text: str = ""  # step, loss, tokens per second, time left; or what is being scored
    has_begun: bool = False  # to train, to score, or to wait for another process: more than its checks
    share: float = 0.0  # of its training, or of its scoring, that is done
    started: float = 0.0  # seconds of the system's clock
    seconds: float = 0.0  # that it took
    expected: float = 0.0  # seconds that it may take in all, as far as it knows while it runs
    margin: float = 0.0  # bits per byte, of the table that the sweep ends with
    target_hashes: Sequence[str] = ()  # of the sets that it scored, which that table shows
    keys: Sequence[Sequence[str]] = ()  # of the rows that it scored or found scored


class SweepFolder:
    """The folder through which the jobs of a sweep and the command that launched them communicate.

    Files, because a launcher may run the jobs in processes of its own, or on other machines.
    """

    def __init__(self, path: Path):
        self.path = path

    def write(self, state: JobState) -> None:
        """Write a job's state, not flushed to the disk: nothing is lost with it but what a person sees."""
        target = self._file(state.number, "json")
        temporary = target.with_name(f"{TEMPORARY}{os.getpid()}-{target.name}")
        self._jobs.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(asdict(state)), encoding="utf-8")
        os.replace(temporary, target)

    def states(self) -> list[JobState]:
        """Return the states of the jobs that began, in their order."""
        return sorted(self._read(), key=lambda state: state.number)

    def log(self, number: int) -> Path:
        """Return the file of what a job wrote to standard output and standard error."""
        return self._file(number, "log")

    def ask_to_stop(self) -> None:
        """Have the jobs that run save and end, and no other begin."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._stop.touch()

    @property
    def is_stopped(self) -> bool:
        return self._stop.exists()

    @property
    def _jobs(self) -> Path:
        return self.path / "jobs"

    @property
    def _stop(self) -> Path:
        return self.path / "stop"

    def _file(self, number: int, suffix: str) -> Path:
        return self._jobs / f"{number:04}.{suffix}"

    def _read(self) -> Iterator[JobState]:
        for path in self._jobs.glob("[0-9]*.json"):
            try:
                yield JobState(**json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError):
                continue  # another machine's file system may show it late
