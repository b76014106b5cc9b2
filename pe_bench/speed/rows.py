"""The rows of speed.csv: one for each encoding and length."""

import csv
import dataclasses
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pe_bench.files import write_text


@dataclass(frozen=True)
class Row:
    """What a pass of one encoding took at one length. An empty number has its status and reason."""

    encoding: str
    setting: str  # the command's words that are no option of the encoding
    model: str
    length: int
    kind: str  # `pass` in the file: score, train
    batch: int | None = None  # windows in one pass
    path: str = ""  # of attention; of several layers' joined by +
    status: str = "ok"  # undefined, out_of_memory, not_finite
    reason: str = ""
    milliseconds: float | None = None  # the median
    milliseconds_min: float | None = None
    milliseconds_max: float | None = None
    tokens_per_second: float | None = None
    relative: float | None = None  # to the reference: the median of ratios of neighbours in time
    peak_memory_mb: float | None = None  # above what was held before the first pass
    share_of_matmul_rate: float | None = (
        None  # arithmetic of the pass over that of matrix products in its time
    )
    repeats: int = 0
    device: str = ""
    threads: int = 0
    dtype: str = ""
    torch: str = ""
    pe_bench: str = ""
    date: str = ""

    @property
    def line(self) -> str:
        """For whoever waits."""
        what = f"{self.encoding}, {self.length:,} tokens: "
        if self.milliseconds is None:
            return what + self.status.replace("_", " ")
        relative = "" if self.relative is None else f", {self.relative:.2f} x nope"
        return f"{what}{self.milliseconds:,.1f} ms{relative} ({self.path})"


FIELDS = tuple(field.name for field in dataclasses.fields(Row))
# A word of Python's cannot name a field.
COLUMNS = tuple("pass" if name == "kind" else name for name in FIELDS)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Replace the file by these rows."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(dataclasses.astuple(row) for row in rows)
    write_text(path, text.getvalue())
