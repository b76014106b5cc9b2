"""How the numbers were made: commands, data, versions and machines, each said once."""

from collections.abc import Iterable, Sequence
from dataclasses import fields

from pe_bench.report.html.element import Html, element, join
from pe_bench.runs.provenance import Dataset, Environment, RunRecord
from pe_bench.runs.repeat import sweep_commands


def made_section(records: Sequence[RunRecord]) -> Html:
    if not records:
        return Html()
    environments = list(
        dict.fromkeys(
            one for record in records for one in (record.trained, *record.scored) if one != Environment()
        )
    )
    return element(
        "section",
        element("h2", "How this was made"),
        _typed(records),
        _repeating(records),
        _data(records),
        _environments(environments),
        _runs(records, environments),
        id="made",
    )


def _typed(records: Sequence[RunRecord]) -> Html:
    counts: dict[str, int] = {}
    for record in records:
        for command in record.commands:
            counts[command] = counts.get(command, 0) + 1
    if not counts:
        return Html()
    items = [
        element("li", element("code", command), " ", element("small", _runs_text(count)))
        for command, count in counts.items()
    ]
    return join(element("h3", "Commands, as they were typed"), element("ul", *items, class_="commands"))


def _repeating(records: Sequence[RunRecord]) -> Html:
    """Commands that make these runs again, runs that differ in encoding and seed alone in one sweep."""
    commands = sweep_commands(record.repeat for record in records if record.repeat)
    items = [element("li", element("code", command)) for command in commands]
    needs = dict.fromkeys(need for record in records for need in record.needs)
    missing: dict[str, list[str]] = {}
    for record in records:
        if record.missing:
            missing.setdefault(record.missing, []).append(record.run)
    notes = [
        *(f"needed beside pe-bench: {need}" for need in needs),
        *(f"no command for {_first_of(runs)}: {reason}" for reason, runs in missing.items()),
    ]
    return join(
        element("h3", "Commands that make these runs again"),
        element("ul", *items, class_="commands"),
        element("ul", *(element("li", note) for note in notes), class_="notes") if notes else Html(),
    )


def _data(records: Sequence[RunRecord]) -> Html:
    found: dict[Dataset, int] = {}
    for record in records:
        for one in record.data:
            found[one] = found.get(one, 0) + 1
    rows = [(one.name, one.hash, one.tokenizer, count) for one, count in found.items()]
    return join(element("h3", "Data"), _grid(("data", "hash", "tokenizer", "runs"), rows))


def _environments(environments: Sequence[Environment]) -> Html:
    names = [field.name for field in fields(Environment)]
    rows = [
        (number, *(getattr(one, name) for name in names)) for number, one in enumerate(environments, start=1)
    ]
    headings = ("no.", *(name.replace("_", "-") for name in names))
    return join(element("h3", "Versions and machines"), _grid(headings, rows))


def _runs(records: Sequence[RunRecord], environments: Sequence[Environment]) -> Html:
    def numbers(found: Iterable[Environment]) -> str:
        return ", ".join(str(environments.index(one) + 1) for one in found if one != Environment())

    rows = [
        (
            record.run,
            record.date,
            ", ".join(one.hash for one in record.data),
            numbers([record.trained]),
            numbers(record.scored),
        )
        for record in records
    ]
    grid = _grid(("run", "date", "data", "trained on", "scored on as well"), rows)
    return element("details", element("summary", f"Each run ({len(records):,})"), grid)


def _grid(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    head = element("tr", *(element("th", heading, scope="col") for heading in headings))
    body = [element("tr", *(element("td", str(value)) for value in row)) for row in rows]
    table = element("table", element("thead", head), element("tbody", *body))
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=", ".join(headings))


def _runs_text(count: int) -> str:
    return "1 run" if count == 1 else f"{count:,} runs"


def _first_of(runs: Sequence[str]) -> str:
    return runs[0] if len(runs) == 1 else f"{runs[0]} and {len(runs) - 1:,} more"
