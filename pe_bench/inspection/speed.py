"""What `pe-bench speed` is asked to time, the rows of speed.csv that it writes, and their table."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from pe_bench.config.compose import OVERRIDES_VARIABLE, compose
from pe_bench.config.groups import encoding_names
from pe_bench.config.overrides import parse_override
from pe_bench.errors import UserError, require
from pe_bench.inspection.resolve import ResolvedEncoding, resolve, split_arguments
from pe_bench.system.files import name_write_errors, write_text
from pe_bench.system.grid import MIN_FOLDED, Cell, Column, Grid
from pe_bench.values import check_type

REFERENCE = "nope"
SCORE_PRECISION = "eval.precision"
# Sections and keys that say how the model is and what it runs on, and those without effect.
SHARED = ("model", "train", "seed", "precision", "threads", "device", "results_dir")
UNUSED = ("data", "tokenizer", "eval", "report", "experiment", "cache_dir")
# What is measured: of two rows with the same, the later one holds.
KEY = ["encoding", "setting", "model", "length", "pass", "device", "processor", "threads", "dtype"]


@dataclass(frozen=True)
class Request:
    """Encodings to time, overrides, and folders with encodings of a person's own."""

    names: tuple[str, ...]
    overrides: tuple[str, ...]
    search: tuple[Path, ...]
    train: bool
    is_choice: bool = True  # False: all encodings, because none was named

    @property
    def shared(self) -> list[str]:
        """The overrides that the reference gets too: no option of an encoding and no modifier."""
        overrides = [(text, parse_override(text)) for text in self.overrides]
        return [text for text, one in overrides if one.section in SHARED or one.key == SCORE_PRECISION]

    def at(self, length: int) -> list[ResolvedEncoding]:
        """Resolve the reference, then the others, each once. Raises `UserError`."""
        step: list[str] = []
        if self.train:  # a step of as many windows as `train.batch_tokens` holds
            train = compose([f"encoding={REFERENCE}", *self.shared], self.search)["train"]
            windows = max(1, check_type(train["batch_tokens"], int, "train.batch_tokens") // length)
            step = [f"train.length={length}", f"train.batch_tokens={windows * length}"]
        reference = resolve([REFERENCE, *self.shared, *step], self.search)
        subjects = resolve([*self.names, *self.overrides, *step], self.search)
        return list({subject.label: subject for subject in (*reference, *subjects)}.values())


def read_request(arguments: Sequence[str], train: bool, search: Sequence[Path]) -> Request:
    """Read the arguments; no name means all encodings. Raises `UserError` for one without effect."""
    names, overrides = split_arguments(arguments)
    for text in overrides:
        override = parse_override(text)
        is_precision = override.key == SCORE_PRECISION
        reason = "--train scores nothing" if is_precision else "speed reads random bytes"
        is_used = override.section not in UNUSED or (is_precision and not train)
        require(is_used, f"{text} has no effect: {reason}; remove it")
        reason = "with --train each of --lengths is the training length in turn"
        require(not train or override.key != "train.length", f"{text} has no effect: {reason}; remove it")
    before = os.environ.get(OVERRIDES_VARIABLE, "").split()
    every = tuple(names or encoding_names(search))
    return Request(every, (*before, *overrides), tuple(search), train, is_choice=bool(names))


def with_examples(resolved: ResolvedEncoding) -> ResolvedEncoding:
    """Add an example for each option that the encoding's class requires."""
    return replace(resolved, config=replace(resolved.config, encoding=resolved.spec.with_examples().values))


# Rows


@dataclass(frozen=True)
class Row:
    """The measurement of one encoding at one length. An empty number has a status and a reason."""

    encoding: str
    setting: str  # the command's words that are no option of the encoding
    model: str
    length: int
    kind: str  # `pass` in the file: score, train
    batch: int | None = None  # windows in one pass
    path: str = ""  # of attention; of several layers' joined by +
    status: str = "ok"  # undefined, out_of_memory, not_finite, failed
    reason: str = ""
    milliseconds: float | None = None  # the median
    tokens_per_second: float | None = None
    relative: float | None = None  # to the reference: the median of ratios of neighbours in time
    relative_low: float | None = None  # half of the ratios lie between these two
    relative_high: float | None = None
    peak_memory_mb: float | None = None  # above what was held before the first pass
    gflops_per_second: float | None = None
    repeats: int = 0
    device: str = ""
    processor: str = ""
    threads: int = 0
    dtype: str = ""
    torch: str = ""
    pe_bench: str = ""
    date: str = ""

    @property
    def line(self) -> str:
        """Return the line that shows this row while others are timed."""
        what = f"{self.encoding}, {self.length:,} tokens: "
        if self.milliseconds is None:
            return what + self.status.replace("_", " ")
        relative = "" if self.relative is None else f", {self.relative:.2f} x {REFERENCE}"
        return f"{what}{self.milliseconds:,.1f} ms{relative} ({self.path})"


# `pass` is a keyword of Python, and cannot name a field.
COLUMNS = ["pass" if field.name == "kind" else field.name for field in dataclasses.fields(Row)]


def read_rows(path: Path) -> Any:
    """Return the rows of a file as a table of texts; none without a file. Raises `UserError`."""
    import pandas

    if not path.exists():
        return pandas.DataFrame(columns=COLUMNS, dtype=str)
    try:
        rows = pandas.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): move it away") from error
    odd = ", ".join(sorted({*rows.columns} ^ {*COLUMNS}))
    require(not odd, f"{path} has other columns than this pe-bench writes ({odd}): move it away")
    return rows


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Append rows to a file, in place of those that measured the same.

    A lock makes the later of two commands read what the other wrote.
    """
    import pandas

    texts = [["" if value is None else str(value) for value in dataclasses.astuple(row)] for row in rows]
    with name_write_errors(path), FileLock(path.with_name(path.name + ".lock")):
        every = pandas.concat([read_rows(path), pandas.DataFrame(texts, columns=COLUMNS)])
        write_text(path, every.drop_duplicates(KEY, keep="last").to_csv(index=False))


# The table: the cheapest encoding at the longest length first, with all its lengths

TABLE = ("encoding", "tokens", "attention", "ms", "tokens/s", "x {}", "spread", "MB")
WORDS = ("encoding", "attention")  # columns of words
OF_PASS = {"score": "scoring one window", "train": "a training step"}


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Put the cheapest encoding at the longest length first, and those without a number there last."""
    longest = max(row.length for row in rows)
    costs = {row.encoding: row.relative for row in rows if row.length == longest and row.relative is not None}
    return sorted(rows, key=lambda row: (costs.get(row.encoding, math.inf), row.encoding, row.length))


