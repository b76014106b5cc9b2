"""A run's folder: its configuration with a checksum, its lock, what is read of it, and how it was made."""

import csv
import hashlib
import io
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from pe_bench.config.parse import parse_config, to_plain
from pe_bench.config.schema import NAME, Config, DataConfig
from pe_bench.errors import RunError, UserError, first_line, require
from pe_bench.runs.commands import recorded_commands, takes_code_from
from pe_bench.runs.means import KeptMeans, Means, Slices, find_means, read_means, read_slices, rows_of_slice
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
from pe_bench.values import check_type

# The first line shows that there was a last one, so that a file that was cut short is not one made by hand.
HEAD = "# made by pe-bench; the last line is a checksum\n"
CONFIG_CHECKSUM = "# sha256 of what stands above: "
_IF_CHANGED = "delete its first and its last line if you changed it"
ERROR = "error.txt"
BEGUN = "begun.json"  # what a run has of its source, so that it goes on where that is gone


def write_config(run: Path, config: Config) -> None:
    """Write a run's configuration with absolute paths, so that it can be scored from another folder."""
    plain = to_plain(replace(config, data=_with_absolute_paths(config.data)))
    text = HEAD + yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    write_text(run / "config.yaml", f"{text}{CONFIG_CHECKSUM}{_digest(text)}\n")


def _with_absolute_paths(data: DataConfig) -> DataConfig:
    if data.source != "files":
        return data
    paths = {name: getattr(data, name) for name in ("path", "validation_path")}
    return replace(data, **{name: str(Path(path).resolve()) for name, path in paths.items() if path})


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
    """Return the plain values of a run's configuration; one without a checksum was written by hand.

    Raise `InvalidYamlError` where they are damaged, and `OSError` where there is no such file.
    """
    try:
        text = read_regular(run / "config.yaml")
    except ValueError as error:
        raise InvalidYamlError(str(error)) from error
    values = parse_mapping(text)
    above, has_checksum, checksum = text.rpartition(CONFIG_CHECKSUM)
    if has_checksum and checksum.strip() != _digest(above):
        raise InvalidYamlError(f"its checksum is of something else: {_IF_CHANGED}")
    if text.startswith(HEAD) and not has_checksum:
        raise InvalidYamlError(f"its end is missing: {_IF_CHANGED}")
    return values


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


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
        values = result.get("first_stage")
        if values is None:
            return None
        values = check_type(values, dict[str, Any], "first_stage")
        run = check_type(values.get("run"), str, "run")
        # A stranger's may be no name: a path could lead anywhere.
        require(NAME.fullmatch(run) is not None and not run.startswith("."), f"{run!r} is no run's name")
        kinds = {"run": str, "length": int, "steps": int, "setting": str, "longest": int}
        return FirstStage(**{name: check_type(values.get(name), kind, name) for name, kind in kinds.items()})


def read_begun(run: Path) -> Mapping[str, Any] | None:
    """Return what a run with a source wrote of itself as it began; None where that is not there."""
    try:
        about = read_json(run / BEGUN)
        return about if all(isinstance(about.get(key), str) for key in ("encoding", "setting")) else None
    except (OSError, ValueError):
        return None


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
    def first_stage(self) -> FirstStage | None:
        """Return the first stage of a finished run; None where it is its own, or cannot be read."""
        try:
            return FirstStage.read(read_json(self.path / "result.json"))
        except (OSError, ValueError):
            return None

    @cached_property
    def environment(self) -> dict[str, Any]:
        try:
            return read_json(self.path / "environment.json")
        except (OSError, ValueError):
            return {}

    @cached_property
    def slices(self) -> Slices:
        return read_slices(self.path)

    @cached_property
    def _kept_means(self) -> KeptMeans:
        return read_means(self.path)

    def means_of(self, row: Row) -> Means:
        """Return the means of a row of this run, or of one of a slice. Raise `RunError`."""
        return find_means(self.path, row, self._kept_means, self.slices)

    def rows_of_slice(self, rows: Iterable[Row], name: str) -> list[Row]:
        """Return the rows of a slice for rows of this run; none where its slices were not written."""
        return list(rows_of_slice(rows, name, self.slices, self.means_of))

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


@dataclass(frozen=True)
class Environment:
    """Versions and a machine; what is not known of them is empty.

    git: the commit, with `+` and a hash of the code after changes.
    """

    pe_bench: str = ""
    git: str = ""
    torch: str = ""
    python: str = ""
    platform: str = ""
    processor: str = ""
    device: str = ""
    threads: str = ""


@dataclass(frozen=True)
class Dataset:
    """The data that a run was trained or scored on: names, and the hash of the text that was tokenized."""

    name: str
    hash: str
    tokenizer: str


@dataclass(frozen=True)
class RunRecord:
    """How one run was made.

    commands: as they were typed; `missing` says why some or all are not there. needs: what they need beside
    pe-bench. trained: where; scored: wherever else scores come from. data: all that it was scored on. date:
    of the training, ISO 8601.
    """

    run: str
    commands: tuple[str, ...]
    needs: tuple[str, ...]
    missing: str
    data: tuple[Dataset, ...]
    trained: Environment
    scored: tuple[Environment, ...]
    date: str


def provenance(folders: Iterable[RunFolder]) -> list[RunRecord]:
    """Return the records of runs, in the order of their names."""
    return [_record(folder) for folder in sorted(folders, key=lambda folder: folder.path.name)]


def _record(run: RunFolder) -> RunRecord:
    rows, typed = run.rows, recorded_commands(run.path)
    commands = tuple(command for command in typed if not takes_code_from(command, run.path.parent.parent))
    missing = "" if typed else "none was kept"
    if len(commands) < len(typed):
        missing = "the code that it names is not here, and none is taken from a folder of results"
    trained = _environment(run.environment)
    scored = dict.fromkeys(_environment(vars(row)) for row in rows)
    return RunRecord(
        run=run.path.name,
        commands=commands,
        needs=_needs(run.flat_config),
        missing=missing,
        data=tuple(dict.fromkeys(Dataset(row.data, row.data_hash, row.tokenizer) for row in rows)),
        trained=trained,
        scored=tuple(environment for environment in scored if not _is_part(environment, trained)),
        date=str(run.environment.get("date", "")) or min((row.date for row in rows), default=""),
    )


def _needs(config: dict[str, Any]) -> tuple[str, ...]:
    """Return what a run's commands need besides pe-bench: files of code, and another run's weights."""
    source = config.get("train.from")
    hashes = {key.removesuffix("code_sha256"): value for key, value in config.items() if "code_sha256" in key}
    code = [f"{config.get(f'{part}class')} (sha256 {value})" for part, value in hashes.items()]
    return (*code, *([f"the run {source}, whose weights it starts from"] if source else []))


def _environment(values: dict[str, Any]) -> Environment:
    names = Environment.__dataclass_fields__
    return Environment(**{name: str(values[name]) for name in names if values.get(name) is not None})


def _is_part(environment: Environment, other: Environment) -> bool:
    """Return whether `other` has every value that is not empty in `environment`."""
    facts = {name: value for name, value in vars(environment).items() if value}
    return all(getattr(other, name) == value for name, value in facts.items())
