"""The text of `reproduce` on a finished study: its judged claims, and its levels compared with its table."""

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
from pe_bench.commands.reproduce.pieces import major_minor
from pe_bench.commands.reproduce.study import STDLIB, Study
from pe_bench.report.records import label_of
from pe_bench.runs.rows import Row, grouped, has_number, level_of
from pe_bench.system.files import write_text

# The allowed difference of a level in bits per byte, or of a share: machines round in other orders, and a
# thousand steps magnify it.
TOLERANCE = 0.02
ORDER_OF_OUTCOMES: tuple[Outcome, ...] = ("contradicted", "holds", "unclear")
INDENT_WIDTH = max(map(len, ORDER_OF_OUTCOMES)) + 2
# The columns that must be equal for two levels to be compared, and the words for other values.
INCOMPARABLE_REASONS = {
    "data_hash": "other text, as the standard library of another version of Python is",
    "target_hash": "other targets",
    "setting": "another model or training",
    "seeds": "other numbers of seeds",
    "torch": "another version of PyTorch",
}
# The columns of a table, a CSV file. level: a mean over seeds in bits per byte, or of a task the share of
# right examples. seed_sd: the standard deviation over seeds; 0 for one seed. torch: the version without its
# build. machine: the machine that trained.
KEY_COLUMNS = ("variant", "data", "sweep", "encoding", "protocol", "control", "length")
LEVEL_COLUMNS = ("level", "seed_sd", "seeds", "data_hash", "target_hash", "model", "setting")
TABLE_COLUMNS: tuple[str, ...] = (*KEY_COLUMNS, *LEVEL_COLUMNS, "torch", "pe_bench", "date", "machine")
LevelRow = Mapping[str, str]  # a row of a table: values by `TABLE_COLUMNS`
key_of = itemgetter(*KEY_COLUMNS)


@dataclass(frozen=True)
class StudyOutcomes:
    """The claims of a study with their outcomes by our runs, and our levels compared with its table."""

    study: Study
    judged: Sequence[Judged]
    ours: Sequence[LevelRow]
    compared: Sequence[tuple[LevelRow, LevelRow]] = ()  # our level and the table's, made alike
    incomparable: Mapping[str, int] = field(default_factory=dict)  # the number of other levels by reason

    @property
    def differing(self) -> list[tuple[LevelRow, LevelRow]]:
        """Return the pairs of our level and the table's that differ by more than the tolerance."""
        return [pair for pair in self.compared if _levels_differ(*pair)]


def judge_study(study: Study, scores: Measurements, table: Sequence[LevelRow]) -> StudyOutcomes:
    """Return the outcomes of a study's claims by the scores, and the comparison of levels with a table."""
    judged = [judge_claim(claim, scores) for claim in study.claims]
    ours = levels_of(scores.rows, study.size, scores.machines)
    return StudyOutcomes(study, judged, ours, *compare(ours, table))


def levels_of(
    rows: Mapping[str, Iterable[Row]], variant: str, machines: Callable[[Sequence[Row]], str]
) -> list[LevelRow]:
    """Return the rows of a table: the mean level of each group of rows that differ only in their seeds.

    rows: the rows of each sweep's runs. variant: full or quick. machines: returns the machines on which the
    runs of rows were trained.
    """

    def seeds_key(row: Row) -> tuple[object, ...]:
        return label_of(row), row.protocol, row.control, row.length, row.target_hash

    levels = []
    for sweep, sweep_rows in rows.items():
        for alike in grouped(filter(has_number, sweep_rows), seeds_key).values():
            place = {"sweep": sweep, "variant": variant, "machine": machines(alike)}
            levels.append(_level_of_rows(alike) | place)
    return levels


