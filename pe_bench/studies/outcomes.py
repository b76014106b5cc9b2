"""What `reproduce` says of a finished study: its judged claims, and its levels beside those of its table."""

import csv
import io
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pe_bench.errors import RunError, UserError, first_line
from pe_bench.report.pairs import grouped, has_number, level_of
from pe_bench.report.records import label_of
from pe_bench.runs.rows import TASK, Row
from pe_bench.studies.claims import Judged, Measurements, Outcome, Series, count_of, judge_claim
from pe_bench.studies.study import STDLIB, Study
from pe_bench.system.files import write_text
from pe_bench.system.terminal import one_line

TOLERANCE = 0.02  # of a level: machines round in other orders, and a thousand steps magnify it
SEED_DEVIATIONS = 3.0
ORDER: tuple[Outcome, ...] = ("contradicted", "holds", "unclear")
INDENT = max(map(len, ORDER)) + 2
MAX_SHOWN = 10  # levels that differ
# What must be equal for two levels to be compared, and how it is named where it is not.
REASONS = {
    "data_hash": "other text, as the standard library of another version of Python is",
    "target_hash": "other targets",
    "setting": "another model or training",
    "seeds": "other numbers of seeds",
    "torch": "another version of PyTorch",
}
# Of a table, a CSV file. level: a mean over seeds in bits per byte, or of a task the share of right examples.
# seed_sd: the standard deviation over seeds; 0 for one seed. torch: without its build.
KEY = ("variant", "data", "sweep", "encoding", "protocol", "control", "length")
COLUMNS = (
    *(*KEY, "level", "seed_sd", "seeds", "data_hash", "target_hash", "model", "setting"),
    *("torch", "pe_bench", "date"),
)
Level = Mapping[str, str]  # a row of a table


@dataclass(frozen=True)
class Outcomes:
    """The claims of a study with what our runs say of them, and our levels beside those of its table.

    compared: our level and the table's, where both were made alike. incomparable: how many others there are
    for each reason.
    """

    study: Study
    judged: Sequence[Judged]
    ours: Sequence[Level]
    compared: Sequence[tuple[Level, Level]] = ()
    incomparable: Mapping[str, int] = field(default_factory=dict)

    @property
    def differing(self) -> list[tuple[Level, Level]]:
        return [(mine, level) for mine, level in self.compared if not is_like(mine, level)]

    def write_table(self) -> None:
        """Make our levels those of the table. Raise `RunError` where one lacks seeds."""
        path, count = self.study.table, self.study.seeds
        for level in self.ours:
            if int(level["seeds"]) < count:
                raise RunError(
                    f"{path} is not written: the level of {level['encoding']} at {level['length']} "
                    f"({level['protocol']}) has {level['seeds']} seeds instead of {count}: "
                    f"`pe-bench report --details` says which scores failed"
                )
        write_table(path, self.ours)


def judge_study(study: Study, scores: Measurements) -> Outcomes:
    judged = [judge_claim(claim, scores) for claim in study.claims]
    ours = levels_of(scores.rows, study.size)
    return Outcomes(study, judged, ours, *compare(ours, read_table(study.table)))


def levels_of(rows: Mapping[str, Iterable[Row]], variant: str) -> list[Level]:
    """Return the levels of the rows of each sweep, seeds averaged."""

    def key(row: Row) -> tuple[object, ...]:
        return label_of(row), row.protocol, row.control, row.length, row.target_hash

    return [
        _level(of_level) | {"sweep": sweep, "variant": variant}
        for sweep, of_sweep in rows.items()
        for of_level in grouped(filter(has_number, of_sweep), key).values()
    ]


def _level(rows: Sequence[Row]) -> dict[str, str]:
    levels, row = np.array([level_of(row) for row in rows]), rows[0]
    is_spread = len(levels) > 1 and bool(np.all(np.isfinite(levels)))
    values = {name: getattr(row, name) for name in COLUMNS if hasattr(row, name)}
    values["encoding"], values["seeds"] = label_of(row), len(levels)
    values["level"] = round(float(levels.mean()), 6)
    values["seed_sd"] = round(float(levels.std(ddof=1)), 6) if is_spread else 0.0
    values["torch"], values["date"] = row.torch.partition("+")[0], max(row.date for row in rows)[:10]
    return {name: str(value) for name, value in values.items()}


def _key(level: Level) -> tuple[str, ...]:
    return tuple(level[name] for name in KEY)


def is_like(ours: Level, table: Level) -> bool:
    """Return whether a level agrees with that of a table; two infinite ones do."""
    here, there = float(ours["level"]), float(table["level"])
    return here == there or abs(here - there) <= tolerance(table)


