"""The overrides of a command: KEY=VALUE in Hydra's grammar, and Hydra's errors as one line with a way out."""

import re
import shlex
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from pe_bench.config.groups import GROUPS, MAY_BE_NONE, SEARCH_PATH, config_dir, find_name, names_in
from pe_bench.config.schema import FIELD_OF_KEY, SECTIONS
from pe_bench.encodings.signatures import require_class
from pe_bench.errors import UserError, first_line, require
from pe_bench.values import close_to, plain_value, unknown

CONFIG = "train"  # the file that every configuration is composed from
LAUNCHER = "hydra/launcher"
EXTRA_OF_LAUNCHER = {"joblib": "joblib", "submitit_local": "slurm", "submitit_slurm": "slurm", "ray": "ray"}
NOT_OPTIONS = ("name", "class", "defaults", "derived", "chosen", "modifiers")  # keys of an encoding
PREFIXES = "+~"
KEY = re.compile(r"[A-Za-z_][\w$/@.:-]*", re.ASCII)
PLAIN = re.compile(r"[A-Za-z_./][\w./:@+-]*", re.ASCII)
NOT_TEXT = ("null", "true", "false", "nan", "inf")  # what Hydra reads plain text as
# A value that is names alone; a pattern, a quoted text and the like are Hydra's to read.
NAME = r"(?:[\w.+-]+|[\w.+/~ -]+:\w+)"
NAMES = re.compile(rf"\[?{NAME}(,{NAME})*,?\]?", re.ASCII)
REFUSED_KEY = re.compile(r"Could not override '(.*)'")  # Hydra's words


@dataclass(frozen=True)
class Override:
    """An override as it was typed; `~KEY` and text that is no override have no value."""

    prefix: str  # "", "+", "++" or "~"
    key: str
    value: str | None

    def __str__(self) -> str:
        return f"{self.prefix}{self.key}" + ("" if self.value is None else f"={self.value}")

    @property
    def section(self) -> str:
        """`train` of `train.length=128`."""
        return self.key.partition(".")[0]


def parse_override(text: str) -> Override:
    bare = text.lstrip(PREFIXES)
    key, equals, value = bare.partition("=")
    return Override(text[: len(text) - len(bare)], key, value if equals else None)


def quote(value: Any) -> str:
    """Write a plain value in Hydra's grammar; in a text nothing has a meaning, not even `${`."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{quote(key)}:{quote(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(map(quote, value)) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if not isinstance(value, str):
        return repr(value)
    if PLAIN.fullmatch(value) and value.lower() not in NOT_TEXT:
        return value
    text = re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", value)
    # A backslash stands for itself, but before a quote.
    escaped = re.sub(r'(\\*)("|\Z)', lambda match: match[1] * 2 + ('\\"' if match[2] else ""), text)
    return f'"{escaped}"'


def overrides_of(key: str, value: Any) -> Iterator[str]:
    """Yield the override that sets a key to a value, or those that set the keys of a group to a mapping."""
    if isinstance(value, Mapping):
        message = f"{key}={{}} names no key and changes nothing: leave it out, or name a key in it"
        require(bool(value), message)
        for name, inner in value.items():
            yield from overrides_of(f"{key}.{name}", inner)
    else:
        yield f"{key}={quote(plain_value(value))}"


def in_full(name: str, encoding: Mapping[str, Any], option: Override) -> Override | None:
    """Return the option by its whole key, of the encoding `name` or a modifier; None if neither has it."""
    if "." in option.key:
        return option if option.prefix or option.key in _flatten({"encoding": encoding}) else None
    modifiers = [f"encoding.modifiers.{modifier}" for modifier in encoding.get("modifiers") or {}]
    # What the name stands for comes first: `window=20` is the window's.
    parts = sorted(["encoding", *modifiers], key=lambda part: part != f"encoding.modifiers.{name}")
    keys, there = [f"{part}.{option.key}" for part in parts], set(_flatten({"encoding": encoding}))
    return next((replace(option, key=key) for key in keys if key in there), None)


def values_of(override: Override) -> list[Any]:
    """Return the values of an override, several for a sweep; none where Hydra cannot read it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Transformer
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(str(override))
    except HydraException:
        return []
    if parsed.is_sweep_override():
        return list(parsed.sweep_iterator(Transformer.identity))
    return [parsed.value()]


