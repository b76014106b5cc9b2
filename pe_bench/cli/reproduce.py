"""The `reproduce` command: make what is missing of a study, compare its levels, judge its claims."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.config.compose import compose_config
from pe_bench.config.overrides import parse_override, quote
from pe_bench.config.schema import EvalConfig
from pe_bench.errors import RunError, UserError, require
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
from pe_bench.system.terminal import say

if TYPE_CHECKING:
    from pe_bench.studies.claims import Measurements
    from pe_bench.studies.outcomes import Outcomes


MACHINE_KEYS = ("threads", "device", "cache_dir")  # beside Hydra's keys; none changes a result
QUICK_TOKENS = 4096  # scored by the toy size, with protocols other than paired


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
        from pe_bench.cli.train import launch, require_done
        from pe_bench.sweep.states import print_summary

        count = len(sweep.encodings) * self.variant.seeds
        name = f"{self.variant.study.name} {sweep.name}".strip()
        say(f"{name}: {count} {'run' if count == 1 else 'runs'}, {', '.join(sweep.encodings)}")
        results = f"results_dir={quote(str(self.progress.results_dir))}"
        overrides = (*self.variant.overrides(sweep), *self.machine, results)
        summary = launch(overrides, self.variant.search)
        print_summary(summary)
        runs = dict.fromkeys(Path(state.run).name for state in summary.states if state.run is not None)
        keys = dict.fromkeys(tuple(key) for state in summary.states for key in state.keys)
        step = Step(sweep.name, tuple(runs), tuple(keys), summary.is_done)
        self.progress.add(self.variant.key(sweep), step)
        require_done(summary)
        return step

    def _score(self, scoring: ScoringStep, sweep: Sweep, trained: Step) -> Step:
        """Score the runs of a sweep once more, as `eval` does."""
        import yaml

        from pe_bench.api import run_score

        here = {
            parsed.key: yaml.safe_load(parsed.value or "") for parsed in map(parse_override, self.machine)
        }
        values: dict[str, Any] = {
            "lengths": self.variant.lengths(scoring.times),
            "protocol": scoring.protocol,
        }
        evaluation = self._evaluation(sweep)
        if scoring.protocol == "paired":
            values["controls"] = scoring.controls
        elif self.variant.is_quick:
            evaluation = replace(evaluation, tokens=QUICK_TOKENS)
        options = {
            **values,
            **{name: here[name] for name in MACHINE_KEYS if name in here},
            "with_": scoring.scored_with,
            "config_dir": self.variant.search if scoring.scored_with else (),
            "code": [path for folder in self.variant.search for path in folder.glob("encoding/*.py")],
            "data_path": None if self.variant.text == STDLIB or sweep.task else self.variant.text,
            "results_dir": self.progress.results_dir,
        }
        what = ", ".join(scoring.scored_with or [f"{scoring.protocol} windows"])
        keys: dict[tuple[str, ...], None] = {}
        for number, run in enumerate(trained.runs, 1):
            say(f"{run}: {what} ({number} of {len(trained.runs)})")
            scored = run_score(self.progress.runs / run, options, evaluation, waits=say)()
            if scored.failure:
                raise RunError(scored.failure)
            keys |= dict.fromkeys(row.key for row in scored.scored)
        return Step(sweep.name, trained.runs, tuple(keys))

    def _evaluation(self, sweep: Sweep) -> EvalConfig:
        """Return how the runs of a sweep are scored.

        The runs may come from another study or a plain `train`. Their own configuration may then differ, for
        example in `eval.max_length`, which changes the set of targets.
        """
        return compose_config(self.variant.overrides_of_one(sweep), self.variant.search).eval


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

    measured = Measurements(runs.progress.results_dir, steps)
    outcomes = judge_study(runs.variant, measured)
    _show(outcomes)
    _draw(runs, measured)
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
