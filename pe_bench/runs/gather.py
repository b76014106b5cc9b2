"""The rows of all runs of a folder of results, which results.csv gathers, and of the anchors beside them.

A run's `eval.csv` is the truth. `results.csv` is derived from all of them, rebuilt whole under
a lock and never appended to, so that processes that finish together lose nothing.
"""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from filelock import FileLock

from pe_bench.errors import RunError, first_line
from pe_bench.runs.commands import eval_command
from pe_bench.runs.folder import ERROR, RunFolder, read_config
from pe_bench.runs.job import encoding_in
from pe_bench.runs.rows import APART, Row, read_rows, write_rows
from pe_bench.runs.scores import KEY, TEXT_SLICES
from pe_bench.runs.untrusted import check_files, read_json
from pe_bench.system.files import TEMPORARY
from pe_bench.system.terminal import one_line, say

FORMAT = 2  # of runs; those of format 1 have other names and columns


@dataclass(frozen=True)
class Gathered:
    """The rows of all readable runs in a fixed order; why each other could not be read, by its name."""

    rows: list[Row]
    problems: dict[str, str]


def gather(results_dir: Path) -> Gathered:
    """Rebuild `results.csv` from every finished run, and return what went into it and what could not.

    The runs are read under the lock: whoever writes last has seen what was finished before.
    """
    results_dir.mkdir(parents=True, exist_ok=True)
    target = results_dir / "results.csv"
    with FileLock(target.with_name(target.name + ".lock")):
        for leftover in results_dir.glob(f"{TEMPORARY}*-{target.name}*"):  # of a killed process
            leftover.unlink()
        gathered = read_all(results_dir)
        rows: list[Row] = []
        for name, of_run in groupby(gathered.rows, key=lambda row: row.run):
            means, of_targets = RunFolder(results_dir / "runs" / name).means, [*of_run]
            of_slices = [row for part in (*TEXT_SLICES, KEY) for row in means.rows_of_slice(of_targets, part)]
            rows += sorted([*of_targets, *of_slices], key=lambda row: row.order)
        write_rows(target, rows)
    return gathered


def gather_and_warn(results_dir: Path) -> None:
    """Gather the rows of all runs, and print a warning for each that could not be read.

    That results.csv cannot be written is a warning too: no run needs it, and the next command writes it.
    """
    try:
        lines = [*dict.fromkeys(gather(results_dir).problems.values())]
    except (RunError, OSError) as error:
        lines = [first_line(error)]
    for line in lines:
        say(f"warning: {line}")


def folders_of_runs(results_dir: Path) -> list[Path]:
    """Return what is in the folder of runs, in the order of names, but for plain and hidden files."""
    folder = results_dir / "runs"
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in paths if not path.name.startswith(".") and not path.is_file()]


def read_all(results_dir: Path) -> Gathered:
    """Return the rows of every finished run. A damaged run is named and hides no other."""
    gathered = Gathered([], {})
    for run in folders_of_runs(results_dir):
        try:
            # A damaged result.json is named: nothing else says that the training came to its end.
            if read_result(run) is not None:  # which checks all of the run's files
                gathered.rows.extend(sorted(_rows_of(run), key=lambda row: row.order))
        except RunError as error:
            gathered.problems[run.name] = one_line(str(error))
    return gathered


def read_result(run: Path) -> dict[str, Any] | None:
    """Return a run's closing summary, or None while it is not finished. Raise `RunError` for damage."""
    path = run / "result.json"
    try:
        check_files(run)
        result = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}): delete it and repeat the training command") from error
    if result.get("format", FORMAT) != FORMAT:
        raise RunError(f"{run.parent} has runs of another version of pe-bench: environment.json names it")
    return result


def _rows_of(run: Path) -> list[Row]:
    """Return a finished run's rows under its folder's present name.

    Raise `RunError` where there are none, and for a copy of a run beside it.
    """
    rows, name = read_rows(run / "eval.csv"), run.name
    if not rows:
        raise RunError(f"{run / 'eval.csv'} has no scores: make them with {eval_command(run)}")
    original = rows[0].run
    if original not in (name, "") and original == Path(original).name and (run.parent / original).is_dir():
        raise RunError(f"{name} is a copy of {original}")
    return [replace(row, run=name) for row in rows]


