"""What `reproduce` says of a finished study: its judged claims, and its levels beside those of its table."""

import csv
import io
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from pathlib import Path

import numpy as np

from pe_bench.commands.reproduce.claims import Judged, Measurements, Outcome, Series, judge_claim
from pe_bench.commands.reproduce.papers import Claim, LedgerClaim
from pe_bench.commands.reproduce.study import STDLIB, Study
from pe_bench.report.records import label_of
from pe_bench.runs.rows import Row, grouped, has_number, level_of
from pe_bench.system.files import write_text

TOLERANCE = 0.02  # of a level: machines round in other orders, and a thousand steps magnify it
ORDER: tuple[Outcome, ...] = ("contradicted", "holds", "unclear")
INDENT = max(map(len, ORDER)) + 2
# What must be equal for two levels to be compared, and how it is named where it is not.
REASONS = {
    "data_hash": "other text, as the standard library of another version of Python is",
    "target_hash": "other targets",
    "setting": "another model or training",
    "seeds": "other numbers of seeds",
    "torch": "another version of PyTorch",
}
# Of a table, a CSV file. level: a mean over seeds in bits per byte, or of a task the share of right examples.
# seed_sd: the standard deviation over seeds; 0 for one seed. torch: without its build. machine: that trained.
KEY = ("variant", "data", "sweep", "encoding", "protocol", "control", "length")
OF_LEVEL = ("level", "seed_sd", "seeds", "data_hash", "target_hash", "model", "setting")
COLUMNS: tuple[str, ...] = (*KEY, *OF_LEVEL, "torch", "pe_bench", "date", "machine")
Level = Mapping[str, str]  # a row of a table
key_of = itemgetter(*KEY)


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
        return [pair for pair in self.compared if _differ(*pair)]


def judge_study(study: Study, scores: Measurements, table: Sequence[Level]) -> Outcomes:
    """Return the outcomes of a study's claims by the scores, and the comparison of levels with a table."""
    judged = [judge_claim(claim, scores) for claim in study.claims]
    ours = levels_of(scores.rows, study.size, scores.machines)
    return Outcomes(study, judged, ours, *compare(ours, table))


def levels_of(
    rows: Mapping[str, Iterable[Row]], variant: str, machines: Callable[[Sequence[Row]], str]
) -> list[Level]:
    """Return the levels of the rows of each sweep, seeds averaged.

    machines: says on which machines the runs of rows were trained.
    """

    def key(row: Row) -> tuple[object, ...]:
        return label_of(row), row.protocol, row.control, row.length, row.target_hash

    levels = []
    for sweep, sweep_rows in rows.items():
        for alike in grouped(filter(has_number, sweep_rows), key).values():
            place = {"sweep": sweep, "variant": variant, "machine": machines(alike)}
            levels.append(_level(alike) | place)
    return levels


def _level(rows: Sequence[Row]) -> dict[str, str]:
    """Return the level of the seeds of an encoding, by the columns of a table."""
    row = rows[0]
    levels = np.array([level_of(row) for row in rows])
    spread = 0.0
    if len(levels) > 1 and np.all(np.isfinite(levels)):
        spread = round(float(levels.std(ddof=1)), 6)
    values = {name: getattr(row, name) for name in COLUMNS if hasattr(row, name)}
    values |= {
        "encoding": label_of(row),
        "seeds": len(levels),
        "level": round(float(levels.mean()), 6),
        "seed_sd": spread,
        "torch": row.torch.partition("+")[0],
        "date": max(row.date for row in rows)[:10],
    }
    return {name: str(value) for name, value in values.items()}


def _differ(ours: Level, table: Level) -> bool:
    here, there = float(ours["level"]), float(table["level"])
    return here != there and not abs(here - there) <= tolerance(table)  # two infinite ones are equal


def tolerance(level: Level) -> float:
    """Return the allowed difference from a level, which is at least three standard deviations over seeds."""
    return max(TOLERANCE, 3 * float(level["seed_sd"]))


def compare(
    ours: Iterable[Level], table: Iterable[Level]
) -> tuple[list[tuple[Level, Level]], Mapping[str, int]]:
    """Return our levels with those of the table that were made alike, and how many others it has, and why.

    What only we scored is left out.
    """
    level_of_key = {key_of(level): level for level in ours}
    variants = {key[:2] for key in level_of_key}
    compared: list[tuple[Level, Level]] = []
    incomparable: Counter[str] = Counter()
    for level in table:
        if key_of(level)[:2] not in variants:
            continue
        mine = level_of_key.get(key_of(level))
        reason = _reason(mine, level) if mine else "our runs have no score there"
        if reason:
            incomparable[reason] += 1
        elif mine:
            compared.append((mine, level))
    return compared, incomparable


