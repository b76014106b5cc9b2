"""What `reproduce` prints: each claim with what our runs say of it, and how our levels fit the table."""

import textwrap
from collections.abc import Iterator, Sequence

from pe_bench.report.statistics import Interval
from pe_bench.studies.claims import Judged, Outcome, name_of
from pe_bench.studies.definition import MIN_RANKED, Claim
from pe_bench.studies.outcomes import Outcomes
from pe_bench.studies.ranking import Agreement
from pe_bench.studies.table import TOLERANCE, Difference, Incomparable
from pe_bench.studies.variant import STDLIB, Variant
from pe_bench.system.outside_text import one_line

ORDER: tuple[Outcome, ...] = ("contradicted", "holds", "unclear")
INDENT = max(map(len, ORDER)) + 2
SHORT_HASH = 8
WINDOWS = ("nonoverlapping", "sliding")
MAX_SHOWN = 10  # cells that differ
MEASURED = {
    "order": "difference",
    "falls": "change",
    "rises": "change",
    "holds": "change",
    "breaks": "change",
    "breaks_first": "difference of the changes",
    "early_tokens": "nonoverlapping minus sliding",
    "reads_past_window": "gain over the window",
    "stays_in_window": "gain over the window",
    "solves": "right",
    "misses": "right",
}


def render(outcomes: Outcomes, width: int) -> str:
    """Return the text for standard output, contradicted claims first."""
    lines = [*_heading(outcomes.variant), "", *_claims(outcomes.judged)]
    if outcomes.agreement is not None:
        lines += ["", _agreement(outcomes.agreement)]
    elif outcomes.variant.study.ranking is not None:
        lines += [
            "",
            f"no Kendall's tau-b: fewer than {MIN_RANKED} ranked encodings have learned and have scores",
        ]
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
    yield f"trained at {variant.length} tokens, {_seeds(variant.seeds)}, {data}"
    if variant.is_quick:
        yield "--quick: toy models show that everything works, and their verdicts mean nothing"


def _claims(judged: Sequence[Judged]) -> Iterator[str]:
    for outcome in ORDER:
        for claim in (claim for claim in judged if claim.outcome == outcome):
            yield f"{outcome:<{INDENT}}{sentence_of(claim)}"
            yield f"{'':<{INDENT}}{_evidence(claim)} (paper: {claim.claim.source})"
    counts = [f"{sum(claim.outcome == outcome for claim in judged)} {outcome}" for outcome in ORDER]
    is_task = any(claim.claim.protocol == "task" for claim in judged)
    unit = "of the share of examples that are right" if is_task else "in bits per byte"
    yield ""
    claims = "1 claim" if len(judged) == 1 else f"{len(judged)} claims"
    yield f"{claims}: {', '.join(counts)} (each by a 95 % interval, {unit})"


def sentence_of(judged: Judged) -> str:
    """Return a claim as a sentence."""
    claim, length = judged.claim, f"{judged.length:,}"
    name, other = (
        name_of(claim.of, claim.sweep),
        name_of(claim.than or claim.of, claim.than_sweep or claim.sweep),
    )
    sentence = {
        "order": _order_sentence(claim, name, other, length),
        "falls": f"{name} is better at {length} than at its training length",
        "rises": f"{name} is worse at {length} than at its training length",
        "holds": f"{name} holds up to {length}",
        "breaks": f"{name} degrades or fails at {length}",
        "breaks_first": f"{name} breaks before {other}",
        "early_tokens": f"{name} at {length}: nonoverlapping windows look worse than sliding ones",
        "reads_past_window": f"{name} at {length} gains from text beyond its training length",
        "solves": f"{name} solves examples of {length} tokens",
        "misses": f"{name} does not solve examples of {length} tokens",
        "stays_in_window": f"{name} at {length} gains nothing beyond its training length",
    }[claim.kind]
    return sentence + (f" ({claim.protocol} windows)" if claim.protocol in WINDOWS else "")


def _order_sentence(claim: Claim, name: str, other: str, length: str) -> str:
    if claim.measure == "level":
        return f"{name} is better than {other} at {length}"
    return f"{name} loses less than {other} from its training length to {length}"


def _evidence(judged: Judged) -> str:
    if judged.interval is None:
        return judged.missing or "no interval"
    place = f" at {judged.decided_at:,}" if judged.decided_at != judged.length else ""
    reason = f": {judged.missing}" if judged.missing else ""
    return f"{MEASURED[judged.claim.kind]}{place} {interval_text(judged.interval)}{reason}"


def interval_text(interval: Interval) -> str:
    return f"{interval.mean:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}], {_seeds(interval.seeds)}"


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _agreement(found: Agreement) -> str:
    low, high = found.bounds
    bounds = f"[{low:.2f}, {high:.2f}], {_seeds(found.seeds)}"
    if found.seeds < 2:
        bounds = "(no interval: one seed)"
    elif low == high:
        bounds = f"with each of {_seeds(found.seeds)}"
    measure = "changes from the training length" if found.ranking.measure == "change" else "levels"
    return (
        f"Kendall's tau-b with the paper's order of {len(found.encodings)} encodings by their {measure} at "
        f"{found.length:,}: {found.tau:.2f} {bounds}; paper: {found.ranking.source}"
    )


def _comparison(outcomes: Outcomes) -> Iterator[str]:
    comparison, table = outcomes.comparison, outcomes.variant.study.table.name
    if comparison.is_empty:
        yield f"{table} has nothing of this size and text: our levels are not compared"
        return
    if comparison.cells:
        same = len(comparison.cells) - len(comparison.differing)
        yield (
            f"{table}: {same} of {len(comparison.cells)} levels agree within {TOLERANCE}, or 3 "
            "standard deviations over seeds"
        )
    for cell in comparison.differing[:MAX_SHOWN]:
        yield f"  differs: {_cell(cell)}"
    if len(comparison.differing) > MAX_SHOWN:
        yield f"  and {len(comparison.differing) - MAX_SHOWN} more"
    for group in comparison.incomparable:
        cells = "1 level" if group.cells == 1 else f"{group.cells} levels"
        yield f"{table}: {cells} not comparable: {_reason(group, outcomes.variant.text)}"


def _cell(cell: Difference) -> str:
    ours, table = cell.ours, cell.table
    control = f", control {table.control}" if table.control != "none" else ""
    return (
        f"{name_of(table.encoding, table.sweep)} at {table.length:,} ({table.protocol}{control}): "
        f"{ours.level:.3f} here, {table.level:.3f} in the table, "
        f"may differ by {cell.tolerance:.3f}"
    )


def _reason(group: Incomparable, text: str) -> str:
    values = f"{group.ours[:SHORT_HASH]} here, {group.table[:SHORT_HASH]} in the table"
    versions = "; the standard library differs between versions of Python" if text == STDLIB else ""
    return {
        "nothing there": "our runs have no score there",
        "data_hash": f"other text ({values}){versions}",
        "target_hash": f"other targets ({values})",
        "setting": f"another model or training ({values})",
        "seeds": f"other numbers of seeds ({values})",
        "torch": f"another version of PyTorch ({values})",
    }[group.fact]
