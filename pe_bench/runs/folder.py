"""A run's folder: its configuration with a checksum, its lock, the facts read from it; the rows of all runs.

A run's `eval.csv` is the truth. `results.csv` is derived from all of them, rebuilt whole under a lock and
never appended to, so that processes that finish together lose nothing.
"""

import csv
import hashlib
import io
import re
import shutil
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import yaml
from filelock import Timeout

from pe_bench.config.parse import parse_config, to_plain
from pe_bench.config.schema import HF_SECTION, NAME, Config
from pe_bench.errors import RunError, UserError, first_line, require
from pe_bench.runs.rows import APART, Row, read_rows, write_rows
from pe_bench.runs.scores import KEY, MEANS_FILE, TEXT_SLICES, KeptMeans, read_means
from pe_bench.runs.typed import suggested_eval_command, tags_of
from pe_bench.runs.untrusted import check_files, parse_mapping, read_json, read_regular
from pe_bench.system.files import TEMPORARY_PREFIX, Lock, write_text
from pe_bench.system.signals import world_size
from pe_bench.system.terminal import one_line, say
from pe_bench.system.version import own_version
from pe_bench.values import check_type

CHECKSUM_LINE_PREFIX = "# made by pe-bench; sha256 of what follows: "  # the first line, with a hash
ERROR_FILE = "error.txt"
RUN_FORMAT = 2  # the version of the format of runs; runs of format 1 have other names and columns
UNREADABLE_ERRORS = (RunError, OSError, ValueError)


def write_config(run: Path, config: Config, *, resolves: bool = True) -> None:
    """Write a run's configuration with absolute paths, so that it can be scored from another folder.

    resolves: False leaves paths as they are.
    """
    plain = to_plain(config)
    for name in ("path", "validation_path"):
        if resolves and config.data.source == "files" and plain["data"][name]:
            plain["data"][name] = str(Path(plain["data"][name]).resolve())
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    checksum = hashlib.sha256(text.encode()).hexdigest()
    write_text(run / "config.yaml", f"{CHECKSUM_LINE_PREFIX}{checksum}\n{text}")


def read_config(run: Path) -> Config:
    """Return the configuration of a run. Raise `UserError` for a damaged file."""
    try:
        return parse_config(RunFolder(run).config)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())
        message = f"{run / 'config.yaml'} is missing or damaged ({reason}): train the run again"
        raise UserError(message) from error


class ReadOnlyError(RunError):
    """Raised for a run that cannot be written."""


