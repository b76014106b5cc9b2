"""Deletion of runs of a folder of results, except for parents of other runs."""

import fnmatch
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from pe_bench.errors import UserError
from pe_bench.runs.folder import RunFolder, encoding_in, folders_of_runs, gather_and_warn, locked

PARENT_KEYS = ("train.source", "train.from", "train.beside")  # keys that name another run


def runs_named(names: Iterable[str], results_dir: Path) -> list[Path]:
    """Return the runs, finished or not, with these names: an encoding, or a run's name or its beginning.

    Raises `UserError` if no run has one of the names.
    """
    runs = folders_of_runs(results_dir)
    selected_runs: list[Path] = []
    for typed in names:
        name = Path(typed).name
        selected = [run for run in runs if run.name == name]
        if not selected:
            selected = [run for run in runs if encoding_in(run.name) == name]
        if not selected:
            selected = [run for run in runs if fnmatch.fnmatch(run.name, f"{name}*")]
        if not selected or not name:
            raise UserError(f"no run '{typed}' in {results_dir / 'runs'}: see `pe-bench list runs`")
        selected_runs += selected
    return list(dict.fromkeys(selected_runs))


def needed_by(runs: Sequence[Path], results_dir: Path) -> dict[Path, list[str]]:
    """Return, for each of the runs that other runs need, the names of these other runs.

    A run needs its parent and its first stage, which may be in renamed folders. Runs that are to be deleted
    themselves are left out.
    """
    names_of_needing_runs: dict[Path, list[str]] = {}
    names_of: dict[Path, set[str]] = {}
    for run in runs:
        original = RunFolder(run).original_name
        is_copy = (run.parent / original).is_dir()
        names_of[run] = {run.name} if is_copy else {run.name, original}
    for other in folders_of_runs(results_dir):
        if other in runs:
            continue
        folder = RunFolder(other)
        parents: set[str] = set()
        for key in PARENT_KEYS:
            value = folder.flat_config.get(key) or ""
            parents.add(Path(str(value)).name)
        if folder.first_stage is not None:
            parents.add(folder.first_stage.run)
        for run in runs:
            if names_of[run] & parents:
                names_of_needing_runs.setdefault(run, []).append(other.name)
    return names_of_needing_runs


def remove_runs(runs: Iterable[Path], results_dir: Path) -> None:
    """Delete runs, each whole. Raise `RunError` for one that another process is working on."""
    try:
        for run in runs:
            with locked(run):
                # A hidden folder is no run: a run that is deleted in part is never read.
                hidden = run.with_name(f".{run.name}.removed")
                shutil.rmtree(hidden, ignore_errors=True)  # left by an earlier removal that was killed
                run.rename(hidden)
            shutil.rmtree(hidden)
    finally:
        gather_and_warn(results_dir)
