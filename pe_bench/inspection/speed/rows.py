"""What `pe-bench speed` is asked to time, and the rows of speed.csv that it writes."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock

from pe_bench.config.compose import OVERRIDES_VARIABLE, compose
from pe_bench.config.groups import encoding_names
from pe_bench.config.overrides import check_overrides, parse_override
from pe_bench.config.parse import parse_config
from pe_bench.errors import UserError, require
from pe_bench.inspection.resolve import ResolvedEncoding, resolve, split_arguments
from pe_bench.system.files import name_write_errors, write_text
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
        """Return the overrides that the reference gets too: no option of an encoding and no modifier."""
        return [text for text in self.overrides if _is_shared(text)]

    def at(self, length: int) -> list[ResolvedEncoding]:
        """Resolve the reference, then the others, each once. Raises `UserError`."""
        reference = self.reference(length)
        others = resolve([*self.names, *self.overrides, *self._train_overrides(length)], self.search)
        by_label = {encoding.label: encoding for encoding in others} | {reference.label: reference}
        return sorted(by_label.values(), key=lambda encoding: encoding is not reference)

    def reference(self, length: int) -> ResolvedEncoding:
        values = self._compose_reference(self._train_overrides(length))
        return ResolvedEncoding(REFERENCE, parse_config(values, self.search))

    def _train_overrides(self, length: int) -> list[str]:
        """Return, with --train, the keys of a step of as many windows as `train.batch_tokens` holds."""
        if not self.train:
            return []
        windows = max(1, self._batch_tokens // length)
        return [f"train.length={length}", f"train.batch_tokens={windows * length}"]

    @cached_property
    def _batch_tokens(self) -> int:
        return check_type(self._compose_reference()["train"]["batch_tokens"], int, "train.batch_tokens")

    def _compose_reference(self, overrides: Sequence[str] = ()) -> dict[str, Any]:
        check_overrides(self.shared, self.search)
        return compose([f"encoding={REFERENCE}", *self.shared, *overrides], self.search)


def read_request(arguments: Sequence[str], train: bool, search: Sequence[Path]) -> Request:
    """Read the arguments; no name means all encodings. Raises `UserError` for one without effect."""
    names, overrides = split_arguments(arguments)
    for text in overrides:
        override = parse_override(text)
        is_precision = override.key == SCORE_PRECISION and not train
        reason = "--train scores nothing" if override.key == SCORE_PRECISION else "speed reads random bytes"
        require(override.section not in UNUSED or is_precision, f"{text} has no effect: {reason}; remove it")
        require(
            not train or override.key != "train.length",
            f"{text} has no effect: with --train each of --lengths is the training length in turn; remove it",
        )
    before = os.environ.get(OVERRIDES_VARIABLE, "").split()
    every = tuple(names or encoding_names(search))
    return Request(every, (*before, *overrides), tuple(search), train, is_choice=bool(names))


def _is_shared(text: str) -> bool:
    override = parse_override(text)
    return override.section in SHARED or override.key == SCORE_PRECISION


def with_examples(resolved: ResolvedEncoding) -> ResolvedEncoding:
    """Add an example for each option that the encoding's class requires."""
    return replace(resolved, config=replace(resolved.config, encoding=resolved.spec.with_examples().values))


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
    milliseconds_min: float | None = None
    milliseconds_max: float | None = None
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
        """Describe the row to whoever waits."""
        what = f"{self.encoding}, {self.length:,} tokens: "
        if self.milliseconds is None:
            return what + self.status.replace("_", " ")
        relative = "" if self.relative is None else f", {self.relative:.2f} x nope"
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
