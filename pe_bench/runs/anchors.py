"""Anchors: scores of models that cost no training, kept once for all runs that train on the same windows.

Each has a folder beside that of the runs, with rows and scores in a run's format, and is no run itself.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from pe_bench.errors import RunError
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.untrusted import check_files
from pe_bench.system.terminal import one_line

FREQUENCIES, TRIGRAM, COPYING = "(token frequencies)", "(trigram)", "(trigram+copy)"
# The beginnings of their folders' names.
NAMES = {FREQUENCIES: "frequencies", TRIGRAM: "trigram", COPYING: "trigram+copying"}

Place = tuple[object, ...]


@dataclass(frozen=True)
class StoredAnchors:
    """The rows of all anchors, by what they were counted and scored on, and the folders that they are in."""

    rows: dict[tuple[str, Place], Row] = field(default_factory=dict)
    folders: dict[str, RunFolder] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def of(self, label: str, rows: Iterable[Row]) -> list[Row]:
        """Return the rows of one anchor that belong to rows of runs, each once."""
        stored = (self.rows.get((label, place_of(row))) for row in rows)
        return list({row.key: row for row in stored if row is not None}.values())

    def with_folders(self, folder_of: Callable[[str], RunFolder]) -> Callable[[str], RunFolder]:
        """Return a function that gives the folder of a run or an anchor by its name."""
        return lambda name: self.folders.get(name) or folder_of(name)


def place_of(row: Row) -> Place:
    """Return what a run's row shares with those of its anchors: what was trained on, and what is scored."""
    return (
        *(row.data_hash, row.train_length, row.steps, row.train_tokens, row.seed),
        *(row.protocol, row.stride_rule, row.length, row.target_hash),
    )


def anchors_folder(run: Path) -> Path | None:
    """Return where the anchors of a run are; None for a run that does not lie in a folder named runs."""
    parent = run.absolute().parent
    return parent.parent / "anchors" if parent.name == "runs" else None


def read_anchors(folder: Path | None) -> StoredAnchors:
    """Return all anchors of a folder of results. A damaged one is named and hides no other."""
    rows: dict[tuple[str, Place], Row] = {}
    folders: dict[str, RunFolder] = {}
    problems = []
    for path in sorted(folder.glob("*/eval.csv")) if folder is not None else []:
        anchor = path.parent
        if not anchor.name.startswith(tuple(f"{name}-s" for name in NAMES.values())):
            continue  # a folder with a run's name would stand in for the run's own
        try:
            check_files(anchor)
            kept = [row for row in read_rows(path) if row.encoding in NAMES]
        except RunError as error:
            reason = str(error).partition(": delete")[0]
            problems.append(
                one_line(f"no anchors from {anchor}: {reason}; pe-bench eval RUN... counts again")
            )
            continue
        folders[anchor.name] = RunFolder(anchor)
        rows |= {(row.encoding, place_of(row)): replace(row, run=anchor.name) for row in kept}
    return StoredAnchors(rows, folders, tuple(problems))
