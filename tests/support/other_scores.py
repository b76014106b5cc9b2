"""The scores that a tiny run got from `pe-bench eval`."""

import hashlib
from pathlib import Path

from support.commands import Outcome, only_run

from pe_bench.runs.rows import Row, read_rows


def rows_of(folder: Path, control: str = "none") -> list[Row]:
    return [row for row in read_rows(only_run(folder) / "eval.csv") if row.control == control]


def levels(folder: Path) -> dict[tuple[str, int], float | None]:
    return {(row.scored_with, row.length): row.nll for row in rows_of(folder)}


def labels(folder: Path) -> list[str]:
    return sorted({row.scored_with + (" (forced)" if row.forced else "") for row in rows_of(folder)})


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def encoded(outcome: Outcome) -> list[str]:
    """Return the names of encodings in the table, line by line, without the anchors."""
    grid = outcome.out.split("\n---", 1)[1].split("\n", 1)[1].split("\n\n")[0]
    return [line.split("  ")[0] for line in grid.splitlines() if not line.startswith("(")]
