"""What `reproduce` says of a finished study: its judged claims, and its levels beside those of its table."""

import csv
import io
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Literal, get_type_hints

import numpy as np

from pe_bench.errors import RunError, UserError, first_line
from pe_bench.report.pairs import has_number, level_of
from pe_bench.report.records import label_of
from pe_bench.runs.rows import Row
from pe_bench.studies.claims import (
    Agreement,
    Judged,
    Measurements,
    Outcome,
    Series,
    agreement,
    evidence_of,
    judge_claim,
    seeds,
    sentence_of,
)
from pe_bench.studies.study import MIN_RANKED, STDLIB, Variant
from pe_bench.system.files import write_text
from pe_bench.system.terminal import one_line

TOLERANCE = 0.02  # of a level: machines round in other orders, and a thousand steps magnify it
SEED_DEVIATIONS = 3.0
ORDER: tuple[Outcome, ...] = ("contradicted", "holds", "unclear")
INDENT = max(map(len, ORDER)) + 2
MAX_SHOWN = 10  # levels that differ

# Which fact of two levels is another, so that they cannot be compared.
Differing = Literal["nothing there", "data_hash", "target_hash", "setting", "torch", "seeds"]
REASONS: dict[Differing, str] = {
    "nothing there": "our runs have no score there",
    "data_hash": "other text",
    "target_hash": "other targets",
    "setting": "another model or training",
    "seeds": "other numbers of seeds",
    "torch": "another version of PyTorch",
}


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


