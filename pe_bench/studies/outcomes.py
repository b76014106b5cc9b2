"""What `reproduce` says of a finished study: its judged claims, and its levels beside those of its table."""

import csv
import io
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import get_type_hints

import numpy as np

from pe_bench.errors import RunError, UserError, first_line
from pe_bench.report.pairs import grouped, has_number, level_of
from pe_bench.report.records import label_of
from pe_bench.runs.rows import TASK, Row
from pe_bench.studies.claims import (
    Judged,
    Measurements,
    Outcome,
    Series,
    count_of,
    judge_claim,
)
from pe_bench.studies.study import STDLIB, Variant
from pe_bench.system.files import write_text
from pe_bench.system.terminal import one_line

TOLERANCE = 0.02  # of a level: machines round in other orders, and a thousand steps magnify it
SEED_DEVIATIONS = 3.0
ORDER: tuple[Outcome, ...] = ("contradicted", "holds", "unclear")
INDENT = max(map(len, ORDER)) + 2
MAX_SHOWN = 10  # levels that differ
# What must be equal for two levels to be compared, and how it is named where it is not.
REASONS = {
    "data_hash": "other text",
    "target_hash": "other targets",
    "setting": "another model or training",
    "seeds": "other numbers of seeds",
    "torch": "another version of PyTorch",
}
NOTHING_HERE = "our runs have no score there"
OF_ROW = (
    *("data", "protocol", "control", "length", "data_hash", "target_hash", "model", "setting", "pe_bench"),
)


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
    def key(self) -> tuple[object, ...]:
        return (self.variant, self.data, self.sweep, self.encoding, self.protocol, self.control, self.length)

    @property
    def tolerance(self) -> float:
        """Return by how much another may differ."""
        return max(TOLERANCE, SEED_DEVIATIONS * self.seed_sd)

    def is_like(self, other: "Level") -> bool:
        """Return whether two levels agree; two infinite ones do."""
        return self.level == other.level or abs(self.level - other.level) <= other.tolerance


@dataclass(frozen=True)
class Comparison:
    """Our levels with those of the table: those that can be compared, and those of them that differ.

    incomparable: by the reason, our value and the table's of each level.
    """

    levels: list[tuple[Level, Level]] = field(default_factory=list)
    incomparable: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    @property
    def differing(self) -> list[tuple[Level, Level]]:
        return [(mine, level) for mine, level in self.levels if not mine.is_like(level)]


@dataclass(frozen=True)
class Outcomes:
    """The claims of a study with what our runs say of them, and our levels with those of its table."""

    variant: Variant
    judged: Sequence[Judged]
    comparison: Comparison
    ours: Sequence[Level]

    def write_table(self) -> None:
        """Make our levels those of the table. Raise `RunError` where one lacks seeds."""
        path, count = self.variant.study.table, self.variant.seeds
        for level in self.ours:
            if level.seeds < count:
                raise RunError(
                    f"{path} is not written: the level of {level.encoding} at {level.length} "
                    f"({level.protocol}) has {level.seeds} seeds instead of {count}: "
                    f"`pe-bench report {level.encoding} --details` says which scores failed"
                )
        write_table(path, self.ours)


def judge_study(variant: Variant, scores: Measurements) -> Outcomes:
    ours = levels_of(scores.rows, variant.name)
    return Outcomes(
        variant,
        [judge_claim(claim, scores) for claim in variant.study.claims],
        compare(ours, read_table(variant.study.table)),
        ours,
    )


def levels_of(rows: Mapping[str, Iterable[Row]], variant: str) -> list[Level]:
    """Return the levels of the rows of each sweep, seeds averaged."""

    def key(row: Row) -> tuple[object, ...]:
        return label_of(row), row.protocol, row.control, row.length, row.target_hash

    return [
        _level(sweep, of_level, variant)
        for sweep, of_sweep in rows.items()
        for of_level in grouped(filter(has_number, of_sweep), key).values()
    ]


def _level(sweep: str, rows: Sequence[Row], variant: str) -> Level:
    levels = np.array([level_of(row) for row in rows])
    is_spread = len(levels) > 1 and bool(np.all(np.isfinite(levels)))
    return Level(
        **{name: getattr(rows[0], name) for name in OF_ROW},
        variant=variant,
        sweep=sweep,
        encoding=label_of(rows[0]),
        level=round(float(levels.mean()), 6),
        seed_sd=round(float(levels.std(ddof=1)), 6) if is_spread else 0.0,
        seeds=len(levels),
        torch=rows[0].torch.partition("+")[0],
        date=max(row.date for row in rows)[:10],
    )


