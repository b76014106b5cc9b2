"""Run the missing sweeps and scores of a study, compare its levels with its table, and judge its claims."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.cli.study_runs import MACHINE_KEYS, StudyRuns
from pe_bench.config.overrides import parse_override
from pe_bench.errors import RunError, UserError, require
from pe_bench.studies.study import STDLIB, Progress, Variant, read_study, study_names
from pe_bench.system.terminal import say

if TYPE_CHECKING:
    from pe_bench.studies.claims import Measurements
    from pe_bench.studies.outcomes import Outcomes

GPU_STUDY = "gpu"


def reproduce_study(
    arguments: Sequence[str] | None,
    text: str | None,
    config_dir: Sequence[Path] | None,
    results_dir: Path,
    *,
    quick: bool,
    gpu: bool,
    write_table: bool,
) -> None:
    """Do what is missing of the named study and print what it says; without a name, list the studies.

    Raises `UserError` before anything is written, `RunError` where runs fail or levels differ from the table.
    """
    arguments, text, search = arguments or [], text or STDLIB, config_dir or []
    names = [argument for argument in arguments if "=" not in argument]
    names += [GPU_STUDY] if gpu and GPU_STUDY not in names else []
    machine = [argument for argument in arguments if "=" in argument]
    if not names and not (quick or machine or write_table):
        _list(search, results_dir)
        return
    require(
        len(names) == 1, f"one study at a time: {', '.join(names) or 'name one'}; there are {_known(search)}"
    )
    require(len(search) <= 1, "--config-dir is given twice: reproduce takes one folder")
    _check_machine(machine)
    variant = Variant(read_study(names[0], search), quick, _text(text), tuple(search))
    reads_text = variant.study.reads_text or text == STDLIB
    require(reads_text, f"--text {text}: {variant.study.name} has tasks, and no text: leave it out")
    _require_gpu(variant)
    runs = StudyRuns(variant, machine, Progress(results_dir, variant.progress_name))
    runs.check()
    _report(runs, write_table)


def _report(runs: StudyRuns, write_table: bool) -> None:
    """Make what is missing, print what the runs say, and draw it."""
    steps = list(runs.steps())
    from pe_bench.studies.claims import Measurements
    from pe_bench.studies.outcomes import judge_study

    found = Measurements(runs.progress.results_dir, steps)
    outcomes = judge_study(runs.variant, found)
    _show(outcomes)
    _draw(runs, found)
    table, differing = runs.variant.study.table, len(outcomes.comparison.differing)
    if write_table:
        outcomes.write_table()
        say(f"wrote {table}")
    elif differing:
        raise RunError(
            f"{'1 level differs' if differing == 1 else f'{differing} levels differ'} from {table}"
        )


def _list(search: Sequence[Path], results_dir: Path) -> None:
    from pe_bench.cli.list import print_list

    require(not search, "--config-dir is for one study: name it")
    print_list("studies", results_dir)


def _known(search: Sequence[Path]) -> str:
    return ", ".join(study_names(search))


def _text(text: str) -> str:
    if text == STDLIB:
        return text
    require(Path(text).is_dir(), f"--text {text} is neither stdlib nor a folder")
    return str(Path(text).absolute())


def _check_machine(overrides: Sequence[str]) -> None:
    for text in overrides:
        override = parse_override(text)
        if override.key not in MACHINE_KEYS and re.split("[./]", override.key)[0] != "hydra":
            raise UserError(
                f"{text} would change the study, and reproduce takes {', '.join(MACHINE_KEYS)} and Hydra's "
                "keys alone: put a changed copy of its file into FOLDER/study, and say --config-dir FOLDER",
                override.key,
            )
        is_one = override.key not in MACHINE_KEYS or not re.search("[,(]", override.value or "")
        require(is_one, f"{text} would make each run of the study several times: give one value")


def _require_gpu(variant: Variant) -> None:
    if not variant.study.needs_gpu or variant.is_quick:
        return
    import torch

    name = variant.study.name
    require(
        torch.cuda.is_available(),
        f"the study {name} needs a GPU, and PyTorch finds none: --quick is its toy size for a processor",
    )


def _show(outcomes: "Outcomes") -> None:
    import sys

    from pe_bench.studies.outcomes import render
    from pe_bench.system.terminal import width_of, write_out

    write_out(render(outcomes, min(width_of(sys.stdout), 100)))


def _draw(runs: StudyRuns, found: "Measurements") -> None:
    """Draw the report's curves of the runs, without what other studies scored of them."""
    from pe_bench.cli.report import report_option
    from pe_bench.report.build import build_tables
    from pe_bench.report.charts.draw import plot_tables
    from pe_bench.report.selection import Selection
    from pe_bench.runs.find import Condition
    from pe_bench.runs.rows import TASK

    progress = runs.progress
    path = progress.path.with_suffix(".png")
    rows = [row for rows in found.rows.values() for row in rows if row.protocol in ("paired", TASK)]
    where = tuple(
        Condition(column, "=", tuple(sorted({str(getattr(row, column)) for row in rows})))
        for column in ("target_hash", "length", "scored_with")
    )
    names = sorted({row.run for row in rows})
    plot_tables(build_tables(progress.results_dir, names, selection=Selection(where=where)), path)
    encodings = dict.fromkeys(name for sweep in runs.variant.study.sweeps for name in sweep.encodings)
    say(f"the picture: {path}")
    say(f"tables of the runs: pe-bench report {' '.join(encodings)}{report_option(progress.results_dir)}")