@dataclass(frozen=True)
class Comparison:
    """Our levels with those of the table, where they can be compared.

    differing: those that differ by more than they may. incomparable: by what is another, its values.
    """

    levels: list[tuple[Level, Level]] = field(default_factory=list)
    differing: list[tuple[Level, Level]] = field(default_factory=list)
    incomparable: dict[Differing, list[tuple[str, str]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of a study. agreement: None without a ranking, or with too few encodings to rank."""

    variant: Variant
    judged: Sequence[Judged]
    agreement: Agreement | None
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
    ours, ranking = levels_of(scores.rows, variant.name), variant.study.ranking
    return Outcomes(
        variant,
        [judge_claim(claim, scores) for claim in variant.study.claims],
        agreement(ranking, scores) if ranking is not None else None,
        compare(ours, read_table(variant.study.table)),
        ours,
    )


def levels_of(rows: Mapping[str, Iterable[Row]], variant: str) -> list[Level]:
    """Return the levels of the rows of each sweep, seeds averaged."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for sweep, rows_of_sweep in rows.items():
        for row in filter(has_number, rows_of_sweep):
            key = (sweep, label_of(row), row.protocol, row.control, str(row.length), row.target_hash)
            groups.setdefault(key, []).append(row)
    return [_level(key[0], group, variant) for key, group in groups.items()]


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
        torch=first.torch.partition("+")[0],
        pe_bench=first.pe_bench,
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
            comparison.incomparable.setdefault("nothing there", []).append(("", ""))
        elif fact := _differing(mine, level):
            values = str(getattr(mine, fact)), str(getattr(level, fact))
            comparison.incomparable.setdefault(fact, []).append(values)
        else:
            comparison.levels.append((mine, level))
            is_equal = mine.level == level.level  # as two infinities are
            if not is_equal and not abs(mine.level - level.level) <= level.tolerance:
                comparison.differing.append((mine, level))
    return comparison


def _differing(ours: Level, table: Level) -> Differing | None:
    facts: tuple[Differing, ...] = ("data_hash", "target_hash", "setting", "seeds")
    for fact in facts:
        if getattr(ours, fact) != getattr(table, fact):
            return fact
    is_same = ours.torch.split(".")[:2] == table.torch.split(".")[:2]
    return None if is_same else "torch"


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
    text = io.StringIO()
    writer = csv.DictWriter(text, [column.name for column in fields(Level)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        asdict(level)
        for level in sorted([*kept, *levels], key=lambda level: (*map(str, level.key[:6]), level.length))
    )
    write_text(path, text.getvalue())


def render(outcomes: Outcomes, width: int) -> str:
    """Return the text for standard output, contradicted claims first.

    A toy says whether its levels are those of the table, and claims are counted: it cannot judge them.
    """
    lines = [*_heading(outcomes.variant), ""]
    if outcomes.variant.is_quick:
        lines += [*_comparison(outcomes), "", _counts(outcomes.judged)]
    else:
        lines += [*_claims(outcomes.judged), "", _counts(outcomes.judged)]
        if outcomes.agreement is not None:
            lines += ["", _agreement(outcomes.agreement)]
        elif outcomes.variant.study.ranking is not None:
            few = f"fewer than {MIN_RANKED} ranked encodings have learned and have scores"
            lines += ["", f"no Kendall's tau-b: {few}"]
        lines += ["", *_comparison(outcomes)]
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
    yield f"trained at {variant.length} tokens, {seeds(variant.seeds)}, {data}"
    if variant.is_quick:
        yield "--quick: toy models show that everything works, and their verdicts mean nothing"


def _claims(judged: Sequence[Judged]) -> Iterator[str]:
    for outcome in ORDER:
        for claim in (claim for claim in judged if claim.outcome == outcome):
            yield f"{outcome:<{INDENT}}{sentence_of(claim)}"
            yield f"{'':<{INDENT}}{evidence_of(claim)} (paper: {claim.claim.source})"


def _counts(judged: Sequence[Judged]) -> str:
    counts = [f"{sum(claim.outcome == outcome for claim in judged)} {outcome}" for outcome in ORDER]
    is_task = any(claim.claim.protocol == "task" for claim in judged)
    unit = "of the share of examples that are right" if is_task else "in bits per byte"
    return f"{_count(judged, 'claim')}: {', '.join(counts)} (each by a 95 % interval, {unit})"


def _agreement(order: Agreement) -> str:
    low, high = order.bounds
    bounds = f"[{low:.2f}, {high:.2f}], {seeds(order.seeds)}"
    if order.seeds < 2:
        bounds = "(no interval: one seed)"
    elif low == high:
        bounds = f"with each of {seeds(order.seeds)}"
    measure = "changes from the training length" if order.ranking.measure == "change" else "levels"
    return (
        f"Kendall's tau-b with the paper's order of {len(order.encodings)} encodings by their {measure} at "
        f"{order.length:,}: {order.tau:.2f} {bounds}; paper: {order.ranking.source}"
    )


def _comparison(outcomes: Outcomes) -> Iterator[str]:
    comparison, table = outcomes.comparison, outcomes.variant.study.table.name
    if not comparison.levels and not comparison.incomparable:
        yield f"{table} has nothing of this size and text: our levels are not compared"
        return
    if comparison.levels:
        same = len(comparison.levels) - len(comparison.differing)
        yield (
            f"{table}: {same} of {len(comparison.levels)} levels agree within {TOLERANCE}, or 3 "
            "standard deviations over seeds"
        )
    for ours, level in comparison.differing[:MAX_SHOWN]:
        control = f", control {level.control}" if level.control != "none" else ""
        series = Series(level.encoding, level.sweep)
        yield (
            f"  differs: {series} at {level.length:,} ({level.protocol}{control}): {ours.level:.3f} here, "
            f"{level.level:.3f} in the table, may differ by {level.tolerance:.3f}"
        )
    if len(comparison.differing) > MAX_SHOWN:
        yield f"  and {len(comparison.differing) - MAX_SHOWN} more"
    for fact, values in comparison.incomparable.items():
        here, there = (value[:8] for value in values[0])
        both = f" ({here} here, {there} in the table)" if here else ""
        is_python = fact == "data_hash" and outcomes.variant.text == STDLIB
        versions = "; the standard library differs between versions of Python" if is_python else ""
        yield f"{table}: {_count(values, 'level')} not comparable: {REASONS[fact]}{both}{versions}"


def _count(things: Sequence[object], name: str) -> str:
    return f"1 {name}" if len(things) == 1 else f"{len(things)} {name}s"