def _level_of_rows(rows: Sequence[Row]) -> dict[str, str]:
    """Return the mean of rows that differ in their seeds, with their facts, by the columns of a table."""
    row = rows[0]
    levels = np.array([level_of(row) for row in rows])
    spread = 0.0
    if len(levels) > 1 and np.all(np.isfinite(levels)):
        spread = round(float(levels.std(ddof=1)), 6)
    torch_version, _, _ = row.torch.partition("+")
    last = max(row.date for row in rows)
    values = {name: getattr(row, name) for name in TABLE_COLUMNS if hasattr(row, name)}
    values |= {"encoding": label_of(row), "torch": torch_version, "date": last[:10]}
    values |= {"seeds": len(levels), "level": round(float(levels.mean()), 6), "seed_sd": spread}
    return {name: str(value) for name, value in values.items()}


def _levels_differ(ours: LevelRow, table: LevelRow) -> bool:
    """Return whether a level of ours differs from the table's by more than the table's tolerance."""
    here = float(ours["level"])
    there = float(table["level"])
    if here == there:  # as two infinite levels are
        return False
    return not abs(here - there) <= tolerance(table)


def tolerance(level: LevelRow) -> float:
    """Return the allowed difference from a level, which is at least three standard deviations over seeds."""
    return max(TOLERANCE, 3 * float(level["seed_sd"]))


def compare(
    ours: Iterable[LevelRow], table: Iterable[LevelRow]
) -> tuple[list[tuple[LevelRow, LevelRow]], Mapping[str, int]]:
    """Pair our levels with the table's levels from the same conditions; count the other levels by reason.

    Levels that the table lacks are left out.
    """
    level_of_key = {key_of(level): level for level in ours}
    variants = {key[:2] for key in level_of_key}
    compared: list[tuple[LevelRow, LevelRow]] = []
    incomparable: Counter[str] = Counter()
    for level in table:
        if key_of(level)[:2] not in variants:
            continue
        mine = level_of_key.get(key_of(level))
        reason = _incomparable_reason(mine, level) if mine else "our runs have no score there"
        if reason:
            incomparable[reason] += 1
        elif mine:
            compared.append((mine, level))
    return compared, incomparable


def _incomparable_reason(ours: LevelRow, table: LevelRow) -> str:
    """Return the reason why two levels cannot be compared; empty if they can."""
    for name, reason in INCOMPARABLE_REASONS.items():
        here = ours[name]
        there = table[name]
        is_equal = here == there
        if name == "torch":
            is_equal = major_minor(here) == major_minor(there)
        if not is_equal:
            return f"{reason} ({here[:8]} here, {there[:8]} in the table)"
    return ""


def read_table(path: Path) -> list[LevelRow]:
    """Return the rows of a table's CSV file; none if there is no file."""
    with suppress(FileNotFoundError), path.open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]
    return []


def stored_levels(study: Study) -> list[LevelRow]:
    """Return the levels in a study's table that its runs in full size have on the study's own text."""
    levels = []
    for level in read_table(study.table_path):
        if level["variant"] == "full" and level["data"] != "files":
            levels.append(level)
    return levels


def count_stored_runs(study: Study) -> int:
    """Return the number of runs in full size whose levels are in a study's table.

    A Hugging Face model counts once for each encoding that it is scored with, as in `Study.n_runs`.
    """
    hf_models = {sweep.name for sweep in study.sweeps if sweep.hf_model}
    seeds_of_runs: dict[tuple[str, str], int] = {}
    for level in stored_levels(study):
        sweep, encoding = level["sweep"], level["encoding"]
        if sweep not in hf_models:
            encoding = encoding.partition(" -> ")[0]
        key = sweep, encoding
        seeds_of_runs[key] = max(seeds_of_runs.get(key, 0), int(level["seeds"]))
    return sum(seeds_of_runs.values())


def write_levels(path: Path, levels: Sequence[LevelRow]) -> None:
    """Write levels into a table, in place of its levels of the same variant and data; others stay.

    With data=files, the levels of other texts stay too.
    """

    def replaced_key(level: LevelRow) -> tuple[str, ...]:
        text = level["data_hash"] if level["data"] == "files" else ""
        return level["variant"], level["data"], text

    replaced = set(map(replaced_key, levels))
    stored = read_table(path)
    kept = [level for level in stored if replaced_key(level) not in replaced]
    text = io.StringIO()
    writer = csv.DictWriter(text, TABLE_COLUMNS, lineterminator="\n")
    writer.writeheader()

    def table_order(level: LevelRow) -> tuple[object, ...]:
        return *key_of(level)[:6], int(level["length"]), level["data_hash"]

    writer.writerows(sorted([*kept, *levels], key=table_order))
    write_text(path, text.getvalue())


