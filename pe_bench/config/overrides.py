"""The overrides of a command: one override of Hydra's grammar, and what Hydra never gets to see."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from pe_bench.config.groups import GROUPS, MAY_BE_NONE, ONE_OF_EACH, SEARCH_PATH, find_name, names_in
from pe_bench.config.parse import plain_value
from pe_bench.encodings.signatures import require_class
from pe_bench.errors import UserError, require

PREFIXES = "+~"
PLAIN = re.compile(r"[A-Za-z_./][\w./:@+-]*", re.ASCII)
NOT_TEXT = ("null", "true", "false", "nan", "inf")  # what Hydra reads plain text as


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


def parse_overrides(texts: Iterable[str]) -> list[Override]:
    return [parse_override(text) for text in texts]


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
    """Yield the overrides that set a key to a value, or each key of a group to one of a mapping's."""
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
        return option if option.prefix or _has(encoding, option.key) else None
    modifiers = [f"encoding.modifiers.{modifier}" for modifier in encoding.get("modifiers") or {}]
    # What the name stands for comes first: `window=20` is the window's.
    parts = sorted(["encoding", *modifiers], key=lambda part: part != f"encoding.modifiers.{name}")
    keys = [f"{part}.{option.key}" for part in parts]
    return next((replace(option, key=key) for key in keys if _has(encoding, key)), None)


def _has(encoding: Mapping[str, Any], key: str) -> bool:
    value: Any = {"encoding": encoding}
    for step in key.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return False
        value = value[step]
    return True


EXAMPLES = {
    "encoding": "rope",
    "model": "small",
    "data": "stdlib",
    "task": "majority",
    "tokenizer": "bytes",
    "experiment": "quick",
    "modifier": "logn",
}
# A value that is names alone; a pattern, a quoted text and the like are Hydra's to read.
NAME = r"(?:[\w.+-]+|[\w.+/~ -]+:\w+)"
NAMES = re.compile(rf"\[?{NAME}(,{NAME})*,?\]?", re.ASCII)
KEY = re.compile(r"[A-Za-z_][\w$/@.:-]*", re.ASCII)


def check_overrides(overrides: Sequence[str], search: Sequence[Path] = ()) -> None:
    """Refuse what Hydra would take, or would refuse at length. Raises `UserError`."""
    parsed = parse_overrides(overrides)
    for before, text, override in zip(["", *overrides], overrides, parsed, strict=False):
        require(
            not before.endswith(",") or override.value is not None,
            f"'{before} {text}': no space is allowed after the comma",
        )
        _check_form(text, override, search)
    values = {override.key: override.value or "" for override in parsed}
    if "train.steps" in values and "train.tokens" in values:
        raise UserError("train.steps and train.tokens both say how long to train: give one of them")
    for group in GROUPS:
        if values.get(group, "").startswith("{"):
            raise UserError(f"{group}={values[group]} is not a name: say {group}=NAME, and {group}.KEY=VALUE")
    for group in ONE_OF_EACH:
        if values.get(group, "").startswith("["):
            raise UserError(
                f"{group}={values[group]}: a run has one {group}; say -m {group}={values[group].strip('[]')} "
                "for a run with each, or modifier=[NAME] for something on top of an encoding"
            )


def _check_form(text: str, override: Override, search: Sequence[Path]) -> None:
    if override.key in GROUPS and not override.value and override.prefix != "~":
        group = override.key
        example = f"[{EXAMPLES[group]}]" if group == "modifier" else EXAMPLES[group]
        raise UserError(f"'{text}' has no value: say {group}=NAME, such as {group}={example}")
    if override.key == "encoding":
        for name in (override.value or "").split(","):
            require_class(name, search)
    elif override.key == "modifier" and ":" in (override.value or ""):
        raise UserError(
            f"{text} is a class: name it in a file FOLDER/modifier/NAME.yaml with 'class: {override.value}', "
            "and say modifier=NAME --config-dir FOLDER"
        )
    if KEY.fullmatch(override.key) and (override.value is not None or override.prefix == "~"):
        return
    group = next((group for group in GROUPS if text in names_in(group, search)), None)
    if group is not None:
        value = f"[{text}]" if group == "modifier" else text
        raise UserError(f"'{text}' cannot be read: say {group}={value}")
    raise UserError(f"'{text}' cannot be read: say KEY=VALUE, such as train.lr=0.001")


def with_file_names(overrides: Sequence[str], search: Sequence[Path] = ()) -> list[str]:
    """Replace every name of a group by that of its file. Raises `UserError` for an unknown name."""
    parsed = parse_overrides(overrides)
    if any(override.key == SEARCH_PATH for override in parsed):
        return list(overrides)  # Hydra alone knows what lies there
    return [str(_with_file_names(override, search)) for override in parsed]


def _with_file_names(override: Override, search: Sequence[Path]) -> Override:
    group, value = override.key, override.value
    if group not in GROUPS or value is None or not NAMES.fullmatch(value):
        return override
    if group in MAY_BE_NONE and value == "null":
        return override
    parts = re.split(r"([][,])", value)  # names, and the commas and brackets between
    names = [part if part in ("", *"[],") else find_name(group, part, search) for part in parts]
    return replace(override, value="".join(names))


def for_hydra(overrides: Sequence[str], search: Sequence[Path] = ()) -> list[str]:
    """Return overrides as Hydra takes them: with the names of files, and nested encodings as texts.

    Raises `UserError` for an unknown name.
    """
    return [str(_with_nested_as_text(parse_override(text))) for text in with_file_names(overrides, search)]


def _with_nested_as_text(override: Override) -> Override:
    if not (override.section == "encoding" and (override.value or "").startswith("{")):
        return override
    values = values_of(override)
    if not values or not all(isinstance(value, dict) and "name" in value for value in values):
        return override
    # Hydra would merge a mapping with the one that is there: as a text it takes its place.
    return replace(override, value=",".join(quote(_as_text(value)) for value in values))


def _as_text(value: Mapping[str, Any]) -> str:
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=sys.maxsize).strip()


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
