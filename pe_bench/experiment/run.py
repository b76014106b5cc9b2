"""One job, which every launcher runs: train, score, gather. Repeating it does what is missing."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pe_bench.config.schema import Config
from pe_bench.data.packed import summary
from pe_bench.errors import UserError, first_line
from pe_bench.experiment.interruption import say_what_is_kept
from pe_bench.experiment.prepare import Job, prepare_job
from pe_bench.experiment.progress import TrainingProgress
from pe_bench.experiment.score import (
    report_shortages,
    score_encodings,
    warn_of_changed_code,
)
from pe_bench.experiment.trackers import Tracking, tracking
from pe_bench.model.attention import is_kernel_here, training_kernel
from pe_bench.runs.commands import record_command
from pe_bench.runs.config_file import read_config, with_absolute_paths, write_config
from pe_bench.runs.gather import gather_and_warn, read_result
from pe_bench.runs.lock import locked, record_error
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import delete_scores
from pe_bench.runs.setup import Setup
from pe_bench.scoring.anchors import score_missing_anchors
from pe_bench.scoring.evaluate import kept_rows
from pe_bench.system.files import remove_leftovers, write_text
from pe_bench.system.memory import explain_out_of_memory
from pe_bench.system.progress import Bars, progress_bar
from pe_bench.system.terminal import say
from pe_bench.system.versions import environment, today
from pe_bench.training.checkpoint import (
    Checkpoint,
    delete_damaged_checkpoints,
    final_checkpoint,
    latest_checkpoint,
)
from pe_bench.training.launch import train_together
from pe_bench.training.log import Step
from pe_bench.training.train import last_checkpoint, train


def run_experiment(config: Config) -> tuple[Path, list[Row]]:
    """Train what is not trained, score what is not scored, gather all results; return the run and its rows.

    Raise `UserError` before anything is written, `RunError` after.
    """
    job = prepare_job(config)
    return job.setup.run, run_checked(job)


def run_checked(
    job: Job, bars: Bars = progress_bar, *, waits: Callable[[str], None] | None = None
) -> list[Row]:
    """Run a job that passed its checks, with progress shown by `bars`, and return the rows.

    What goes wrong is kept in the run's folder too, until the run goes on. Jobs of a sweep may be scores of
    one and the same run: each waits for the other, and calls `waits` with the reason first.
    """
    run, steps = job.setup.run, job.setup.config.train.total_steps
    run.mkdir(parents=True, exist_ok=True)
    with (
        locked(run, waits=waits),
        say_what_is_kept(run, steps),
        record_error(run),
        explain_out_of_memory(),
    ):
        remove_leftovers(run)
        with tracking(run, job.setup.config) as tracked:
            rows = _train_and_score(job, bars, tracked)
        score_missing_anchors(run, job.setup.config, job.data, job.plans, rows)
    gather_and_warn(Path(job.setup.config.results_dir))
    return rows


def _train_and_score(job: Job, bars: Bars, tracked: Tracking) -> list[Row]:
    rows = _rows_if_finished(job, bars)
    if rows is None:
        trained = _train(job, bars, tracked)
        rows = score_encodings(job, trained, bars=bars)
        _write_result(job, trained)
    tracked.scores(read_rows(job.setup.run / "eval.csv"))
    return rows


def _rows_if_finished(job: Job, bars: Bars) -> list[Row] | None:
    """Return the rows of a finished run, and score those that were missing; None for a run to train."""
    setup = job.setup
    if read_result(setup.run) is None:
        return None
    rows = kept_rows(setup, job.data, job.plans)
    trained = None if rows is not None else final_checkpoint(setup.run, setup.config.train.total_steps)
    if rows is None and trained is None:
        _reopen(job)
        return None
    say(f"{setup.run} is already trained")
    _mend_config(setup)
    warn_of_changed_code(job)
    if trained is not None:
        return score_encodings(job, trained, bars=bars)
    report_shortages(job)
    record_command(setup.run)
    return rows


def _reopen(job: Job) -> None:
    """Mark a finished run as not finished: it lacks the weights for what is to be scored."""
    run = job.setup.run
    lengths = {row.length for row in read_rows(run / "eval.csv")} - {plan.length for plan in job.plans}
    lost = f"; scores at {', '.join(map(str, sorted(lengths)))} are discarded (`pe-bench eval` restores them)"
    say(
        f"warning: retraining {run.name}: its final weights are missing or damaged"
        + (lost if lengths else "")
    )
    (run / "result.json").unlink()


def _train(job: Job, bars: Bars, tracked: Tracking) -> Checkpoint:
    setup, config = job.setup, job.setup.config
    name, steps, tokens = setup.run.name, config.train.total_steps, config.train.batch_tokens
    found = _newest_checkpoint(setup)
    if found is None or found.meta.step < steps:
        delete_scores(setup.run)
    _describe_run(setup)
    say(_summary(job))
    say(f"{name}: {job.model.parameter_count:,} parameters, {steps} steps of {tokens:,} tokens")
    if found is not None and found.meta.step < steps:
        say(f"{name}: continues from step {found.meta.step}")
    with bars(setup.label, steps) as bar:
        shown = TrainingProgress(bar, steps, tokens)

        def watch(step: Step) -> None:
            shown(step)
            tracked.step(step)

        if config.train.processes > 1:
            train_together(setup, job.source, watch)
        else:
            train(setup, job.model, job.data, watch)
    trained = last_checkpoint(setup)
    say(f"{name}: trained in {trained.meta.train_seconds:.0f} s, loss {trained.meta.loss:.3f}")
    return trained


def _summary(job: Job) -> str:
    """Return a line on the data."""
    train, task = job.setup.config.train, job.data.task
    if task is None:
        return summary(job.data, job.setup.config.eval.resolved_max_length(train.length))
    sizes = f"sizes {task.least} to {task.size_at(train.length)}"
    return f"{task.name}: examples of {sizes} at {train.length} tokens, {task.chance:.3g} right by guessing"


def _newest_checkpoint(setup: Setup) -> Checkpoint | None:
    folder = setup.run / "checkpoints"
    for path in delete_damaged_checkpoints(folder):
        say(f"warning: {path} is damaged and was deleted")
    return latest_checkpoint(folder)


def _describe_run(setup: Setup) -> None:
    """Write config.yaml and environment.json, at every call: they describe the last process to work here."""
    config = setup.config
    write_config(setup.run, replace(config, data=with_absolute_paths(config.data)))
    kernel = training_kernel(setup.device, setup.dtype)
    about = {**environment(setup.device, setup.threads), "attention": kernel._asdict()}
    _write_json(setup.run / "environment.json", about)
    if setup.device.type == "cpu" and not is_kernel_here():
        say(f"attention: {kernel}")


def _mend_config(setup: Setup) -> None:
    """Write a finished run's config.yaml again where it is damaged: the same command made it before."""
    try:
        read_config(setup.run)
    except UserError as error:
        write_config(setup.run, replace(setup.config, data=with_absolute_paths(setup.config.data)))
        say(f"warning: {first_line(error).partition(': ')[0]}, and was written again")


def _write_result(job: Job, trained: Checkpoint) -> None:
    """Write the file that makes a run a finished one, after all others."""
    setup = job.setup
    result = {
        "format": 1,
        "encoding": setup.label,
        "seed": setup.config.seed,
        "steps": trained.meta.step,
        "loss": trained.meta.loss,
        "parameters": job.model.parameter_count,
        "train_seconds": trained.meta.train_seconds,
        "data_hash": job.data.hash,
        "setting": setup.setting,
        "train_dtype": setup.train_dtype,
        "finished": today(),
    }
    _write_json(setup.run / "result.json", result)


def _write_json(path: Path, values: dict[str, object] | dict[str, str | int]) -> None:
    write_text(path, json.dumps(values, indent=1) + "\n")
