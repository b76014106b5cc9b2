"""The rows of results: their columns, one file in each run, and all of them gathered.

A run's `eval.csv` is the truth. `results.csv` is derived from all of them, rebuilt whole under
a lock and never appended to, so that processes that finish together lose nothing. The SHA-256 of what was
written stands beside it, by which a file that somebody edited is known, and kept under another name.
"""

import csv
import dataclasses
import hashlib
import io
import itertools
import os
import re
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from pe_bench.checking import LARGEST
from pe_bench.errors import RunError, UserError
from pe_bench.files import TEMPORARY, failures_named, write_text
from pe_bench.strangers import check_files, read_json
from pe_bench.terminal import CONTROL, printable

if TYPE_CHECKING:
    import _csv


@dataclass(frozen=True)
class Row:
    """One score: a run, at a length, under a protocol. An empty number has its status and reason."""

    run: str
    encoding: str
    scored_with: str
    seed: int
    model: str
    setting: str  # hash of all of the run but its encoding and seed: rows that may be compared
    train_length: int
    length: int
    protocol: str
    control: str
    stride: int | None  # of the sliding protocol, at this length
    status: str  # ok, undefined, out_of_memory, too_few_documents
    reason: str
    nll: float | None
    perplexity: float | None
    bits_per_byte: float | None
    context_mean: float | None
    targets: int
    documents: int
    target_hash: str
    data: str
    data_hash: str
    tokenizer: str
    parameters: int
    steps: int
    train_tokens: int
    tokens_per_second: float
    peak_memory_mb: float | None
    device: str
    train_dtype: str
    score_dtype: str
    threads: int
    torch: str
    pe_bench: str
    git: str
    date: str

    @property
    def key(self) -> tuple[str, ...]:
        """What a row is of; a second score of the same thing replaces the first."""
        return tuple(map(str, _KEY_OF(self)))

    @property
    def order(self) -> tuple[str, str, str, int, str, bool]:
        coarse = self.score_dtype != "float32"
        return (self.protocol, self.scored_with, self.control, self.length, self.target_hash, coarse)


TOLD = "the encoding is told the length of the text"  # the remark of a row
FORCED = " (forced)"  # ends what a row was scored with, where it may not follow what was trained
POSITIONS = "positions"  # in place of a protocol, in the rows of a position curve
KEY = ("run", "scored_with", "protocol", "control", "stride", "length", "target_hash", "score_dtype")
_KEY_OF = attrgetter(*KEY)
COLUMNS = tuple(field.name for field in dataclasses.fields(Row))
_VALUES_OF = attrgetter(*COLUMNS)
_TYPES = typing.get_type_hints(Row)
_MAY_BE_EMPTY = {name for name, kind in _TYPES.items() if type(None) in typing.get_args(kind)}
_WHOLE = {name for name, kind in _TYPES.items() if int in (kind, *typing.get_args(kind))}
_FORMULA = ("=", "+", "-", "@")  # begin what a spreadsheet computes
_FILE_NAME = re.compile(r"[\w.+-]*")
_IN_FILE_NAMES = {"protocol", "control", "target_hash", "score_dtype"}  # of scores
_AT_LEAST = {"train_length": 1, "length": 1}


@dataclass(frozen=True)
class Gathered:
    """The rows of all readable runs in a fixed order, and a line for each thing that was not as expected."""

    rows: list[Row]
    problems: list[str]


def runs_folder(results_dir: Path) -> Path:
    return results_dir / "runs"


def results_file(results_dir: Path) -> Path:
    return results_dir / "results.csv"


def read_rows(path: Path) -> list[Row]:
    """The rows of one CSV file, none where there is no file.

    Raises `RunError` when the file is damaged, or has other columns than this version's.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return _parse_all(csv.reader(file, strict=True), path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, csv.Error) as error:
        raise RunError(f"{path} is damaged ({error}): delete it and score the run again") from error


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Replace the file by these rows, later ones winning over earlier ones of the same key."""
    write_text(path, _table(rows))


def gather(results_dir: Path) -> Gathered:
    """Rebuild `results.csv` from every finished run; what went into it, and what could not.

    The runs are read under the lock: whoever writes last has seen what was finished before.
    """
    results_dir.mkdir(parents=True, exist_ok=True)
    target = results_file(results_dir)
    with FileLock(target.with_name(target.name + ".lock")):
        for leftover in results_dir.glob(f"{TEMPORARY}*-{target.name}*"):  # of a killed process
            leftover.unlink()
        found = read_all(results_dir)
        edited = _keep_edited(target)
        _write_with_sum(target, _table(found.rows))
    return replace(found, problems=[*found.problems, *edited])


def read_all(results_dir: Path) -> Gathered:
    """The rows of every finished run. A damaged run is named and hides no other."""
    rows: list[Row] = []
    problems = []
    for path in sorted(runs_folder(results_dir).glob("*/result.json")):
        try:
            found = sorted(_rows_of(path.parent), key=lambda row: row.order)
            if not found:
                run = path.parent
                problems.append(printable(f"{run} has no scores: make them with `pe-bench eval {run.name}`"))
            rows += found
        except RunError as error:
            problems.append(printable(str(error)))
    return Gathered(rows, problems)


def require_results_folder(results_dir: Path) -> None:
    """Raises `UserError` where something else than a folder has that name."""
    if results_dir.exists() and not results_dir.is_dir():
        raise UserError(f"--results-dir {results_dir} is not a folder: name the folder that holds runs/")


