"""The columns of results, and reading and writing one CSV file of them."""

import csv
import dataclasses
import hashlib
import io
import re
import shlex
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.errors import RunError, first_line
from pe_bench.runs.untrusted import read_regular, unreadable
from pe_bench.system.files import write_text
from pe_bench.system.terminal import CONTROL, FORMULA, printable
from pe_bench.values import MAX_INTEGER

if TYPE_CHECKING:
    import _csv


@dataclass(frozen=True)
class Row:
    """One score: a run, at a length, under a protocol. An empty number has its status and reason."""

    run: str
    encoding: str
    scored_with: str
    forced: bool  # scored by --force, with an encoding that is not compatible with the trained one
    knows_length: bool  # the encoding is given the final length of each text
    seed: int
    model: str
    setting: str  # hash of all of the run but its encoding and seed: rows that may be compared
    train_length: int
    length: int
    protocol: str
    control: str
    stride: int | None  # of the sliding protocol, at this length
    stride_rule: str  # of the sliding protocol: half (the length), or the number that eval.stride gives
    status: str  # ok, undefined, out_of_memory, failed, too_few_documents
    reason: str
    nll: float | None
    perplexity: float | None
    bits_per_byte: float | None
    context_mean: float | None
    targets: int
    target_tokens: int | None  # in a target block of the paired protocol
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
    encoding_lr: float = 1.0  # the rate at which the encoding's parameters learned, over train.lr
    slice: str = "all"  # the part of the targets that the numbers are of; a run's own file has all targets
    judge: str = ""  # the run whose scores decided which targets are in the slice
    slice_hash: str = ""  # of which targets are in the slice; equal hashes in one set, equal targets
    accuracy: float | None = None  # the share of right answers, where there are answers
    exact: float | None = None  # the share of a task's examples all of whose answers are right
    chance: float | None = None  # the accuracy of guessing
    depth: float | None = None  # of a probe's span: 0 at the start of the window, 1 just before the cue

    @property
    def key(self) -> tuple[str, ...]:
        """Return what identifies a score; a second one with the same key replaces the first."""
        return tuple(map(str, _KEY_OF(self)))

    @property
    def order(self) -> tuple[str, str, str, int, float, str, bool, str]:
        coarse = self.score_dtype != "float32"
        first = (
            self.protocol,
            self.scored_with,
            self.control,
            self.length,
            self.depth or 0.0,
            self.target_hash,
        )
        return (*first, coarse, self.slice)


TASK = "task"  # a protocol: the answers of examples, each of which is a document
POSITIONS = "positions"  # in place of a protocol, in the rows of a position curve
PROBE = "probe"  # in place of a protocol, in the rows of a probe
APART = (POSITIONS, PROBE)  # rows that no table of levels has
HALF = "half"  # a stride rule
ALL = "all"  # the slice of all targets
KEY = (
    *("run", "scored_with", "protocol", "control", "stride_rule", "length", "target_hash", "score_dtype"),
    *("slice", "judge", "depth"),
)
_KEY_OF = attrgetter(*KEY)
COLUMNS = tuple(field.name for field in dataclasses.fields(Row))
_VALUES_OF = attrgetter(*COLUMNS)
_TYPES = typing.get_type_hints(Row)
_MAY_BE_EMPTY = {name for name, kind in _TYPES.items() if type(None) in typing.get_args(kind)}
_TRUTHS = {"True": True, "False": False}
_WHOLE = {name for name, kind in _TYPES.items() if int in (kind, *typing.get_args(kind))}
MAYBE_WHOLE = _WHOLE & _MAY_BE_EMPTY  # whole numbers that may be missing
_FILE_NAME = re.compile(r"[\w.+-]*")
_IN_FILE_NAMES = {"protocol", "control", "target_hash", "score_dtype", "stride_rule"}  # of scores
MAX_KNOWN = 4096  # cells of a column that are remembered
_AT_LEAST = {"train_length": 1, "length": 1, "targets": 1}
# The last column of a run's file: in each row the hash of all other cells, so that the file is still a
# table and a kill cannot part rows and checksum. A file that was edited by hand may have none.
CHECKSUM = "rows_sha256"