def render(outcomes: StudyOutcomes, width: int) -> str:
    """Return the outcomes of a study as text of lines up to `width`, contradicted claims first.

    A study in its toy size judges no claims: the text compares its levels with the table and counts claims.
    """
    lines = [*_heading_lines(outcomes.study), ""]
    counts = _counts_text(outcomes.judged)
    if outcomes.study.size == "quick":
        lines += [*_comparison_lines(outcomes), "", counts]
    else:
        lines += [*_claim_lines(outcomes.judged), "", counts, "", *_comparison_lines(outcomes)]
    wrapped = chain.from_iterable(_wrap_line(line, width) for line in lines)
    return "".join(f"{line}\n" for line in wrapped)


def _wrap_line(line: str, width: int) -> list[str]:
    """Break a line between words; following lines are indented as far as the first word after two blanks."""
    indent = " " * (INDENT_WIDTH if line[:INDENT_WIDTH].endswith("  ") else 2)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _heading_lines(study: Study) -> Iterator[str]:
    text = "the standard library's source code" if study.text == STDLIB else study.text
    sources = [sweep.task or f"text: {text}" for sweep in study.sweeps]
    data = ", ".join(dict.fromkeys(sources))
    yield f"{study.name}: {study.title}"
    yield study.source
    is_trained = not any(sweep.hf_model for sweep in study.sweeps)
    begins = "trained at" if is_trained else "changes are from"
    seeds = f"seeds: {study.seeds}"
    yield f"{begins} {study.length:,} tokens, {seeds}, {data}"
    if study.size == "quick":
        yield "--quick: toy models show that everything works, and their verdicts mean nothing"


def _claim_lines(judged: Sequence[Judged]) -> Iterator[str]:
    for claim in sorted(judged, key=lambda claim: ORDER_OF_OUTCOMES.index(claim.outcome)):
        yield f"{claim.outcome:<{INDENT_WIDTH}}{claim}"
        yield f"{'':<{INDENT_WIDTH}}{claim.evidence} ({_origin(claim.claim)})"


def _origin(claim: Claim) -> str:
    """Return the source of a claim: a place in a paper, or the rule of a prediction."""
    if isinstance(claim, LedgerClaim) and claim.rule:
        return claim.origin
    return f"paper: {claim.source}"


def _counts_text(judged: Sequence[Judged]) -> str:
    counts = Counter(claim.outcome for claim in judged)
    parts = [f"{counts[outcome]} {outcome}" for outcome in ORDER_OF_OUTCOMES]
    text = ", ".join(parts)
    return f"claims: {text} (each by a 95 % interval, in bits per byte or as a share)"


def _comparison_lines(outcomes: StudyOutcomes) -> Iterator[str]:
    """Yield lines on levels that agree with the study's table, differ, or cannot be compared."""
    compared = outcomes.compared
    differing = outcomes.differing
    table = outcomes.study.table_path.name
    if not compared and not outcomes.incomparable:
        yield f"{table} has nothing of this size and text: our levels are not compared"
    if compared:
        agreeing = len(compared) - len(differing)
        within = f"within {TOLERANCE}, or 3 standard deviations over seeds"
        yield f"{table}: {agreeing} of {len(compared)} levels agree {within}"
    for ours, level in differing:
        protocol = level["protocol"]
        if level["control"] != "none":
            protocol += f", control {level['control']}"
        series = Series(level["encoding"], level["sweep"])
        length = int(level["length"])
        here = float(ours["level"])
        there = float(level["level"])
        levels = f"{here:.3f} here, {there:.3f} in the table"
        allowed = f"may differ by {tolerance(level):.3f}"
        yield f"  differs: {series} at {length:,} ({protocol}): {levels}, {allowed}"
    for reason, count in outcomes.incomparable.items():
        yield f"{table}: levels not comparable: {count}, {reason}"
