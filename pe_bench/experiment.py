"""One job: train, then score, then gather. What every launcher calls; repeating it does the rest."""

import copy
import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pe_bench.attention import describe, is_kernel_here
from pe_bench.checkpoint import (
    Checkpoint,
    drop_damaged_checkpoints,
    final_checkpoint,
    latest_checkpoint,
    load_weights,
)
from pe_bench.commands import record_command
from pe_bench.config import Config, DataConfig
from pe_bench.data.packed import Data, load_data
from pe_bench.data.targets import summary
from pe_bench.distributed.launch import Work, check_processes, train_together
from pe_bench.distributed.machines import ALONE, Machines
from pe_bench.encodings.load import (
    build_encoding,
    encoding_identity,
    encoding_label,
    with_code_hashes,
    with_trusted_code,
)
from pe_bench.errors import UserError
from pe_bench.evaluate import Subject, count_parts, evaluate, kept_rows, make_plans, shortages
from pe_bench.files import remove_leftovers, write_text
from pe_bench.machine import environment, memory_told, resolve_device, resolve_precision, set_threads, today
from pe_bench.model import Decoder, build_decoder
from pe_bench.progress import Bars, progress_bar, scoring_progress, training_progress
from pe_bench.protocols import Plan
from pe_bench.results import Row, gather, read_result, read_rows, runs_folder
from pe_bench.runs import (
    encoding_in,
    error_kept,
    find_run,
    identity,
    locked,
    read_config,
    run_name,
    setting,
    write_config,
)
from pe_bench.scored_with import Other
from pe_bench.terminal import say
from pe_bench.trackers import Tracking, check_tracker, tracking
from pe_bench.train import Step, check_windows, last_checkpoint, train
from pe_bench.trial import outside_code_told, try_one_window


@dataclass(frozen=True)
class Job:
    """A configuration with all that follows from it, before anything is written."""

    config: Config
    run: Path
    setting: str
    label: str
    data: Data
    plans: list[tuple[int, Plan]]
    model: Decoder
    device: torch.device
    dtype: torch.dtype
    train_dtype: str
    threads: int
    search: tuple[Path, ...] = ()  # folders in which an encoding's file may lie
    source: Checkpoint | None = None  # whose weights it starts from
    machines: Machines = ALONE


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
    with locked(job.run, waits=waits), error_kept(job.run), memory_told():
        remove_leftovers(job.run)
        with tracking(job.run, job.config) as tracked:
            rows = _work(job, bars, tracked)
    gather_told(Path(job.config.results_dir))
    return rows


def _work(job: Job, bars: Bars, tracked: Tracking) -> list[Row]:
    rows = _of_finished(job, bars)
    if rows is None:
        trained = _train(job, bars, tracked)
        rows = _score(job, trained, bars=bars)
        _write_result(job, trained)
    tracked.scores(read_rows(job.run / "eval.csv"))
    return rows


def _of_finished(job: Job, bars: Bars) -> list[Row] | None:
    """The rows of a finished run, with those that were missing; None for one to train, perhaps again."""
    if read_result(job.run) is None:
        return None
    rows = kept_rows(_subject(job, math.nan), job.config.eval, job.plans)
    trained = None if rows is not None else final_checkpoint(job.run, job.config.train.total_steps)
    if rows is None and trained is None:
        _begin_again(job)
        return None
    say(f"{job.run} is trained already")
    if trained is not None:
        return _score(job, trained, bars=bars)
    _tell_shortages(job)
    record_command(job.run)
    return rows


def _begin_again(job: Job) -> None:
    """A finished run lacks the weights for what is to be scored: from here on it is not finished."""
    lengths = {row.length for row in read_rows(job.run / "eval.csv")} - {length for length, _ in job.plans}
    others = f"; its scores at {', '.join(map(str, sorted(lengths)))} go with them: eval makes them again"
    say(
        f"warning: {job.run.name} is trained again, for the weights of its last step are missing or damaged"
        + (others if lengths else "")
    )
    (job.run / "result.json").unlink()


def take_part(job: Job) -> None:
    """Train with the first machine of several, which does all the rest."""
    with memory_told():
        train_together(_training(job), lambda step: None)