def read_rows(path: Path) -> list[Row]:
    """Return the rows of one CSV file, none where there is no file.

    Raises `RunError` when the file is damaged, or has other columns than this version's.
    """
    try:
        text = io.StringIO(read_regular(path), newline="")
        return _parse_all(csv.reader(text, strict=True), path)
    except FileNotFoundError:
        return []
    except PermissionError as error:
        raise RunError(unreadable(error)) from error
    except (OSError, ValueError, csv.Error) as error:
        raise RunError(
            f"{path} is damaged ({first_line(error)}): delete it and score the run again, "
            f"`pe-bench eval {shlex.quote(path.parent.name)}`"
        ) from error


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Replace a run's file by these rows with their checksum; of rows with the same key, the last wins."""
    lines = _lines(rows)
    last = [_checksum(lines)]
    columns = (*COLUMNS, CHECKSUM) if lines else COLUMNS
    write_text(path, _to_text(columns, [cells + last for cells in lines]))


def to_csv(rows: Iterable[Row]) -> str:
    """Return rows as CSV, later ones winning over earlier ones of the same key."""
    return _to_text(COLUMNS, _lines(rows))


def _lines(rows: Iterable[Row]) -> list[list[str]]:
    """Return the cells of each row, the last one of each key."""
    latest = {row.key: row for row in rows}
    return [[*map(_spell, _VALUES_OF(row))] for row in latest.values()]


def _to_text(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines)
    return text.getvalue()


def _checksum(lines: Sequence[Sequence[str]]) -> str:
    """Return the hash of all cells, whatever quotes and ends of lines they are written with."""
    return hashlib.sha256("\x1e".join("\x1f".join(cells) for cells in lines).encode()).hexdigest()


def _without_checksum(lines: list[list[str]]) -> list[list[str]]:
    """Return the lines without their last cells. Raise `ValueError` where these are not their checksum."""
    rows = [cells[:-1] for cells in lines]
    if {cells[-1] for cells in lines} != {_checksum(rows)}:
        raise ValueError("its rows are not those of its checksum")
    return rows


def _spell(value: object) -> str:
    """A cell's text. `repr` of a float reads back as the same float; numpy's would not be a number."""
    if value is None:
        return ""
    if isinstance(value, str):
        return _spell_text(value)
    return repr(float(value)) if isinstance(value, float) else str(value)


@lru_cache(maxsize=MAX_KNOWN)
def _spell_text(value: str) -> str:
    text = printable(value)
    return f"'{text}" if text.startswith(FORMULA) else text


def _parse_all(reader: "_csv.Reader", path: Path) -> list[Row]:
    columns = next(reader, None)
    if columns is None:
        raise ValueError("it is empty")
    has_checksum = columns[-1:] == [CHECKSUM]
    columns = columns[:-1] if has_checksum else columns
    missing = [name for name in COLUMNS if name not in columns]
    odd = [f"an unknown column {name}" for name in columns if name not in _TYPES]
    if odd or missing:
        odd = [f"no column {name}" for name in missing] + odd
        raise RunError(
            f"{path} is not of this version of pe-bench ({', '.join(odd)}): "
            "delete it and score the run again, or use the version that wrote it"
        )
    width = len(columns) + has_checksum
    lines = [_checked_line(cells, width, reader.line_num) for cells in reader if cells]
    lines = _without_checksum(lines) if has_checksum else lines
    readers = [(columns.index(name), _reader(name)) for name in COLUMNS]
    return [Row(*[value(cells[index]) for index, value in readers]) for cells in lines]


def _checked_line(cells: list[str], width: int, line: int) -> list[str]:
    if len(cells) != width:
        raise ValueError(f"line {line} does not have {width} cells")
    return cells


@cache
def _reader(name: str) -> Callable[[str], Any]:
    """Return the function that reads a column; a text that many rows share is parsed once."""
    if _TYPES[name] is bool:
        return partial(_truth, name=name)
    read = partial(read_text if _TYPES[name] is str else _value, name=name)
    return lru_cache(maxsize=MAX_KNOWN)(read) if _TYPES[name] is str or name in _WHOLE else read


def _truth(text: str, name: str) -> bool:
    if text not in _TRUTHS:
        raise ValueError(f"{name} is {text!r:.60}, neither True nor False")
    return _TRUTHS[text]


def read_text(text: str, name: str) -> str:
    """A stranger's, maybe: it goes to terminals, spreadsheets and the names of files."""
    if CONTROL.search(text):
        raise ValueError(f"{name} has control characters: {text!a:.60}")
    if text.startswith(FORMULA):
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
    if not _AT_LEAST.get(name, 0) <= number <= MAX_INTEGER:
        raise ValueError(f"{name} is {number}, which cannot be")
    return number
