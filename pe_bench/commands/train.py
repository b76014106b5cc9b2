"""A run from beginning to end: it is prepared, trained and scored, and the rows of all runs are gathered.

All checks come before the first write. A repeated run goes on from the state in which it was interrupted.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from pe_bench.commands.job import (
    at_work,
    explain_stop,
    load,
    refuse_writing_into_text,
    score_encodings,
    with_weights,
    write_config,
    write_description,
    write_result,
)
from pe_bench.config.compose import compose_config
from pe_bench.config.groups import names_in
from pe_bench.config.overrides import quote
from pe_bench.config.schema import Config, ModelConfig
from pe_bench.errors import UserError, require
from pe_bench.runs import folder as runs
from pe_bench.runs.job import Job
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.typed import record_command, record_tag
from pe_bench.scoring.anchors import score_missing_anchors
from pe_bench.scoring.plans import Planner, make_plans
from pe_bench.scoring.protocols import Plan
from pe_bench.scoring.rows import operations, operations_of_pass, row_key, scored_rows
from pe_bench.scoring.slices import write_slices_and_means
from pe_bench.system import machine
from pe_bench.system.cost import (
    CostListener,
    Pace,
    count,
    current_listener,
    expect,
    print_cost_once,
    report_cost_to,
)
from pe_bench.system.signals import rank, world_size
from pe_bench.system.terminal import Bars, progress_bar, say
from pe_bench.trackers import Tracking, check_tracker
from pe_bench.training import checkpoint
from pe_bench.training.group import Group, check_processes, join_processes, start_processes
from pe_bench.training.trainer import NOTHING_TO_DO, Step, fit, show_progress
from pe_bench.values import check_folder

# As long as a training step takes, with its optimizer: measured for `tiny` on one core.
FORWARD_PASSES_PER_STEP = 4.5


def train(config: Config, *, waits: Callable[[str], None] | None = None) -> tuple[Path, list[Row]]:
    """Train and score a run, as far as this is missing, and gather all results; return its folder and rows.

    waits: called with a message before this waits for another process that works on the run; with None,
    such a process is an error. Raises `UserError` before the first write, `RunError` after it.
    """
    job, plans = prepare(config)
    with print_cost_once(_runs_text):
        return job.folder, finish(job, plans, waits=waits)


def _runs_text(left: int) -> str:
    return count(left, "run")


# Before anything is written


@machine.explain_out_of_memory()
def prepare(config: Config, planner: Planner = make_plans) -> tuple[Job, list[Plan]]:
    """Load and check a run, return its job and the plans of its scores; write nothing. Raises `UserError`."""
    message = "a Hugging Face model is scored and not trained: say pe-bench eval hf:FOLDER"
    require(config.hf_model is None, message)
    check_folder(config.results_dir, "results_dir", is_written=True)
    refuse_writing_into_text(config)
    if world_size() > 1:  # as many as torchrun has started
        config = replace(config, train=replace(config.train, processes=world_size()))
        config.check()
    job, plans = load(config, planner)
    check_processes(job.config, job.device)
    if config.tracker is not None:
        check_tracker(config.tracker)
    start, job = job.start, replace(job, start=None)
    is_begun = checkpoint.latest_checkpoint(job.folder / "checkpoints") is not None
    if start is None or is_begun or _is_trained(job, plans):
        return job, plans
    require(not job.missing, job.missing)
    parent = runs.read_config(start)
    trained = checkpoint.require_trained(start, parent.train.total_steps)
    theirs, ours = _differing_keys(parent.model, job.config.model)
    message = f"the weights of train.from={start.name} do not fit this model, which has {ours}: say {theirs}"
    # Weights have the same shapes whatever the number of heads, and other heads would read them wrongly.
    require(parent.model.n_heads == job.config.model.n_heads, message)
    try:
        checkpoint.load_weights(trained.path, job.model, is_start=True)
    except checkpoint.MisfitError as error:
        if not theirs:
            raise
        raise UserError(message) from error
    return replace(job, start=trained.path), plans


def _differing_keys(model: ModelConfig, other: ModelConfig) -> tuple[str, str]:
    """Return the keys in which two models differ, with the values of each: `model=small` and `model=tiny`.

    QK-norm is no difference: a later stage may begin it.
    """
    keys: list[str] = []
    other_keys: list[str] = []
    if model.name != other.name and model.name in names_in("model"):
        shipped = compose_config([f"model={model.name}"]).model
        keys.append(f"model={model.name}")
        other_keys.append(f"model={other.name}")
        if replace(shipped, qk_norm=model.qk_norm) == model:
            return keys[0], other_keys[0]
    for name in ModelConfig.__match_args__:
        value, other_value = getattr(model, name), getattr(other, name)
        if value != other_value and name not in ("name", "qk_norm"):
            keys.append(f"model.{name}={quote(value)}")
            other_keys.append(f"model.{name}={quote(other_value)}")
    return " ".join(keys), " ".join(other_keys)


# Training


def finish(
    job: Job, plans: Sequence[Plan], bars: Bars = progress_bar, *, waits: Callable[[str], None] | None = None
) -> list[Row]:
    """Train and score a prepared run, with progress shown by `bars`, and return its rows.

    Processes of torchrun after the first return no rows. An error is recorded in the run's folder until the
    run goes on. Jobs of a sweep may score the same run: a job waits for the other job, and calls `waits` with
    a message first.
    """
    processes = job.config.train.processes
    if processes > world_size() and not _is_trained(job, plans):
        _finish_in_processes(job, processes, bars, waits)
        rows = {row.key: row for row in runs.read_rows_of_run(job.folder)}
        return [rows[row_key(job, plan)] for plan in plans]
    with join_processes(job.device, job.config.train.timeout) as group:
        if not group.is_first:
            fit(job, lambda step: None, group)
            return []
        with at_work(job, waits, machine.LESS_MEMORY_IN_TRAINING):
            with closing(Tracking(job.folder, job.config)) as tracked:
                rows = _train_and_score(job, plans, bars, tracked, group)
                tracked.record_results(read_rows(job.folder / "eval.csv"))
            score_missing_anchors(job, plans, rows)
    runs.gather_and_warn(Path(job.config.results_dir))
    return rows


def _finish_in_processes(job: Job, processes: int, bars: Bars, waits: Callable[[str], None] | None) -> None:
    """Train and score a run in several processes, as torchrun would start them."""
    config = job.config
    if job.start is not None:
        parent = str(job.start.parents[1])
        config = replace(config, train=replace(config.train, from_run=parent))
    with explain_stop(job), runs.record_error(job.folder):
        start_processes(processes, _finish_in_process, config, bars, waits, current_listener())


def _finish_in_process(
    config: Config, bars: Bars, waits: Callable[[str], None] | None, cost_listener: CostListener | None
) -> None:
    """Do the work of one process of `_finish_in_processes`; bars and waits are as in `finish`."""
    planner = make_plans if rank() == 0 else _no_plans
    job, plans = prepare(config, planner)
    with report_cost_to(cost_listener):
        finish(job, plans, bars, waits=waits)


def _no_plans(*_: object) -> list[Plan]:
    return []


def _is_trained(job: Job, plans: Sequence[Plan]) -> bool:
    """Return whether a run needs no more training steps: it is finished, with its weights or all scores."""
    if runs.read_result(job.folder) is None:
        return False
    if len(scored_rows(job, plans)) == len(plans):
        return True
    return checkpoint.final_checkpoint(job.folder, job.config.train.total_steps) is not None


def _train_and_score(
    job: Job, plans: Sequence[Plan], bars: Bars, tracked: Tracking, group: Group
) -> list[Row]:
    """Train a run unless it is trained, in the processes of `group`, and compute the missing scores."""
    run = job.folder
    result = runs.read_result(run)
    if result is not None:
        # All rows of a run have one setting, that of the version that trained it.
        job = replace(job, setting=str(result.get("setting", job.setting)))
        rows = scored_rows(job, plans)
        is_scored = len(rows) == len(plans)
        trained = None if is_scored else checkpoint.final_checkpoint(run, job.config.train.total_steps)
        if is_scored or trained is not None:
            group.broadcast(NOTHING_TO_DO)
            say(f"{run} is already trained")
            if not runs.RunFolder(run).flat_config:  # the same command made it before
                write_config(job)
            if trained is not None:
                return score_encodings(with_weights(job, trained), plans, bars=bars)
            write_slices_and_means(run, job.data, plans, job.config.first_length)
            record_command(run)
            record_tag(run, job.config.tag)
            return rows
        say(f"warning: retraining {run.name}: its final weights are gone, and its scores are discarded")
        (run / "result.json").unlink()
    trained = _take_missing_steps(job, plans, bars, tracked, group)
    rows = score_encodings(with_weights(job, trained), plans, bars=bars)
    write_result(job, trained)
    return rows


def _take_missing_steps(
    job: Job, plans: Sequence[Plan], bars: Bars, tracked: Tracking, group: Group
) -> checkpoint.Checkpoint:
    """Take the missing steps of a training, and return its last checkpoint."""
    name = job.folder.name
    config = job.config
    steps, tokens = config.train.total_steps, config.train.batch_tokens
    begun = checkpoint.latest_checkpoint(job.folder / "checkpoints")
    if begun is None or begun.step < steps:
        runs.delete_scores(job.folder)
    write_description(job)
    say(f"{name}: {job.model.parameter_count:,} parameters, {count(steps, 'step')} of {tokens:,} tokens")
    if begun is not None and begun.step < steps:
        say(f"{name}: continues from step {begun.step}")
    begun_at = 0 if begun is None else begun.step
    pace = Pace()
    with bars(job.label, steps) as bar:

        def show_step(step: Step) -> None:
            show_progress(bar, step, steps)
            tracked.step(step)
            # A clock would count the validation too, which may take as long as many steps.
            seconds = pace.seconds_per_unit(step.step, step.seconds)
            if seconds is not None:
                work = steps - begun_at + _steps_of_validation(job, begun_at) + _steps_of_scoring(job, plans)
                expect(seconds * work, machine.cores_of(job.device, job.threads))

        fit(job, show_step, group)
    trained = checkpoint.require_trained(job.folder, steps)
    say(f"{name}: trained in {trained.train_seconds:.0f} s, loss {trained.loss:.3f}")
    return trained


def _steps_of_validation(job: Job, begun_at: int) -> float:
    """Return the training steps that take about as long as the validations after step `begun_at`."""
    train = job.config.train
    steps, every = train.total_steps, train.validate_every
    validations = math.ceil(steps / every) - begun_at // every  # the last step is validated too
    return validations * train.validation_windows / (FORWARD_PASSES_PER_STEP * train.batch)


def _steps_of_scoring(job: Job, plans: Sequence[Plan]) -> float:
    """Return the number of training steps that take about as long as scoring the plans."""
    train = job.config.train
    step_operations = FORWARD_PASSES_PER_STEP * train.batch * operations_of_pass(job, train.length)
    return operations(job, plans) / step_operations
