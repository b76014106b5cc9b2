"""The columns of results, and reading and writing one CSV file of them."""

import csv
import dataclasses
import io
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar, cast

from pe_bench.config.schema import LOSES_TEXT
from pe_bench.errors import RunError, first_line
from pe_bench.runs.typed import suggested_eval_command
from pe_bench.runs.untrusted import read_regular
from pe_bench.system.files import write_text
from pe_bench.system.terminal import CONTROL_SIGNS, FORMULA_SIGNS, printable
from pe_bench.values import MAX_INTEGER


@dataclass(frozen=True)
class Row:
    """A row of results: the score of a run at a length under a protocol, or why the score is missing."""

    run: str
    encoding: str
    scored_with: str  # the label of the encoding under which the weights were scored
    forced: bool  # scored by --force, with an encoding that is not compatible with the trained one
    knows_length: bool  # the encoding is given the final length of each text
    seed: int
    model: str
    setting: str  # as in `Job`: rows of runs with one setting may be compared
    train_length: int
    length: int
    protocol: str
    control: str  # `none`, or the control that changed the windows
    stride: int | None  # the stride of the sliding protocol, at this length
    stride_rule: str  # how the stride was chosen: half (of the length), or the number in eval.stride
    status: str  # ok, undefined, out_of_memory, failed
    reason: str  # why there is no number
    nll: float | None  # nats per token
    perplexity: float | None
    bits_per_byte: float | None
    context_mean: float | None  # the mean number of tokens that a target sees
    targets: int  # the number of scored tokens
    target_tokens: int | None  # the tokens in a target block of the paired protocol
    documents: int  # the number of documents with targets
    target_hash: str  # the hash of the set of targets
    data: str  # the name of the text or the task
    data_hash: str
    tokenizer: str
    parameters: int
    steps: int
    train_tokens: int
    tokens_per_second: float  # in training
    peak_memory_mb: float | None  # in scoring
    device: str
    train_dtype: str
    score_dtype: str
    threads: int
    torch: str  # the version of PyTorch
    pe_bench: str  # the version of pe-bench
    git: str  # the commit of a checkout of pe-bench
    date: str
    encoding_lr: float = 1.0  # the rate at which the encoding's parameters learned, over train.lr
    slice: str = "all"  # the slice of the targets on which the score is; eval.csv of a run has all targets
    judge: str = ""  # the run whose scores decided which targets are in the slice
    slice_hash: str = ""  # the hash of the mask of the slice; in one set, equal hashes mean equal targets
    accuracy: float | None = None  # the share of right answers, where there are answers
    exact: float | None = None  # the share of a task's examples without a wrong answer
    chance: float | None = None  # the accuracy of guessing
    # The depth of a probe's span: 0 at the start of the window, 1 just before the cue.
    depth: float | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """Return the values of the columns `KEY` as texts: a later row with the same key replaces it."""
        return tuple(map(str, _KEY_OF(self)))

    @property
    def half(self) -> str:
        """Return the name of the scored half of documents or examples; empty if all were scored."""
        return self.target_hash.rpartition("-")[0]

    @property
    def loses_text(self) -> bool:
        """Return whether the tokenizer does not give a text back: levels are then nats per token."""
        return self.tokenizer.endswith(LOSES_TEXT)

    @property
    def order(self) -> tuple[str, str, str, int, float, str, bool, str]:
        """Return the sort key of the row among the rows of its run in a file."""
        is_coarse = self.score_dtype != "float32"
        scored = self.protocol, self.scored_with, self.control
        windows = self.length, self.depth or 0.0, self.target_hash
        return (*scored, *windows, is_coarse, self.slice)


