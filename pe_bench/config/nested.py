"""Options that hold another encoding: `encoding.global={name: p_rope, fraction: 0.25}`.

A file names it by `name`, or by an entry `/encoding@global: p_rope` of its defaults; an override does so by a
mapping with a `name`, which replaces what was there. Whatever it leaves out is that of the file of this name.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from pe_bench.config.groups import find_name, with_file_names
from pe_bench.config.override import Override, parse_override, quote
from pe_bench.config.unknown_keys import unknown_key
from pe_bench.errors import UserError

Compose = Callable[[Sequence[str]], dict[str, Any]]  # from overrides to an encoding, unresolved


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


def complete_nested(
    encoding: Mapping[str, Any], compose: Compose, search: Sequence[Path], place: str = "encoding"
) -> dict[str, Any]:
    """Return an encoding, as it was composed, whose nested ones have all of their options.

    Raises `UserError` for a name or an option that is unknown.
    """
    return {
        option: _completed(value, compose, search, f"{place}.{option}") for option, value in encoding.items()
    }


def _completed(value: Any, compose: Compose, search: Sequence[Path], place: str) -> Any:
    if isinstance(value, str) and value.startswith("{"):
        value = yaml.safe_load(value)
    if not isinstance(value, dict) or "name" not in value:
        return value
    given = {key: inner for key, inner in value.items() if key not in ("name", "modifiers")}
    if "class" not in value:
        name = find_name("encoding", str(value["name"]), search)
        modifiers = value.get("modifiers") or {}
        if not isinstance(modifiers, dict):
            raise UserError(f"{place}.modifiers must be a mapping such as {{logn: {{}}}}")
        chosen = [f"modifier=[{','.join(modifiers)}]"] if modifiers else []
        value = compose([f"encoding={name}", *chosen])
        _refuse_unknown(given, value, place)
        value = {**value, **given}
        for modifier, options in modifiers.items():
            modifier = find_name("modifier", modifier, search)
            _refuse_unknown(options or {}, value["modifiers"][modifier], f"{place}.modifiers.{modifier}")
            value["modifiers"][modifier] |= options or {}
    return complete_nested(value, compose, search, place)


def _refuse_unknown(given: Mapping[str, Any], known: Mapping[str, Any], place: str) -> None:
    for option in given:
        if option not in known:
            values: Any = known
            for key in reversed(place.split(".")):
                values = {key: values}
            raise unknown_key(f"{place}.{option}", values)


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
