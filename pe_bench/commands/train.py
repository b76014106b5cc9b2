"""A run from beginning to end: it is prepared, trained and scored, and the rows of all runs are gathered.

All checks come before anything is written. Repeating a run does what is missing, whatever moment ended it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pe_bench.config.schema import Config
from pe_bench.data.batches import windows_of
from pe_bench.data.packed import Data, load_data, summary
from pe_bench.encodings.source import copy_files
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import RunError, UserError, require
from pe_bench.hf.load import load_checkpoint
from pe_bench.model.attention.native import training_kernel, usable_kernel
from pe_bench.model.checks import (
    TEXTS,
    dry_run_training,
    refuse_lookahead,
    refuse_lookahead_in_text,
    user_code_errors,
)
from pe_bench.model.decoder import build_decoder
from pe_bench.runs import folder as runs
from pe_bench.runs.job import Job, identity, run_name, setting
from pe_bench.runs.parents import KEPT, after_source, find_source
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import keep_slices
from pe_bench.runs.typed import record_command, record_tag
from pe_bench.scoring.anchors import score_missing_anchors
from pe_bench.scoring.other_encodings import OtherEncoding, models_under
from pe_bench.scoring.plans import Planner, make_plans, shortages
from pe_bench.scoring.protocols import Plan
from pe_bench.scoring.rows import operations, operations_of_pass, row_key, score, scored_rows
from pe_bench.scoring.slices import OPTION, keep_derived, key_slices
from pe_bench.scoring.stages import after_training, stage_label, trained_name
from pe_bench.system import machine
from pe_bench.system.cost import Pace, count, expect, said_once
from pe_bench.system.files import remove_leftovers, write_json
from pe_bench.system.signals import Stopped, rank, world_size
from pe_bench.system.terminal import Bars, progress_bar, say
from pe_bench.trackers import Tracking, check_tracker
from pe_bench.training import checkpoint
from pe_bench.training.group import Group, check_processes, joined, start_processes
from pe_bench.training.trainer import NOTHING_TO_DO, Step, fit, show_progress
from pe_bench.values import check_folder

# As long as a training step takes, with its optimizer: measured for `tiny` on one core.
FORWARD_PASSES = 4.5
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def train(config: Config, *, waits: Callable[[str], None] | None = None) -> tuple[Path, list[Row]]:
    """Train what is not trained, score what is not scored, gather all results; return the run and its rows.

    waits: called with the reason before this waits for another process that is working on the run; if None,
    that one is an error. Raise `UserError` before anything is written, `RunError` after.
    """
    job, plans = prepare(config)
    with said_once(count(1, "run")):
        return job.folder, finish(job, plans, waits=waits)


# Before anything is written


@machine.explain_out_of_memory()
def prepare(config: Config, planner: Planner = make_plans) -> tuple[Job, list[Plan]]:
    """Return a run that is ready to begin, and its plans. Raise `UserError` for all that can be wrong."""
    require(config.checkpoint is None, "a checkpoint is scored and not trained: say pe-bench eval hf:FOLDER")
    check_folder(config.results_dir, "results_dir", is_written=True)
    if world_size() > 1:  # as many as torchrun has started
        config = replace(config, train=replace(config.train, processes=world_size()))
        config.check()
    job, plans = load(config, planner)
    check_processes(job.config, job.device)
    if config.tracker is not None:
        check_tracker(config.tracker)
    source, job = job.source, replace(job, source=None)
    is_begun = checkpoint.latest_checkpoint(job.folder / "checkpoints") is not None
    if source is None or is_begun or _is_trained(job, plans):
        return job, plans
    require(not job.missing, job.missing)
    trained = checkpoint.require_trained(source, runs.read_config(source).train.total_steps)
    checkpoint.load_weights(trained.path, job.model, is_start=True)
    return replace(job, source=trained.path), plans


def load(config: Config, planner: Planner = make_plans, run: Path | None = None) -> tuple[Job, list[Plan]]:
    """Load the data, build and try the model, and plan the scores. Raise `UserError` for what is wrong.

    run: the folder of a finished run, which needs its source no more.
    """
    if config.checkpoint is not None:
        return load_checkpoint(config, planner)
    device, threads = machine.resolve_device(config.device), machine.set_threads(config.threads)
    data, source = load_data(config), None
    if run is None and (config.train.from_run or config.train.beside):
        source = find_source(config, data.hash, trained_name)
        config = after_source(config, source)
    encoding = EncodingSpec(config.encoding, config.search)
    if source is not None and config.train.from_run:
        encoding = after_training(encoding, source.config, config.train.length)
    encoding = encoding.with_code_hashes()
    config = replace(config, encoding=encoding.values)
    with user_code_errors():
        model = build_decoder(config, data.vocabulary, encoding)
    machine.share_cores()
    dry_run_training(model, config.train.length, config.encoding["name"])
    learns = not config.train.only or any(model.encoding.lr_multiples(config.train.encoding_lr).values())
    require(learns, f"train.only=encoding: {encoding.label} has no parameters to train: leave it out")
    dtype = machine.resolve_precision(config.precision, device)
    facts = identity(config, data.hash, str(dtype).removeprefix("torch."), encoding.identity())
    folder = run or Path(config.results_dir) / "runs" / run_name(config, facts)
    label, first, together = encoding.label, None, setting(facts)
    if source is not None:
        before = source.config if config.train.from_run else None
        label, first, together = source.stage(stage_label(encoding, before), config, together)
    plans = planner(config, config.eval, data)
    refuse_lookahead_in_text(model, _texts(data, config.train.length), config.encoding["name"])
    start = source.run if source is not None and config.train.from_run else None
    job = Job(config, folder, together, label, label, device, dtype, threads, data, model, first, start)
    if source is not None:
        job = replace(job, kept=source.to_plain(), missing=source.missing)
    return job, plans


def _texts(data: Data, length: int) -> Tensor:
    """Return windows of the training side, int64 [n, length]. Raise `UserError` for data without any."""
    sides = {side: windows_of(data, length, side=side) for side in ("training", "validation")}
    return sides["training"].batch(TEXTS, seed=0, step=0).tokens[:, :length]


def trusted(config: Config, code: Sequence[Path], *, may_differ: bool = False) -> Config:
    """Return a run's configuration with no class from outside but those in files that the user named.

    may_differ: the files may have changed after the training.
    """
    encoding = EncodingSpec(config.encoding).with_trusted_code(code, may_differ=may_differ)
    return replace(config, encoding=encoding.values)


# While it is worked on


@contextmanager
def _at_work(job: Job, waits: Callable[[str], None] | None, less_memory: str) -> Iterator[None]:
    """Hold the run, keep what goes wrong in its folder, and say what is kept of it where this is stopped."""
    run = job.folder
    run.mkdir(parents=True, exist_ok=True)
    explained = machine.explain_out_of_memory(less_memory)
    with _says_what_is_kept(job), runs.locked(run, waits=waits), runs.record_error(run), explained:
        remove_leftovers(run)
        yield


@contextmanager
def _says_what_is_kept(job: Job) -> Iterator[None]:
    try:
        yield
    except (Stopped, KeyboardInterrupt) as stopped:
        newest = checkpoint.latest_checkpoint(job.folder / "checkpoints")
        steps = job.config.train.total_steps
        kept = f"step {newest.step} of {steps}" if newest else "what was scored"
        kept += " with what was scored" if newest and newest.step == steps else ""
        end = f"interrupted; {kept} is saved, and the same command continues from there"
        if newest is None and not any((job.folder / "scores").glob("*")):
            end = "interrupted; nothing was saved yet, so the same command starts from the beginning"
        raise Stopped(str(stopped) or end) from stopped


# Training


def finish(
    job: Job, plans: Sequence[Plan], bars: Bars = progress_bar, *, waits: Callable[[str], None] | None = None
) -> list[Row]:
    """Train and score a run that is prepared, with progress shown by `bars`, and return its rows.

    What goes wrong is kept in the run's folder too, until the run goes on. Jobs of a sweep may be scores of
    one and the same run: each waits for the other, and calls `waits` with the reason first.
    """
    processes = job.config.train.processes
    if processes > world_size() and not _is_trained(job, plans):
        _finish_in_processes(job, processes, bars, waits)
        rows = {row.key: row for row in read_rows(job.folder / "eval.csv")}
        return [rows[row_key(job, plan)] for plan in plans]
    with joined(job.device, job.config.train.timeout) as group:
        if not group.is_first:
            fit(job, lambda step: None, group)
            return []
        with _at_work(job, waits, machine.LESS_TO_TRAIN):
            with closing(Tracking(job.folder, job.config)) as tracked:
                rows = _train_and_score(job, plans, bars, tracked, group)
                tracked.results(read_rows(job.folder / "eval.csv"))
            score_missing_anchors(job, plans, rows)
    runs.gather_and_warn(Path(job.config.results_dir))
    return rows


def _finish_in_processes(job: Job, processes: int, bars: Bars, waits: Callable[[str], None] | None) -> None:
    """Have several processes do what `finish` does, as torchrun would."""
    config = job.config
    if job.source is not None:
        config = replace(config, train=replace(config.train, from_run=str(job.source.parents[1])))
    with _says_what_is_kept(job), runs.record_error(job.folder):
        start_processes(processes, _finish_in_process, config, bars, waits)


def _finish_in_process(config: Config, bars: Bars, waits: Callable[[str], None] | None) -> None:
    job, plans = prepare(config, make_plans if rank() == 0 else lambda *_: [])
    finish(job, plans, bars, waits=waits)


def _is_trained(job: Job, plans: Sequence[Plan]) -> bool:
    """Return whether a run needs no more training steps: it is finished, with the weights or all scores."""
    if runs.read_result(job.folder) is None:
        return False
    is_scored = len(scored_rows(job, plans)) == len(plans)
    return is_scored or checkpoint.final_checkpoint(job.folder, job.config.train.total_steps) is not None


def _train_and_score(
    job: Job, plans: Sequence[Plan], bars: Bars, tracked: Tracking, group: Group
) -> list[Row]:
    """Train a run unless it is trained, in the processes of `group`, and score what is not scored yet."""
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
                _write_config(job)
            if trained is not None:
                return score_encodings(_with_weights(job, trained), plans, bars=bars)
            keep_derived(run, job.data, plans, job.config.first_length)
            record_command(run)
            record_tag(run, job.config.tag)
            return rows
        say(f"warning: retraining {run.name}: its final weights are gone, and its scores are discarded")
        (run / "result.json").unlink()
    trained = _train(job, plans, bars, tracked, group)
    rows = score_encodings(_with_weights(job, trained), plans, bars=bars)
    _write_result(job, trained)
    return rows


def _train(
    job: Job, plans: Sequence[Plan], bars: Bars, tracked: Tracking, group: Group
) -> checkpoint.Checkpoint:
    config, name = job.config, job.folder.name
    steps, tokens = config.train.total_steps, config.train.batch_tokens
    begun = checkpoint.latest_checkpoint(job.folder / "checkpoints")
    if begun is None or begun.step < steps:
        runs.delete_scores(job.folder)
    _describe(job)
    say(f"{name}: {job.model.parameter_count:,} parameters, {steps} steps of {tokens:,} tokens")
    if begun is not None and begun.step < steps:
        say(f"{name}: continues from step {begun.step}")
    begun_at, pace = 0 if begun is None else begun.step, Pace()
    with bars(job.label, steps) as bar:

        def watch(step: Step) -> None:
            show_progress(bar, step, steps)
            tracked.step(step)
            seconds = pace.seconds_per_unit(step.step)
            if seconds is not None:
                work = steps - begun_at + _steps_of_scoring(job, plans)
                expect(seconds * work, machine.cores_of(job.device, job.threads))

        fit(job, watch, group)
    trained = checkpoint.require_trained(job.folder, steps)
    say(f"{name}: trained in {trained.train_seconds:.0f} s, loss {trained.loss:.3f}")
    return trained


def _steps_of_scoring(job: Job, plans: Sequence[Plan]) -> float:
    """Return how many training steps take about as long as scoring the plans."""
    train = job.config.train
    of_step = FORWARD_PASSES * train.batch * operations_of_pass(job, train.length)
    return operations(job, plans) / of_step


def describe_data(job: Job) -> str:
    """Return which text a run trains on, how much of it there is, and how it is split."""
    text = summary(job.data, job.config.train.length)
    source = job.config.data
    if source.source != "files" or job.data.task is not None:
        return text
    return text.replace(f"{job.data.name}:", f"{job.data.name} ({source.path}):", 1)


def _describe(job: Job) -> None:
    """Write config.yaml and environment.json, at every call: they describe the last process to work here."""
    _write_config(job)
    about: dict[str, Any] = {**machine.environment(job.device, job.threads)}
    if job.config.checkpoint is None:
        about["attention"] = kernel = training_kernel(job.device, job.dtype)
        if job.device.type == "cpu" and usable_kernel(torch.float32).library is None:
            say(f"attention: {kernel}")
    write_json(job.folder / "environment.json", about)
    if job.data.prompts is None:
        say(describe_data(job))


def _write_config(job: Job) -> None:
    runs.write_config(job.folder, job.config)
    if job.kept is not None:
        write_json(job.folder / KEPT, job.kept)
    for part in EncodingSpec(job.config.encoding, job.config.search).parts:
        if not part.is_built_in:
            copy_files(part.code.files, job.folder / "code")


def _write_result(job: Job, trained: checkpoint.Checkpoint | None) -> None:
    """Write the file that makes a run a finished one, after all others. trained: None for a checkpoint's."""
    result: dict[str, Any] = {"format": runs.FORMAT, "encoding": job.label, "seed": job.config.seed}
    result |= {"steps": 0, "parameters": job.model.parameter_count}
    result |= {"data_hash": job.data.hash, "setting": job.setting}
    result |= {"first_stage": asdict(job.first)} if job.first is not None else {}
    result |= {"checkpoint": job.config.checkpoint.source} if job.config.checkpoint is not None else {}
    if trained is not None:
        result |= {"steps": trained.step, "loss": trained.loss, "train_seconds": trained.train_seconds}
        result["train_dtype"] = job.train_dtype
    write_json(job.folder / "result.json", {**result, "finished": machine.today()})


