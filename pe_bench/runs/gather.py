"""Gather the rows of all runs into results.csv.

A run's `eval.csv` is the truth. `results.csv` is derived from all of them, rebuilt whole under
a lock and never appended to, so that processes that finish together lose nothing.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from filelock import FileLock

from pe_bench.errors import RunError, UserError, first_line
from pe_bench.runs.commands import eval_command
from pe_bench.runs.folder import ERROR, RunFolder, is_whole, read_config
from pe_bench.runs.identity import encoding_in
from pe_bench.runs.rows import APART, Row, read_rows, read_text, to_csv
from pe_bench.runs.scores import explain_lost_scores, lengths_without_scores
from pe_bench.runs.untrusted import check_files, read_json, unreadable
from pe_bench.system.files import TEMPORARY, write_text
from pe_bench.system.terminal import one_line, say

READ_ONLY = 0o444
FORMAT = 2  # of runs; those of format 1 have other names and columns


class FormatError(RunError):
    """An error about a run that another version of pe-bench wrote, and reads."""

    def __init__(self, run: Path, writer: str) -> None:
        super().__init__(f"{run} is of another version: {writer} reads it")
        self.writer = writer


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
        gathered = read_all(results_dir)
        by_run = groupby(gathered.rows, key=lambda row: row.run)
        rows = [
            row for name, of_run in by_run for row in _with_slices(runs_folder(results_dir) / name, [*of_run])
        ]
        write_text(target, to_csv(rows), mode=READ_ONLY)
    return gathered


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
            names = [entry.name for entry in entries if not _is_no_run(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunError(f"{folder} cannot be read ({first_line(error)})") from error
    return [folder / name for name in sorted(names)]


def _is_no_run(entry: os.DirEntry[str]) -> bool:
    return entry.name.startswith(".") or entry.is_file(follow_symlinks=False)


def read_all(results_dir: Path) -> Gathered:
    """Return the rows of every finished run. A damaged run is named and hides no other."""
    rows: list[Row] = []
    problems = []
    of_writer: dict[str, list[Path]] = {}  # runs that other versions read, by these
    for run in folders_of_runs(results_dir):
        try:
            # A damaged result.json is named: nothing else says that the training came to its end.
            if read_result(run) is not None:  # which checks all of the run's files
                rows += _finished_rows(run)
        except FormatError as error:
            of_writer.setdefault(error.writer, []).append(run)
        except RunError as error:
            problems.append(Problem(run.name, one_line(str(error))))
    for writer, runs in of_writer.items():
        text = f"{len(runs)} runs in {runs[0].parent} are of another version: {writer} reads them"
        problems.append(Problem(runs[0].name, text if len(runs) > 1 else str(FormatError(runs[0], writer))))
    return Gathered(rows, problems)


def _finished_rows(run: Path) -> list[Row]:
    rows = sorted(_rows_of(run), key=lambda row: row.order)
    if not rows:
        raise RunError(f"{run} has no scores: make them with {eval_command(run)}")
    return rows


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
        result = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise RunError(unreadable(error)) from error
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}): delete it and repeat the training command") from error
    if result.get("format", FORMAT) != FORMAT:
        raise FormatError(run, _writer(run))
    return result


def _writer(run: Path) -> str:
    """Return the version that wrote a run, and its commit where that is known."""
    environment = RunFolder(run).environment
    version, commit = (one_line(str(environment.get(name) or "")) for name in ("pe_bench", "git"))
    return f"pe-bench {version or 'of that time'}" + (f" (git {commit})" if commit else "")


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


@dataclass(frozen=True)
class RunState:
    """A run, how far it came, and what is wrong with it; fields that are not known are empty.

    state: finished, not finished, failed, no scores (finished, and without rows), scores lost or damaged.
    encoding: its label in tables. steps, asked: done, and asked for. lengths: that have a number.
    """

    run: str
    encoding: str = ""
    state: str = "damaged"
    steps: str = ""
    asked: str = ""
    loss: str = ""
    lengths: tuple[int, ...] = ()
    problem: str = ""


def states_of_runs(results_dir: Path) -> Iterator[RunState]:
    """Yield the state of each run in the order of their names. A damaged one hides no other."""
    writers: set[str] = set()
    for run in folders_of_runs(results_dir):
        name = one_line(run.name)
        try:
            yield _state(run, name)
        except FormatError as error:  # said once for all of them
            problem = "" if error.writer in writers else f"of another version: {error.writer} reads it"
            writers.add(error.writer)
            yield RunState(name, encoding_in(name), "another version", problem=problem)
        except (UserError, RunError, OSError) as error:
            yield RunState(name, problem=one_line(first_line(error)))
        except (KeyError, ValueError, TypeError):
            yield RunState(name, problem="result.json or a checkpoint's meta.json lacks steps or loss")


def _state(run: Path, name: str) -> RunState:
    result = read_result(run)
    if result is None and not os.path.lexists(run / "config.yaml"):
        return RunState(
            name,
            encoding_in(name),
            "not finished",
            problem="it has no config.yaml: nothing was trained in it",
        )
    rows = read_rows(run / "eval.csv")
    is_read = result is not None and rows and _has_whole_config(run)
    total = rows[0].steps if is_read else read_config(run).train.total_steps
    lost: list[int] = []
    if result is None:
        state = "failed" if (run / ERROR).exists() else "not finished"
        steps, loss = _of_newest_checkpoint(run)
    else:
        lost = lengths_without_scores(run, rows)
        state = ("scores lost" if lost else "finished") if rows else "no scores"
        steps, loss = result["steps"], f"{result['loss']:.3f}" if "checkpoint" not in result else ""
    problems = {
        "no scores": f"it has no eval.csv: make its scores with {eval_command(run)}",
        "scores lost": explain_lost_scores(run, lost),
    }
    label = rows[0].encoding if rows else encoding_in(name)
    problem = problems.get(state, "")
    return RunState(name, label, state, str(steps), str(total), loss, _scored_lengths(rows), problem)


def _has_whole_config(run: Path) -> bool:
    try:
        return is_whole(run)
    except (OSError, ValueError):
        return False


def _scored_lengths(rows: list[Row]) -> tuple[int, ...]:
    scored = [row for row in rows if row.protocol not in APART and row.nll is not None]
    return tuple(sorted({row.length for row in scored}))


def _of_newest_checkpoint(run: Path) -> tuple[int, str]:
    """Return the step and the loss, where a run that is not finished has one."""
    checkpoints = sorted((run / "checkpoints").glob("step-*/meta.json"))
    if not checkpoints:
        return 0, ""
    meta = read_json(checkpoints[-1])
    return meta["step"], f"{meta['loss']:.3f}"
