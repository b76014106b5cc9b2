"""Run a study: what is missing of its sweeps and scores; then compare with its table and judge its claims."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.config.hydra_main import HydraCommand, complete_command
from pe_bench.config.override import parse_override
from pe_bench.errors import RunError, UserError, require
from pe_bench.studies.definition import Sweep, read_study, study_names
from pe_bench.studies.progress import Progress, Step
from pe_bench.studies.variant import STDLIB, Variant
from pe_bench.system.terminal import say

if TYPE_CHECKING:
    from pe_bench.scoring.other_encodings import WithOption
    from pe_bench.studies.definition import ScoringStep
    from pe_bench.studies.measurements import Measurements
    from pe_bench.studies.text import Outcomes

GPU_STUDY = "gpu"
QUICK_TOKENS = 4096  # that the toy size scores with the other protocols
MACHINE_KEYS = ("threads", "device", "cache_dir")  # and those of Hydra: nothing that changes a result


def reproduce_study(
    arguments: Sequence[str],
    *,
    is_quick: bool,
    is_gpu: bool,
    text: str,
    writes_table: bool,
    search: Sequence[Path],
    results_dir: Path,
) -> None:
    """Do what is missing of the named study and print what it says; without a name, list the studies.

    Raises `UserError` before anything is written, `RunError` where runs fail or levels differ from the table.
    """
    names = [argument for argument in arguments if "=" not in argument]
    names += [GPU_STUDY] if is_gpu and GPU_STUDY not in names else []
    machine = [argument for argument in arguments if "=" in argument]
    if not names and not (is_quick or machine or writes_table):
        _list(search, results_dir)
        return
    require(
        len(names) == 1, f"one study at a time: {', '.join(names) or 'name one'}; there are {_known(search)}"
    )
    require(len(search) <= 1, "--config-dir is given twice: reproduce takes one folder")
    _check_machine(machine)
    variant = Variant(read_study(names[0], search), is_quick, _text(text))
    reads_text = variant.study.reads_text or text == STDLIB
    require(reads_text, f"--text {text}: {variant.study.name} has tasks, and no text: leave it out")
    _require_gpu(variant)
    for scoring in variant.study.scorings:
        _others(scoring, search)  # an unknown name is found before anything is trained
    progress = Progress(results_dir, variant.progress_name)
    steps = [
        step for sweep in variant.study.sweeps for step in _steps(variant, sweep, machine, search, progress)
    ]
    found = _measurements(steps, results_dir)
    outcomes = _judge(variant, found)
    _show(outcomes)
    _draw(variant, found, progress)
    if writes_table:
        _write_table(outcomes)
    elif outcomes.comparison.differing:
        count = len(outcomes.comparison.differing)
        differ = "1 level differs" if count == 1 else f"{count} levels differ"
        raise RunError(f"{differ} from {variant.study.table}")


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
        key = parse_override(text).key
        if key not in MACHINE_KEYS and not key.startswith("hydra"):
            raise UserError(
                f"{text} would change the study, and reproduce takes {', '.join(MACHINE_KEYS)} and Hydra's "
                "keys alone: put a changed copy of its file into FOLDER/study, and say --config-dir FOLDER",
                key,
            )


def _require_gpu(variant: Variant) -> None:
    if not variant.study.needs_gpu or variant.is_quick:
        return
    import torch

    name = variant.study.name
    require(
        torch.cuda.is_available(),
        f"the study {name} needs a GPU, and PyTorch finds none: --quick is its toy size for a processor",
    )


def _steps(
    variant: Variant, sweep: Sweep, machine: Sequence[str], search: Sequence[Path], progress: Progress
) -> Iterator[Step]:
    """Yield the steps of a sweep, each done now if it was not done before."""
    key = variant.key(sweep)
    trained = progress.find(key) or _train(variant, sweep, machine, search, progress)
    yield trained
    for scoring in variant.study.scorings:
        key_of_scoring = f"{key} | {scoring}"
        step = progress.find(key_of_scoring)
        if step is None:
            step = _score(variant, scoring, trained, machine, search, progress)
            progress.add(key_of_scoring, step)
        yield step


def _train(
    variant: Variant,
    sweep: Sweep,
    machine: Sequence[str],
    search: Sequence[Path],
    progress: Progress,
) -> Step:
    """Run a sweep, note its runs, and raise `RunError` or `Stopped` where it is not done."""
    from pe_bench.cli.train import launch, require_done
    from pe_bench.sweep.summary import print_summary

    name = f"{variant.study.name} {sweep.name}".strip()
    count = len(sweep.encodings) * variant.seeds
    say(f"{name}: {count} {'run' if count == 1 else 'runs'}, {', '.join(sweep.encodings)}")
    results = f"results_dir={_quoted(progress.results_dir)}"
    folder = search[0] if search else None
    overrides = (*variant.overrides(sweep), *machine, results)
    summary = launch(complete_command(HydraCommand(overrides, folder, multirun=True)))
    print_summary(summary)
    runs = sorted({Path(state.run).name for state in summary.states if state.run is not None})
    hashes = sorted({found for state in summary.states for found in state.target_hashes})
    step = Step(sweep.name, tuple(runs), tuple(hashes), summary.is_done)
    progress.add(variant.key(sweep), step)
    require_done(summary)
    return step


def _quoted(path: Path) -> str:
    from pe_bench.config.override import quote

    return quote(str(path))


def _score(
    variant: Variant,
    scoring: "ScoringStep",
    trained: Step,
    machine: Sequence[str],
    search: Sequence[Path],
    progress: Progress,
) -> Step:
    """Score the runs of a sweep once more, as `eval` does."""
    import yaml

    from pe_bench.interface.evaluate import Request, prepare_scoring

    keys = {parsed.key: yaml.safe_load(parsed.value or "") for parsed in map(parse_override, machine)}
    values: dict[str, Any] = {"lengths": variant.lengths(scoring.times), "protocol": scoring.protocol}
    if scoring.protocol == "paired":
        values["controls"] = scoring.controls
    elif variant.is_quick:
        values["tokens"] = QUICK_TOKENS
    others = _others(scoring, search)
    here = {name: keys[name] for name in MACHINE_KEYS if name in keys}
    hashes: set[str] = set()
    for place, run in enumerate(trained.runs, 1):
        what = ", ".join(scoring.scored_with or [f"{scoring.protocol} windows"])
        say(f"{run}: {what} ({place} of {len(trained.runs)})")
        scored = prepare_scoring(progress.runs / run, Request(values, here, others=others))
        result = scored.score(progress.results_dir)
        if result.failure:
            raise RunError(result.failure)
        hashes |= {row.target_hash for row in result.scored}
    return Step(trained.sweep, trained.runs, tuple(sorted(hashes)))


def _others(scoring: "ScoringStep", search: Sequence[Path]) -> "WithOption":
    from pe_bench.scoring.other_encodings import WithOption, read_with

    return read_with(scoring.scored_with, search) if scoring.scored_with else WithOption()


def _measurements(steps: Sequence[Step], results_dir: Path) -> "Measurements":
    from pe_bench.report.statistics import MARGIN
    from pe_bench.studies.measurements import Measurements

    runs = {step.sweep: step.runs for step in steps}
    hashes = frozenset(target_hash for step in steps for target_hash in step.target_hashes)
    return Measurements(results_dir, runs, hashes, MARGIN)


def _judge(variant: Variant, found: "Measurements") -> "Outcomes":
    from pe_bench.studies.claims import judge_claim
    from pe_bench.studies.ranking import agreement
    from pe_bench.studies.table import compare, levels_of, read_table
    from pe_bench.studies.text import Outcomes

    ours, ranking = levels_of(found.rows, variant.name), variant.study.ranking
    return Outcomes(
        variant,
        [judge_claim(claim, found) for claim in variant.study.claims],
        agreement(ranking, found) if ranking is not None else None,
        compare(ours, read_table(variant.study.table)),
        ours,
    )


def _show(outcomes: "Outcomes") -> None:
    import sys

    from pe_bench.studies.text import render
    from pe_bench.system.terminal import width_of, write_out

    write_out(render(outcomes, min(width_of(sys.stdout), 100)))


def _draw(variant: Variant, found: "Measurements", progress: Progress) -> None:
    from pe_bench.cli.report import report_option
    from pe_bench.studies.picture import draw_study

    path = progress.path.with_suffix(".png")
    draw_study(variant.study, found, progress.results_dir, path)
    names = dict.fromkeys(name for sweep in variant.study.sweeps for name in sweep.encodings)
    report = f"pe-bench report {' '.join(names)}{report_option(progress.results_dir)}"
    say(f"the picture: {path}   the runs: {progress.runs}   their tables: {report}")


def _write_table(outcomes: "Outcomes") -> None:
    from pe_bench.studies.table import write_table

    path = outcomes.variant.study.table
    write_table(path, outcomes.ours)
    say(f"wrote {path}")