# Scoring


class Loaded(NamedTuple):
    """A finished run or a checkpoint of another program, and what to score of it.

    trained: the weights; None where the model of the job has them already, as a checkpoint's does.
    """

    job: Job
    plans: Sequence[Plan]
    trained: checkpoint.Checkpoint | None = None


def load_finished(run: Path, config: Config, planner: Planner = make_plans) -> Loaded:
    """Load a finished run to score at the lengths of its `config`."""
    result = runs.read_result(run) or {}
    job, plans = load(config, planner, run)
    if config.checkpoint is not None:
        return Loaded(replace(job, folder=run), plans)
    trained = checkpoint.require_trained(run, config.train.total_steps)
    if result.get("data_hash") != job.data.hash:
        say(
            f"warning: data={config.data.name} is not what {run.name} was trained on "
            f"(hash {job.data.hash} now, {result.get('data_hash')} then): these rows get a table of their own"
        )
    # The label and the setting are those of the training, wherever it is scored.
    label, dtype = str(result.get("encoding", job.label)), str(result.get("train_dtype"))
    is_same = EncodingSpec(config.encoding).identity() == EncodingSpec(job.config.encoding).identity()
    job = replace(
        job,
        label=label,
        setting=str(result.get("setting", job.setting)),
        first=runs.FirstStage.read(result),
        scored_with=label if is_same else job.scored_with,
        dtype=DTYPES.get(dtype, job.dtype),
    )
    return Loaded(job, plans, trained)


