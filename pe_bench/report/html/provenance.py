"""How the numbers were made: commands, data, versions and machines, each listed once."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from pe_bench.runs.folder import Dataset, Environment, RunRecord
from pe_bench.system.grid import Cell, Column, Grid


@dataclass(frozen=True)
class Provenance:
    """The origin of a report. typed: the commands that made it, with counts of runs."""

    notes: Sequence[str]
    typed: Sequence[tuple[str, int]]
    data: Grid
    environments: Grid
    runs: Grid


def summarize(records: Sequence[RunRecord]) -> Provenance:
    """Return the records of runs as commands and tables."""
    environments = list(
        dict.fromkeys(
            environment
            for record in records
            for environment in (record.trained, *record.scored)
            if environment != Environment()
        )
    )
    return Provenance(
        notes=_notes(records),
        typed=list(Counter(command for record in records for command in record.commands).items()),
        data=_data(records),
        environments=_environments(environments),
        runs=_runs(records, environments),
    )


def _grid(headings: Iterable[str], rows: Iterable[Iterable[object]]) -> Grid:
    columns = [Column(heading, is_left=True) for heading in headings]
    return Grid(columns, [[Cell(f"{value}") for value in row] for row in rows])


def _notes(records: Sequence[RunRecord]) -> list[str]:
    missing: dict[str, list[str]] = {}
    for record in records:
        if record.missing:
            missing.setdefault(record.missing, []).append(record.run)
    needs = dict.fromkeys(need for record in records for need in record.needs)
    return [
        *(f"needed beside pe-bench: {need}" for need in needs),
        *(f"no command for {_first_of(runs)}: {reason}" for reason, runs in missing.items()),
    ]


def _data(records: Sequence[RunRecord]) -> Grid:
    found: Counter[Dataset] = Counter(dataset for record in records for dataset in record.data)
    rows = [(dataset.name, dataset.hash, dataset.tokenizer, count) for dataset, count in found.items()]
    return _grid(("data", "hash", "tokenizer", "runs"), rows)


def _environments(environments: Sequence[Environment]) -> Grid:
    names = [field.name for field in fields(Environment)]
    rows = [
        (number, *(getattr(environment, name) for name in names))
        for number, environment in enumerate(environments, start=1)
    ]
    return _grid(("no.", *(name.replace("_", "-") for name in names)), rows)


def _runs(records: Sequence[RunRecord], environments: Sequence[Environment]) -> Grid:
    def numbers(found: Iterable[Environment]) -> str:
        return ", ".join(str(environments.index(one) + 1) for one in found if one != Environment())

    rows = [
        (
            record.run,
            record.date,
            ", ".join(dataset.hash for dataset in record.data),
            numbers([record.trained]),
            numbers(record.scored),
        )
        for record in records
    ]
    return _grid(("run", "date", "data", "trained on", "scored on as well"), rows)


def _first_of(runs: Sequence[str]) -> str:
    return runs[0] if len(runs) == 1 else f"{runs[0]} and {len(runs) - 1:,} more"