@memory_told()
def check(config: Config, search: Sequence[Path] = (), machines: Machines = ALONE) -> Job:
    """A job that is ready to run: all that can be found wrong is, and nothing is written.

    Raises `UserError`.
    """
    word = config.train.from_run
    job = replace(prepare(_name_source(config), search), machines=machines)
    check_processes(job.config, job.device, job.model, machines)
    check_tracker(config.tracker)
    if word is not None and latest_checkpoint(job.run / "checkpoints") is None:
        source = _source(word, Path(config.results_dir))
        load_weights(source, job.model)
        job = replace(job, source=source)
    return job


def trusted(config: Config, code: Sequence[Path]) -> Config:
    """A run's configuration, which names no class from outside but those in files that the user named."""
    return replace(config, encoding=with_trusted_code(config.encoding, code))


def score_run(
    run: Path,
    config: Config,
    results_dir: Path,
    others: Sequence[Other] = (),
    search: Sequence[Path] = (),
) -> list[Row]:
    """Score a finished run at the lengths of its `config`, then its weights under `others`.

    The classes of `config` are `trusted`; those of `others` may lie in the folders `search`. The rows are
    gathered when the run is one of `results_dir`.
    """
    result = read_result(run) or {}
    job = replace(prepare(config), run=run)
    if "setting" in result:  # of the training, wherever it is scored
        job = replace(
            job, setting=str(result["setting"]), train_dtype=str(result.get("train_dtype", job.train_dtype))
        )
    trained = final_checkpoint(run, config.train.total_steps)
    if trained is None:
        raise UserError(
            f"{run / 'checkpoints'} has no whole checkpoint of step {config.train.total_steps}: "
            "repeat the command that trained the run"
        )
    _warn_of_other_data(job, result)
    with locked(run):
        remove_leftovers(run)
        rows = _score(job, trained, others, search)
    if run.resolve().parent == runs_folder(results_dir).resolve():
        gather_told(results_dir)
    return rows


def prepare(config: Config, search: Sequence[Path] = ()) -> Job:
    """Everything that can be found wrong before a directory is made. Raises `UserError`."""
    device, threads = resolve_device(config.device), set_threads(config.threads)
    data = load_data(config.data, config.tokenizer, config.cache_dir)
    config = replace(config, encoding=with_code_hashes(config.encoding, search))
    with outside_code_told():
        model = build_decoder(config, data.vocabulary, search)
    try_one_window(model, config.train.length, config.encoding["name"])
    plans = make_plans(config, config.eval, data)
    check_windows(data, config.train.length)
    dtype = resolve_precision(config)
    known = identity(config, data.hash, _name(dtype), encoding_identity(config.encoding, search))
    return Job(
        config=config,
        run=runs_folder(Path(config.results_dir)) / run_name(config, known),
        setting=setting(known),
        label=_label(config, search),
        data=data,
        plans=plans,
        model=model,
        device=device,
        dtype=dtype,
        train_dtype=_name(dtype),
        threads=threads,
        search=tuple(search),
    )


def _name_source(config: Config) -> Config:
    """`train.from` as the name of the run, which holds the hash of what it is, wherever it lies."""
    word = config.train.from_run
    if word is None:
        return config
    try:
        name = find_run(word, Path(config.results_dir)).name
    except UserError:
        name = Path(word).name  # it may be gone: only a run that has not begun needs it
    return replace(config, train=replace(config.train, from_run=name))


def _source(word: str, results_dir: Path) -> Checkpoint:
    """The final checkpoint of the run that `train.from` names."""
    run = find_run(word, results_dir)
    found = final_checkpoint(run, read_config(run).train.total_steps)
    if found is None:
        raise UserError(f"train.from={word}: {run} has no whole checkpoint of its last step")
    return found


def _label(config: Config, search: Sequence[Path]) -> str:
    """The encoding, and whose weights it started from: one that was only fine-tuned is no other's equal."""
    label, source = encoding_label(config.encoding, search), config.train.from_run
    return f"{label} from={encoding_in(source)}" if source else label