def score_finished(
    loaded: Loaded,
    results_dir: Path,
    replacements: Sequence[OtherEncoding] = (),
    judge: Path | None = None,
    waits: Callable[[str], None] | None = None,
) -> list[Row]:
    """Score what is loaded, then its weights under `replacements`; return the rows.

    The rows of a run in `results_dir` are added to its results.csv. A checkpoint becomes a finished run here.
    judge: a run whose scores decide which targets are key. It gets no key targets itself: they flatter it.
    waits: called with the reason before this waits for another process; if None, that one is an error.
    """
    job, plans, trained = loaded
    run = job.folder
    if judge is not None and judge.resolve() == run.resolve():
        say(f"{run.name} is the judge of {OPTION}: targets that it chose would flatter it, so it gets none")
        judge = None
    message = f"{OPTION} chooses targets in runs, and {run.name} is a checkpoint: leave the option out"
    require(judge is None or trained is not None, message)
    judged = {} if judge is None else key_slices(judge, plans, job.config.train.length)
    if trained is None:
        models_under(job, replacements)  # so that an error in the last comes before anything is written
    with _at_work(job, waits, machine.LESS_TO_SCORE):
        if trained is None:
            _describe(job)
        else:
            job = _with_weights(job, trained)
        rows = score_encodings(job, plans, replacements)
        if trained is None:
            _write_result(job, None)
        if judge is not None:
            keep_slices(run, judged, judge.name)
        if (runs.read_result(run) or {}).get("data_hash") == job.data.hash:
            score_missing_anchors(job, plans, rows)
    if run.resolve().parent == (results_dir / "runs").resolve():
        runs.gather_and_warn(results_dir)
    return rows