def tolerance(level: Level) -> float:
    """Return by how much another may differ from a level."""
    return max(TOLERANCE, SEED_DEVIATIONS * float(level["seed_sd"]))


def compare(
    ours: Iterable[Level], table: Iterable[Level]
) -> tuple[list[tuple[Level, Level]], Mapping[str, int]]:
    """Return our levels with those of the table that were made alike, and how many others it has, and why.

    What only we scored is left out.
    """
    level_of_key = {_key(level): level for level in ours}
    variants = {key[:2] for key in level_of_key}
    compared, incomparable = [], Counter[str]()
    for level in (level for level in table if _key(level)[:2] in variants):
        mine = level_of_key.get(_key(level))
        reason = _reason(mine, level) if mine else "our runs have no score there"
        if mine and not reason:
            compared.append((mine, level))
        else:
            incomparable[reason] += 1
    return compared, incomparable


def _reason(ours: Level, table: Level) -> str:
    """Return why two levels cannot be compared; empty where they can."""
    for name, reason in REASONS.items():
        here, there = ours[name], table[name]
        is_alike = here.split(".")[:2] == there.split(".")[:2] if name == "torch" else here == there
        if not is_alike:
            return f"{reason} ({here[:8]} here, {there[:8]} in the table)"
    return ""


def read_table(path: Path) -> list[Level]:
    """Return the levels of a table; none where there is no file. Raises `UserError` for a damaged one."""
    try:
        text = io.StringIO(path.read_text(encoding="utf-8"), newline="")
        levels: list[Level] = [dict(level) for level in csv.DictReader(text)]
        for level in levels:
            _ = float(level["level"]), float(level["seed_sd"]), [level[name] for name in COLUMNS]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, csv.Error) as error:
        raise UserError(f"{path} is not a table of a study: {first_line(error)}") from error
    return levels


def write_table(path: Path, levels: Sequence[Level]) -> None:
    """Write levels into a table, in place of those of the same variant and data; others stay."""
    replaced = {_key(level)[:2] for level in levels}
    kept = [level for level in read_table(path) if _key(level)[:2] not in replaced]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted([*kept, *levels], key=lambda level: (*_key(level)[:6], int(level["length"]))))
    write_text(path, text.getvalue())


def render(outcomes: Outcomes, width: int) -> str:
    """Return the text for standard output, contradicted claims first.

    A toy says whether its levels are those of the table, and claims are counted: it cannot judge them.
    """
    heading, compared = [*_heading(outcomes.study), ""], [*_comparison(outcomes)]
    if outcomes.study.size == "quick":
        lines = [*heading, *compared, "", _counts(outcomes.judged)]
    else:
        claims = [*_claims(outcomes.judged), "", _counts(outcomes.judged), ""]
        lines = [*heading, *claims, *compared]
    return "".join(f"{wrapped}\n" for line in lines for wrapped in _wrap(one_line(line), width))


def _wrap(line: str, width: int) -> list[str]:
    """Break a line between words; what follows is indented as far as the first word after two blanks."""
    indent = " " * (INDENT if line[:INDENT].endswith("  ") else 2)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _heading(study: Study) -> Iterator[str]:
    text = "the standard library's source code" if study.text == STDLIB else study.text
    data = f"text: {text}" if study.reads_text else "tasks"
    yield f"{study.name}: {study.title}"
    yield study.source
    yield f"trained at {study.length} tokens, {count_of(study.seeds, 'seed')}, {data}"
    if study.size == "quick":
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
    compared, differing, table = outcomes.compared, outcomes.differing, outcomes.study.table.name
    if not compared and not outcomes.incomparable:
        yield f"{table} has nothing of this size and text: our levels are not compared"
    if compared:
        yield (
            f"{table}: {len(compared) - len(differing)} of {len(compared)} levels agree within {TOLERANCE}, "
            "or 3 standard deviations over seeds"
        )
    for ours, level in differing[:MAX_SHOWN]:
        control = f", control {level['control']}" if level["control"] != "none" else ""
        series, length = Series(level["encoding"], level["sweep"]), int(level["length"])
        yield (
            f"  differs: {series} at {length:,} ({level['protocol']}{control}): {float(ours['level']):.3f} "
            f"here, {float(level['level']):.3f} in the table, may differ by {tolerance(level):.3f}"
        )
    if len(differing) > MAX_SHOWN:
        yield f"  and {len(differing) - MAX_SHOWN} more"
    for reason, count in outcomes.incomparable.items():
        yield f"{table}: {count_of(count, 'level')} not comparable: {reason}"
