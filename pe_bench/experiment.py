"""One job: train, then score, then gather. What every launcher calls; repeating it does the rest."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pe_bench.checkpoint import Checkpoint
from pe_bench.config import Config, EvalConfig
from pe_bench.data.packed import Data, load_data
from pe_bench.data.targets import summary
from pe_bench.encodings import LengthError
from pe_bench.encodings.load import encoding_identity, encoding_label, with_code_hashes, with_trusted_code
from pe_bench.errors import UserError
from pe_bench.evaluate import Subject, evaluate, load_trained, make_plans, require_checkpoint
from pe_bench.files import remove_leftovers, write_text
from pe_bench.machine import environment, resolve_device, resolve_precision, set_threads, today
from pe_bench.model import Decoder, build_decoder
from pe_bench.progress import say, scoring_progress, training_progress
from pe_bench.results import Row, gather, read_result, runs_folder
from pe_bench.runs import find_run, identity, locked, run_name, setting, write_config
from pe_bench.train import start_from, train


@dataclass(frozen=True)
class Job:
    """A configuration with all that follows from it, before anything is written."""

    config: Config
    run: Path
    setting: str
    label: str
    data: Data
    model: Decoder
    device: torch.device
    dtype: torch.dtype
    threads: int


def run_experiment(config: Config, search: Sequence[Path] = ()) -> list[Row]:
    """Train what is not trained, score what is not scored, gather all results; the run's rows.

    `search` are folders in which an encoding's file may lie. Raises `UserError` before anything
    is written, `RunError` after.
    """
    config = _resolve_source(config)
    job = prepare(config, search)
    make_plans(config, config.eval, job.data)
    if config.train.from_run is not None:
        start_from(job.model, find_run(config.train.from_run, Path(config.results_dir)))
    job.run.mkdir(parents=True, exist_ok=True)
    with locked(job.run):
        remove_leftovers(job.run)
        finished = read_result(job.run) is not None
        trained = require_checkpoint(job.run) if finished else _train(job)
        if finished:
            say(f"{job.run} is trained already; scoring what is missing")
        rows = _score(job, trained, config.eval)
        if not finished:
            _write_result(job, trained)
    _gather(Path(config.results_dir))
    return rows


def score_run(run: Path, config: Config, evaluation: EvalConfig, code: Sequence[Path] = ()) -> list[Row]:
    """Score a finished run with the options of `evaluation`; `config` is the run's own.

    `code` are files that the user named, for a run whose encoding is not pe-bench's own.
    """
    config = replace(config, encoding=with_trusted_code(config.encoding, code))
    job = replace(prepare(config), run=run)
    make_plans(config, evaluation, job.data)
    trained = require_checkpoint(run)
    _warn_of_other_data(job)
    with locked(run):
        remove_leftovers(run)
        rows = _score(job, trained, evaluation)
    _gather(run.parent.parent)
    return rows


def prepare(config: Config, search: Sequence[Path] = ()) -> Job:
    """Everything that can be found wrong before a directory is made. Raises `UserError`."""
    device, threads = resolve_device(config.device), set_threads(config.threads)
    data = load_data(config.data, config.tokenizer, config.cache_dir)
    config = replace(config, encoding=with_code_hashes(config.encoding, search))
    model = build_decoder(config, data.vocab_size, search)
    _try_one_window(model, config.train.length)
    dtype = resolve_precision(config)
    known = identity(config, data.hash, _name(dtype), encoding_identity(config.encoding, search))
    return Job(
        config=config,
        run=runs_folder(Path(config.results_dir)) / run_name(config, known),
        setting=setting(known),
        label=encoding_label(config.encoding, search),
        data=data,
        model=model,
        device=device,
        dtype=dtype,
        threads=threads,
    )


def _resolve_source(config: Config) -> Config:
    """`train.from` by the name of the run, which holds the hash of what it is."""
    if config.train.from_run is None:
        return config
    source = find_run(config.train.from_run, Path(config.results_dir))
    return replace(config, train=replace(config.train, from_run=source.name))


@torch.no_grad()
def _try_one_window(model: Decoder, length: int) -> None:
    tokens = torch.zeros(1, length, dtype=torch.long)
    try:
        ids = model.encoding.ids(tokens, train=True, generator=torch.Generator().manual_seed(0))
        model.hidden(tokens, ids)
    except LengthError as error:
        raise UserError(f"train.length={length}: {error}") from error


def _train(job: Job) -> Checkpoint:
    config = job.config
    # Written again on every call: they say what the last process to work here was.
    write_config(job.run, config)
    _write_json(job.run / "environment.json", environment(job.device, job.threads))
    say(summary(job.data, config.eval.resolved_max_length(config.train.length)))
    steps, tokens = config.train.total_steps, config.train.batch_tokens
    say(f"{job.run.name}: {job.model.parameter_count:,} parameters, {steps} steps of {tokens:,} tokens")
    with training_progress(job.label, steps, tokens) as watch:
        return train(config, job.model, job.data, job.run, job.device, job.dtype, watch)


def _score(job: Job, trained: Checkpoint, evaluation: EvalConfig) -> list[Row]:
    config = job.config
    subject = Subject(
        run=job.run,
        config=config,
        model=load_trained(job.model, trained, job.device),
        data=job.data,
        device=job.device,
        threads=job.threads,
        train_dtype=_name(job.dtype),
        setting=job.setting,
        label=job.label,
        tokens_per_second=trained.meta.step * config.train.batch_tokens / trained.meta.train_seconds,
    )
    with scoring_progress(job.label, len(make_plans(config, evaluation, job.data))) as watch:
        return evaluate(subject, evaluation, watch)


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
        "finished": today(),
    }
    _write_json(job.run / "result.json", result)


def _warn_of_other_data(job: Job) -> None:
    result = read_result(job.run) or {}
    if result.get("data_hash") != job.data.hash:
        say(
            f"warning: data={job.config.data.name} is not what {job.run.name} was trained on "
            f"(hash {job.data.hash}, then {result.get('data_hash')}): these rows get a table of their own"
        )


def _gather(results_dir: Path) -> None:
    for problem in gather(results_dir).problems:
        say(f"warning: {problem}")


def _write_json(path: Path, values: dict[str, object] | dict[str, str | int]) -> None:
    write_text(path, json.dumps(values, indent=1) + "\n")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
