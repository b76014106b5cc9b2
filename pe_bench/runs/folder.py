"""A run's folder: its configuration with a checksum, its lock, and what is read of it."""

import csv
import hashlib
import io
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from pe_bench.config.parse import parse_config, to_plain
from pe_bench.config.schema import NAME, Config
from pe_bench.errors import RunError, UserError, require
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import KeptMeans, read_means
from pe_bench.runs.untrusted import check_files, parse_mapping, read_json, read_regular
from pe_bench.system.files import write_text
from pe_bench.values import check_type

CONFIG_CHECKSUM = "# made by pe-bench; sha256 of what follows: "  # the first line, with a hash
ERROR = "error.txt"
UNREADABLE = (RunError, OSError, ValueError)


def write_config(run: Path, config: Config) -> None:
    """Write a run's configuration with absolute paths, so that it can be scored from another folder."""
    plain = to_plain(config)
    for name in ("path", "validation_path"):
        if config.data.source == "files" and plain["data"][name]:
            plain["data"][name] = str(Path(plain["data"][name]).resolve())
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    write_text(run / "config.yaml", f"{CONFIG_CHECKSUM}{hashlib.sha256(text.encode()).hexdigest()}\n{text}")


def read_config(run: Path) -> Config:
    """Return the configuration of a run. Raise `UserError` where it is damaged."""
    try:
        return parse_config(RunFolder(run).config)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        reason, path = " ".join(str(error).split()), run / "config.yaml"
        raise UserError(f"{path} is missing or damaged ({reason}): train the run again") from error


@contextmanager
def locked(run: Path, *, waits: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the run. Where another process does, call `waits` with that and wait; without it raise `RunError`.

    Raise `RunError` also for a run that is not safe to write to.
    """
    check_files(run)
    lock = FileLock(run / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        if waits is None:
            raise RunError(f"another process is working on {run}: wait for it, or stop it") from error
        waits(f"waits for another process that is working on {run}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def record_error(run: Path) -> Iterator[None]:
    """Write what fails inside to `error.txt`, which success deletes; only the lock's holder may use this."""
    try:
        yield
    except Exception as error:
        with suppress(RunError, OSError):  # of a full disk
            write_text(run / ERROR, "".join(traceback.format_exception(error)))
        raise
    (run / ERROR).unlink(missing_ok=True)


@dataclass(frozen=True)
class FirstStage:
    """The first stage of a run that has a source: the run of this stage, and facts for its table.

    longest: the longest length that the family's line was trained at, in any of its stages.
    """

    run: str
    length: int
    steps: int
    setting: str
    longest: int

    @staticmethod
    def read(result: Mapping[str, Any]) -> "FirstStage | None":
        """Return what a run's result.json says of it; None where the run is its own. Raises `UserError`."""
        values = check_type(result.get("first_stage"), dict[str, Any] | None, "first_stage")
        if values is None:
            return None
        kinds = FirstStage.__annotations__
        first = FirstStage(**{name: check_type(values.get(name), kind, name) for name, kind in kinds.items()})
        # A stranger's may be no name: a path could lead anywhere.
        is_name = NAME.fullmatch(first.run) is not None and not first.run.startswith(".")
        require(is_name, f"{first.run!r} is no run's name")
        return first


@dataclass(eq=False)
class RunFolder:
    """A run on disk. What is damaged or missing of it is empty, so that it hides nothing else."""

    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return its configuration as plain values; one without a checksum was written by hand.

        Raise `ValueError` where it is damaged, and `OSError` where there is no such file.
        """
        first, _, text = read_regular(self.path / "config.yaml").partition("\n")
        if not first.startswith(CONFIG_CHECKSUM):
            return parse_mapping(f"{first}\n{text}")
        if not first.endswith(hashlib.sha256(text.encode()).hexdigest()):
            raise ValueError("its checksum is of something else: delete its first line if you changed it")
        return parse_mapping(text)

    @cached_property
    def flat_config(self) -> dict[str, Any]:
        """Return its configuration with keys such as train.lr; empty where it cannot be read."""
        with suppress(*UNREADABLE):
            return _flat(self.config, "")
        return {}

    @cached_property
    def first_stage(self) -> FirstStage | None:
        """Return the first stage of a finished run; None where it is its own, or cannot be read."""
        with suppress(*UNREADABLE):
            return FirstStage.read(read_json(self.path / "result.json"))
        return None

    @cached_property
    def means(self) -> KeptMeans:
        return read_means(self.path)

    @cached_property
    def validation_loss(self) -> float | None:
        """Return the last validation loss of train.csv, in nats per token; None where there is none."""
        losses = self._logged("validation_loss")
        return losses[-1][1] if losses else None

    @property
    def losses(self) -> list[tuple[int, float]]:
        """Return the training losses of the logged steps, in nats per token."""
        return self._logged("loss")

    def _logged(self, name: str) -> list[tuple[int, float]]:
        """Return the steps of train.csv that have a number in a column, with it; none where it is damaged."""
        with suppress(*UNREADABLE, KeyError, csv.Error):
            records = list(csv.DictReader(io.StringIO(read_regular(self.path / "train.csv"), newline="")))
            return [(int(record["step"]), float(record[name])) for record in records if record[name]]
        return []

    @cached_property
    def rows(self) -> list[Row]:
        with suppress(RunError):
            return read_rows(self.path / "eval.csv")
        return []


def folders_in(runs: Path) -> Callable[[str], RunFolder]:
    """Return a function that gives the folder of a run by its name, always the same one."""
    folders: dict[str, RunFolder] = {}
    return lambda name: folders.setdefault(name, RunFolder(runs / name))


def _flat(values: dict[Any, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat
