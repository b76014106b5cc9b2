"""Find finished runs: by path, by name or its beginning, by a pattern, by their encoding, or the newest."""

import fnmatch
import os
import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pe_bench.errors import RunError, UserError
from pe_bench.runs.gather import folders_of_runs, read_result, runs_folder
from pe_bench.runs.identity import encoding_in


def finished_runs(results_dir: Path) -> list[Path]:
    """Return the runs with a `result.json`, the one that finished last at the end."""
    times = {run: _finished_at(run) for run in folders_of_runs(results_dir)}
    return sorted((run for run, time in times.items() if time is not None), key=lambda run: times[run] or 0)


def _finished_at(run: Path) -> int | None:
    try:
        return (run / "result.json").lstat().st_mtime_ns
    except OSError:  # not finished, or not readable, which the reader of its rows reports
        return None


def find_run(word: str, results_dir: Path) -> Path:
    """Return the finished run that a path, a name or the unique beginning of a name stands for."""
    folder = runs_folder(results_dir)
    path = _run_at(word)
    if path is not None:
        return require_finished(path)
    names = sorted(path.name for path in folder.glob("*") if path.is_dir())
    name = word.rstrip("/")
    matching = [name] if name in names else [found for found in names if name and found.startswith(name)]
    if len(matching) == 1:
        return require_finished(folder / matching[0])
    if matching:
        raise UserError(
            f"'{word}' begins the names of several runs; give one in full: {', '.join(matching)}", word
        )
    raise UserError(f"no run '{word}' in {folder}: `pe-bench list runs` shows them all", word)


def matching_runs(word: str, results_dir: Path, *, anywhere: bool = False) -> list[Path]:
    """Return the finished runs that a word selects.

    It is their encoding, their name, its beginning or a pattern, the name that tables give their encoding, or
    the path of one of them. Only a run `anywhere` may lie outside the folder of results.
    """
    names = {run.name: run for run in finished_runs(results_dir)}
    name = word.rstrip("/")
    ways: tuple[Callable[[str], bool], ...] = (
        lambda found: found == name,
        lambda found: encoding_in(found) == name,
        lambda found: found.startswith(name),
        lambda found: fnmatch.fnmatch(found, name),
        lambda found: name in names_of_label(_encoding_label(names[found])),
    )
    for is_selected in ways if name else ():
        selected = [run for found, run in names.items() if is_selected(found)]
        if selected:
            return selected
    path = _run_at(word)
    if path is not None:
        return [require_finished(path) if anywhere else _run_in_folder(path, word, results_dir)]
    for begun in folders_of_runs(results_dir) if name else []:
        if begun.name.startswith(name):
            return [require_finished(begun)]
    way_out = "say --all for all of them" if name == "all" else "see `pe-bench list runs`"
    raise UserError(f"no finished run '{word}' in {runs_folder(results_dir)}: {way_out}", word)


def names_of_label(label: str) -> tuple[str, ...]:
    """Return the names of an encoding: its label, also without options, and without its code's hash.

    `root_bias@1a2b strength=0.25` is `root_bias@1a2b` and `root_bias` too.
    """
    name = label.split(" ")[0]
    return label, name, re.sub(r"@[0-9a-f]+", "", name)


def newest_run(results_dir: Path) -> Path:
    finished = finished_runs(results_dir)
    if not finished:
        raise UserError(
            f"no finished run in {runs_folder(results_dir)}: make one with `pe-bench train encoding=rope`"
        )
    return finished[-1]


def _run_at(word: str) -> Path | None:
    """Return the run that a path leads to, if any; whatever was typed is no error here."""
    return Path(word).resolve() if word and os.path.isfile(os.path.join(word, "config.yaml")) else None


def _run_in_folder(run: Path, word: str, results_dir: Path) -> Path:
    """Return the finished run of the results folder at this path. Raise `UserError` for any other run."""
    folder = runs_folder(results_dir)
    if run.parent == folder.resolve():
        return folder / require_finished(run).name
    if run.parent.name == "runs":
        way_out = f"say --results-dir {shlex.quote(str(run.parent.parent))}"
    else:
        way_out = "move it into a folder named runs/, and give --results-dir the folder that contains runs/"
    raise UserError(f"the run {word} is not one of {folder}: {way_out}")


def _encoding_label(run: Path) -> str:
    """Return the label of a finished run's encoding; empty where its result has none."""
    with suppress(RunError):
        return str((read_result(run) or {}).get("encoding", ""))
    return ""


def require_finished(run: Path) -> Path:
    try:
        result = read_result(run)
    except RunError as error:
        raise UserError(str(error)) from error
    if result is None:
        raise UserError(f"{run} is not finished: repeat the command that trained it, and it continues")
    return run