def _reason(ours: Level, table: Level) -> str:
    """Return why two levels cannot be compared; empty where they can."""
    for name, reason in REASONS.items():
        here, there = ours[name], table[name]
        parts = 2 if name == "torch" else None  # of a version: without the patch
        if here.split(".")[:parts] != there.split(".")[:parts]:
            return f"{reason} ({here[:8]} here, {there[:8]} in the table)"
    return ""


def read_table(path: Path) -> list[Level]:
    """Return the levels of a table; none if there is no file."""
    with suppress(FileNotFoundError), path.open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]
    return []


def write_levels(path: Path, levels: Sequence[Level]) -> None:
    """Write levels into a table, in place of those of the same variant and data; others stay."""
    replaced = {key_of(level)[:2] for level in levels}
    kept = [level for level in read_table(path) if key_of(level)[:2] not in replaced]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()

    def place(level: Level) -> tuple[object, ...]:
        return *key_of(level)[:6], int(level["length"])

    writer.writerows(sorted([*kept, *levels], key=place))
    write_text(path, text.getvalue())


def render(outcomes: Outcomes, width: int) -> str:
    """Return the text for standard output, contradicted claims first.

    A toy says whether its levels are those of the table, and claims are counted: it cannot judge them.
    """
    lines = [*_heading(outcomes.study), ""]
    if outcomes.study.size == "quick":
        lines += [*_comparison(outcomes), "", _counts(outcomes.judged)]
    else:
        lines += [*_claims(outcomes.judged), "", _counts(outcomes.judged), "", *_comparison(outcomes)]
    wrapped = chain.from_iterable(_wrap(line, width) for line in lines)
    return "".join(f"{line}\n" for line in wrapped)


def _wrap(line: str, width: int) -> list[str]:
    """Break a line between words; what follows is indented as far as the first word after two blanks."""
    indent = " " * (INDENT if line[:INDENT].endswith("  ") else 2)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _heading(study: Study) -> Iterator[str]:
    text = "the standard library's source code" if study.text == STDLIB else study.text
    data = ", ".join(dict.fromkeys(sweep.task or f"text: {text}" for sweep in study.sweeps))
    yield f"{study.name}: {study.title}"
    yield study.source
    is_trained = not any(sweep.checkpoint for sweep in study.sweeps)
    begins = "trained at" if is_trained else "changes are from"
    yield f"{begins} {study.length} tokens, seeds: {study.seeds}, {data}"
    if study.size == "quick":
        yield "--quick: toy models show that everything works, and their verdicts mean nothing"


def _claims(judged: Sequence[Judged]) -> Iterator[str]:
    for claim in sorted(judged, key=lambda claim: ORDER.index(claim.outcome)):
        yield f"{claim.outcome:<{INDENT}}{claim}"
        yield f"{'':<{INDENT}}{claim.evidence} ({_origin(claim.claim)})"


def _origin(claim: Claim) -> str:
    """Return the source of a claim: a place in a paper, or the rule of a prediction."""
    if isinstance(claim, LedgerClaim) and claim.rule:
        return claim.origin
    return f"paper: {claim.source}"


def _counts(judged: Sequence[Judged]) -> str:
    counts = Counter(claim.outcome for claim in judged)
    text = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ORDER)
    return f"claims: {text} (each by a 95 % interval, in bits per byte or right examples)"


def _comparison(outcomes: Outcomes) -> Iterator[str]:
    compared = outcomes.compared
    differing = outcomes.differing
    table = outcomes.study.table.name
    if not compared and not outcomes.incomparable:
        yield f"{table} has nothing of this size and text: our levels are not compared"
    if compared:
        agreeing = f"{len(compared) - len(differing)} of {len(compared)} levels agree within {TOLERANCE}"
        yield f"{table}: {agreeing}, or 3 standard deviations over seeds"
    for ours, level in differing:
        protocol = level["protocol"]
        if level["control"] != "none":
            protocol += f", control {level['control']}"
        where = f"{Series(level['encoding'], level['sweep'])} at {int(level['length']):,}"
        here = float(ours["level"])
        there = float(level["level"])
        allowed = f"{here:.3f} here, {there:.3f} in the table, may differ by {tolerance(level):.3f}"
        yield f"  differs: {where} ({protocol}): {allowed}"
    for reason, count in outcomes.incomparable.items():
        yield f"{table}: levels not comparable: {count}, {reason}"
