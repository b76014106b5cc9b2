"""Gather the rows of all runs into results.csv.

A run's `eval.csv` is the truth. `results.csv` is derived from all of them, rebuilt whole under
a lock and never appended to, so that processes that finish together lose nothing.
"""

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from filelock import FileLock

from pe_bench.errors import RunError, UserError, first_line
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.rows import Row, read_rows, read_text, to_csv
from pe_bench.runs.untrusted import check_files, read_json, unreadable
from pe_bench.system.files import TEMPORARY, write_text
from pe_bench.system.outside_text import one_line
from pe_bench.system.terminal import say

READ_ONLY = 0o444


@dataclass(frozen=True)
class Problem:
    """A run without rows that can be read, by its folder's name, and a line that says why."""

    run: str
    text: str


@dataclass(frozen=True)
class Gathered:
    """The rows of all readable runs in a fixed order, and the problem of each run that could not be read."""

    rows: list[Row]
    problems: list[Problem]


def runs_folder(results_dir: Path) -> Path:
    return results_dir / "runs"


def results_file(results_dir: Path) -> Path:
    return results_dir / "results.csv"


def gather(results_dir: Path) -> Gathered:
    """Rebuild `results.csv` from every finished run, and return what went into it and what could not.

    The runs are read under the lock: whoever writes last has seen what was finished before. The file is
    read-only, because the next command would replace what somebody changes in it.
    """
    results_dir.mkdir(parents=True, exist_ok=True)
    target = results_file(results_dir)
    with FileLock(target.with_name(target.name + ".lock")):
        for leftover in results_dir.glob(f"{TEMPORARY}*-{target.name}*"):  # of a killed process
            leftover.unlink()
        found = read_all(results_dir)
        by_run = groupby(found.rows, key=lambda row: row.run)
        rows = [row for name, own in by_run for row in _with_slices(runs_folder(results_dir) / name, [*own])]
        write_text(target, to_csv(rows), mode=READ_ONLY)
    return found


def _with_slices(run: Path, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a run, and those of all slices of its targets."""
    folder = RunFolder(run)
    of_slices = [row for name in folder.slices.names for row in folder.rows_of_slice(rows, name)]
    return sorted([*rows, *of_slices], key=lambda row: row.order)


def folders_of_runs(results_dir: Path) -> list[Path]:
    """Return what is in the folder of runs, in the order of names, but for plain and hidden files."""
    folder = runs_folder(results_dir)
    try:
        with os.scandir(folder) as entries:
            found = [entry.name for entry in entries if not _is_no_run(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunError(f"{folder} cannot be read ({first_line(error)})") from error
    return [folder / name for name in sorted(found)]


def _is_no_run(entry: os.DirEntry[str]) -> bool:
    return entry.name.startswith(".") or entry.is_file(follow_symlinks=False)


def read_all(results_dir: Path) -> Gathered:
    """Return the rows of every finished run. A damaged run is named and hides no other."""
    rows: list[Row] = []
    problems = []
    for run in folders_of_runs(results_dir):
        try:
            # A damaged result.json is named: nothing else says that the training came to its end.
            if read_result(run) is not None:  # which checks all of the run's files
                rows += _finished_rows(run)
        except RunError as error:
            problems.append(Problem(run.name, one_line(str(error))))
    return Gathered(rows, problems)


def _finished_rows(run: Path) -> list[Row]:
    found = sorted(_rows_of(run), key=lambda row: row.order)
    if not found:
        raise RunError(f"{run} has no scores: make them with `pe-bench eval {shlex.quote(run.name)}`")
    return found


def require_results_folder(results_dir: Path) -> None:
    """Raise `UserError` where something else than a folder has that name."""
    if results_dir.exists() and not results_dir.is_dir():
        raise UserError(f"--results-dir {results_dir} is not a folder: name the folder that holds runs/")


def read_result(run: Path) -> dict[str, object] | None:
    """Return a run's closing summary, or None while it is not finished. Raise `RunError` for damage."""
    path = run / "result.json"
    try:
        path.lstat()
        check_files(run)
        return read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise RunError(unreadable(error)) from error
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}): delete it and repeat the training command") from error


def _rows_of(run: Path) -> Iterable[Row]:
    """Return a run's rows under its folder's present name. Raise `RunError` for a copy of a run beside it."""
    try:
        name = read_text(run.name, "its name")
        if not name.isprintable():
            raise ValueError(f"its name is {name!a}")
    except ValueError as error:
        raise RunError(f"{run} is left out ({error}): give the folder another name") from error
    read = read_rows(run / "eval.csv")
    original = _original_of(run, read)
    if original is not None:
        raise RunError(f"{name} is a copy of {original}")
    rows = [row if row.run == name else replace(row, run=name) for row in read]
    return {row.key: row for row in rows}.values()


def _original_of(run: Path, rows: Iterable[Row]) -> str | None:
    """Return the run beside this one that all its rows name; None where there is none."""
    names = {row.run for row in rows}
    name = names.pop() if len(names) == 1 else run.name
    is_beside = name != run.name and name == Path(name).name
    return name if is_beside and (run.parent / name / "result.json").is_file() else None


def gather_and_warn(results_dir: Path) -> None:
    """Gather the rows of all runs, and print a warning for each that could not be read."""
    for problem in gather(results_dir).problems:
        say(f"warning: {problem.text}")