def compare(ours: Iterable[Level], table: Iterable[Level]) -> Comparison:
    """Compare our levels with those of the same keys of the table; others that we have are left out."""
    level_of_key = {level.key: level for level in ours}
    variants = {key[:2] for key in level_of_key}
    comparison = Comparison()
    for level in (level for level in table if level.key[:2] in variants):
        mine = level_of_key.get(level.key)
        if mine is None:
            comparison.incomparable.setdefault(NOTHING_HERE, []).append(("", ""))
            continue
        differing = [name for name in REASONS if _fact(mine, name) != _fact(level, name)]
        if differing:
            values = str(getattr(mine, differing[0])), str(getattr(level, differing[0]))
            comparison.incomparable.setdefault(REASONS[differing[0]], []).append(values)
        else:
            comparison.levels.append((mine, level))
    return comparison


def _fact(level: Level, name: str) -> object:
    """Return what must be equal: of a version of PyTorch, 2.13 of 2.13.1."""
    value = getattr(level, name)
    return value.split(".")[:2] if name == "torch" else value


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
    replaced = {level.key[:2] for level in levels}
    kept = [level for level in read_table(path) if level.key[:2] not in replaced]
    in_order = sorted([*kept, *levels], key=lambda level: (*map(str, level.key[:6]), level.length))
    text = io.StringIO()
    writer = csv.DictWriter(text, [column.name for column in fields(Level)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(level) for level in in_order)
    write_text(path, text.getvalue())


def render(outcomes: Outcomes, width: int) -> str:
    """Return the text for standard output, contradicted claims first.

    A toy says whether its levels are those of the table, and claims are counted: it cannot judge them.
    """
    heading, compared = [*_heading(outcomes.variant), ""], [*_comparison(outcomes)]
    if outcomes.variant.is_quick:
        lines = [*heading, *compared, "", _counts(outcomes.judged)]
    else:
        claims = [*_claims(outcomes.judged), "", _counts(outcomes.judged), ""]
        lines = [*heading, *claims, *compared]
    return "".join(f"{wrapped}\n" for line in lines for wrapped in _wrap(one_line(line), width))


def _wrap(line: str, width: int) -> list[str]:
    """Break a line between words; what follows is indented as far as the first word after two blanks."""
    indent = " " * (INDENT if line[:INDENT].endswith("  ") else 2)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _heading(variant: Variant) -> Iterator[str]:
    study = variant.study
    text = "the standard library's source code" if variant.text == STDLIB else variant.text
    data = f"text: {text}" if study.reads_text else "tasks"
    yield f"{study.name}: {study.title}"
    yield study.source
    yield f"trained at {variant.length} tokens, {count_of(variant.seeds, 'seed')}, {data}"
    if variant.is_quick:
        yield "--quick: toy models show that everything works, and their verdicts mean nothing"


def _claims(judged: Sequence[Judged]) -> Iterator[str]:
    for claim in sorted(judged, key=lambda claim: ORDER.index(claim.outcome)):
        yield f"{claim.outcome:<{INDENT}}{claim}"
        yield f"{'':<{INDENT}}{claim.evidence} (paper: {claim.claim.source})"


def _counts(judged: Sequence[Judged]) -> str:
    counts = [f"{sum(claim.outcome == outcome for claim in judged)} {outcome}" for outcome in ORDER]
    is_task = any(claim.claim.protocol == TASK for claim in judged)
    unit = "of the share of examples that are right" if is_task else "in bits per byte"
    return f"{count_of(len(judged), 'claim')}: {', '.join(counts)} (each by a 95 % interval, {unit})"


def _comparison(outcomes: Outcomes) -> Iterator[str]:
    comparison, table = outcomes.comparison, outcomes.variant.study.table.name
    differing = comparison.differing
    if not comparison.levels and not comparison.incomparable:
        yield f"{table} has nothing of this size and text: our levels are not compared"
    if comparison.levels:
        same = len(comparison.levels) - len(differing)
        yield (
            f"{table}: {same} of {len(comparison.levels)} levels agree within {TOLERANCE}, or 3 "
            "standard deviations over seeds"
        )
    for ours, level in differing[:MAX_SHOWN]:
        control = f", control {level.control}" if level.control != "none" else ""
        series = Series(level.encoding, level.sweep)
        yield (
            f"  differs: {series} at {level.length:,} ({level.protocol}{control}): {ours.level:.3f} here, "
            f"{level.level:.3f} in the table, may differ by {level.tolerance:.3f}"
        )
    if len(differing) > MAX_SHOWN:
        yield f"  and {len(differing) - MAX_SHOWN} more"
    for reason, values in comparison.incomparable.items():
        here, there = (value[:8] for value in values[0])
        both = f" ({here} here, {there} in the table)" if here else ""
        is_python = reason == REASONS["data_hash"] and outcomes.variant.text == STDLIB
        versions = "; the standard library differs between versions of Python" if is_python else ""
        yield f"{table}: {count_of(len(values), 'level')} not comparable: {reason}{both}{versions}"
