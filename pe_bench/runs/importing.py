"""Import of runs from another folder or machine: they are checked like a stranger's runs, and copied whole.

Anchors, such as (trigram), are not copied: every table of the same targets would show them, and it is unknown
whether they were counted or invented. Scoring a run counts them again.
"""

import os
import secrets
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pe_bench.config.schema import NAME
from pe_bench.errors import RunError, UserError, first_line, require
from pe_bench.runs.find import ANCHOR_NAMES
from pe_bench.runs.folder import gather_and_warn, read_config, read_result
from pe_bench.runs.rows import read_rows
from pe_bench.runs.untrusted import check_files
from pe_bench.system.files import TEMPORARY_PREFIX, Lock
from pe_bench.values import check_folder


@dataclass(frozen=True)
class Imported:
    """The names of runs after an import."""

    copied: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)  # here before the import
    refused: dict[str, str] = field(default_factory=dict)  # keys: the names of the runs; values: the reasons


def import_runs(folders: Iterable[str | Path], results_dir: Path) -> Imported:
    """Copy runs as `pe_bench.import_runs` says, and gather `results.csv`."""
    runs: list[Path] = []
    for folder in folders:
        runs += _runs_in(Path(folder))
    results = check_folder(results_dir, "--results-dir", is_written=True)
    results.mkdir(parents=True, exist_ok=True)
    with Lock(results / "import.lock"):
        for folder in (results / "runs", results / "anchors"):
            _remove_leftovers(folder)
        imported = _copy_checked_runs(runs, results)
    gather_and_warn(results)
    return imported


def _remove_leftovers(folder: Path) -> None:
    """Delete what a killed import left in a folder; only the holder of the lock may call this."""
    for leftover in folder.glob(f"{TEMPORARY_PREFIX}*"):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)


def _copy_checked_runs(runs: Sequence[Path], results: Path) -> Imported:
    """Check each run and copy it into a folder of results; return what became of each."""
    imported = Imported()
    for run in runs:
        target = results / "runs" / run.name
        try:
            _check_run(run)
            if os.path.lexists(target):
                require(read_result(target) is not None, "it is not finished here: finish it, or delete it")
                imported.present.append(run.name)
            else:
                _copy_whole(run, target)
                imported.copied.append(run.name)
        except (RunError, UserError, OSError) as error:
            imported.refused[run.name] = first_line(error)
    return imported


def _runs_in(folder: Path) -> list[Path]:
    """Return the runs in a run's folder, a folder of runs or a folder of results. Raises `UserError`."""
    folder = folder.resolve()
    if (folder / "config.yaml").is_file():
        return [folder]
    files = sorted(folder.glob("runs/*/config.yaml"))
    if not files:
        files = sorted(folder.glob("*/config.yaml"))
    require(bool(files), f"{folder} has no runs: name a run, a folder of runs or a folder of results")
    return [file.parent for file in files]


def _check_run(run: Path) -> None:
    """Raise `UserError` for a run that is not finished or not readable, and for the rows of another run."""
    is_name = NAME.fullmatch(run.name) is not None
    require(is_name, f"{run.name!a} is not a valid run name")
    require(read_result(run) is not None, "it is not finished")
    read_config(run)
    rows = read_rows(run / "eval.csv")
    require({row.run for row in rows} == {run.name}, "its eval.csv has no rows, or those of another run")
    labels: set[str] = set()
    for row in rows:
        labels |= {row.encoding, row.scored_with}
    counted = ", ".join(sorted(labels & {*ANCHOR_NAMES}))
    require(not counted, f"its eval.csv has rows of {counted}, which is counted and no run")


def _copy_whole(source: Path, target: Path) -> None:
    """Copy a folder whole or not at all. Raise `RunError` for one with links."""
    check_files(source)
    temporary = target.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(4)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    ignore = shutil.ignore_patterns("lock", f"{TEMPORARY_PREFIX}*")
    try:
        shutil.copytree(source, temporary, symlinks=True, ignore=ignore)
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
