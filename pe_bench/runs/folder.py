"""A run's folder: its configuration with a checksum, its lock, and what is read of it, each once."""

import csv
import hashlib
import io
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from pe_bench.config.parse import parse_config, to_plain
from pe_bench.config.schema import Config, DataConfig
from pe_bench.errors import RunError, UserError, first_line
from pe_bench.runs.means import KeptMeans, KeptSlices, find_means, rows_of_slice
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.untrusted import (
    InvalidYamlError,
    check_files,
    parse_mapping,
    read_json,
    read_regular,
    unreadable,
)
from pe_bench.system.files import write_text

# The first line shows that there was a last one, so that a file that was cut short is not one made by hand.
HEAD = "# made by pe-bench; the last line is a checksum\n"
CONFIG_CHECKSUM = "# sha256 of what stands above: "
_IF_CHANGED = "delete its first and its last line if you changed it"


def write_config(run: Path, config: Config) -> None:
    text = HEAD + yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True)
    write_text(run / "config.yaml", f"{text}{CONFIG_CHECKSUM}{_digest(text)}\n")


def read_config(run: Path) -> Config:
    """Return the configuration of a run. Raise `UserError` where it is damaged."""
    try:
        return parse_config(read_values(run))
    except PermissionError as error:
        raise UserError(unreadable(error)) from error
    except (OSError, ValueError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{run / 'config.yaml'} is missing or damaged ({reason}): train the run again"
        ) from error


def read_values(run: Path) -> dict[str, Any]:
    """Return the plain values of a run's configuration.

    Raise `InvalidYamlError` where they are damaged, and `OSError` where there is no such file.
    """
    try:
        text = read_regular(run / "config.yaml")
    except ValueError as error:
        raise InvalidYamlError(str(error)) from error
    values = parse_mapping(text)
    _refuse_changed(text)
    return values


def is_whole(run: Path) -> bool:
    """Return whether a configuration is as it was written, which its checksum shows without reading it.

    Raise `OSError` where it cannot be read, and `ValueError` where it is no text.
    """
    written, has_checksum, checksum = read_regular(run / "config.yaml").rpartition(CONFIG_CHECKSUM)
    return bool(has_checksum) and checksum.strip() == _digest(written)


def _refuse_changed(text: str) -> None:
    """Raise `InvalidYamlError` for a text that differs from its checksum; one that never had any passes."""
    written, has_checksum, checksum = text.rpartition(CONFIG_CHECKSUM)
    if has_checksum and checksum.strip() != _digest(written):
        raise InvalidYamlError(f"its checksum is of something else: {_IF_CHANGED}")
    if text.startswith(HEAD) and not has_checksum:
        raise InvalidYamlError(f"its end is missing: {_IF_CHANGED}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def with_absolute_paths(data: DataConfig) -> DataConfig:
    """Make local paths absolute, so that the run can be scored from another folder."""
    if data.source != "files":
        return data
    paths = {name: getattr(data, name) for name in ("path", "validation_path")}
    return replace(data, **{name: str(Path(path).resolve()) for name, path in paths.items() if path})


ERROR = "error.txt"


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
        write_error(run, "".join(traceback.format_exception(error)))
        raise
    (run / ERROR).unlink(missing_ok=True)


def write_error(run: Path, text: str) -> None:
    """Write `error.txt`; where the disk takes no more, the error is only printed."""
    with suppress(RunError, OSError):
        write_text(run / ERROR, f"{text.rstrip()}\n")


class RunFolder:
    """A run on disk. What is damaged or missing of it is empty, so that it hides nothing else."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return its configuration. Raises `OSError`, and `InvalidYamlError` where it is damaged."""
        return read_values(self.path)

    @cached_property
    def flat_config(self) -> dict[str, Any]:
        """Return its configuration with keys such as train.lr; empty where it cannot be read."""
        return {} if self.config_problem else _flat(self.config, "")

    @cached_property
    def config_problem(self) -> str:
        """Return why its configuration cannot be read; empty where it can."""
        try:
            _ = self.config
        except FileNotFoundError:
            return "it is missing"
        except (OSError, InvalidYamlError) as error:
            return first_line(error)
        return ""

    @cached_property
    def environment(self) -> dict[str, Any]:
        try:
            return read_json(self.path / "environment.json")
        except (OSError, ValueError):
            return {}

    @cached_property
    def means(self) -> KeptMeans:
        return KeptMeans(self.path)

    @cached_property
    def slices(self) -> KeptSlices:
        return KeptSlices(self.path)

    def rows_of_slice(self, rows: Iterable[Row], name: str) -> list[Row]:
        """Return the rows of a slice for rows of this run; none where its slices were not written."""
        means = partial(find_means, self.path, kept=self.means, slices=self.slices)
        return list(rows_of_slice(rows, name, self.slices, means))

    @cached_property
    def validation_loss(self) -> float | None:
        """Return the last validation loss of train.csv, in nats per token; None where there is none."""
        losses = self._logged("validation_loss")
        return losses[-1][1] if losses else None

    @cached_property
    def losses(self) -> list[tuple[int, float]]:
        """Return the training losses of the logged steps, in nats per token."""
        return self._logged("loss")

    def _logged(self, name: str) -> list[tuple[int, float]]:
        """Return the steps of train.csv that have a number in a column, with it; none where it is damaged."""
        try:
            records = list(csv.DictReader(io.StringIO(read_regular(self.path / "train.csv"), newline="")))
            return [(int(record["step"]), float(record[name])) for record in records if record[name]]
        except (OSError, ValueError, KeyError, csv.Error):
            return []

    @cached_property
    def rows(self) -> list[Row]:
        try:
            return read_rows(self.path / "eval.csv")
        except RunError:
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
