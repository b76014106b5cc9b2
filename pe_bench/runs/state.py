"""The state of every run in a folder, a damaged one with what is wrong with it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pe_bench.errors import RunError, UserError, first_line
from pe_bench.runs.config_file import is_whole, read_config
from pe_bench.runs.gather import folders_of_runs, read_result
from pe_bench.runs.identity import encoding_in
from pe_bench.runs.lock import ERROR
from pe_bench.runs.rows import APART, Row, read_rows
from pe_bench.runs.scores import explain_lost_scores, lengths_without_scores
from pe_bench.runs.untrusted import read_json
from pe_bench.system.outside_text import one_line


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
    for run in folders_of_runs(results_dir):
        name = one_line(run.name)
        try:
            yield _state(run, name)
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
    asked = rows[0].steps if is_read else read_config(run).train.total_steps
    lost: list[int] = []
    if result is None:
        state = "failed" if (run / ERROR).exists() else "not finished"
        steps, loss = _of_newest_checkpoint(run)
    else:
        lost = lengths_without_scores(run, rows)
        state = ("scores lost" if lost else "finished") if rows else "no scores"
        steps, loss = result["steps"], f"{result['loss']:.3f}" if "checkpoint" not in result else ""
    problems = {
        "no scores": f"it has no eval.csv: make its scores with `pe-bench eval {name}`",
        "scores lost": explain_lost_scores(name, lost),
    }
    label = rows[0].encoding if rows else encoding_in(name)
    problem = problems.get(state, "")
    return RunState(name, label, state, str(steps), str(asked), loss, _scored_lengths(rows), problem)


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
    found = sorted((run / "checkpoints").glob("step-*/meta.json"))
    if not found:
        return 0, ""
    meta = read_json(found[-1])
    return meta["step"], f"{meta['loss']:.3f}"
