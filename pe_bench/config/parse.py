"""Turn the plain values that Hydra composed into a typed configuration."""

import os
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from pe_bench.config.schema import (
    FIELD_OF_KEY,
    KEY_OF_FIELD,
    KEYS,
    NAME,
    SECTIONS,
    CheckpointConfig,
    Config,
    Precision,
    ScorePrecision,
)
from pe_bench.errors import UserError, require
from pe_bench.system.files import check_name, expand_path
from pe_bench.values import check_type, shown, unknown

SHORT_PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}


def parse_config(values: dict[str, Any], search: Sequence[Path] = ()) -> Config:
    """Turn plain values, as YAML gives them, into a checked `Config`, whose files lie in `search` too.

    Raises `UserError` for an unknown key, a value of the wrong type or one that cannot work.
    """
    _check_texts(values)
    sections = {**SECTIONS, "checkpoint": CheckpointConfig}
    parsed: dict[str, Any] = {}
    hints = typing.get_type_hints(Config)
    for key, value in values.items():
        if key in sections:
            parsed[key] = _parse_section(sections[key], value, key)
        elif key in KEYS:
            parsed[key] = _parse_value(value, hints[key], key)
        else:
            raise UserError(unknown(key, "key", KEYS))
    if "encoding" not in parsed:
        raise UserError("no encoding is named: say encoding=rope, or `pe-bench list encodings`")
    config = _with_home(Config(**parsed, search=tuple(search)))
    _check_part(config.encoding, "encoding")
    _check_name(config.encoding.get("name"), "encoding.name")
    config.check()
    return config


def to_plain(config: Config) -> dict[str, Any]:
    """Turn a configuration back into plain values under the keys that people type."""
    values = asdict(config)
    del values["search"]
    for section in ("checkpoint", "task"):
        if values[section] is None:
            del values[section]
    for key, field_name in FIELD_OF_KEY.items():
        section, name = key.split(".")
        values[section][name] = values[section].pop(field_name)
    values["train"]["betas"] = list(values["train"]["betas"])
    return values


def _parse_section(section: type[Any], values: Any, name: str) -> Any:
    hints = {
        key: hint for key, hint in typing.get_type_hints(section).items() if key in section.__match_args__
    }
    if not isinstance(values, dict):
        first = next(iter(hints))
        raise UserError(f"{name} is a group of keys and cannot be {shown(values)}: say {name}.{first}=VALUE")
    fields = {KEY_OF_FIELD.get(field_name, f"{name}.{field_name}"): field_name for field_name in hints}
    parsed = {}
    for key, value in values.items():
        full = f"{name}.{key}"
        if full not in fields:
            raise UserError(unknown(full, "key", fields))
        parsed[fields[full]] = _parse_value(value, hints[fields[full]], full)
    return section(**parsed)


def _check_texts(value: Any, key: str = "") -> None:
    """Raise `UserError` for a text in plain values that would damage the file of the configuration."""
    if isinstance(value, str):
        check_name(value, f"{key}=")
    elif isinstance(value, dict):
        for name, inner in value.items():
            _check_texts(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            _check_texts(inner, key)


def _check_part(part: dict[str, Any], key: str) -> None:
    """Raise `UserError` for a part of an encoding, or an encoding in an option, without a class."""
    specification = part.get("class")
    require(
        isinstance(specification, str) and specification != "",
        f"{key}.class must be text such as module:Class or file.py:Class, not {shown(specification)}: "
        f"name it in the YAML file of the {key.split('.')[0]}",
    )
    modifiers = part.get("modifiers") or {}
    require(isinstance(modifiers, dict), f"{key}.modifiers must name modifiers, not {shown(modifiers)}")
    for name, modifier in modifiers.items():
        _check_name(name, "a modifier's name")
        message = f"{key}.modifiers.{name} must hold a class, not {shown(modifier)}"
        require(isinstance(modifier, dict), message)
        _check_part(modifier, f"{key}.modifiers.{name}")
    for option, value in part.items():
        if option != "modifiers" and isinstance(value, dict) and "class" in value:
            _check_part(value, f"{key}.{option}")


def _check_name(name: Any, key: str) -> None:
    require(
        isinstance(name, str) and NAME.fullmatch(name) is not None,
        f"{key} must be letters, digits and the signs . + - _, not {shown(name)}: it names the run's folder",
    )


def _parse_value(value: Any, kind: Any, key: str) -> Any:
    require(value != "", f"{key} is empty: give it a value, or remove it")
    if kind in (Precision, ScorePrecision) and isinstance(value, str):
        value = SHORT_PRECISIONS.get(value, value)
    return check_type(value, kind, key)


def _with_home(config: Config) -> Config:
    """Replace `~` in paths by the user's folder; a shell leaves it as it is inside KEY=VALUE."""

    def expanded(path: str | None, key: str) -> str | None:
        return None if path is None else str(expand_path(path, f"{key}="))

    data = config.data
    if data.source == "files":
        paths = {name: expanded(getattr(data, name), f"data.{name}") for name in ("path", "validation_path")}
        data = replace(data, **paths)
        for name, path in paths.items():  # which a run's configuration has in full
            check_name(os.path.realpath(path or ""), f"data.{name}=")
    folders = {name: expanded(getattr(config, name), name) for name in ("results_dir", "cache_dir")}
    return replace(config, data=data, **folders)


def parse_lengths(text: str) -> list[int]:
    """Read `512,2048` as numbers. Raises `UserError` for anything but positive whole ones."""
    lengths = [length.strip() for length in text.split(",")]
    for length in lengths:
        require(
            length.isdecimal() and int(length) > 0,
            f"--lengths takes positive whole numbers, and '{length}' is not one",
        )
    return [int(length) for length in lengths]


def without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def listed(values: str | Path | Sequence[Any] | None) -> list[Any]:
    """Return values, or a single one, as a list; an empty list for None."""
    if values is None:
        return []
    return [values] if isinstance(values, str | Path) else [*values]


def plain_value(value: Any) -> Any:
    """Return a value as YAML has it: paths as text, numbers and arrays of NumPy as Python's.

    Raise `UserError` for what is neither a text, a number nor a list of these.
    """
    if isinstance(value, str | bool | None):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    is_list = isinstance(value, Iterable) and not isinstance(value, Mapping | bytes)
    require(is_list, f"{value!r} is no value of a key: give a text, a number or a list")
    return [plain_value(inner) for inner in value]
