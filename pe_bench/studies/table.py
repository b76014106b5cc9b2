"""The table of a study, its levels as they were once measured: read, written, and compared with ours."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal, get_type_hints

import numpy as np

from pe_bench.errors import UserError, first_line
from pe_bench.report.tables.cells import label_of
from pe_bench.report.tables.differences import has_number, level_of
from pe_bench.runs.rows import Row
from pe_bench.system.files import write_text

TOLERANCE = 0.02  # of a level: machines round in other orders, and a thousand steps magnify it
SEED_DEVIATIONS = 3.0

# Which fact of two cells is another, so that they cannot be compared.
Differing = Literal["nothing there", "data_hash", "target_hash", "setting", "torch", "seeds"]


@dataclass(frozen=True)
class Level:
    """The mean level of an encoding's seeds at one length, and all that must be equal to compare it.

    variant: full or quick. level: bits per byte, or of a task the share of examples that are right. seed_sd:
    the standard deviation over seeds; 0 for one seed. torch: without its build.
    """

    variant: str
    data: str
    sweep: str
    encoding: str
    protocol: str
    control: str
    length: int
    level: float
    seed_sd: float
    seeds: int
    data_hash: str
    target_hash: str
    model: str
    setting: str
    torch: str
    pe_bench: str
    date: str

    @property
    def place(self) -> tuple[object, ...]:
        return (self.variant, self.data, self.sweep, self.encoding, self.protocol, self.control, self.length)


@dataclass(frozen=True)
class Difference:
    """Our level at a place of the table, less that of the table, and by how much it may differ."""

    ours: Level
    table: Level

    @property
    def difference(self) -> float:
        return self.ours.level - self.table.level

    @property
    def tolerance(self) -> float:
        return max(TOLERANCE, SEED_DEVIATIONS * self.table.seed_sd)

    @property
    def agrees(self) -> bool:
        ours, table = self.ours.level, self.table.level
        return ours == table or abs(self.difference) <= self.tolerance  # two infinities are equal


@dataclass(frozen=True)
class Incomparable:
    """Cells that cannot be compared: how many, and the first values of the fact that is another."""

    fact: Differing
    cells: int
    ours: str
    table: str


@dataclass(frozen=True)
class Comparison:
    """Our levels against those of the table."""

    cells: tuple[Difference, ...]
    incomparable: tuple[Incomparable, ...]

    @property
    def is_empty(self) -> bool:
        """Return whether the table has nothing of this size and text."""
        return not (self.cells or self.incomparable)

    @property
    def differing(self) -> list[Difference]:
        return [cell for cell in self.cells if not cell.agrees]


def levels_of(rows: Mapping[str, Iterable[Row]], variant: str) -> list[Level]:
    """Return the levels of the rows of each sweep, seeds averaged."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for sweep, own in rows.items():
        for row in own:
            if has_number(row):
                key = (sweep, label_of(row), row.protocol, row.control, row.length, row.target_hash)
                found.setdefault(key, []).append(row)
    return [_level(str(key[0]), group, variant) for key, group in found.items()]


def _level(sweep: str, rows: Sequence[Row], variant: str) -> Level:
    first = rows[0]
    levels = np.array([level_of(row) for row in rows])
    is_spread = len(levels) > 1 and bool(np.all(np.isfinite(levels)))
    return Level(
        variant=variant,
        data=first.data,
        sweep=sweep,
        encoding=label_of(first),
        protocol=first.protocol,
        control=first.control,
        length=first.length,
        level=round(float(levels.mean()), 6),
        seed_sd=round(float(levels.std(ddof=1)), 6) if is_spread else 0.0,
        seeds=len(levels),
        data_hash=first.data_hash,
        target_hash=first.target_hash,
        model=first.model,
        setting=first.setting,
        torch=_release(first.torch),
        pe_bench=first.pe_bench,
        date=max(row.date for row in rows)[:10],
    )


def compare(ours: Iterable[Level], table: Iterable[Level]) -> Comparison:
    """Compare our levels with those at the same places of the table; others that we have are left out."""
    own = {level.place: level for level in ours}
    variants = {level.place[:2] for level in own.values()}
    cells: list[Difference] = []
    incomparable: dict[Differing, list[tuple[str, str]]] = {}
    for level in table:
        if level.place[:2] not in variants:
            continue
        mine = own.get(level.place)
        fact = _differing(mine, level)
        if mine is not None and fact is None:
            cells.append(Difference(mine, level))
        elif fact is not None:
            values = ("", "") if mine is None else (str(getattr(mine, fact)), str(getattr(level, fact)))
            incomparable.setdefault(fact, []).append(values)
    reasons = [Incomparable(fact, len(values), *values[0]) for fact, values in incomparable.items()]
    return Comparison(tuple(cells), tuple(reasons))


def _differing(ours: Level | None, table: Level) -> Differing | None:
    if ours is None:
        return "nothing there"
    facts: tuple[Differing, ...] = ("data_hash", "target_hash", "setting", "seeds")
    for fact in facts:
        if getattr(ours, fact) != getattr(table, fact):
            return fact
    return None if _minor(ours.torch) == _minor(table.torch) else "torch"


def _release(version: str) -> str:
    return version.partition("+")[0]


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def read_table(path: Path) -> list[Level]:
    """Return the levels of a table; none where there is no file. Raises `UserError` for a damaged one."""
    types = get_type_hints(Level)
    try:
        records = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline="")))
        return [Level(**{name: types[name](value) for name, value in record.items()}) for record in records]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, csv.Error) as error:
        raise UserError(f"{path} is not a table of a study: {first_line(error)}") from error


def write_table(path: Path, levels: Sequence[Level]) -> None:
    """Write levels into a table, in place of those of the same variant and data; others stay."""
    replaced = {level.place[:2] for level in levels}
    kept = [level for level in read_table(path) if level.place[:2] not in replaced]
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Level)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        asdict(level)
        for level in sorted([*kept, *levels], key=lambda level: (*map(str, level.place[:6]), level.length))
    )
    write_text(path, text.getvalue())
