"""One job: train, then score, then gather. What every launcher calls; repeating it does the rest."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pe_bench.config.schema import Config
from pe_bench.data.packed import summary
from pe_bench.experiment.prepare import Job, check
from pe_bench.experiment.progress import training_progress
from pe_bench.experiment.score import report_shortages, score_encodings, trained_model
from pe_bench.experiment.trackers import Tracking, tracking
from pe_bench.model.attention import describe, is_kernel_here
from pe_bench.runs.commands import record_command
from pe_bench.runs.config_file import with_absolute_paths, write_config
from pe_bench.runs.gather import gather_and_warn, read_result
from pe_bench.runs.lock import locked, record_error
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import delete_scores
from pe_bench.scoring.evaluate import kept_rows
from pe_bench.system.files import remove_leftovers, write_text
from pe_bench.system.memory import explain_out_of_memory
from pe_bench.system.progress import Bars, progress_bar
from pe_bench.system.terminal import say
from pe_bench.system.versions import environment, today
from pe_bench.training.checkpoint import (
    Checkpoint,
    drop_damaged_checkpoints,
    final_checkpoint,
    latest_checkpoint,
)
from pe_bench.training.launch import Work, train_together
from pe_bench.training.log import Step
from pe_bench.training.train import last_checkpoint, train


def run_experiment(config: Config, search: Sequence[Path] = ()) -> tuple[Path, list[Row]]:
    """Train what is not trained, score what is not scored, gather all results; the run and its rows.

    `search` are folders in which an encoding's file may lie. Raises `UserError` before anything
    is written, `RunError` after.
    """
    job = check(config, search)
    return job.run, run_checked(job)


def run_checked(
    job: Job, bars: Bars = progress_bar, *, waits: Callable[[str], None] | None = None
) -> list[Row]:
    """What `run_experiment` does after its checks, its progress shown by `bars`; the rows.

    What goes wrong stands in the run's directory too, until the run goes on. Jobs of a sweep may be scores
    of one and the same run: each `waits` for the other, told of it first.
    """
    job.run.mkdir(parents=True, exist_ok=True)
    with locked(job.run, waits=waits), record_error(job.run), explain_out_of_memory():
        remove_leftovers(job.run)
        with tracking(job.run, job.config) as tracked:
            rows = _work(job, bars, tracked)
    gather_and_warn(Path(job.config.results_dir))
    return rows


def _work(job: Job, bars: Bars, tracked: Tracking) -> list[Row]:
    rows = _rows_if_finished(job, bars)
    if rows is None:
        trained = _train(job, bars, tracked)
        rows = score_encodings(job, trained, bars=bars)
        _write_result(job, trained)
    tracked.scores(read_rows(job.run / "eval.csv"))
    return rows


def _rows_if_finished(job: Job, bars: Bars) -> list[Row] | None:
    """The rows of a finished run, with those that were missing; None for one to train, perhaps again."""
    if read_result(job.run) is None:
        return None
    rows = kept_rows(trained_model(job, math.nan), job.config.eval, job.plans)
    trained = None if rows is not None else final_checkpoint(job.run, job.config.train.total_steps)
    if rows is None and trained is None:
        _begin_again(job)
        return None
    say(f"{job.run} is trained already")
    if trained is not None:
        return score_encodings(job, trained, bars=bars)
    report_shortages(job)
    record_command(job.run)
    return rows


def _begin_again(job: Job) -> None:
    """A finished run lacks the weights for what is to be scored: from here on it is not finished."""
    lengths = {row.length for row in read_rows(job.run / "eval.csv")} - {plan.length for plan in job.plans}
    others = f"; its scores at {', '.join(map(str, sorted(lengths)))} go with them: eval makes them again"
    say(
        f"warning: {job.run.name} is trained again, for the weights of its last step are missing or damaged"
        + (others if lengths else "")
    )
    (job.run / "result.json").unlink()


def _train(job: Job, bars: Bars, tracked: Tracking) -> Checkpoint:
    config = job.config
    for path in drop_damaged_checkpoints(job.run / "checkpoints"):
        say(f"warning: {path} is damaged, and dropped")
    found = latest_checkpoint(job.run / "checkpoints")
    if found is None or found.meta.step < config.train.total_steps:
        delete_scores(job.run)
    # Written again on every call: they say what the last process to work here was.
    write_config(job.run, replace(config, data=with_absolute_paths(config.data)))
    about = {**environment(job.device, job.threads), "attention": describe(job.device, job.dtype)}
    _write_json(job.run / "environment.json", about)
    if job.device.type == "cpu" and not is_kernel_here():
        say(f"attention: {about['attention']}")
    say(summary(job.data, config.eval.resolved_max_length(config.train.length)))
    steps, tokens = config.train.total_steps, config.train.batch_tokens
    say(f"{job.run.name}: {job.model.parameter_count:,} parameters, {steps} steps of {tokens:,} tokens")
    if found is not None and found.meta.step < steps:
        say(f"{job.run.name}: goes on from step {found.meta.step}")
    with training_progress(bars, job.label, steps, tokens) as shown:

        def watch(step: Step) -> None:
            shown(step)
            tracked.step(step)

        if config.train.processes > 1:
            train_together(_training(job), watch)
            trained = last_checkpoint(config, job.run)
        else:
            trained = train(config, job.model, job.data, job.run, job.device, job.dtype, watch)
    say(f"{job.run.name}: trained in {trained.meta.train_seconds:.0f} s, loss {trained.meta.loss:.3f}")
    return trained


def _training(job: Job) -> Work:
    return Work(
        config=job.config,
        search=job.search,
        source=job.source,
        run=job.run,
        device=job.device,
        dtype=job.dtype,
        threads=job.threads,
    )


def _write_result(job: Job, trained: Checkpoint) -> None:
    """The file that makes a run a finished one, written last."""
    result = {
        "format": 1,
        "encoding": job.label,
        "seed": job.config.seed,
        "steps": trained.meta.step,
        "loss": trained.meta.loss,
        "parameters": job.model.parameter_count,
        "train_seconds": trained.meta.train_seconds,
        "data_hash": job.data.hash,
        "setting": job.setting,
        "train_dtype": job.train_dtype,
        "finished": today(),
    }
    _write_json(job.run / "result.json", result)


def _write_json(path: Path, values: dict[str, object] | dict[str, str | int]) -> None:
    write_text(path, json.dumps(values, indent=1) + "\n")
