"""Plain values as a checked configuration, and back; the keys that a run does not read."""

import os
import typing
from collections.abc import Iterator, Sequence
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any

from pe_bench.config.schema import FIELD_OF_KEY, KEY_OF_FIELD, Config
from pe_bench.errors import UserError, require
from pe_bench.system.files import check_name, expand_path
from pe_bench.system.terminal import say
from pe_bench.values import check_type, shown, unknown

SHORT_PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}
# Keys that only some values of another key read.
READ_WITH = {
    "data.source": {
        "files hub": "data.text_column",
        "files": "data.validation_path data.encoding",
        "hub": "data.subset data.revision",
        "stdlib files hub": "data.newlines data.max_tokens data.validation_fraction tokenizer",
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
        "nonoverlapping sliding": "eval.tokens",
    },
}


def parse_config(values: dict[str, Any], search: Sequence[Path] = ()) -> Config:
    """Turn plain values, as YAML gives them, into a checked `Config`, whose files lie in `search` too.

    Raises `UserError` for an unknown key, a value of the wrong type or one that cannot work.
    """
    for key, text in _texts(values):
        check_name(text, f"{key}=")  # which would damage the file of the configuration
    message = "no encoding is named: say encoding=rope, or `pe-bench list encodings`"
    require(values.get("encoding") is not None, message)
    config = _with_home(replace(_parse(Config, values), search=tuple(search)))
    config.check()
    return config


def _parse(kind: type[Any], values: Any, prefix: str = "") -> Any:
    """Return plain values as a dataclass: the configuration, or the section of a prefix such as `train.`."""
    hints = typing.get_type_hints(kind, include_extras=True)
    names = {
        KEY_OF_FIELD.get(name, f"{prefix}{name}"): name for name in kind.__match_args__ if name != "search"
    }
    if not isinstance(values, dict):
        what = f"{prefix.rstrip('.')} is a group of keys and cannot be {shown(values)}"
        raise UserError(f"{what}: say {next(iter(names))}=VALUE")
    parsed = {}
    for key, value in ((f"{prefix}{key}", value) for key, value in values.items()):
        require(key in names, unknown(key, "key", names))
        require(value != "", f"{key} is empty: give it a value, or remove it")
        name = names[key]
        hint = hints[name]
        section: Any = next(filter(is_dataclass, (hint, *typing.get_args(hint))), None)
        if name.endswith("precision") and isinstance(value, str):
            value = SHORT_PRECISIONS.get(value, value)
        parsed[name] = check_type(value, hint, key) if section is None else _parse(section, value, f"{key}.")
    return kind(**parsed)


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text in plain values with its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, key)


def _with_home(config: Config) -> Config:
    """Replace `~` in paths by the user's folder; a shell leaves it as it is inside KEY=VALUE."""

    def expanded(path: str | None, key: str) -> str | None:
        return None if path is None else str(expand_path(path, f"{key}="))

    data = config.data
    if data.source == "files":
        paths = {name: expanded(getattr(data, name), f"data.{name}") for name in ("path", "validation_path")}
        for name, path in paths.items():  # which a run's configuration has in full
            check_name(os.path.realpath(path or ""), f"data.{name}=")
        data = replace(data, **paths)
    folders = {name: expanded(getattr(config, name), name) for name in ("results_dir", "cache_dir")}
    return replace(config, data=data, **folders)


def to_plain(config: Config) -> dict[str, Any]:
    """Turn a configuration back into plain values under the keys that people type."""
    values = asdict(config)
    del values["search"]
    for section in ("checkpoint", "task"):
        if values[section] is None:
            del values[section]
    for key, name in FIELD_OF_KEY.items():
        section, option = key.split(".")
        values[section][option] = values[section].pop(name)
    values["train"]["betas"] = list(values["train"]["betas"])
    return values


def warn_unused(configs: Sequence[Config], keys: Sequence[str]) -> None:
    """Say which of the keys that a command names none of its runs reads."""
    unused = list(map(unused_keys, configs))
    for key in dict.fromkeys(keys):
        if all(key in of_run for of_run in unused):
            say(f"warning: {key} has no effect with {unused[0][key]}")


def unused_keys(config: Config) -> dict[str, str]:
    """Return the keys that a run does not read, each with what makes it so."""
    unused = {}
    for decided_by, readers in READ_WITH.items():
        section, _, name = decided_by.partition(".")
        value = getattr(getattr(config, section), name)
        for values, keys in readers.items():
            if value not in values.split():
                why = f"{decided_by}={value}: it is for {' or '.join(values.split())}"
                unused |= dict.fromkeys(keys.split(), why)
    if config.eval.per_position:
        unused.pop("eval.tokens", None)
    if config.train.steps is not None:
        unused["train.tokens"] = f"train.steps={config.train.steps}"
    if config.data.validation_path is not None:
        unused["data.validation_fraction"] = "data.validation_path"
    return unused
