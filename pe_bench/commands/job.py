"""The parts of a run's work that `train` and `evaluate` share: load, lock, describe in its folder, score."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pe_bench.config.schema import HF_SECTION, Config
from pe_bench.data.batches import windows_of
from pe_bench.data.packed import Data, load_data, summary
from pe_bench.data.sources import is_among_files_of
from pe_bench.encodings.source import copy_files
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import RunError, UserError, require
from pe_bench.hf.load import load_hf_model
from pe_bench.model.attention.native import describe_training_kernel, usable_kernel
from pe_bench.model.checks import (
    WINDOWS_TO_CHECK,
    dry_run_training,
    refuse_lookahead,
    refuse_lookahead_in_text,
    user_code_errors,
)
from pe_bench.model.decoder import build_decoder
from pe_bench.runs import folder as runs
from pe_bench.runs.job import Job, identity, run_name, setting
from pe_bench.runs.parents import PARENT_FILE, find_parent, with_parent
from pe_bench.runs.rows import Row
from pe_bench.runs.typed import record_command, record_tag
from pe_bench.scoring.other_encodings import OtherEncoding, models_under
from pe_bench.scoring.plans import Planner, make_plans, shortages
from pe_bench.scoring.protocols import Plan
from pe_bench.scoring.rows import score, scored_rows
from pe_bench.scoring.stages import later_stage_encoding, stage_label, trained_name
from pe_bench.system import machine
from pe_bench.system.files import cache_root, remove_leftovers, write_json
from pe_bench.system.signals import Stopped
from pe_bench.system.terminal import Bars, progress_bar, say
from pe_bench.training import checkpoint


def load(config: Config, planner: Planner = make_plans, run: Path | None = None) -> tuple[Job, list[Plan]]:
    """Load the data, build and try the model; return the job and the plans of its scores. Raises `UserError`.

    run: the folder of a finished run, whose parent is not needed any more.
    """
    if config.hf_model is not None:
        return load_hf_model(config, planner)
    device = machine.resolve_device(config.device)
    threads = machine.set_threads(config.threads)
    data = load_data(config)
    parent = None
    if run is None and (config.train.from_run or config.train.beside):
        parent = find_parent(config, data.hash, trained_name)
        config = with_parent(config, parent)
    encoding = EncodingSpec(config.encoding, config.search)
    if parent is not None and config.train.from_run:
        encoding = later_stage_encoding(encoding, parent.config, config.train.length)
    encoding = encoding.with_code_hashes()
    config = replace(config, encoding=encoding.values)
    with user_code_errors():
        model = build_decoder(config, data.vocabulary, encoding)
    machine.adapt_threads()
    dry_run_training(model, config, encoding)
    if config.train.only:
        rates = model.encoding.lr_multiples(config.train.encoding_lr)
        learns = any(rates.values())
        require(learns, f"train.only=encoding: {encoding.label} has no parameters to train: leave it out")
    dtype = machine.resolve_precision(config.precision, device)
    train_dtype = str(dtype).removeprefix("torch.")
    facts = identity(config, data.hash, train_dtype, encoding.identity())
    runs_folder = Path(config.results_dir) / "runs"
    folder = run or runs_folder / run_name(config, facts)
    label = encoding.label
    first = None
    own_setting = setting(facts)
    if parent is not None:
        before = parent.config if config.train.from_run else None
        label, first, own_setting = parent.stage(stage_label(encoding, before), config, own_setting)
    plans = planner(config, config.eval, data)
    refuse_lookahead_in_text(model, _windows_of_text(data, config.train.length), encoding)
    start = parent.run if parent is not None and config.train.from_run else None
    job = Job(config, folder, own_setting, label, label, device, dtype, threads, data, model, first, start)
    if parent is not None:
        job = replace(job, kept=parent.to_plain(), missing=parent.missing)
    return job, plans


def refuse_writing_into_text(config: Config) -> None:
    """Raise `UserError` if results or the cache would lie among the files of the text.

    The next command would read them as text: its data and its runs would be others, or it would fail.
    """
    if config.data.source != "files":
        return
    cache = cache_root(config.cache_dir)
    results = Path(config.results_dir)
    written = {f"the folder of results, {results},": results, f"the cache, {cache},": cache}
    texts = {"data.path": config.data.path, "data.validation_path": config.data.validation_path}
    for key, path in texts.items():
        for name, folder in written.items():
            message = f"{name} lies in {key}={path}, whose files are the text: name a folder elsewhere"
            require(not path or not is_among_files_of(folder, Path(path)), message)


def _windows_of_text(data: Data, length: int) -> Tensor:
    """Return windows of the training text, int64 [n, length]. Raise `UserError` for data without windows."""
    training_windows = windows_of(data, length)
    windows_of(data, length, split_name="validation")  # raises for data without validation windows
    batch = training_windows.batch(WINDOWS_TO_CHECK, seed=0, step=0)
    return batch.tokens[:, :length]


def trusted(config: Config, code: Sequence[Path], *, may_differ: bool = False) -> Config:
    """Return a run's configuration with custom classes only from `code`, the files that the user trusts.

    Raises `UserError` for a class without a trusted file. may_differ: the files may have changed after the
    training.
    """
    encoding = EncodingSpec(config.encoding).with_trusted_code(code, may_differ=may_differ)
    return replace(config, encoding=encoding.values)


# While it is worked on


@contextmanager
def at_work(job: Job, waits: Callable[[str], None] | None, less_memory: str) -> Iterator[None]:
    """Within the context, lock the run's folder and record an error there.

    If stopped, raise a `Stopped` that says which steps and scores are saved.

    waits: called before waiting for another process, as in `locked`. less_memory: the advice after running
    out of memory.
    """
    run = job.folder
    run.mkdir(parents=True, exist_ok=True)
    explained = machine.explain_out_of_memory(less_memory)
    locked = runs.locked(run, waits=waits)
    with explain_stop(job), locked, runs.record_error(run), explained:
        remove_leftovers(run)
        yield


@contextmanager
def explain_stop(job: Job) -> Iterator[None]:
    """If interrupted within the context, raise a `Stopped` that says which steps and scores are saved."""
    try:
        yield
    except (Stopped, KeyboardInterrupt) as stopped:
        newest = checkpoint.latest_checkpoint(job.folder / "checkpoints")
        steps = job.config.train.total_steps
        kept = "what was scored"
        if newest is not None:
            kept = f"step {newest.step} of {steps}"
            if newest.step == steps:
                kept += " with what was scored"
        end = f"interrupted; {kept} is saved, and the same command continues from there"
        scores = (job.folder / "scores").glob("*")
        if newest is None and not any(scores):
            end = "interrupted; nothing was saved yet, so the same command starts from the beginning"
        raise Stopped(str(stopped) or end) from stopped


def write_description(job: Job) -> None:
    """Write config.yaml and environment.json, and print a line on the data.

    The files describe the last process that works on the run.
    """
    write_config(job)
    facts: dict[str, Any] = {**machine.environment(job.device, job.threads)}
    if job.config.hf_model is None:
        facts["attention"] = kernel = describe_training_kernel(job.device, job.dtype)
        is_compiled = usable_kernel(torch.float32).library is not None
        if job.device.type == "cpu" and not is_compiled:
            say(f"attention: {kernel}")
    write_json(job.folder / "environment.json", facts)
    if job.data.prompts is None:
        say(describe_data(job))


def describe_data(job: Job) -> str:
    """Return a line on the text that a run trains on: its amount, and the split."""
    text = summary(job.data, job.config.train.length)
    source = job.config.data
    if source.source != "files" or job.data.task is not None:
        return text
    name = job.data.name
    return text.replace(f"{name}:", f"{name} ({source.path}):", 1)


def write_config(job: Job) -> None:
    """Write config.yaml, the facts of a parent, and the code of a custom encoding."""
    runs.write_config(job.folder, job.config)
    if job.kept is not None:
        write_json(job.folder / PARENT_FILE, job.kept)
    for part in EncodingSpec(job.config.encoding, job.config.search).parts:
        if not part.is_built_in:
            copy_files(part.code.files, job.folder / "code")


def write_result(job: Job, trained: checkpoint.Checkpoint | None) -> None:
    """Write result.json, the last file of a finished run. trained: None for a Hugging Face model."""
    result: dict[str, Any] = {"format": runs.RUN_FORMAT, "encoding": job.label, "seed": job.config.seed}
    result |= {"steps": 0, "parameters": job.model.parameter_count}
    result |= {"data_hash": job.data.hash, "setting": job.setting}
    if job.first is not None:
        result["first_stage"] = asdict(job.first)
    if job.config.hf_model is not None:
        result[HF_SECTION] = job.config.hf_model.source
    if trained is not None:
        result |= {"steps": trained.step, "loss": trained.loss, "train_seconds": trained.train_seconds}
        result["train_dtype"] = job.train_dtype
    write_json(job.folder / "result.json", {**result, "finished": machine.utc_now()})


# With its trained weights


def load_trained(run: Path, config: Config) -> Job:
    """Load a finished run with its weights onto the device.

    config: a configuration with `trusted` classes.
    """
    job, _ = load(config, run=run)
    trained = checkpoint.require_trained(run, config.train.total_steps)
    job = with_weights(job, trained)
    return replace(job, model=job.model.to(job.device).eval())


def with_weights(job: Job, trained: checkpoint.Checkpoint) -> Job:
    """Load trained weights into the job's model. Raise `RunError` for a model that learned to read ahead."""
    checkpoint.load_weights(trained.path, job.model)
    train = job.config.train
    encoding = EncodingSpec(job.config.encoding, job.config.search)
    try:
        weights = "with its trained weights"
        refuse_lookahead(job.model, train.length, encoding, weights)
        refuse_lookahead_in_text(job.model, _windows_of_text(job.data, train.length), encoding, weights)
    except UserError as error:
        raise RunError(str(error)) from error
    return replace(job, tokens_per_second=trained.step * train.batch_tokens / trained.train_seconds)


