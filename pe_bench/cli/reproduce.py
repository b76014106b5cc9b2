"""The `reproduce` command: make what is missing of a study, compare its levels, judge its claims."""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.config.overrides import parse_override
from pe_bench.errors import RunError, require
from pe_bench.studies.runs import MACHINE_KEYS, StudyRuns
from pe_bench.studies.study import STDLIB, Progress, Study, read_study, study_names
from pe_bench.system.terminal import say, width_of, write_out

if TYPE_CHECKING:
    from pe_bench.studies.claims import Measurements


def reproduce_study(
    arguments: Sequence[str],
    text: str,
    search: Sequence[Path],
    results_dir: Path,
    *,
    quick: bool,
    write_table: bool,
) -> None:
    """Do what is missing of the named study and print what it says; without a name, list the studies.

    Raises `UserError` before anything is written, `RunError` where runs fail or levels differ from the table.
    """
    names = [argument for argument in arguments if "=" not in argument]
    machine = [argument for argument in arguments if "=" in argument]
    if not names and not (quick or machine or write_table or search):
        from pe_bench.cli.list import print_list

        print_list("studies", results_dir)
        return
    studies = ", ".join(study_names(search))
    require(len(names) == 1, f"one study at a time: {', '.join(names) or 'name one'}; there are {studies}")
    for override in machine:
        _check_machine(override)
    require(text == STDLIB or Path(text).is_dir(), f"--text {text} is neither stdlib nor a folder")
    text = text if text == STDLIB else str(Path(text).absolute())
    study = replace(read_study(names[0], search), text=text)
    study = study.quick() if quick else study
    reads_text = study.reads_text or text == STDLIB
    require(reads_text, f"--text {text}: {study.name} has tasks, and no text: leave it out")
    _require_gpu(study)
    _report(StudyRuns(study, machine, Progress(results_dir, study)), write_table)


def _check_machine(text: str) -> None:
    override = parse_override(text)
    is_hydras = re.split("[./]", override.key)[0] == "hydra"
    require(
        is_hydras or override.key in MACHINE_KEYS,
        f"{text} would change the study, and reproduce takes {', '.join(MACHINE_KEYS)} and Hydra's "
        "keys alone: put a changed copy of its file into FOLDER/study, and say --config-dir FOLDER",
    )
    is_one = is_hydras or not re.search("[,(]", override.value or "")
    require(is_one, f"{text} would make each run of the study several times: give one value")


def _require_gpu(study: Study) -> None:
    if study.needs_gpu:
        import torch

        message = f"the study {study.name} needs a GPU, and PyTorch finds none: --quick is its toy size"
        require(torch.cuda.is_available(), f"{message} for a processor")


def _report(runs: StudyRuns, write_table: bool) -> None:
    """Make what is missing, print what the runs say, and draw it."""
    steps = list(runs.steps())
    from pe_bench.studies.claims import Measurements
    from pe_bench.studies.outcomes import judge_study, render, write_levels

    measured = Measurements(runs.progress.results_dir, steps)
    outcomes = judge_study(runs.study, measured)
    write_out(render(outcomes, min(width_of(sys.stdout), 100)))
    _draw(runs, measured)
    table, differing = runs.study.table, len(outcomes.differing)
    if write_table:
        write_levels(table, outcomes.ours)
        say(f"wrote {table}")
    elif differing:
        raise RunError(f"{differing} level{'s differ' if differing > 1 else ' differs'} from {table}")


def _draw(runs: StudyRuns, measured: "Measurements") -> None:
    """Draw the report's curves of the runs, without what other studies scored of them."""
    from pe_bench.report.build import build_tables
    from pe_bench.report.draw import plot_tables
    from pe_bench.report.selection import Selection
    from pe_bench.runs.commands import results_option
    from pe_bench.runs.find import Condition
    from pe_bench.runs.rows import TASK

    progress = runs.progress
    path = progress.path.with_suffix(".png")
    rows = [row for rows in measured.rows.values() for row in rows if row.protocol in ("paired", TASK)]
    where = tuple(
        Condition(column, "=", tuple(sorted({str(getattr(row, column)) for row in rows})))
        for column in ("target_hash", "length", "scored_with")
    )
    names = sorted({row.run for row in rows})
    overrides = [text for sweep in runs.study.sweeps for text in sweep.overrides]
    by = ("train.lr",) if any(text.startswith("train.lr=") for text in overrides) else ()
    tables = build_tables(progress.results_dir, names, selection=Selection(where=where, by=by))
    plot_tables(tables, path)
    encodings = dict.fromkeys(name for sweep in runs.study.sweeps for name in sweep.encodings)
    say(f"the picture: {path}")
    say(f"tables of the runs: pe-bench report {' '.join(encodings)}{results_option(progress.results_dir)}")