def title(rows: Sequence[Row]) -> str:
    """Say what was timed, with what, and where."""
    first = rows[0]
    machine = first.processor if first.device == "cpu" else first.device
    threads = "1 thread" if first.threads == 1 else f"{first.threads} threads"
    words = (word.removeprefix("model.") for word in first.setting.split() if word.startswith("model."))
    sizes = " ".join(words)
    model = f"{first.model} model{sizes and f' with {sizes}'}"
    return (
        f"{OF_PASS[first.kind]}, {model}, random bytes, {first.dtype}\n"
        f"{machine}, {threads}, torch {first.torch}, pe-bench {first.pe_bench}"
    )


def grid_of(rows: Sequence[Row]) -> Grid:
    """Return the table with its title and notes."""
    columns = [
        Column(column.format(REFERENCE), is_left=column in WORDS, least=MIN_FOLDED if column in WORDS else 0)
        for column in TABLE
    ]
    times = {row.length: row.milliseconds for row in rows if row.encoding == REFERENCE}
    cells = [list(map(Cell, _texts(row, times.get(row.length)))) for row in ordered(rows)]
    return Grid(columns, cells, title(rows).split("\n"), notes=_notes(rows), keys=2)


def _texts(row: Row, reference: float | None) -> list[str]:
    """Return a row's cells; its time is that of the reference times the ratio, which load hardly moves."""
    texts = [row.encoding, f"{row.length:,}"]
    if row.milliseconds is None:
        return [*texts, row.status.replace("_", " "), *[""] * 5]
    spread = ""  # around the median within which half of the ratios lie
    if row.relative and row.relative_low is not None and row.relative_high is not None:
        farther = max(row.relative - row.relative_low, row.relative_high - row.relative)
        spread = f"{farther / row.relative:.0%}"
    milliseconds = (reference or 0) * (row.relative or 0) or row.milliseconds
    return [
        *texts,
        row.path,
        number(milliseconds),
        f"{(row.tokens_per_second or 0) * row.milliseconds / milliseconds:,.0f}",
        "" if row.relative is None else f"{row.relative:.2f}",
        spread,
        "" if row.peak_memory_mb is None else f"{row.peak_memory_mb:,.0f}",
    ]


def number(value: float) -> str:
    """Spell a number with three digits, or with all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _notes(rows: Sequence[Row]) -> list[str]:
    """Explain the columns, and rows without numbers."""
    counts = sorted(row.repeats for row in rows if row.repeats)
    notes = [f"x {REFERENCE}: median of the ratios to a pass of {REFERENCE} just before"]
    if any(row.relative_low is not None for row in rows):
        notes.append("spread: half of these ratios lie within this much of the median")
    if counts:
        several = f"{counts[0]} to {counts[-1]}" if counts[0] < counts[-1] else str(counts[0])
        passes = "pass" if counts[-1] == 1 else "passes"
        of_reference = f"the median of {several} {passes} after a warm-up pass"
        notes.append(f"ms: of {REFERENCE}, {of_reference}; of the others, that times their ratio")
    for row in [row for row in rows if row.encoding == REFERENCE and row.gflops_per_second][-1:]:
        notes.append(f"{row.encoding}: {number(row.gflops_per_second or 0)} GFLOP/s at {row.length:,} tokens")
    if any(row.peak_memory_mb is not None for row in rows):
        notes.append("MB: peak memory above what was in use before the first pass")
    return [
        *notes,
        *sorted({f"{row.encoding} at {row.length:,}: {row.reason}" for row in rows if row.reason}),
    ]
