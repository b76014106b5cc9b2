"""A Hugging Face checkpoint as a run: its configuration, and its model with what it is scored on."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pe_bench.checkpoints.opened import begin_of_text, open_checkpoint, train_length_of
from pe_bench.checkpoints.source import Source, load_config, read_source
from pe_bench.config.compose import compose
from pe_bench.config.overrides import parse_override
from pe_bench.config.parse import parse_config, warn_unused
from pe_bench.config.schema import Config, TokenizerConfig
from pe_bench.data.packed import load_data_of
from pe_bench.data.prompt import Prompts
from pe_bench.data.tokenizer import load_file
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError, require
from pe_bench.runs.gather import runs_folder
from pe_bench.runs.job import Job
from pe_bench.runs.rows import TASK
from pe_bench.scoring.needles import Probe
from pe_bench.scoring.plans import Planner
from pe_bench.scoring.protocols import Plan
from pe_bench.system.machine import explain_out_of_memory, resolve_device, set_threads
from pe_bench.system.terminal import say
from pe_bench.values import without_none

# Keys that say what to score, on which text and where; all others describe a training.
SCORING_KEYS = ("data", "eval", "report", "device", "threads", "cache_dir")
TRAIN_LENGTH = "train.length"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LESS_MEMORY = "--precision bfloat16, shorter --lengths, or a smaller checkpoint"


def checkpoint_config(
    text: str,
    overrides: Sequence[str],
    changes: dict[str, Any],
    machine: dict[str, Any],
    results_dir: Path,
    *,
    plain: bool = False,
    prompts: str | None = None,
) -> Config:
    """Return the configuration of a checkpoint, whose model is not loaded. Raise `UserError`.

    prompts: the kind of prompts that it is scored on, in the place of text.
    """
    _check_overrides(overrides, has_text=prompts is None)
    source = read_source(text)
    length, length_from = _train_length(source, load_config(source), overrides)
    keys = {parse_override(text).key for text in overrides}
    files = ["data=files"] if "data.path" in keys and "data" not in keys else []
    lengths = [] if TRAIN_LENGTH in keys else [f"{TRAIN_LENGTH}={length}"]
    values = compose([*files, *overrides, "encoding=nope", *lengths])
    data = values["data"]
    is_one = data["source"] == "files" and data["validation_path"] is None
    if is_one and "data.validation_fraction" not in keys:
        data["validation_fraction"] = 1.0  # nothing is trained on, so all of it is scored
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
    changed = [f"eval.{name}" for name, value in changes.items() if value is not None]
    warn_unused([config], [*keys, *changed])
    if config.eval.max_length is not None or not config.eval.lengths:
        return config
    # 16 times the training length, as in a run, is more than most documents have.
    return replace(config, eval=replace(config.eval, max_length=max(length, *config.eval.lengths)))


def with_one_length(texts: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Add the training length that several checkpoints are measured from where theirs differ: the shortest.

    Raise `UserError` for what is no checkpoint.
    """
    sources = map(read_source, texts)
    lengths = [_train_length(source, load_config(source), overrides)[0] for source in sources]
    if len(set(lengths)) == 1:
        return [*overrides]
    shortest = f"{TRAIN_LENGTH}={min(lengths)}"
    say(f"{shortest}: all are measured from the shortest of their training lengths; another can be given")
    return [*overrides, shortest]


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
def load_checkpoint(config: Config, planner: Planner) -> tuple[Job, list[Plan]]:
    """Load the model and the data, and plan the scores. Raise `UserError` where it is another model now."""
    about = config.checkpoint
    assert about is not None
    source = read_source(about.source + (f"@{about.revision}" if about.revision else ""))
    now = source.identity(config.cache_dir)
    require(
        now == about.identity,
        f"{about.source} is not what this run scored (hash {now} now, {about.identity} then): "
        f"score it as it is now with `pe-bench eval {about.source}`",
    )
    device, threads = resolve_device(config.device), set_threads(config.threads)
    data = load_data_of(config)
    plans = planner(config, config.eval, data)
    dtype, length = DTYPES[config.eval.precision], config.train.length
    opened = open_checkpoint(source, load_config(source), length, about.begin, dtype, plain=about.plain)
    require(
        data.vocab_size <= opened.model.vocab_size,
        f"the tokenizer of {source.name} has {data.vocab_size} tokens and its model "
        f"{opened.model.vocab_size}: give a folder whose files are of one checkpoint",
    )
    layers = opened.size.n_layers - len(opened.model.fixed)
    architecture = type(load_config(source)).__name__.removesuffix("Config")
    about = replace(about, layers=layers, architecture=architecture)
    config = replace(config, encoding=opened.encoding, model=opened.size, checkpoint=about)
    facts = {"checkpoint": about.identity, "length": length, "data": data.hash, "plain": about.plain}
    setting = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]
    name, label = opened.size.name, EncodingSpec(config.encoding).label
    say(f"{name}: {label}, trained at {length:,} tokens ({about.train_length_from})")
    if opened.difference is None:
        say(f"{name}: keeps transformers' attention, without the window control and --with")
    else:
        say(f"{name}: logits equal transformers' own to {opened.difference:.1g} of the largest")
    folder = runs_folder(Path(config.results_dir)) / f"hf-{source.name}-{setting}"
    return Job(config, folder, setting, label, label, device, dtype, threads, data, opened.model), plans


def _check_overrides(overrides: Sequence[str], *, has_text: bool) -> None:
    keys = SCORING_KEYS if has_text else SCORING_KEYS[1:]
    brings = "its own model, encoding and tokenizer" + ("" if has_text else ", and with --task its own text")
    for text in overrides:
        key = parse_override(text).key.lstrip("+~")
        message = f"{text} has no effect on a checkpoint, which brings {brings}"
        way_out = f"change {', '.join(keys[:-3])} or {TRAIN_LENGTH}"
        require(key.split(".")[0] in keys or key == TRAIN_LENGTH, f"{message}: {way_out}")


def _train_length(source: Source, config: Any, overrides: Sequence[str]) -> tuple[int, str]:
    """Return the length that the checkpoint was trained at, and who says so."""
    for override in map(parse_override, overrides):
        if override.key == TRAIN_LENGTH:
            length = override.value or ""
            require(length.isdecimal(), f"{TRAIN_LENGTH}={length} is not a whole number")
            return int(length), "the command"
    stated = train_length_of(config)
    if stated is None:
        what = f"the configuration of {source.name} does not say at what length it was trained"
        raise UserError(f"{what}: say {TRAIN_LENGTH}=N, in tokens")
    return stated