def check_overrides(overrides: Sequence[str], search: Sequence[Path] = ()) -> None:
    """Raise `UserError` for what Hydra would take, or would refuse at length."""
    parsed = [parse_override(text) for text in overrides]
    for text, override in zip(overrides, parsed, strict=True):
        group, value = override.key, override.value
        is_read = KEY.fullmatch(group) and (value is not None or override.prefix == "~")
        if not is_read or (group in GROUPS and value == ""):
            of = next((each for each in GROUPS if text in names_in(each, search)), None)
            way = f"{of}={f'[{text}]' if of == 'modifier' else text}" if of else "KEY=VALUE"
            if group in GROUPS:
                way = f"{group}=NAME, one of `pe-bench list {group.removesuffix('s')}s`"
            raise UserError(f"'{text}' cannot be read: say {way}")
        if group in GROUPS and (value or "").startswith("{" if group == "modifier" else ("[", "{")):
            names = (value or "").strip("[]")
            raise UserError(
                f"{text}: a run has one {group}; say {group}=NAME, -m {group}={names} for a run with "
                "each, or modifier=[NAME] for something on top of an encoding"
            )
        for name in (value or "").split(",") if group == "encoding" else ():
            require_class(name, search)
    keys = [override.key for override in parsed]
    both = "train.steps" in keys and "train.tokens" in keys
    require(not both, "train.steps and train.tokens both say how long to train: give one of them")


def for_hydra(overrides: Sequence[str], search: Sequence[Path] = ()) -> list[str]:
    """Return overrides as Hydra takes them: with the names of files, and nested encodings as texts.

    Raises `UserError` for an unknown name.
    """
    parsed = [parse_override(text) for text in overrides]
    if not any(override.key == SEARCH_PATH for override in parsed):  # Hydra alone knows what lies there
        parsed = [_with_file_names(override, search) for override in parsed]
    return [str(_with_nested_as_text(override)) for override in parsed]


def _with_file_names(override: Override, search: Sequence[Path]) -> Override:
    group, value = override.key, override.value
    if group not in GROUPS or value is None or not NAMES.fullmatch(value):
        return override
    if group in MAY_BE_NONE and value == "null":
        return override
    parts = re.split(r"([][,])", value)  # names, and the commas and brackets between
    names = [part if part in ("", *"[],") else find_name(group, part, search) for part in parts]
    return replace(override, value="".join(names))


def _with_nested_as_text(override: Override) -> Override:
    if not (override.section == "encoding" and (override.value or "").startswith("{")):
        return override
    values = values_of(override)
    if not values or not all(isinstance(value, dict) and "name" in value for value in values):
        return override
    # Hydra would merge a mapping with the one that is there: as a text it takes its place.
    flow = {"default_flow_style": True, "sort_keys": False, "width": sys.maxsize}
    texts = [yaml.safe_dump(value, **flow).strip() for value in values]
    return replace(override, value=",".join(map(quote, texts)))


def search_override(search: Sequence[Path]) -> list[str]:
    """Return the override that lets Hydra find files in a person's own folders, or none without folders."""
    files = [f"file://{folder.resolve()}" for folder in search]
    return [f"{SEARCH_PATH}={quote(files)}"] if files else []


# Hydra's errors


@contextmanager
def explain_hydra_errors(
    overrides: Sequence[str], search: Sequence[Path] = (), is_sweep: bool = False
) -> Iterator[None]:
    """Turn Hydra's and OmegaConf's errors into a `UserError` of one line."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except UserError:
        raise
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise cause(error) or _explain(error, overrides, search, is_sweep) from error
    except yaml.YAMLError as error:
        raise UserError(f"a YAML file cannot be read: {' '.join(str(error).split())}") from error


@contextmanager
def name_job_in_error(overrides: Sequence[str]) -> Iterator[None]:
    """Name the job of a sweep in its error, unless the error is about one key, which it names."""
    try:
        yield
    except UserError as error:
        if error.key:
            raise
        raise UserError(f"{error} (the job {' '.join(overrides)})") from error


def cause(error: BaseException | None) -> UserError | None:
    """Return the `UserError` that an error of Hydra's was raised from, where there is one."""
    while error is not None and not isinstance(error, UserError):
        error = error.__cause__ or error.__context__
    return error


