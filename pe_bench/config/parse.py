"""Conversion of plain values to a checked configuration and back; keys that a run does not read."""

import typing
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any

from pe_bench.config.schema import FIELD_OF_KEY, FIELDS_NOT_IN_FILES, KEY_OF_FIELD, Config
from pe_bench.errors import UserError, require
from pe_bench.system.terminal import say
from pe_bench.values import check_type, check_utf8, expand_user, shown, unknown

# By key and its values (separated by spaces): the keys and sections that only runs with these values read.
READ_WITH = {
    "data.source": {
        "files hub": "data.text_column",
        "files": "data.validation_path data.encoding",
        "hub": "data.subset data.revision",
        "stdlib files hub": "data.newlines data.max_tokens data.validation_fraction tokenizer",
        "stdlib files": "data.validation_documents",
    },
    "tokenizer.kind": {
        "hub file": "tokenizer.name",
        "hub": "tokenizer.revision",
        "bpe": "tokenizer.vocab_size",
    },
    "eval.protocol": {
        "paired task": "eval.targets",
        "paired nonoverlapping sliding": "eval.max_length eval.per_position",
        "paired": "eval.target_tokens eval.controls",
        "sliding": "eval.stride",
    },
}


def parse_config(
    values: dict[str, Any],
    search: Sequence[Path] = (),
    given: Iterable[str] = (),
    *,
    is_trained: bool = True,
) -> Config:
    """Turn plain values of YAML into a checked `Config`; `search` are further folders of encodings' files.

    given: the keys that a command gives. is_trained: the model is trained, so that its batch is checked too.
    Raises `UserError` for an unknown key, a value of the wrong type or a value that cannot work.
    """
    message = "no encoding is named: say encoding=rope, or `pe-bench list encodings`"
    require(values.get("encoding") is not None, message)
    check_utf8(values, "")
    config = replace(_parse(Config, values), search=tuple(search), given=tuple(given))
    config = _with_home_folders(config)
    config.check(is_trained=is_trained)
    return config


def _with_home_folders(config: Config) -> Config:
    """Return a configuration with home folders for `~`, which a shell does not expand inside KEY=VALUE."""
    data, cache_dir = config.data, config.cache_dir
    if data.source == "files":
        path = data.path and expand_user(data.path, "data.path=")
        validation_path = data.validation_path
        if validation_path:
            validation_path = expand_user(validation_path, "data.validation_path=")
        data = replace(data, path=path, validation_path=validation_path)
    results_dir = expand_user(config.results_dir, "results_dir=")
    cache_dir = cache_dir and expand_user(cache_dir, "cache_dir=")
    return replace(config, data=data, results_dir=results_dir, cache_dir=cache_dir)


def _parse(kind: type[Any], values: Any, prefix: str = "") -> Any:
    """Convert plain values to the dataclass `kind`: the configuration, or one of its sections.

    prefix: the beginning of the section's keys, such as `train.`. Raises `UserError` for an unknown key or a
    value of the wrong type.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = [name for name in kind.__match_args__ if name not in FIELDS_NOT_IN_FILES]
    names = {KEY_OF_FIELD.get(name, f"{prefix}{name}"): name for name in fields}
    if not isinstance(values, dict):
        message = f"{prefix.rstrip('.')} is a group of keys and cannot be {shown(values)}"
        raise UserError(f"{message}: say {next(iter(names))}=VALUE")
    parsed = {}
    for own_key, value in values.items():
        key = f"{prefix}{own_key}"
        if key not in names:
            raise UserError(unknown(key, "key", names))
        require(value != "", f"{key} is empty: give it a value, or remove it")
        hint = hints[names[key]]
        section_class: Any = next(filter(is_dataclass, (hint, *typing.get_args(hint))), None)
        if section_class is None:
            parsed[names[key]] = check_type(value, hint, key)
        else:
            parsed[names[key]] = _parse(section_class, value, f"{key}.")
    return kind(**parsed)


def to_plain(config: Config) -> dict[str, Any]:
    """Convert a configuration back to plain values, under the keys of the command line."""
    values = asdict(config)
    for name in FIELDS_NOT_IN_FILES:
        del values[name]
    for section in ("hf_model", "task"):
        if values[section] is None:
            del values[section]
    for key, name in FIELD_OF_KEY.items():
        section, _, option = key.rpartition(".")
        fields = values[section] if section else values
        if name in fields:
            fields[option] = fields.pop(name)
    values["train"]["betas"] = list(values["train"]["betas"])
    return values


def warn_unused(configs: Sequence[Config], keys: Sequence[str]) -> None:
    """Print a warning for each key of a command that none of its runs reads."""
    unused = list(map(unused_keys, configs))
    for key in dict.fromkeys(keys):
        if all(key in unused_in_run for unused_in_run in unused):
            say(f"warning: {key} has no effect with {unused[0][key]}")


def unused_keys(config: Config) -> dict[str, str]:
    """Return the keys that a run of this configuration does not read, each with the reason in words."""
    unused = {}
    for decided_by, readers in READ_WITH.items():
        section, _, name = decided_by.partition(".")
        value = getattr(getattr(config, section), name)
        for values, keys in readers.items():
            if value not in values.split():
                others = " or ".join(values.split())
                reason = f"{decided_by}={value}: it is for {others}"
                unused |= dict.fromkeys(keys.split(), reason)
    if config.train.steps is not None:
        unused["train.tokens"] = f"train.steps={config.train.steps}"
    data = config.data
    if data.source == "files" and data.validation_path is not None:
        reason = f"data.validation_path={data.validation_path}"
        unused |= dict.fromkeys(("data.validation_fraction", "data.validation_documents"), reason)
    protocol = config.eval.protocol
    is_by_position = config.eval.per_position and protocol != "task"
    if protocol in ("paired", "task") and not is_by_position:
        unused["eval.tokens"] = f"eval.protocol={protocol}: it is for nonoverlapping, sliding or by position"
    return unused