Item = TypeVar("Item")
Key = TypeVar("Key")
TASK = "task"  # a protocol: the answers of examples, each of which is a document
POSITIONS = "positions"  # replaces the protocol in the rows of a position curve
PROBE = "probe"  # replaces the protocol in the rows of a probe
APART = (POSITIONS, PROBE)  # rows that no table of levels has
HALF = "half"  # a stride rule
ALL = "all"  # the slice of all targets
BY_RUN, BY_SEED = attrgetter("run"), attrgetter("seed")  # the same weights; the same batches
KEY = (
    *("run", "scored_with", "protocol", "control", "stride_rule", "length", "target_hash", "score_dtype"),
    *("slice", "judge", "depth"),
)
_KEY_OF = attrgetter(*KEY)
COLUMNS = tuple(field.name for field in dataclasses.fields(Row))
_VALUES_OF = attrgetter(*COLUMNS)
# The types of each column: one, or two where a cell may be empty.
_KINDS = {name: typing.get_args(kind) or (kind,) for name, kind in typing.get_type_hints(Row).items()}
NULLABLE_INTEGER_COLUMNS = {name for name, kinds in _KINDS.items() if kinds == (int, type(None))}
FLOAT_COLUMNS = {name for name, kinds in _KINDS.items() if kinds[0] is float}
# Columns in the names of files of scores.
_IN_FILE_NAMES = {"protocol", "control", "target_hash", "score_dtype", "stride_rule"}
_MINIMA = {"train_length": 1, "length": 1, "targets": 1}
MAX_CACHED_CELLS = 2**14  # cells: most values of a row are also in other rows


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a CSV file; none without the file. Raise `RunError` for a damaged file."""
    try:
        lines = csv.DictReader(io.StringIO(read_regular(path), newline=""), strict=True)
        return [Row(*_read_cells(line)) for line in lines]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError, csv.Error) as error:
        reason = f"it has no column {error}" if isinstance(error, KeyError) else first_line(error)
        again = f"delete it and score the run again, {suggested_eval_command(path.parent)}"
        raise RunError(f"{path} is damaged ({reason}): {again}") from error


def _read_cells(line: Mapping[str, str]) -> list[Any]:
    return [read_cell(name, line[name]) for name in COLUMNS]


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Replace a CSV file by these rows; of rows with the same key, the last is written."""
    latest = {row.key: row for row in rows}
    text = io.StringIO()
    lines = [map(_cell_text, _VALUES_OF(row)) for row in latest.values()]
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *lines])
    write_text(path, text.getvalue())


def _cell_text(value: object) -> str:
    """Return a cell's text. A float's `repr` reads back as the same float; that of a numpy float does not."""
    if isinstance(value, str):
        text = printable(value)
        return f"'{text}" if text.startswith(FORMULA_SIGNS) else text
    if isinstance(value, float):
        return repr(float(value))
    return "" if value is None else str(value)


@lru_cache(maxsize=MAX_CACHED_CELLS)
def read_cell(name: str, text: str) -> Any:
    """Return a column's value from its text, which may be a stranger's.

    Raise `ValueError` for an impossible value, and for a text that could do harm when it is shown.
    """
    kind, *may_be_empty = _KINDS[name]
    if kind is not str:
        if not text and may_be_empty:
            return None
        with suppress(KeyError, ValueError):
            value = {"True": True, "False": False}[text] if kind is bool else kind(text)
            if kind is not int or _MINIMA.get(name, 0) <= value <= MAX_INTEGER:
                return value
        raise ValueError(f"{name} is {text!r:.60}, which cannot be")
    if CONTROL_SIGNS.search(text):
        raise ValueError(f"{name} has control characters: {text!a:.60}")
    if text.startswith(FORMULA_SIGNS):
        raise ValueError(f"{name} begins as a formula does: {text!r:.60}")
    if name in _IN_FILE_NAMES and not re.fullmatch(r"[\w.+-]*", text):
        raise ValueError(f"{name} is {text!r:.60}, which cannot stand in a file's name")
    return text


# Questions about rows


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items by their keys; groups are in the order of their first items."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def has_number(row: Row) -> bool:
    """Return whether a row has a level."""
    return row.status == "ok" and level_of(row) is not None


def level_of(row: Row) -> float:
    """Return the level of a row that has a number: the quantity that tables show and compare.

    It is in bits per byte, or in nats per token if the tokenizer loses text; of a task it is the share of
    examples without a wrong answer. For a row without a number it is None, which the type does not say.
    """
    if row.protocol == TASK:
        return cast(float, row.exact)
    return cast(float, row.nll if row.loses_text else row.bits_per_byte)


def one_per_run(rows: Iterable[Row]) -> list[Row]:
    """Return one row of each run, its last."""
    return list({row.run: row for row in rows}.values())


def is_as_trained(row: Row) -> bool:
    """Return whether a row was scored with the trained encoding, and not under a control."""
    return row.control == "none" and row.scored_with == row.encoding


def describe_failures(rows: Iterable[Row]) -> str:
    """Return a message on the rows at which a user's own code failed; empty without such rows."""
    failed = [row for row in rows if row.status == "failed"]
    if not failed:
        return ""
    failed.sort(key=lambda row: row.length)
    first = failed[0]
    lengths = ", ".join(dict.fromkeys(str(row.length) for row in failed))
    return (
        f"{first.scored_with} could not be scored at {lengths}: {first.reason}: mend it, "
        "or raise LengthError where the encoding is undefined; then score the same weights with "
        f"`pe-bench eval {first.run} --code FILE --force`"
    )