def _explain(error: Exception, overrides: Sequence[str], search: Sequence[Path], is_sweep: bool) -> UserError:
    parsed = [parse_override(text) for text in overrides]
    unread = getattr(error, "override", None)
    if isinstance(unread, str):
        override = parse_override(unread)
        quoted = shlex.quote(f'{override.prefix}{override.key}="{override.value}"')
        return UserError(
            f"'{unread}' cannot be read: say KEY=VALUE with quotes around the value, such as {quoted}"
        )
    for text, override in zip(overrides, parsed, strict=True):
        if not is_sweep and "," in (override.value or "") and len(values_of(override)) > 1:
            may_be_list = (
                takes_list(override.key) or override.key == "modifier" or override.key.startswith("encoding.")
            )
            is_list = f"'{override.key}=[{override.value}]' is a list, and " if may_be_list else ""
            return UserError(f"{text} is several values: {is_list}-m {text} makes a run for each")
    missing = getattr(error, "missing_cfg_file", None)
    if missing:
        group, _, name = str(missing).rpartition("/")
        if group == LAUNCHER and name in EXTRA_OF_LAUNCHER:
            extra = EXTRA_OF_LAUNCHER[name]
            return UserError(f"{LAUNCHER}={name} is not installed: pip install 'pe-bench[{extra}]'")
        return UserError(unknown(name, group or "configuration", getattr(error, "options", None) or []))
    refused = REFUSED_KEY.match(str(error))
    key = refused[1] if refused else ""
    return unknown_key(key, _unresolved(parsed, search)) if key else UserError(first_line(error))


def _unresolved(overrides: Sequence[Override], search: Sequence[Path]) -> dict[str, Any]:
    """Compose the configuration with the groups that `overrides` choose and the keys that they add."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    chosen = [
        str(override)
        for override in overrides
        if (override.key in (*GROUPS, LAUNCHER) and "," not in (override.value or ""))
        or override.key == SEARCH_PATH
        or override.prefix == "+"
    ]
    for texts in (chosen, []):
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            try:
                composed = compose(CONFIG, [*texts, *search_override(search)], return_hydra_config=True)
            except (HydraException, ValueError):
                continue
        values: Any = OmegaConf.to_container(composed, resolve=False)
        return values
    return {}


def unknown_key(key: str, values: Mapping[str, Any]) -> UserError:
    """Return the error for a key that is none of `values`, a configuration as it was composed."""
    section, _, option = key.rpartition(".")
    part: Any = values
    for name in section.split(".") if section else ():
        part = part.get(name) if isinstance(part, Mapping) else None
    if isinstance(part, Mapping) and "class" in part:  # an encoding or a modifier
        options = options_of(part)
        close = close_to(option, options) or close_to(option, part)
        names = ", ".join(f"{section}.{name}" for name in options) or "no options"
        hint = (
            f"did you mean '{section}.{close[0]}'?" if close else f"{part.get('name', section)} has {names}"
        )
        return UserError(f"unknown key '{key}': {hint}", key)
    in_hydra = key.startswith("hydra.")
    keys = [name for name in _flatten(values) if name.startswith("hydra") is in_hydra]
    keys = [name for name in (*keys, "modifier", "experiment") if "." in name or "." not in key]
    return UserError(unknown(key, "key", keys), key)


def options_of(part: Mapping[str, Any]) -> list[str]:
    """Return the options of a composed encoding or modifier, without those that the model decides."""
    return [
        key for key, value in part.items() if key not in NOT_OPTIONS and not str(value).startswith("${model.")
    ]


def takes_list(key: str) -> bool:
    """Return whether a key of a section takes a list of values."""
    section, _, name = key.partition(".")
    if section not in SECTIONS:
        return False
    hint: Any = typing.get_type_hints(SECTIONS[section]).get(FIELD_OF_KEY.get(key, name))
    return any(typing.get_origin(kind) in (list, tuple) for kind in (hint, *typing.get_args(hint)))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
