"""The rows of speed.csv: one for each encoding and length, in each setting and on each machine."""

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from pe_bench.errors import UserError, require
from pe_bench.system.files import name_write_errors, write_text


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
    share_of_matmul_rate: float | None = (
        None  # arithmetic of the pass over that of matrix products in its time
    )
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


FIELDS = tuple(field.name for field in dataclasses.fields(Row))
# `pass` is a keyword of Python, and cannot name a field.
COLUMNS = tuple("pass" if name == "kind" else name for name in FIELDS)


ADDED = {"relative_low", "relative_high"}  # columns that files of older versions lack

# What is measured: of two rows with the same, the later one holds.
KEY = ("encoding", "setting", "model", "length", "pass", "device", "processor", "threads", "dtype")

Cells = Mapping[str, str]


def read_rows(path: Path) -> Sequence[Cells]:
    """Read the rows of a file, as they are spelled; none without a file. Raises `UserError`."""
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, restval="")
            known = set(reader.fieldnames or COLUMNS)
            rows = list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path} cannot be read ({error}): move it away") from error
    odd = sorted(known ^ set(COLUMNS) - (ADDED - known))
    require(not odd, f"{path} has other columns than this pe-bench writes ({', '.join(odd)}): move it away")
    return rows


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Append rows to a file, in place of those that measured the same.

    A lock makes the later of two commands read what the other wrote.
    """
    ours = [dict(zip(COLUMNS, map(_spelled, dataclasses.astuple(row)), strict=True)) for row in rows]
    measured = {_key(row) for row in ours}
    with name_write_errors(path), FileLock(path.with_name(path.name + ".lock")):
        kept = [row for row in read_rows(path) if _key(row) not in measured]
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, *ours])
        write_text(path, text.getvalue())


def _key(row: Cells) -> tuple[str, ...]:
    return tuple(row[column] for column in KEY)


def _spelled(value: object) -> str:
    return "" if value is None else str(value)