def read_result(run: Path) -> dict[str, object] | None:
    """A run's closing summary, or None while it is not finished."""
    path = run / "result.json"
    if not path.exists():
        return None
    check_files(run)
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}): delete it and repeat the training command") from error


def _keep_edited(path: Path) -> list[str]:
    """Rename a file that is not what was written there, and say so in a line.

    A file without a sum beside it, as older versions left it, passes for unedited; an empty one has nothing
    to keep.
    """
    known, found = _known_sums(path), _read_bytes(path)
    if not found or not known or hashlib.sha256(found).hexdigest() in known:
        return []
    names = (path.with_name(f"{path.name}.edited-{number}") for number in itertools.count(1))
    kept = next(name for name in names if not name.is_symlink() and not name.exists())
    with failures_named(kept):
        os.replace(path, kept)
    line = f"{path} was edited, and is kept as {kept}: {path.name} is made anew from the runs each time"
    return [printable(line)]


def _write_with_sum(path: Path, text: str) -> None:
    """Replace the file, and the line beside it that `sha256sum -c` checks.

    While the file is replaced, there are lines for the old one and for the new one: whichever a process that
    is killed leaves behind, it is known.
    """
    before, after = _sum_line(path, _read_bytes(path) or b""), _sum_line(path, text.encode())
    write_text(_sum_file(path), before + after)
    write_text(path, text)
    write_text(_sum_file(path), after)


def _known_sums(path: Path) -> set[str]:
    found = _read_bytes(_sum_file(path)) or b""
    return {line.split()[0] for line in found.decode(errors="replace").splitlines() if line.strip()}


def _sum_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _sum_line(path: Path, content: bytes) -> str:
    return f"{hashlib.sha256(content).hexdigest()}  {path.name}\n"


def _read_bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _table(rows: Iterable[Row]) -> str:
    """Rows as CSV, later ones winning over earlier ones of the same key."""
    latest = {row.key: row for row in rows}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(map(_spell, _VALUES_OF(row)) for row in latest.values())
    return text.getvalue()


def _rows_of(run: Path) -> Iterable[Row]:
    """A run's rows under the name that its folder has now. Raises `RunError` for a copy of one beside it."""
    check_files(run)
    try:
        name = _text(run.name, "its name")
    except ValueError as error:
        raise RunError(f"{run} is left out ({error}): give the folder another name") from error
    read = read_rows(run / "eval.csv")
    original = _original_of(run, read)
    if original is not None:
        raise RunError(f"{name} is a copy of {original}")
    rows = [row if row.run == name else replace(row, run=name) for row in read]
    return {row.key: row for row in rows}.values()


def _original_of(run: Path, rows: Iterable[Row]) -> str | None:
    """The run beside this one that all its rows are of; None where it has its own, or the other is gone."""
    names = {row.run for row in rows}
    name = names.pop() if len(names) == 1 else run.name
    is_beside = name != run.name and name == Path(name).name
    return name if is_beside and (run.parent / name / "result.json").is_file() else None


def _spell(value: object) -> str:
    """A cell's text. `repr` of a float reads back as the same float; numpy's would not be a number."""
    if value is None:
        return ""
    if isinstance(value, str):
        text = printable(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return repr(float(value)) if isinstance(value, float) else str(value)


def _parse_all(reader: "_csv.Reader", path: Path) -> list[Row]:
    found = next(reader, None)
    if found is None:
        raise ValueError("it is empty")
    if set(found) != set(COLUMNS):
        odd = [f"no column {name}" for name in COLUMNS if name not in found]
        odd += [f"an unknown column {name}" for name in found if name not in _TYPES]
        raise RunError(
            f"{path} is not of this version of pe-bench ({', '.join(odd)}): "
            "delete it and score the run again, or use the version that wrote it"
        )
    read = [(found.index(name), _reader(name)) for name in COLUMNS]
    return [_parse(cells, read, reader.line_num) for cells in reader if cells]


def _parse(cells: list[str], read: Sequence[tuple[int, Callable[[str], Any]]], line: int) -> Row:
    """read: the place and the reader of each column's cell, in the order of `Row`."""
    if len(cells) != len(COLUMNS):
        raise ValueError(f"line {line} does not have {len(COLUMNS)} cells")
    return Row(*[value(cells[place]) for place, value in read])


def _reader(name: str) -> Callable[[str], Any]:
    return partial(_text if _TYPES[name] is str else _value, name=name)


def _text(text: str, name: str) -> str:
    """A stranger's, maybe: it goes to terminals, spreadsheets and the names of files."""
    if CONTROL.search(text):
        raise ValueError(f"{name} has control characters: {text!a:.60}")
    if text.startswith(_FORMULA):
        raise ValueError(f"{name} begins as a formula does: {text!r:.60}")
    if name in _IN_FILE_NAMES and not _FILE_NAME.fullmatch(text):
        raise ValueError(f"{name} is {text!r:.60}, which cannot stand in a file's name")
    return text


def _value(text: str, name: str) -> Any:
    if not text and name in _MAY_BE_EMPTY:
        return None
    try:
        if name not in _WHOLE:
            return float(text)
        number = int(text)
    except ValueError as error:
        raise ValueError(f"{name} is {text!r:.60}, which is not a number") from error
    if not _AT_LEAST.get(name, 0) <= number <= LARGEST:
        raise ValueError(f"{name} is {number}, which cannot be")
    return number
