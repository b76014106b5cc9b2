"""Gather the rows of all runs into results.csv."""

import hashlib
import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock

from pe_bench.errors import RunError, UserError
from pe_bench.runs.rows import Row, read_rows, read_text, to_csv
from pe_bench.runs.untrusted import check_files, read_json
from pe_bench.system.files import TEMPORARY, name_write_errors, write_text
from pe_bench.system.terminal import printable, say


@dataclass(frozen=True)
class Gathered:
    """The rows of all readable runs in a fixed order, and a line for each thing that was not as expected."""

    rows: list[Row]
    problems: list[str]


def runs_folder(results_dir: Path) -> Path:
    return results_dir / "runs"


def results_file(results_dir: Path) -> Path:
    return results_dir / "results.csv"


def gather(results_dir: Path) -> Gathered:
    """Rebuild `results.csv` from every finished run; what went into it, and what could not.

    The runs are read under the lock: whoever writes last has seen what was finished before.
    """
    results_dir.mkdir(parents=True, exist_ok=True)
    target = results_file(results_dir)
    with FileLock(target.with_name(target.name + ".lock")):
        for leftover in results_dir.glob(f"{TEMPORARY}*-{target.name}*"):  # of a killed process
            leftover.unlink()
        found = read_all(results_dir)
        edited = _keep_edited(target)
        _write_with_sum(target, to_csv(found.rows))
    return replace(found, problems=[*found.problems, *edited])


def read_all(results_dir: Path) -> Gathered:
    """The rows of every finished run. A damaged run is named and hides no other."""
    rows: list[Row] = []
    problems = []
    for path in sorted(runs_folder(results_dir).glob("*/result.json")):
        try:
            found = sorted(_rows_of(path.parent), key=lambda row: row.order)
            if not found:
                run = path.parent
                problems.append(printable(f"{run} has no scores: make them with `pe-bench eval {run.name}`"))
            rows += found
        except RunError as error:
            problems.append(printable(str(error)))
    return Gathered(rows, problems)


def require_results_folder(results_dir: Path) -> None:
    """Raises `UserError` where something else than a folder has that name."""
    if results_dir.exists() and not results_dir.is_dir():
        raise UserError(f"--results-dir {results_dir} is not a folder: name the folder that holds runs/")


def read_result(run: Path) -> dict[str, object] | None:
    """A run's closing summary, or None while it is not finished."""
    path = run / "result.json"
    if not path.exists():
        return None
    check_files(run)
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}): delete it and repeat the training command") from error


def _keep_edited(path: Path) -> list[str]:
    """Rename a file that is not what was written there, and say so in a line.

    A file without a sum beside it, as older versions left it, passes for unedited; an empty one has nothing
    to keep.
    """
    known, found = _known_sums(path), _read_bytes(path)
    if not found or not known or hashlib.sha256(found).hexdigest() in known:
        return []
    names = (path.with_name(f"{path.name}.edited-{number}") for number in itertools.count(1))
    kept = next(name for name in names if not name.is_symlink() and not name.exists())
    with name_write_errors(kept):
        os.replace(path, kept)
    line = f"{path} was edited, and is kept as {kept}: {path.name} is made anew from the runs each time"
    return [printable(line)]


def _write_with_sum(path: Path, text: str) -> None:
    """Replace the file, and the line beside it that `sha256sum -c` checks.

    While the file is replaced, there are lines for the old one and for the new one: whichever a process that
    is killed leaves behind, it is known.
    """
    before, after = _sum_line(path, _read_bytes(path) or b""), _sum_line(path, text.encode())
    write_text(_sum_file(path), before + after)
    write_text(path, text)
    write_text(_sum_file(path), after)


def _known_sums(path: Path) -> set[str]:
    found = _read_bytes(_sum_file(path)) or b""
    return {line.split()[0] for line in found.decode(errors="replace").splitlines() if line.strip()}


def _sum_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _sum_line(path: Path, content: bytes) -> str:
    return f"{hashlib.sha256(content).hexdigest()}  {path.name}\n"


def _read_bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _rows_of(run: Path) -> Iterable[Row]:
    """A run's rows under the name that its folder has now. Raises `RunError` for a copy of one beside it."""
    check_files(run)
    try:
        name = read_text(run.name, "its name")
    except ValueError as error:
        raise RunError(f"{run} is left out ({error}): give the folder another name") from error
    read = read_rows(run / "eval.csv")
    original = _original_of(run, read)
    if original is not None:
        raise RunError(f"{name} is a copy of {original}")
    rows = [row if row.run == name else replace(row, run=name) for row in read]
    return {row.key: row for row in rows}.values()


def _original_of(run: Path, rows: Iterable[Row]) -> str | None:
    """The run beside this one that all its rows are of; None where it has its own, or the other is gone."""
    names = {row.run for row in rows}
    name = names.pop() if len(names) == 1 else run.name
    is_beside = name != run.name and name == Path(name).name
    return name if is_beside and (run.parent / name / "result.json").is_file() else None


def gather_and_warn(results_dir: Path) -> None:
    """Gather the rows of all runs, and say what was not as expected."""
    for problem in gather(results_dir).problems:
        say(f"warning: {problem}")
