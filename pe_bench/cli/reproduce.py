"""The `reproduce` command: make what is missing of a study, compare its levels, judge its claims."""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.cli.options import command
from pe_bench.errors import RunError, require
from pe_bench.system.terminal import say, width_of, write_out

if TYPE_CHECKING:
    from pe_bench.studies.claims import Measurements
    from pe_bench.studies.runs import StudyRuns


@command("reproduce")
def reproduce(
    arguments: Sequence[str] = (),
    *,
    quick: bool = False,
    text: str = "stdlib",
    write_table: bool = False,
    config_dir: Sequence[Path] = (),
    results_dir: Path = Path("results"),
) -> None:
    """Repeat a paper's experiment with small models; test its claims.

    Trains and scores what is missing; after Ctrl-C, repeat the command to continue. Then compares
    the levels with the study's table (exit code 1 if they differ), and tests the paper's claims:
    each holds, is contradicted or stays unclear. Without NAME, lists the studies.

    arguments NAME|KEY=VALUE: A study, then settings of this machine: threads, device, cache_dir,
        hydra/launcher.
    quick: Train toy models, in minutes, to see that everything works.
    text stdlib|DIR: The text: Python's standard library, or a folder of files.
    write_table: Write the levels to the study's table (for maintainers).
    config_dir DIR: A folder with your study/NAME.yaml and encodings.

    Examples:
      pe-bench reproduce                       # the studies, and which are done
      pe-bench reproduce alibi --quick         # a toy of it: does everything work?
      pe-bench reproduce alibi
      pe-bench reproduce alibi --text books    # the same on texts in a folder
      pe-bench reproduce alibi threads=1 hydra/launcher=joblib
    """
    names = [argument for argument in arguments if "=" not in argument]
    machine = [argument for argument in arguments if "=" in argument]
    if not names and not (quick or machine or write_table or config_dir):
        from pe_bench.cli.list import list_

        list_("studies", results_dir=results_dir)
        return
    from pe_bench.studies.runs import StudyRuns
    from pe_bench.studies.study import STDLIB, read_study, study_names

    studies = ", ".join(study_names(config_dir))
    require(len(names) == 1, f"one study at a time: {', '.join(names) or 'name one'}; there are {studies}")
    for override in machine:
        _check_machine(override)
    require(text == STDLIB or Path(text).is_dir(), f"--text {text} is neither stdlib nor a folder")
    text = text if text == STDLIB else str(Path(text).absolute())
    study = replace(read_study(names[0], config_dir), text=text)
    study = study.quick() if quick else study
    _report(StudyRuns(study, machine, results_dir), write_table)


def _check_machine(text: str) -> None:
    from pe_bench.config.overrides import parse_override
    from pe_bench.config.schema import MACHINE_KEYS

    key, keys = parse_override(text).key, ", ".join(MACHINE_KEYS)
    is_of_machine = re.split("[./]", key)[0] == "hydra" or key in MACHINE_KEYS
    require(is_of_machine, f"{text} would change the study: reproduce takes {keys} and Hydra's keys alone")


def _report(runs: "StudyRuns", write_table: bool) -> None:
    """Make what is missing, print what the runs say, and draw it."""
    steps = list(runs.steps())
    from pe_bench.studies.claims import Measurements
    from pe_bench.studies.outcomes import judge_study, render, write_levels

    measured = Measurements(runs.results_dir, steps)
    outcomes = judge_study(runs.study, measured)
    write_out(render(outcomes, min(width_of(sys.stdout), 100)))
    _draw(runs, measured)
    table, differing = runs.study.table, len(outcomes.differing)
    if write_table:
        write_levels(table, outcomes.ours)
        say(f"wrote {table}")
    elif differing:
        raise RunError(f"levels that differ from {table}: {differing}")


def _draw(runs: "StudyRuns", measured: "Measurements") -> None:
    """Draw the report's curves of the runs, without what other studies scored of them."""
    from pe_bench.report.build import build_tables
    from pe_bench.report.draw import plot_tables
    from pe_bench.report.groups import Selection
    from pe_bench.runs.commands import results_option
    from pe_bench.runs.find import Condition
    from pe_bench.runs.rows import TASK

    study, results_dir = runs.study, runs.results_dir
    path = study.picture(results_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [row for rows in measured.rows.values() for row in rows if row.protocol in ("paired", TASK)]
    where = tuple(
        Condition(column, "=", tuple(sorted({str(getattr(row, column)) for row in rows})))
        for column in ("target_hash", "length", "scored_with")
    )
    names, sweeps = sorted({row.run for row in rows}), study.sweeps
    # Sweeps that differ in these keys are lines of one panel, instead of a panel each.
    values = {
        "train.tokens": {sweep.tokens for sweep in sweeps if not sweep.source},
        "train.lr": {"".join(text for text in each.overrides if "train.lr=" in text) for each in sweeps},
    }
    by = tuple(key for key, of_key in values.items() if len(of_key) > 1)
    plot_tables(build_tables(results_dir, names, selection=Selection(where=where, by=by)), path)
    encodings = " ".join(dict.fromkeys(name for sweep in sweeps for name in sweep.encodings))
    say(f"the picture: {path}")
    say(f"tables of the runs: pe-bench report {encodings}{results_option(results_dir)}")