@contextmanager
def locked(run: Path, *, waits: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock of a run's folder while the context is open.

    waits: called with a message before this waits for another process's lock; None: do not wait.
    Raise `RunError` if another process has the lock and `waits` is None, and for a run that is not safe to
    write to; `ReadOnlyError` for a run that cannot be written.
    """
    check_files(run)
    lock = Lock(run / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        message = f"another process is working on {run}: wait for it, or stop it"
        if world_size() > 1:
            message = f"each of torchrun's processes works on {run}: start this without torchrun"
        if waits is None:
            raise RunError(message) from error
        waits(f"waits for another process that is working on {run}")
        lock.acquire()
    except OSError as error:
        reason = f"{run} cannot be written ({error.strerror or error})"
        raise ReadOnlyError(f"{reason}: copy it to a folder that can be written") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def record_error(run: Path) -> Iterator[None]:
    """Write an error raised within the context to the run's `error.txt`; without one, delete the file.

    Only the process that has the run's lock may use this.
    """
    try:
        yield
    except Exception as error:
        with suppress(RunError, OSError):  # the disk may be full
            write_text(run / ERROR_FILE, "".join(traceback.format_exception(error)))
        raise
    (run / ERROR_FILE).unlink(missing_ok=True)


def delete_scores(run: Path) -> None:
    """Delete the scores of weights that are about to be replaced."""
    for name in ("eval.csv", MEANS_FILE):
        (run / name).unlink(missing_ok=True)
    shutil.rmtree(run / "scores", ignore_errors=True)


@dataclass(frozen=True)
class FirstStage:
    """The first stage of a run that goes on from another run; its table has a line for the run."""

    run: str  # the name of the run; in result.json, its name when it was trained
    length: int  # its training length
    steps: int  # its training steps
    setting: str  # its setting, as in `Job`
    longest: int  # the longest training length of all stages

    @staticmethod
    def read(result: Mapping[str, Any]) -> "FirstStage | None":
        """Return the first stage named in a run's result.json; None if it names none. Raises `UserError`."""
        values = result.get("first_stage")
        values = check_type(values, dict[str, Any] | None, "first_stage")
        if values is None:
            return None
        checked_facts: dict[str, Any] = {}
        for name, kind in FirstStage.__annotations__.items():
            checked_facts[name] = check_type(values.get(name), kind, name)
        first = FirstStage(**checked_facts)
        require(_is_name(first.run), f"{first.run!r} is no run's name")
        return first


@dataclass(eq=False)
class RunFolder:
    """A run on disk. A property whose file is damaged or missing is empty."""

    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return the run's configuration as plain values. A file without a checksum was written by hand.

        Raise `ValueError` for a damaged file, and `OSError` for a missing file.
        """
        first, _, text = read_regular(self.path / "config.yaml").partition("\n")
        if not first.startswith(CHECKSUM_LINE_PREFIX):
            return parse_mapping(f"{first}\n{text}")
        if not first.endswith(hashlib.sha256(text.encode()).hexdigest()):
            raise ValueError("its checksum is of something else: delete its first line if you changed it")
        return parse_mapping(text)

    @cached_property
    def flat_config(self) -> dict[str, Any]:
        """Return the run's configuration with keys such as train.lr; empty if it is unreadable."""
        with suppress(*UNREADABLE_ERRORS):
            return flat(self.config)
        return {}

    @cached_property
    def first_stage(self) -> FirstStage | None:
        """Return the first stage of a finished run, under its folder's present name.

        None if the run is a first stage, or is unreadable.
        """
        with suppress(*UNREADABLE_ERRORS):
            first = FirstStage.read(read_json(self.path / "result.json"))
            if first is not None:
                return replace(first, run=_present_name(first.run, self.path.parent))
        return None

    @cached_property
    def machine(self) -> str:
        """Return the GPU or processor that trained the run and its widest instructions; empty if unknown."""
        with suppress(*UNREADABLE_ERRORS, KeyError):
            values = read_json(self.path / "environment.json")
            facts = {name: one_line(str(value)) for name, value in values.items()}
            if facts["device"] != "cpu":
                return facts["device"]
            instructions = facts.get("instructions")
            return facts["processor"] + (f" ({instructions})" if instructions else "")
        return ""

    @cached_property
    def means(self) -> KeptMeans:
        return read_means(self.path)

    @cached_property
    def validation_loss(self) -> float | None:
        """Return the last validation loss of train.csv, in nats per token; None without one."""
        losses = self._log_column("validation_loss")
        return losses[-1][1] if losses else None

    @property
    def losses(self) -> list[tuple[int, float]]:
        """Return the training losses of the logged steps, in nats per token."""
        return self._log_column("loss")

    def _log_column(self, name: str) -> list[tuple[int, float]]:
        """Return the numbers of a column of train.csv with their steps; empty for a damaged file."""
        with suppress(*UNREADABLE_ERRORS, KeyError, csv.Error):
            text = read_regular(self.path / "train.csv")
            records = list(csv.DictReader(io.StringIO(text, newline="")))
            logged = [record for record in records if record[name]]
            return [(int(record["step"]), float(record[name])) for record in logged]
        return []

    @cached_property
    def rows(self) -> list[Row]:
        """Return the rows of the run's eval.csv under its folder's present name."""
        with suppress(RunError):
            return read_rows_of_run(self.path)
        return []

    @cached_property
    def original_name(self) -> str:
        """Return the name of the run when it was trained, which its eval.csv keeps in a renamed folder."""
        with suppress(RunError):
            return _original_name(read_rows(self.path / "eval.csv"), self.path.name)
        return self.path.name


def folder_finder(runs: Path) -> Callable[[str], RunFolder]:
    """Return a function from a run's name to its `RunFolder`, the same object at every call."""
    folder_by_name: dict[str, RunFolder] = {}
    return lambda name: folder_by_name.setdefault(name, RunFolder(runs / name))


def flat(values: dict[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values with keys such as `train.lr`."""
    flattened: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flattened |= flat(value, f"{name}.")
        else:
            flattened[name] = value
    return flattened


# All runs of a folder of results


@dataclass(frozen=True)
class Gathered:
    """The rows of all readable runs, in a fixed order, and a message on each unreadable run."""

    rows: list[Row]
    problems: dict[str, str]  # keys: the names of unreadable runs


def gather(results_dir: Path) -> Gathered:
    """Rebuild `results.csv` from every finished run, and return the runs' rows of all targets.

    The runs are read under the lock: the process that writes last has seen all runs that finished before.
    """
    results_dir.mkdir(parents=True, exist_ok=True)
    target = results_dir / "results.csv"
    with Lock(target.with_name(target.name + ".lock")):
        for leftover in results_dir.glob(f"{TEMPORARY_PREFIX}*-{target.name}*"):  # left by a killed process
            leftover.unlink()
        gathered = read_all(results_dir)
        rows: list[Row] = []
        for name, group in groupby(gathered.rows, key=lambda row: row.run):
            rows_of_run = [*group]
            means = RunFolder(results_dir / "runs" / name).means
            rows_of_slices = [means.rows_of_slice(rows_of_run, part) for part in (*TEXT_SLICES, KEY)]
            rows += sorted(chain(rows_of_run, *rows_of_slices), key=lambda row: row.order)
        write_rows(target, rows)
    return gathered


def gather_and_warn(results_dir: Path) -> None:
    """Gather the rows of all runs, and print a warning for each unreadable run.

    Failing to write results.csv is a warning too: no run needs the file, and the next command writes it.
    """
    try:
        lines = [*dict.fromkeys(gather(results_dir).problems.values())]
    except (RunError, OSError) as error:
        lines = [first_line(error)]
    for line in lines:
        say(f"warning: {line}")


def folders_of_runs(results_dir: Path) -> list[Path]:
    """Return the paths in the folder of runs by name, without plain files and hidden paths."""
    folder = results_dir / "runs"
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    visible = [path for path in paths if not path.name.startswith(".")]
    return [path for path in visible if not path.is_file()]


def read_all(results_dir: Path) -> Gathered:
    """Return the rows of every finished run. A damaged run is named and hides no other."""
    gathered = Gathered([], {})
    from_other_versions: list[Path] = []
    for run in folders_of_runs(results_dir):
        try:
            # A damaged result.json is named: nothing else says that the training came to its end.
            if read_result(run) is not None:  # which checks all of the run's files
                gathered.rows.extend(sorted(_rows_of(run), key=lambda row: row.order))
        except OtherVersionError:
            from_other_versions.append(run)
        except RunError as error:
            gathered.problems[run.name] = one_line(str(error))
    if from_other_versions:  # which may be many, and get one line
        line = one_line(_other_version_message(from_other_versions))
        gathered.problems.update({run.name: line for run in from_other_versions})
    return gathered


@dataclass(frozen=True)
class Unfinished:
    """An evaluation of a Hugging Face model that is running or was stopped."""

    folder: RunFolder
    rows: list[Row]
    text: str  # a line that says how many lengths are missing


def read_unfinished(results_dir: Path) -> list[Unfinished]:
    """Return the unfinished evaluations of Hugging Face models, without unreadable ones."""
    unfinished: list[Unfinished] = []
    for run in folders_of_runs(results_dir):
        folder = RunFolder(run)
        source = folder.flat_config.get(f"{HF_SECTION}.source")
        if source is None or (run / "result.json").exists():
            continue
        with suppress(*UNREADABLE_ERRORS):
            check_files(run)
            config = parse_config(folder.config)
            wanted = {*config.eval.resolved_lengths(config.train.length)}
            rows = folder.rows
            done = {row.length for row in rows if row.control == "none"}
            missing = wanted - done
            text = f"not finished: {source}: {len(missing)} of {len(wanted)} lengths missing"
            unfinished.append(Unfinished(folder, rows, f"{text}; the same pe-bench eval goes on"))
    return unfinished


def read_result(run: Path) -> dict[str, Any] | None:
    """Return a run's closing summary, or None while it is not finished. Raise `RunError` for damage."""
    path = run / "result.json"
    try:
        check_files(run)
        result = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}): delete it and repeat the training command") from error
    if result.get("format", RUN_FORMAT) != RUN_FORMAT:
        raise OtherVersionError(_other_version_message([run]))
    return result


class OtherVersionError(RunError):
    """Raised for runs whose files have the format of another version of pe-bench."""


def _other_version_message(runs: Sequence[Path]) -> str:
    """Return the message for runs that other versions of pe-bench made; it names the first run."""
    versions = " and ".join(sorted({_version_of(run) for run in runs}))
    more = len(runs) - 1
    others = f" and {more} more" if more else ""
    made_by = f"made by another version of pe-bench ({versions}; this is {own_version()})"
    return f"{runs[0]}{others}: {made_by}: read it with that version, or train again in another folder"


def _version_of(run: Path) -> str:
    """Return the version of pe-bench that a run's environment.json names."""
    with suppress(*UNREADABLE_ERRORS, KeyError, TypeError):
        return one_line(str(read_json(run / "environment.json")["pe_bench"]))
    return "an unknown one"


def _rows_of(run: Path) -> list[Row]:
    """Return a finished run's rows under its folder's present name.

    Raise `RunError` for a run without rows, and for a copy of another run in the same folder.
    """
    rows = read_rows(run / "eval.csv")
    if not rows:
        raise RunError(f"{run / 'eval.csv'} has no scores: make them with {suggested_eval_command(run)}")
    original = _original_name(rows, run.name)
    if original != run.name and (run.parent / original).is_dir():
        raise RunError(f"{run.name} is a copy of {original}")
    return _renamed(rows, run.name)


def read_rows_of_run(run: Path) -> list[Row]:
    """Return the rows of a run's eval.csv under its folder's present name. Raise `RunError` for damage."""
    return _renamed(read_rows(run / "eval.csv"), run.name)


def _renamed(rows: Sequence[Row], name: str) -> list[Row]:
    """Return the rows of one run under a name; of rows that then have the same key, the last."""
    renamed = [replace(row, run=name) for row in rows]
    if len({row.run for row in rows}) > 1:  # an earlier version added rows under the name of a renamed folder
        renamed = list({row.key: row for row in renamed}.values())
    return renamed


def _original_name(rows: Iterable[Row], name: str) -> str:
    """Return the name of a run when it was trained, which its rows in eval.csv keep.

    name: the present name of its folder.
    """
    others = (row.run for row in rows if row.run != name)
    return next(filter(_is_name, others), name)


def _present_name(name: str, runs: Path) -> str:
    """Return the name of the folder in `runs` of the run that was trained under a name.

    It is the name itself if its folder exists, or if no renamed folder in `runs` has the run.
    """
    if (runs / name).is_dir():
        return name
    folders = sorted(path.name for path in runs.iterdir())
    return _names_by_original(runs.absolute(), tuple(folders)).get(name, name)


@lru_cache(maxsize=4)  # many later stages may have lost the same few parents
def _names_by_original(runs: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the present names of the runs in renamed folders; keys: their names when they were trained."""
    renamed: dict[str, str] = {}
    for name in filter(_is_name, names):
        original = RunFolder(runs / name).original_name
        if original != name:
            renamed.setdefault(original, name)
    return renamed


def _is_name(text: str) -> bool:
    """Return whether a text may name a run. A stranger's file may hold a path in place of a name."""
    return NAME.fullmatch(text) is not None and not text.startswith(".")


def encoding_in(run_name: str) -> str:
    """Return the encoding at the beginning of a run's name; the whole name if it has another form."""
    return re.sub(r"-s\d+-[0-9a-f]+$", "", run_name)


@dataclass(frozen=True)
class RunState:
    """The progress of a run; unknown values are None or empty."""

    run: str  # its name
    encoding: str  # its label in tables
    state: str = "unreadable"  # or finished, not finished, failed
    steps: int | None = None  # the steps that are done
    total: int | None = None  # the steps of the whole training
    loss: float | None = None  # the last training loss, in nats per token
    lengths: tuple[int, ...] = ()  # the lengths that have a score
    problem: str = ""  # why the run is unreadable
    tags: tuple[str, ...] = ()  # the newest at the end


def state_of(run: Path) -> RunState:
    """Return the state of a run: finished, not finished or failed; a damaged run is unreadable."""
    name = one_line(run.name)
    unreadable = RunState(name, encoding_in(name), tags=tuple(tags_of(run)))
    try:
        result = read_result(run)
        if result is not None:
            rows = _rows_of(run)
            steps = int(result["steps"])
            level_rows = [row for row in rows if row.protocol not in APART]
            scored = {row.length for row in level_rows if row.nll is not None}
            lengths = tuple(sorted(scored))
            known = {"state": "finished", "steps": steps, "total": steps, "lengths": lengths}
            state = replace(unreadable, encoding=rows[0].encoding, **known)
        else:
            newest = max((run / "checkpoints").glob("step-*/meta.json"), default=None)
            result = read_json(newest) if newest else {"step": 0}
            total = read_config(run).train.total_steps
            word = "failed" if (run / ERROR_FILE).exists() else "not finished"
            state = replace(unreadable, state=word, steps=int(result["step"]), total=total)
        loss = result.get("loss")
        if loss is not None:
            state = replace(state, loss=float(f"{loss:.3f}"))
        return state
    except (RunError, OSError, ValueError, LookupError, TypeError, OverflowError) as error:
        return replace(unreadable, problem=one_line(first_line(error)))
