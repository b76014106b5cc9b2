"""The `reproduce` command: make what is missing of a study, compare its levels, judge its claims."""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.config.compose import compose_config
from pe_bench.config.overrides import parse_override, quote
from pe_bench.errors import RunError, require
from pe_bench.studies.study import (
    STDLIB,
    Progress,
    ScoringStep,
    Step,
    Sweep,
    Variant,
    read_study,
    study_names,
)
from pe_bench.system.terminal import say, width_of, write_out

if TYPE_CHECKING:
    from pe_bench.studies.claims import Measurements

MACHINE_KEYS = ("threads", "device", "cache_dir")  # beside Hydra's keys; none changes a result
QUICK_TOKENS = 4096  # scored by the toy size, with protocols other than paired


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
    variant = Variant(read_study(names[0], search), quick, text, tuple(search))
    reads_text = variant.study.reads_text or text == STDLIB
    require(reads_text, f"--text {text}: {variant.study.name} has tasks, and no text: leave it out")
    _require_gpu(variant)
    runs = StudyRuns(variant, machine, Progress(results_dir, variant.progress_name))
    runs.check()
    _report(runs, write_table)


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


def _require_gpu(variant: Variant) -> None:
    if variant.study.needs_gpu and not variant.is_quick:
        import torch

        name = variant.study.name
        message = f"the study {name} needs a GPU, and PyTorch finds none: --quick is its toy size"
        require(torch.cuda.is_available(), f"{message} for a processor")


@dataclass(frozen=True)
class StudyRuns:
    """The runs of a study in a folder of results. machine: overrides that change no result."""

    variant: Variant
    machine: Sequence[str]
    progress: Progress

    def check(self) -> None:
        """Raise `UserError` for a scoring with an unknown encoding, before anything is trained."""
        from pe_bench.scoring.other_encodings import read_with

        for scoring in self.variant.study.scorings:
            if scoring.scored_with:
                read_with(scoring.scored_with, self.variant.search)

    def steps(self) -> Iterator[Step]:
        """Yield all steps of the study; do each that is not done yet."""
        for sweep in self.variant.study.sweeps:
            key = self.variant.key(sweep)
            trained = self.progress.find(key) or self._train(sweep)
            yield trained
            for scoring in self.variant.study.scorings:
                key_of_scoring = f"{key} | {scoring}"
                step = self.progress.find(key_of_scoring)
                if step is None:
                    step = self._score(scoring, sweep, trained)
                    self.progress.add(key_of_scoring, step)
                yield step

    def _train(self, sweep: Sweep) -> Step:
        """Run a sweep, note its runs, and raise `RunError` or `Stopped` where it is not done."""
        from pe_bench.sweep.run import launch, require_done
        from pe_bench.sweep.summary import print_summary

        count = len(sweep.encodings) * self.variant.seeds
        name = f"{self.variant.study.name} {sweep.name}".strip()
        say(f"{name}: {count} {'run' if count == 1 else 'runs'}, {', '.join(sweep.encodings)}")
        results = f"results_dir={quote(str(self.progress.results_dir))}"
        summary = launch((*self.variant.overrides(sweep), *self.machine, results), self.variant.search)
        print_summary(summary)
        runs = dict.fromkeys(Path(state.run).name for state in summary.states if state.run is not None)
        keys = dict.fromkeys(tuple(key) for state in summary.states for key in state.keys)
        step = Step(sweep.name, tuple(runs), tuple(keys), summary.is_done)
        self.progress.add(self.variant.key(sweep), step)
        require_done(summary)
        return step

    def _score(self, scoring: ScoringStep, sweep: Sweep, trained: Step) -> Step:
        """Score the runs of a sweep once more, as `eval` does.

        The runs may come from another study or a plain `train`. Their own configuration may then differ, for
        example in `eval.max_length`, which changes the set of targets.
        """
        from pe_bench.scored import prepare

        variant, is_paired = self.variant, scoring.protocol == "paired"
        machine = [text for text in self.machine if parse_override(text).key in MACHINE_KEYS]
        config = compose_config([*variant.overrides_of_one(sweep), *machine], variant.search)
        is_short = variant.is_quick and not is_paired
        evaluation = replace(config.eval, tokens=QUICK_TOKENS) if is_short else config.eval
        options = {
            "lengths": variant.lengths(scoring.times),
            "protocol": scoring.protocol,
            "controls": scoring.controls if is_paired else None,
            "with_": scoring.scored_with,
            "config_dir": variant.search if scoring.scored_with else (),
            "code": [path for folder in variant.search for path in folder.glob("encoding/*.py")],
            "data_path": None if variant.text == STDLIB or sweep.task else variant.text,
            "results_dir": self.progress.results_dir,
            **{parse_override(text).key: getattr(config, parse_override(text).key) for text in machine},
        }
        what = ", ".join(scoring.scored_with or [f"{scoring.protocol} windows"])
        keys: dict[tuple[str, ...], None] = {}
        for number, run in enumerate(trained.runs, 1):
            say(f"{run}: {what} ({number} of {len(trained.runs)})")
            scored = prepare(self.progress.runs / run, options, evaluation, waits=say)()
            if scored.failure:
                raise RunError(scored.failure)
            keys |= dict.fromkeys(row.key for row in scored.scored)
        return Step(sweep.name, trained.runs, tuple(keys))


def _report(runs: StudyRuns, write_table: bool) -> None:
    """Make what is missing, print what the runs say, and draw it."""
    steps = list(runs.steps())
    from pe_bench.studies.claims import Measurements
    from pe_bench.studies.outcomes import judge_study, render

    measured = Measurements(runs.progress.results_dir, steps)
    outcomes = judge_study(runs.variant, measured)
    write_out(render(outcomes, min(width_of(sys.stdout), 100)))
    _draw(runs, measured)
    table, differing = runs.variant.study.table, len(outcomes.comparison.differing)
    if write_table:
        outcomes.write_table()
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
    plot_tables(build_tables(progress.results_dir, names, selection=Selection(where=where)), path)
    encodings = dict.fromkeys(name for sweep in runs.variant.study.sweeps for name in sweep.encodings)
    say(f"the picture: {path}")
    say(f"tables of the runs: pe-bench report {' '.join(encodings)}{results_option(progress.results_dir)}")