def all_scored_rows(
    job: Job, plans: Sequence[Plan], replacements: Sequence[OtherEncoding] = ()
) -> list[Row] | None:
    """Return the rows that `score_encodings` returns; None if it would have to score a plan."""
    rows = _rows_of_trained_encoding(job, plans)
    for label in (job.scored_with, *(other.label for other in replacements)):
        scored = scored_rows(job, plans, label)
        if len(scored) < len(plans):
            return None
        rows += scored
    return rows


def _rows_of_trained_encoding(job: Job, plans: Sequence[Plan]) -> list[Row]:
    """Return the rows of the trained encoding, if the job's scores are of another; else none."""
    return scored_rows(job, plans) if job.scored_with != job.label else []


def score_encodings(
    job: Job, plans: Sequence[Plan], replacements: Sequence[OtherEncoding] = (), bars: Bars = progress_bar
) -> list[Row]:
    """Score the trained encoding, then its replacements, at the same lengths and targets; return all rows."""
    record_command(job.folder)
    record_tag(job.folder, job.config.tag)
    models = models_under(job, replacements)
    is_changed = job.scored_with != job.label
    # This moves the weights, which all models share, to the device.
    model = job.model.to(job.device).eval()
    trained = replace(job, model=model, forced=is_changed)
    for line in shortages(job.config.eval, plans):
        say(line)
    rows = _rows_of_trained_encoding(job, plans)
    rows += score(trained, plans, bars, encodings_left=len(models))
    for number, (model, other) in enumerate(zip(models, replacements, strict=True), 1):
        model.encoding.to(job.device)
        under = replace(trained, model=model, scored_with=other.label, forced=other.forced)
        own = None if is_changed else trained.model
        rows += score(under, plans, bars, own, encodings_left=len(models) - number)
    return rows