@dataclass(frozen=True)
class RunState:
    """A run, how far it came, and what is wrong with it; what is not known is None or empty.

    state: finished, not finished, failed or unreadable. encoding: its label in tables. steps, total: steps
    done, and of the whole training. lengths: those with a number.
    """

    run: str
    encoding: str
    state: str = "unreadable"
    steps: int | None = None
    total: int | None = None
    loss: float | None = None
    lengths: tuple[int, ...] = ()
    problem: str = ""


def state_of(run: Path) -> RunState:
    """Return the state of a run, which is unreadable where it is damaged."""
    name = one_line(run.name)
    unreadable = RunState(name, encoding_in(name))
    try:
        result = read_result(run)
        if result is not None:
            rows, steps = _rows_of(run), int(result["steps"])
            scored = {row.length for row in rows if row.protocol not in APART and row.nll is not None}
            lengths = tuple(sorted(scored))
            state = RunState(name, rows[0].encoding, "finished", steps, steps, lengths=lengths)
        else:
            newest = max((run / "checkpoints").glob("step-*/meta.json"), default=None)
            result = read_json(newest) if newest else {"step": 0}
            steps, total = int(result["step"]), read_config(run).train.total_steps
            word = "failed" if (run / ERROR).exists() else "not finished"
            state = replace(unreadable, state=word, steps=steps, total=total)
        loss = result.get("loss")
        return replace(state, loss=None if loss is None else float(f"{loss:.3f}"))
    except (RunError, OSError, ValueError, LookupError, TypeError, OverflowError) as error:
        return replace(unreadable, problem=one_line(first_line(error)))


# Anchors: scores of models that cost no training, kept once for all runs that train on the same windows. Each
# has a folder beside that of the runs, with rows and scores in a run's format, and is no run itself.

FREQUENCIES, TRIGRAM, COPYING = "(token frequencies)", "(trigram)", "(trigram+copy)"
# The beginnings of their folders' names.
ANCHOR_NAMES = {FREQUENCIES: "frequencies", TRIGRAM: "trigram", COPYING: "trigram+copying"}


@dataclass(frozen=True)
class StoredAnchors:
    """The rows of all anchors, by their names and `anchor_key`, and the folders that they are in."""

    rows: dict[tuple[object, ...], Row] = field(default_factory=dict)
    folders: dict[str, RunFolder] = field(default_factory=dict)


def anchor_key(row: Row, trained: Row | None = None) -> tuple[object, ...]:
    """Return what a run's row shares with those of its anchors: the training tokens and the scored targets.

    trained: a row of another run, if its training tokens count.
    """
    run = trained or row
    return (
        *(run.data_hash, run.train_length, run.steps, run.train_tokens, run.seed),
        *(row.protocol, row.stride_rule, row.length, row.target_hash),
    )


def anchors_folder(run: Path) -> Path | None:
    """Return where the anchors of a run are; None for a run that does not lie in a folder named runs."""
    parent = run.absolute().parent
    return parent.parent / "anchors" if parent.name == "runs" else None


def read_anchors(folder: Path | None) -> StoredAnchors:
    """Return all anchors of a folder of results, without those that are damaged: `eval` makes them again."""
    anchors = StoredAnchors()
    for path in sorted(folder.glob("*/eval.csv")) if folder is not None else []:
        anchor = path.parent
        # A folder with a run's name would stand in for the run's own.
        if anchor.name.startswith(tuple(f"{name}-s" for name in ANCHOR_NAMES.values())):
            with suppress(RunError):
                check_files(anchor)
                rows = [row for row in read_rows(path) if row.encoding in ANCHOR_NAMES]
                anchors.folders[anchor.name] = RunFolder(anchor)
                anchors.rows.update(
                    {(row.encoding, *anchor_key(row)): replace(row, run=anchor.name) for row in rows}
                )
    return anchors
