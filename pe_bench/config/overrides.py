"""The overrides of a command: KEY=VALUE in Hydra's grammar, and one-line errors in place of Hydra's."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from pe_bench.config.groups import (
    GROUPS,
    OPTIONAL_GROUPS,
    find_name,
    keys_in,
    names_in,
    option_keys,
    plain_keys,
)
from pe_bench.errors import UserError, first_line, how_to_install, require
from pe_bench.values import plain_value, read_count, unknown

ROOT_CONFIG = "train"  # the file at the root of every configuration
EXTRA_OF_LAUNCHER = {"joblib": "joblib", "submitit_local": "slurm", "submitit_slurm": "slurm", "ray": "ray"}
OVERRIDE_PREFIXES = "+~"
KEY_NAME = re.compile(r"[A-Za-z_][\w$/@.:-]*", re.ASCII)
PLAIN_TEXT = re.compile(r"[A-Za-z_./][\w./:@+-]*", re.ASCII)
NOT_TEXT_WORDS = ("null", "true", "false", "nan", "inf")  # plain text that Hydra reads as another type
# Groups whose key `name` only repeats the name of the chosen file; `tokenizer.name` has an effect.
GROUPS_WITH_NAMES = ("encoding", "model", "data", "task")
# A value of names only; Hydra reads patterns, quoted texts and other values.
NAME_VALUE = r"(?:[\w.+-]+|[\w.+/~ -]+(?::\w+|\.py))"
LIST_KEYS = ("eval.lengths", "train.betas")  # the keys whose value is a list
NUMBERS_VALUE = re.compile(r"[\d.,]+")
COUNT_KEY = re.compile(r"(train|eval|data)\.((\w+_)?tokens)")
SHORT_COUNT = re.compile(r"(?<![\w.])[\"']?(\d+(?:\.\d+)?[kM])[\"']?(?![\w.])")
NAMES_VALUE = re.compile(rf"\[?{NAME_VALUE}(,{NAME_VALUE})*,?\]?", re.ASCII)
# Hydra's messages
REFUSED_KEY_MESSAGE = re.compile(r"Could not override '(.*)'")
NOT_DELETED_MESSAGE = re.compile(r"Could not delete .*?'(.*?)'")
SECOND_FILE_MESSAGE = re.compile(
    r"(\S+) appears more than once|Multiple values for (\S+)\.|force-add of .*'\+\+(.*?)="
)
SEVERAL_VALUES_MESSAGE = re.compile(r"Ambiguous value for argument '(.*)'")


@dataclass(frozen=True)
class Override:
    """An override as typed; `~KEY` and text that is no override have no value."""

    prefix: str  # "", "+", "++" or "~"
    key: str
    value: str | None

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.prefix}{self.key}"
        return f"{self.prefix}{self.key}={self.value}"

    @property
    def section(self) -> str:
        """The section of the key: `train` of `train.length=128`."""
        return self.key.partition(".")[0]


def parse_override(text: str) -> Override:
    """Split a text into prefix, key and value, without checks: any text has these parts."""
    bare = text.lstrip(OVERRIDE_PREFIXES)
    key, equals, value = bare.partition("=")
    prefix = text.removesuffix(bare)
    return Override(prefix, key, value if equals else None)


def quote(value: Any) -> str:
    """Write a plain value in Hydra's grammar; texts are quoted, so that not even `${` has a meaning."""
    if isinstance(value, Mapping):
        entries = [f"{quote(key)}:{quote(inner)}" for key, inner in value.items()]
        return "{" + ",".join(entries) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(map(quote, value)) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if not isinstance(value, str):
        return repr(value)
    if PLAIN_TEXT.fullmatch(value) and value.lower() not in NOT_TEXT_WORDS:
        return value
    text = escape_interpolations(value)
    # Backslashes before a quote, or at the end before the closing quote, are doubled.
    doubled = re.sub(r'(\\*)("|\Z)', r"\1\1\2", text)
    escaped = doubled.replace('"', '\\"')
    return f'"{escaped}"'