def _train(job: Job, bars: Bars, tracked: Tracking) -> Checkpoint:
    config = job.config
    for path in drop_damaged_checkpoints(job.run / "checkpoints"):
        say(f"warning: {path} is damaged, and dropped")
    found = latest_checkpoint(job.run / "checkpoints")
    if found is None or found.meta.step < config.train.total_steps:
        _drop_scores(job.run)
    # Written again on every call: they say what the last process to work here was.
    write_config(job.run, replace(config, data=_from_anywhere(config.data)))
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
        machines=job.machines,
    )


def _score(
    job: Job,
    trained: Checkpoint,
    others: Sequence[Other] = (),
    search: Sequence[Path] = (),
    bars: Bars = progress_bar,
) -> list[Row]:
    """The rows of the run's own encoding, then those of the others, at the same lengths and targets."""
    record_command(job.run)
    load_weights(trained, job.model)
    # All are built before any is scored, for what is wrong with the last is told first.
    models = [_under(other, job, search) for other in others]
    speed = trained.meta.step * job.config.train.batch_tokens / trained.meta.train_seconds
    own = _subject(job, speed)  # moves what all of them share to the device
    for model in models:
        model.encoding.to(job.device)
    _tell_shortages(job)
    labels = [other.label for other in others]
    subjects = [
        replace(own, model=model, scored_with=label) for model, label in zip(models, labels, strict=True)
    ]
    return [row for subject in (own, *subjects) for row in _rows(subject, job.plans, bars)]


def _tell_shortages(job: Job) -> None:
    for line in shortages(job.config, job.config.eval, job.plans):
        say(line)


def _rows(subject: Subject, plans: Sequence[tuple[int, Plan]], bars: Bars) -> list[Row]:
    with scoring_progress(bars, subject.scored_with, count_parts(plans)) as watch:
        return evaluate(subject, subject.config.eval, plans, watch)


def _under(other: Other, job: Job, search: Sequence[Path]) -> Decoder:
    """The job's model with another encoding in its place, which has the trained one's parameters.

    The rest of the two is one and the same in memory, and neither is changed.
    """
    encoding = build_encoding(other.encoding, job.config.model.n_layers, search, job.data.vocabulary)
    encoding.load_state_dict(job.model.encoding.state_dict(), strict=True)
    model = copy.copy(job.model)
    model._modules = {**job.model._modules, "encoding": encoding}
    try_one_window(model, job.config.train.length, other.encoding["name"])
    return model.eval()


def _subject(job: Job, tokens_per_second: float) -> Subject:
    config = job.config
    return Subject(
        run=job.run,
        config=config,
        model=job.model.to(job.device).eval(),
        data=job.data,
        device=job.device,
        threads=job.threads,
        train_dtype=job.train_dtype,
        setting=job.setting,
        label=job.label,
        scored_with=job.label,
        tokens_per_second=tokens_per_second,
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


def _from_anywhere(data: DataConfig) -> DataConfig:
    """Local paths as they are from any folder, so that the run can be scored from another one."""
    if data.source != "files":
        return data
    paths = {name: getattr(data, name) for name in ("path", "validation_path")}
    return replace(data, **{name: str(Path(path).resolve()) for name, path in paths.items() if path})


def _drop_scores(run: Path) -> None:
    """Scores of weights that are about to be replaced."""
    (run / "eval.csv").unlink(missing_ok=True)
    shutil.rmtree(run / "scores", ignore_errors=True)


def _warn_of_other_data(job: Job, result: dict[str, object]) -> None:
    if result.get("data_hash") != job.data.hash:
        say(
            f"warning: data={job.config.data.name} is not what {job.run.name} was trained on "
            f"(hash {job.data.hash}, then {result.get('data_hash')}): these rows get a table of their own"
        )


def gather_told(results_dir: Path) -> None:
    """Gather the rows of all runs, and say what was not as expected."""
    for problem in gather(results_dir).problems:
        say(f"warning: {problem}")


def _write_json(path: Path, values: dict[str, object] | dict[str, str | int]) -> None:
    write_text(path, json.dumps(values, indent=1) + "\n")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
