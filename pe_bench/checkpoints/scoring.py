"""Score a Hugging Face checkpoint: a run without training, in a folder like that of any other run."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pe_bench.checkpoints.model import CheckpointModel
from pe_bench.checkpoints.opened import begin_of_text, open_checkpoint, train_length_of
from pe_bench.checkpoints.source import PREFIX, Source, load_config, read_source
from pe_bench.config.compose import compose
from pe_bench.config.override import parse_override
from pe_bench.config.parse import parse_config, without_none
from pe_bench.config.schema import CheckpointConfig, Config, TokenizerConfig, warn_unused
from pe_bench.data.packed import load_data_of, summary
from pe_bench.data.prompt import Prompts
from pe_bench.data.tokenizer import load_file
from pe_bench.encodings.base import PositionalEncoding
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError, require
from pe_bench.runs.commands import record_command
from pe_bench.runs.config_file import with_absolute_paths, write_config
from pe_bench.runs.gather import gather_and_warn, runs_folder
from pe_bench.runs.job import Job
from pe_bench.runs.lock import locked, record_error
from pe_bench.runs.rows import TASK, Row
from pe_bench.scoring.anchors import score_missing_anchors
from pe_bench.scoring.evaluate import score
from pe_bench.scoring.needles import Probe
from pe_bench.scoring.other_encodings import OtherEncoding
from pe_bench.scoring.plans import Planner, make_plans, shortages
from pe_bench.scoring.protocols import Plan
from pe_bench.system.files import remove_leftovers, write_text
from pe_bench.system.machine import resolve_device, set_threads
from pe_bench.system.memory import explain_out_of_memory
from pe_bench.system.progress import Bars, progress_bar
from pe_bench.system.signals import Stopped
from pe_bench.system.terminal import say
from pe_bench.system.versions import environment, today

# Keys that say what to score, on which text and where; all others describe a training.
SCORING_KEYS = ("data", "eval", "report", "device", "threads", "cache_dir", "results_dir")
TRAIN_LENGTH = "train.length"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LESS_MEMORY = "--precision bfloat16, shorter --lengths, or a smaller checkpoint"
NOT_AFTER_TRAINING = ("ids", "embed")  # hooks of a model, which a checkpoint does not call


def is_checkpoint(name: str) -> bool:
    return name.startswith(PREFIX)


@explain_out_of_memory(LESS_MEMORY)
def prepare_checkpoint(
    text: str,
    overrides: Sequence[str],
    changes: dict[str, Any],
    machine: dict[str, Any],
    results_dir: Path,
    *,
    plain: bool = False,
    planner: Planner = make_plans,
    prompts: str | None = None,
) -> tuple[Job, list[Plan]]:
    """Return the job and the plans of a checkpoint, and write nothing. Raise `UserError` for what is wrong.

    prompts: the kind of prompts that it is scored on, in the place of text.
    """
    _check_overrides(overrides, has_text=prompts is None)
    source = read_source(text)
    loaded = load_config(source)
    length, length_from = _train_length(source, loaded, overrides)
    values = compose(
        [*overrides, "encoding=nope", *([] if _names_length(overrides) else [f"train.length={length}"])]
    )
    if prompts is not None:
        values |= {"data": {"name": prompts, "source": "task"}, "task": {"name": prompts}}
        values["eval"]["protocol"] = TASK
    values["eval"].update(without_none(changes))
    values |= {**without_none(machine), "results_dir": str(results_dir)}
    values["train"] |= {"length": length, "steps": 0, "batch_tokens": length}
    values["tokenizer"] = {"kind": "file", "name": str(source.tokenizer)}
    values["checkpoint"] = {
        "source": source.address,
        "identity": source.identity(values["cache_dir"]),
        "train_length_from": length_from,
        "revision": source.revision,
        "begin": begin_of_text(source),
        "plain": plain,
    }
    config = parse_config(values)
    typed = [parse_override(text).key for text in overrides]
    typed += [f"eval.{name}" for name, value in changes.items() if value is not None]
    warn_unused([config.eval], typed)
    return _prepare(_up_to_longest(config), source, loaded, planner)


def check_prompts(text: str, overrides: Sequence[str], probes: Sequence[Probe]) -> None:
    """Raise `UserError` for an unknown kind of prompts, or one that does not fit the shortest length.

    The model is not loaded.
    """
    source = read_source(text)
    length, _ = _train_length(source, load_config(source), overrides)
    tokenizer = load_file(TokenizerConfig("file", str(source.tokenizer)))
    begins = begin_of_text(source) is not None
    for probe in probes:
        Prompts(str(probe.prompts), tokenizer, begins).shortest(min(probe.resolved_lengths(length)))


@explain_out_of_memory(LESS_MEMORY)
def reopen_checkpoint(run: Path, config: Config, planner: Planner = make_plans) -> tuple[Job, list[Plan]]:
    """Return the job of a run that scored a checkpoint before. Raise `UserError` where it is another now."""
    about = config.checkpoint
    assert about is not None
    revision = f"@{about.revision}" if about.revision else ""
    source = read_source(f"{about.source}{revision}")
    identity = source.identity(config.cache_dir)
    require(
        identity == about.identity,
        f"{about.source} is not what {run.name} scored (hash {identity} now, {about.identity} then): "
        f"score it as it is now with `pe-bench eval {about.source}`",
    )
    job, plans = _prepare(config, source, load_config(source), planner)
    return replace(job, folder=run), plans


def _up_to_longest(config: Config) -> Config:
    """Return the configuration with targets for the lengths that are named.

    16 times the training length, as in a run, is more than most documents have.
    """
    lengths = config.eval.lengths
    if config.eval.max_length is not None or not lengths:
        return config
    return replace(config, eval=replace(config.eval, max_length=max(config.train.length, *lengths)))


def _check_overrides(overrides: Sequence[str], *, has_text: bool) -> None:
    for text in overrides:
        key = parse_override(text).key.lstrip("+~")
        is_of_text = key.split(".")[0] == "data"
        require(has_text or not is_of_text, f"{text} has no effect with --task, which has its own text")
        is_known = key.split(".")[0] in SCORING_KEYS or key == TRAIN_LENGTH
        require(
            is_known,
            f"{text} has no effect on a checkpoint, which brings its own model, encoding and tokenizer: "
            f"change {', '.join(SCORING_KEYS[:3])} or {TRAIN_LENGTH}",
        )


def _names_length(overrides: Sequence[str]) -> bool:
    return any(parse_override(text).key == TRAIN_LENGTH for text in overrides)


def _train_length(source: Source, config: Any, overrides: Sequence[str]) -> tuple[int, str]:
    """Return the length that the checkpoint was trained at, and who says so."""
    for text in overrides:
        override = parse_override(text)
        if override.key == TRAIN_LENGTH:
            require((override.value or "").isdecimal(), f"{text} is not a whole number")
            return int(override.value or 0), "the command"
    found = train_length_of(config)
    if found is None:
        raise UserError(
            f"the configuration of {source.name} does not say at what length it was trained: say "
            f"{TRAIN_LENGTH}=N, in tokens"
        )
    return found


def _prepare(config: Config, source: Source, loaded: Any, planner: Planner) -> tuple[Job, list[Plan]]:
    about = config.checkpoint
    assert about is not None
    device, threads = resolve_device(config.device), set_threads(config.threads)
    data = load_data_of(config)
    plans = planner(config, config.eval, data)
    dtype = DTYPES[config.eval.precision]
    opened = open_checkpoint(source, loaded, config.train.length, about.begin, dtype, plain=about.plain)
    require(
        data.vocab_size <= opened.model.vocab_size,
        f"the tokenizer of {source.name} has {data.vocab_size} tokens and its model "
        f"{opened.model.vocab_size}: give a folder whose files are of one checkpoint",
    )
    layers = opened.size.n_layers - len(opened.model.fixed)
    config = replace(
        config, encoding=opened.encoding, model=opened.size, checkpoint=replace(about, layers=layers)
    )
    parts = {
        "checkpoint": about.identity,
        "length": config.train.length,
        "data": data.hash,
        "plain": about.plain,
    }
    setting = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]
    _say_what_was_found(config, about, opened.difference)
    label = EncodingSpec(config.encoding).label
    folder = runs_folder(Path(config.results_dir)) / f"hf-{source.name}-{setting}"
    return Job(config, folder, setting, label, label, device, dtype, threads, data, opened.model), plans


def _say_what_was_found(config: Config, about: CheckpointConfig, difference: float | None) -> None:
    label, length = EncodingSpec(config.encoding).label, config.train.length
    say(f"{config.model.name}: {label}, trained at {length:,} tokens ({about.train_length_from})")
    if difference is None:
        say(f"{config.model.name}: keeps transformers' attention, without the window control and --with")
    else:
        say(f"{config.model.name}: logits equal transformers' own to {difference:.1g} of the largest")


def require_replaceable(job: Job) -> None:
    """Raise `UserError` for a model whose encoding no other can take the place of."""
    why, model = "", _model(job)
    if model.state is None:
        why = "is scored as it is, with transformers' attention"
    elif not model.is_neutral:
        why = "rotates its queries and keys in a way that pe-bench does not know"
    name = job.config.model.name
    require(not why, f"{name} {why}, so --with has nothing to replace: leave --with out")


def score_checkpoint(
    job: Job, plans: Sequence[Plan], others: Sequence[OtherEncoding] = (), bars: Bars = progress_bar
) -> list[Row]:
    """Score a checkpoint, then its weights under the others, and gather; return the rows."""
    run, config = job.folder, job.config
    if others:
        require_replaceable(job)
    # All are built before any is scored, so that an error in the last comes first.
    models = [_with_encoding(other, job) for other in others]
    run.mkdir(parents=True, exist_ok=True)
    with _say_what_is_kept(run), locked(run), record_error(run), explain_out_of_memory(LESS_MEMORY):
        remove_leftovers(run)
        record_command(run)
        write_config(run, replace(config, data=with_absolute_paths(config.data)))
        _write_json(run / "environment.json", environment(job.device, job.threads))
        if job.data.prompts is None:
            say(summary(job.data, config.eval.resolved_max_length(config.train.length)))
        for line in shortages(config.eval, plans):
            say(line)
        own = replace(job, model=_model(job).to(job.device))
        rows = score(own, plans, bars)
        for other, model in zip(others, models, strict=True):
            model.encoding.to(job.device)
            under = replace(own, model=model, scored_with=other.label, forced=other.forced)
            rows += score(under, plans, bars)
        _write_result(job)
        score_missing_anchors(job, plans, rows)
    if run.parent.name == "runs":
        gather_and_warn(run.parent.parent)
    return rows


@contextmanager
def _say_what_is_kept(run: Path) -> Iterator[None]:
    """Turn a request to stop inside into one that says what is kept."""
    try:
        yield
    except (Stopped, KeyboardInterrupt) as stopped:
        if any((run / "scores").glob("*")):
            kept = "the lengths scored so far are saved, and the same command continues from there"
        else:
            kept = "nothing was scored yet, so the same command starts from the beginning"
        raise Stopped(str(stopped) or f"interrupted; {kept}") from stopped


def _model(job: Job) -> CheckpointModel:
    assert isinstance(job.model, CheckpointModel)
    return job.model


def _with_encoding(other: OtherEncoding, job: Job) -> CheckpointModel:
    """Return the checkpoint under another encoding. Raise `UserError` if it is not in attention alone."""
    model = _model(job)
    encoding = other.encoding.build(model.n_layers, job.data.vocabulary)
    needed = [hook for hook in NOT_AFTER_TRAINING if any(part.overrides(hook) for part in _parts(encoding))]
    if any(encoding.layer(n).overrides("prepare") for n in range(model.n_layers)):
        needed.append("prepare")
    require(
        not needed, f"{other.label} needs {', '.join(needed)}, which checkpoints do not use: leave it out"
    )
    return model.with_encoding(encoding)


def _parts(encoding: Composition) -> list[PositionalEncoding]:
    return [encoding.base, *encoding.modifiers.values()]  # pyright: ignore[reportReturnType]


def _write_result(job: Job) -> None:
    checkpoint = job.config.checkpoint
    result = {
        "format": 1,
        "encoding": job.label,
        "checkpoint": checkpoint.source if checkpoint else "",
        "seed": job.config.seed,
        "steps": 0,
        "parameters": job.model.parameter_count,
        "data_hash": job.data.hash,
        "setting": job.setting,
        "finished": today(),
    }
    _write_json(job.folder / "result.json", result)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    write_text(path, json.dumps(values, indent=1) + "\n")
