"""Checks of a configuration that need no data; each error says the value and the way out.

A key without effect is refused too: nothing is ignored in silence. Some keys may well be left over in an
experiment or in a run that is scored under another protocol; `refuse_unused` refuses those in a command's
overrides alone.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pe_bench.config.override import parse_override
from pe_bench.config.schema import (
    FAILURE,
    MIN_PAIRED_LENGTH,
    Config,
    DataConfig,
    EvalConfig,
    ModelConfig,
    TokenizerConfig,
    TrainConfig,
)
from pe_bench.config.unknown_keys import UnusableKeyError
from pe_bench.errors import UserError, require
from pe_bench.system.paths import expand_path
from pe_bench.values import shown

MAX_THREADS = 1_024
FILES, HUB, TASK = "data=files", "a data set of the Hub", "eval.protocol=task"
NAME = re.compile(r"[\w.+-]+")  # what may stand in the name of a run's folder
# Keys of `eval` that only some scoring reads, and the choices that do.
READ_WITH = {
    "eval.targets": ("eval.protocol=paired", TASK),
    "eval.max_length": ("eval.protocol=paired", "eval.protocol=nonoverlapping", "eval.protocol=sliding"),
    "eval.target_tokens": ("eval.protocol=paired",),
    "eval.stride": ("eval.protocol=sliding",),
    "eval.tokens": ("eval.protocol=nonoverlapping", "eval.protocol=sliding", "eval.per_position=true"),
}


def check_config(config: Config) -> None:
    """Raise `UserError` for what cannot work."""
    _check_encoding(config.encoding)
    _check_model(config.model)
    _check_data(config.data)
    _check_tokenizer(config.tokenizer)
    _check_task(config)
    if config.checkpoint is None:
        _check_train(config.train)
    _check_eval(config.eval, config.train.length)
    check_margin(config.report.margin, "report.margin")
    _check_run(config)


def refuse_unused(configs: Sequence[Config], overrides: Sequence[str]) -> None:
    """Raise `UserError` for a key among a command's overrides that has no effect on any of its runs.

    A sweep over protocols may hold the keys of each.
    """
    unused = [unused_keys(config.data, config.eval) for config in configs]
    for key in dict.fromkeys(parse_override(override).key for override in overrides):
        if all(key in keys for keys in unused):
            for config, keys in zip(configs, unused, strict=True):
                _refuse_without_effect(getattr(config, key.split(".")[0]), key, *keys[key])


def refuse_unused_options(config: Config, changes: Mapping[str, Any]) -> None:
    """Raise `UserError` for an option of `eval` that has no effect with the protocol of `config`."""
    for key in unused_keys(config.data, config.eval):
        name = key.removeprefix("eval.")
        if changes.get(name) is not None:
            option = name.replace("_", "-")
            require(config.task is None, f"--{option} has no effect on a task: remove it")
            protocol = parse_override(READ_WITH[key][0]).value
            raise UserError(
                f"--{option} has no effect with --protocol {config.eval.protocol}: remove it, or say "
                f"--protocol {protocol}"
            )


def obeyed(overrides: Sequence[str], data: DataConfig, evaluation: EvalConfig) -> list[str]:
    """Return the overrides that `refuse_unused` takes for a run with these values."""
    unused = unused_keys(data, evaluation)
    return [override for override in overrides if parse_override(override).key not in unused]


def unused_keys(data: DataConfig, evaluation: EvalConfig) -> dict[str, tuple[str, str]]:
    """Return the keys without effect, each with the value in its way and with what to do for an effect."""
    chosen = [f"eval.protocol={evaluation.protocol}"]
    chosen += ["eval.per_position=true"] if evaluation.per_position else []
    unused = {
        key: (chosen[0], f"set {' or '.join(choice for choice in choices if choice != TASK)}")
        for key, choices in READ_WITH.items()
        if not set(choices) & set(chosen)
    }
    if data.source == "task":
        unused = {key: (value, f"choose {FILES}") for key, (value, _) in unused.items()}
        keys = ("text_column", "newlines", "max_tokens", "validation_fraction")
        unused |= {f"data.{key}": (f"data={data.name}", f"choose {FILES}") for key in keys}
    if data.source == "stdlib":
        unused["data.text_column"] = (f"data={data.name}", f"choose {FILES} or {HUB}")
    if data.validation_path is not None:
        unused["data.validation_fraction"] = ("data.validation_path", "remove that")
    return unused


def check_margin(margin: float, key: str) -> None:
    """Raise `UserError` for a margin that leaves nothing between holding and failing."""
    require(
        0 < margin < FAILURE,
        f"{key} must be above 0 and below {FAILURE} bits per byte (failing), not {margin}",
    )


def check_folder(folder: str | Path, key: str, *, is_written: bool = False) -> Path:
    """Return the folder, which need not exist yet.

    Raises `UserError` where a file is in its way, or where nothing can be written that has to be.
    """
    require(str(folder) != "", f"{key} is empty: name a folder")
    path = expand_path(folder, f"{key}=")
    existing = next((place for place in (path, *path.parents) if os.path.lexists(place)), Path())
    require(existing.is_dir(), f"{key}={folder}: {existing} is not a folder: name another place")
    if is_written and not os.access(existing, os.W_OK):
        way_out = f"say {key}=FOLDER with one that can, or change its permissions"
        raise UserError(f"{key}={folder}: {existing} cannot be written: {way_out}", key)
    return path


def _check_encoding(encoding: dict[str, Any]) -> None:
    _check_parts(encoding, "encoding")
    _check_name(encoding.get("name"), "encoding.name")


def _check_parts(encoding: dict[str, Any], place: str) -> None:
    _check_part(encoding, place)
    modifiers = encoding.get("modifiers") or {}
    require(isinstance(modifiers, dict), f"{place}.modifiers must name modifiers, not {shown(modifiers)}")
    for name, part in modifiers.items():
        _check_name(name, "a modifier's name")
        require(isinstance(part, dict), f"{place}.modifiers.{name} must hold a class, not {shown(part)}")
        _check_part(part, f"{place}.modifiers.{name}")
    for option, value in encoding.items():
        if option != "modifiers" and isinstance(value, dict) and "class" in value:
            _check_parts(value, f"{place}.{option}")


def _check_part(part: dict[str, Any], key: str) -> None:
    specification = part.get("class")
    require(
        isinstance(specification, str) and specification != "",
        f"{key}.class must be text such as module:Class or file.py:Class, not {shown(specification)}: "
        f"name it in the YAML file of the {key.split('.')[0]}",
    )


def _check_name(name: Any, key: str) -> None:
    require(
        isinstance(name, str) and NAME.fullmatch(name) is not None,
        f"{key} must be letters, digits and the signs . + - _, not {shown(name)}: it names the run's folder",
    )


def _positive(section: Any, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        require(value is None or value > 0, f"{prefix}.{name} must be positive, not {value}")


def _check_model(model: ModelConfig) -> None:
    _positive(model, "model", "d_model", "n_layers", "n_heads", "n_kv_heads", "d_head", "d_ff")
    require(
        model.n_heads % model.n_kv_heads == 0,
        f"model.n_heads={model.n_heads} is not divisible by model.n_kv_heads={model.n_kv_heads}: "
        "each key head serves the same number of query heads",
    )


def _check_data(data: DataConfig) -> None:
    files, hub = data.source == "files", data.source == "hub"
    require(
        not files or data.path is not None, f"data={data.name} needs a folder or a file: say data.path=DIR"
    )
    require(not hub or data.path is not None, f"data={data.name} needs a dataset: say data.path=OWNER/NAME")
    _positive(data, "data", "max_tokens")
    fraction = data.validation_fraction
    require(0 < fraction < 1, f"data.validation_fraction must lie between 0 and 1, not {fraction}")
    used = {
        "path": (files or hub, f"{FILES} or {HUB}"),
        "validation_path": (files, FILES),
        "subset": (hub, HUB),
        "revision": (hub, HUB),
    }
    _refuse_unused(data, "data", f"data={data.name}", used)


def _check_tokenizer(tokenizer: TokenizerConfig) -> None:
    hub, file = tokenizer.kind == "hub", tokenizer.kind == "file"
    require(not hub or tokenizer.name is not None, "tokenizer=hub needs a name: say tokenizer.name=gpt2")
    require(
        not file or tokenizer.name is not None,
        "tokenizer=file needs a file: say tokenizer.name=FOLDER/tokenizer.json",
    )
    used = {
        "name": (hub or file, "tokenizer=hub or tokenizer=file"),
        "revision": (hub, "tokenizer=hub"),
        "vocab_size": (tokenizer.kind == "bpe", "tokenizer=bpe"),
    }
    _refuse_unused(tokenizer, "tokenizer", f"tokenizer={tokenizer.kind}", used)
    _positive(tokenizer, "tokenizer", "vocab_size")


def _check_task(config: Config) -> None:
    """Raise `UserError` where only some of the data, the task and the protocol are those of a task."""
    protocol = f"eval.protocol={config.eval.protocol}"
    if config.data.source != "task":
        require(config.task is None, f"a task has examples of its own: leave data={config.data.name} out")
        require(
            protocol != TASK, f"{TASK} scores answers, and data={config.data.name} has none: leave it out"
        )
        return
    require(config.task is not None, "data=task needs a task: say task=NAME, such as task=majority")
    require(protocol == TASK, f"{protocol} scores text, and a task has answers: leave it out")
    require(
        config.tokenizer.kind == "bytes" or config.checkpoint is not None,
        f"a task has tokens of its own: leave tokenizer={config.tokenizer.kind} out",
    )
    require(not config.eval.per_position, "a task is not scored by position: leave eval.per_position out")
    require(
        config.eval.controls in ("auto", "none"),
        f"eval.controls={config.eval.controls} changes the context of text, which a task lacks: leave it out",
    )


def _refuse_unused(section: Any, prefix: str, chosen: str, used: dict[str, tuple[bool, str]]) -> None:
    """Raise `UserError` for a key without effect; `used` says whether it is used, and what would use it."""
    for name, (is_used, by) in used.items():
        if not is_used:
            _refuse_without_effect(section, f"{prefix}.{name}", chosen, f"choose {by}")


def _refuse_without_effect(section: Any, key: str, chosen: str, way_out: str) -> None:
    """Raise `UserError` unless the key has its default, which the class of the section has too."""
    name = key.split(".")[1]
    value = getattr(section, name)
    if value != getattr(type(section), name):
        message = f"{key}={value} has no effect with {chosen}: remove it, or {way_out}"
        raise UnusableKeyError(message, key)


def _check_train(train: TrainConfig) -> None:
    _positive(
        train, "train", "length", "steps", "tokens", "batch_tokens", "micro_batches", "lr", "encoding_lr"
    )
    _positive(train, "train", "clip")
    _positive(train, "train", "processes")
    _positive(train, "train", "log_every", "validate_every", "validation_tokens", "checkpoint_every")
    require(train.warmup_steps >= 0, f"train.warmup_steps must not be negative, and is {train.warmup_steps}")
    require(train.weight_decay >= 0, f"train.weight_decay must not be negative, and is {train.weight_decay}")
    require(
        0 <= train.final_lr <= 1, f"train.final_lr is a share of train.lr from 0 to 1, not {train.final_lr}"
    )
    require(all(0 <= beta < 1 for beta in train.betas), f"train.betas must lie in [0, 1), not {train.betas}")
    require(train.length >= 2, f"train.length must be at least 2 tokens, not {train.length}")
    require(
        train.batch_tokens % train.length == 0,
        f"train.batch_tokens={train.batch_tokens} is not a multiple of train.length={train.length}: "
        f"try train.batch_tokens={train.length * max(1, round(train.batch_tokens / train.length))}",
    )
    require(
        train.batch % train.micro_batches == 0,
        f"train.micro_batches={train.micro_batches} does not divide the {train.batch} windows of a step",
    )
    _check_processes(train)


def _check_processes(train: TrainConfig) -> None:
    parts = f"train.processes={train.processes}"
    if train.micro_batches > 1:
        parts += f" times train.micro_batches={train.micro_batches}"
    require(
        train.batch % (train.processes * train.micro_batches) == 0,
        f"{parts} does not divide the {train.batch} windows of a step "
        f"(train.batch_tokens={train.batch_tokens} / train.length={train.length})",
    )


def _check_eval(evaluation: EvalConfig, train_length: int) -> None:
    _positive(
        evaluation, "eval", "max_length", "targets", "target_tokens", "stride", "tokens", "batch_tokens"
    )
    require(evaluation.lengths != [], "eval.lengths is empty: name lengths, or null for the default ones")
    for length in evaluation.lengths or []:
        require(length > 0, f"eval.lengths must be positive whole numbers, and {length} is not")
    shortest = min(evaluation.resolved_lengths(train_length))
    require(
        evaluation.protocol != "paired" or shortest >= MIN_PAIRED_LENGTH,
        f"length {shortest} is too short for eval.protocol=paired: choose {MIN_PAIRED_LENGTH} tokens or more",
    )
    require(
        evaluation.controls not in ("all", "offset") or evaluation.protocol in ("paired", "task"),
        f"eval.controls={evaluation.controls} has no effect with eval.protocol={evaluation.protocol}: "
        "remove it, or set eval.protocol=paired",
    )


def _check_run(config: Config) -> None:
    require(config.seed >= 0, f"seed must not be negative, and is {config.seed}")
    if config.threads != "auto":
        require(
            isinstance(config.threads, int) and 0 < config.threads <= MAX_THREADS,
            f"threads must be auto or a positive whole number up to {MAX_THREADS}, not {config.threads!r}",
        )
    require(
        config.device in ("auto", "cpu") or config.device.split(":")[0] == "cuda",
        f"device must be auto, cpu, cuda or cuda:N, not {config.device!r}",
    )
    require(
        config.train.processes == 1 or ":" not in config.device,
        f"device={config.device} is one GPU, but train.processes={config.train.processes} "
        "needs one for each: say device=cuda",
    )