def load_trained(run: Path, config: Config) -> Job:
    """Return a finished run with its weights on the device. The classes of `config` are `trusted`."""
    job = _with_weights(load(config, run=run)[0], checkpoint.require_trained(run, config.train.total_steps))
    return replace(job, model=job.model.to(job.device).eval())


def _with_weights(job: Job, trained: checkpoint.Checkpoint) -> Job:
    """Return the job with its trained weights. Raise `RunError` for a model that learned to read ahead."""
    checkpoint.load_weights(trained.path, job.model)
    train, name = job.config.train, job.config.encoding["name"]
    try:
        weights = "with its trained weights"
        refuse_lookahead(job.model, train.length, name, weights)
        refuse_lookahead_in_text(job.model, _texts(job.data, train.length), name, weights)
    except UserError as error:
        raise RunError(str(error)) from error
    return replace(job, tokens_per_second=trained.step * train.batch_tokens / trained.train_seconds)


def score_encodings(
    job: Job, plans: Sequence[Plan], replacements: Sequence[OtherEncoding] = (), bars: Bars = progress_bar
) -> list[Row]:
    """Return the rows of the trained encoding, then those of others, at the same lengths and targets."""
    record_command(job.folder)
    record_tag(job.folder, job.config.tag)
    models = models_under(job, replacements)
    is_changed = job.scored_with != job.label
    # This moves what all models share to the device.
    trained = replace(job, model=job.model.to(job.device).eval(), forced=is_changed)
    for line in shortages(job.config.eval, plans):
        say(line)
    rows = scored_rows(job, plans) if is_changed else []
    rows += score(trained, plans, bars, later=len(models))
    for number, (model, other) in enumerate(zip(models, replacements, strict=True), 1):
        model.encoding.to(job.device)
        under = replace(trained, model=model, scored_with=other.label, forced=other.forced)
        own = None if is_changed else trained.model
        rows += score(under, plans, bars, own, later=len(models) - number)
    return rows
