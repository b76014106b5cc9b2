"""Options of an encoding in their short form: `base=500` for `encoding.base=500`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pe_bench.config.override import Override


def in_full(name: str, encoding: Mapping[str, Any], option: Override) -> Override | None:
    """Return the option by its whole key, of the encoding `name` or a modifier; None if neither has it."""
    if "." in option.key:
        return option if option.prefix or _has(encoding, option.key) else None
    modifiers = [f"encoding.modifiers.{modifier}" for modifier in encoding.get("modifiers") or {}]
    # What the name stands for comes first: `window=20` is the window's.
    places = sorted(["encoding", *modifiers], key=lambda place: place != f"encoding.modifiers.{name}")
    keys = [f"{place}.{option.key}" for place in places]
    return next((replace(option, key=key) for key in keys if _has(encoding, key)), None)


def _has(encoding: Mapping[str, Any], key: str) -> bool:
    value: Any = {"encoding": encoding}
    for step in key.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return False
        value = value[step]
    return True