def escape_interpolations(value: Any) -> Any:
    """Return a plain value with `${` escaped in its texts, so that OmegaConf interpolates nothing."""
    if isinstance(value, Mapping):
        return {key: escape_interpolations(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [escape_interpolations(inner) for inner in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", value)
    return value


def overrides_of(key: str, value: Any, search: Sequence[Path] = ()) -> Iterator[str]:
    """Yield the override KEY=VALUE, or an override for each key of a mapping. Raises `UserError` for {}.

    The name of a group's file in a mapping chooses the file: `{"name": "alibi"}` for `encoding`.
    """
    if isinstance(value, Mapping):
        require(
            bool(value), f"{key} is an empty dictionary, which sets nothing: leave it out, or say {key}.KEY"
        )
        for name, inner in value.items():
            is_choice = name == "name" and key in GROUPS_WITH_NAMES and _names_file(key, str(inner), search)
            yield from overrides_of(key if is_choice else f"{key}.{name}", inner, search)
    else:
        yield f"{key}={quote(plain_value(value))}"


def _names_file(group: str, text: str, search: Sequence[Path]) -> bool:
    """Return whether a text is the name of a group's file, or an alias, in any spelling."""
    try:
        find_name(group, text, search)
    except UserError:
        return False
    return True


def with_full_key(name: str, encoding: Mapping[str, Any], option: Override) -> Override | None:
    """Return an option such as `base=500` with its full key, `encoding.base`, as `full_key` finds it.

    Return None if neither the encoding `name` nor a modifier of it has the option. A full key with a prefix
    such as `+` is returned unchanged.
    """
    if "." in option.key and option.prefix:
        return option
    key = full_key(name, encoding, option.key)
    return None if key is None else replace(option, key=key)


def full_key(name: str, encoding: Mapping[str, Any], key: str) -> str | None:
    """Return the full key of an option, such as `encoding.base` for `base`; None without such an option.

    encoding: the values of the encoding `name` with its modifiers, in which the option is looked up.
    """
    keys = set(keys_in(encoding, "encoding."))
    if "." in key:
        return key if key in keys else None
    modifiers = [f"encoding.modifiers.{modifier}" for modifier in encoding.get("modifiers") or {}]
    # The part of this name comes first: `window=20` of `window` is an option of the modifier.
    own_part = f"encoding.modifiers.{name}"
    parts = sorted(["encoding", *modifiers], key=lambda part: part != own_part)
    full_keys = [f"{part}.{key}" for part in parts]
    return next(filter(keys.__contains__, full_keys), None)


def read_option(text: str) -> tuple[str, Any]:
    """Return the key and the value of an option such as `factor=4`. Raises `UserError`."""
    option = _checked_override(text, ())
    with explain_hydra_errors([text]):
        values = _parsed_values(option)
    several = f"{option.key}={option.value}"
    message = f"{several} is several values: '{option.key}=[{option.value}]' is a list"
    require(len(values) == 1, message)
    return option.key, values[0]


def values_of(override: Override) -> list[Any]:
    """Return the values of an override, several for a sweep; empty if Hydra cannot read it."""
    from hydra.errors import HydraException

    try:
        return _parsed_values(override)
    except HydraException:
        return []


def _parsed_values(override: Override) -> list[Any]:
    """Return the values of an override, several for a sweep. Raises `HydraException`."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Transformer

    [parsed] = OverridesParser.create().parse_overrides([str(override)])  # errors name the override
    if parsed.is_sweep_override():
        return list(parsed.sweep_iterator(Transformer.identity))
    return [parsed.value()]


def for_hydra(overrides: Sequence[str], search: Sequence[Path] = ()) -> list[str]:
    """Return overrides in the form that Hydra reads: aliases as names of files, nested encodings as texts.

    Raises `UserError` for mistakes that Hydra would accept, or report in many lines.
    """
    result = []
    for text in overrides:
        override = _checked_override(text, search)
        value = override.value or ""
        if override.section == "encoding" and value.startswith("{"):
            override = _with_nested_as_text(override)
        result.append(str(override))
    return result


def _checked_override(text: str, search: Sequence[Path]) -> Override:
    """Return the override of a text, with names of files in place of aliases, and counts as numbers.

    Raises `UserError` for text that is no override, for several encodings of one run, for an unknown name and
    for a list without brackets.
    """
    override = _with_counts(parse_override(text))
    group = override.key
    value = override.value or ""
    lacks_value = override.value is None and override.prefix != "~"
    if lacks_value or not KEY_NAME.fullmatch(group):
        groups = [each for each in GROUPS if text in names_in(each, search)]
        way_out = f"{groups[0]}={text}" if groups else "KEY=VALUE, without spaces around ="
        raise UserError(f"'{text}' cannot be read: write {way_out}")
    is_several = group in GROUPS and group != "modifier" and value.startswith("[")
    message = f"{text}: a run has one {group}; say {group}=NAME, or -m {group}=NAME,NAME for several runs"
    require(not is_several, message)
    are_numbers = "," in value and NUMBERS_VALUE.fullmatch(value) is not None
    way_out = f"write '{group}=[{value}]'"
    require(group not in LIST_KEYS or not are_numbers, f"{text}: {group} is a list: {way_out}")
    if override.section in GROUPS_WITH_NAMES and override.key == f"{override.section}.name":
        names = re.split("[][,]", value)
        are_files = (_names_file(override.section, name.strip("'\""), search) for name in names)
        message = f"{text} changes only a name in tables: say {override.section}={value}"
        require(not any(are_files), f"{message}, or give a name of your own")
    is_none = group in OPTIONAL_GROUPS and value == "null"
    if group not in GROUPS or is_none or not NAMES_VALUE.fullmatch(value):
        return override
    found = re.sub(r"[^][,]+", lambda match: find_name(group, match[0], search), value)
    return replace(override, value=found)


def _with_counts(override: Override) -> Override:
    """Write out the value of a key that counts tokens, 128k as 128000; other overrides stay."""
    if override.value is None or not COUNT_KEY.fullmatch(override.key):
        return override
    counted = SHORT_COUNT.sub(lambda match: str(read_count(match[1])), override.value)
    return replace(override, value=counted)


def _with_nested_as_text(override: Override) -> Override:
    """Write nested encodings as texts: Hydra would merge a mapping with the mapping that it replaces."""
    values = values_of(override)
    encodings = [value for value in values if isinstance(value, dict) and "name" in value]
    if not values or len(encodings) < len(values):
        return override
    flow = {"default_flow_style": True, "sort_keys": False, "width": sys.maxsize}
    texts = [yaml.safe_dump(value, **flow).strip() for value in values]
    return replace(override, value=",".join(map(quote, texts)))


@contextmanager
def explain_hydra_errors(overrides: Sequence[str], search: Sequence[Path] = ()) -> Iterator[None]:
    """Turn errors of Hydra and OmegaConf into a one-line `UserError`."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except UserError:
        raise
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise user_error_behind(error) or _explained_error(error, overrides, search) from error
    except yaml.YAMLError as error:
        raise UserError(f"a YAML file cannot be read: {' '.join(str(error).split())}") from error


def user_error_behind(error: BaseException | None) -> UserError | None:
    """Return the `UserError` in the chain of causes of an error of Hydra; None without one."""
    while error is not None and not isinstance(error, UserError):
        error = error.__cause__ or error.__context__
    return error


def _explained_error(error: Exception, overrides: Sequence[str], search: Sequence[Path]) -> UserError:
    """Return a one-line error for an error of Hydra or OmegaConf that these overrides raised."""
    text = str(error)
    if unread := getattr(error, "override", None):
        key = parse_override(str(unread)).key
        return UserError(f"'{unread}' cannot be read: put quotes around the value, as in '{key}=\"VALUE\"'")
    if several := SEVERAL_VALUES_MESSAGE.match(text):
        key, _, values = several[1].partition("=")
        has_one_name = key in GROUPS and key != "modifier"
        as_list = "" if has_one_name else f"'{key}=[{values}]' is a list, and "
        return UserError(f"{several[1]} is several values: {as_list}-m {several[1]} makes a run for each")
    if not_deleted := NOT_DELETED_MESSAGE.match(text):
        return UserError(f"~{not_deleted[1]} takes nothing out of the configuration: leave it out")
    if second := SECOND_FILE_MESSAGE.match(text):
        key = next(filter(None, second.groups()))
        added = [each.key for each in map(parse_override, overrides) if each.prefix.startswith("+")]
        if key in added:
            return UserError(f"+{key} would add a second {key}: say {key}=NAME, without +")
    if missing := getattr(error, "missing_cfg_file", None):
        group, _, name = str(missing).rpartition("/")
        if group == "hydra/launcher" and name in EXTRA_OF_LAUNCHER:
            extra = EXTRA_OF_LAUNCHER[name]
            return UserError(f"{group}={name} is not installed: {how_to_install(extra)}")
        names = getattr(error, "options", None) or []
        return UserError(unknown(name, group or "configuration", names))
    refused = REFUSED_KEY_MESSAGE.match(text)
    if refused and not refused[1].startswith("hydra."):
        known = [*plain_keys(), *option_keys(overrides, search)]
        return unknown_key(_unknown_key_in_mapping(refused[1], overrides, known), known)
    return UserError(first_line(error))


def _unknown_key_in_mapping(key: str, overrides: Sequence[str], known: Sequence[str]) -> str:
    """Return the unknown key in the mapping of the override of `key`, or else `key` itself.

    For `train={lrr: 3}`, Hydra refuses the known key `train` in place of `train.lrr`.
    """
    for override in map(parse_override, overrides):
        if override.key != key:
            continue
        for value in values_of(override):
            inner = keys_in(value, f"{key}.") if isinstance(value, Mapping) else ()
            unknown_keys = [name for name in inner if name not in known]
            if unknown_keys:
                return unknown_keys[0]
    return key


def unknown_key(key: str, keys: Iterable[str]) -> UserError:
    """Return the error for a key that is not among the known `keys`."""
    names = [*keys, *GROUPS]
    section, _, option = key.rpartition(".")
    pattern = re.compile(rf"encoding\.modifiers\.\w+\.{re.escape(option)}")
    modifier_options = list(filter(pattern.fullmatch, names))
    if section == "encoding" and modifier_options:
        meant = " or ".join(f"'{name}'" for name in modifier_options)
        return UserError(f"unknown key '{key}': a modifier has that option: did you mean {meant}?")
    has_options = any(name.startswith(f"{section}.") for name in names)
    if section.startswith("encoding") and not has_options:
        return UserError(f"unknown key '{key}': {section} has no options")
    return UserError(unknown(key, "key", names))
