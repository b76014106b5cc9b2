"""Options of an encoding in their short form: `base=500` for `encoding.base=500`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass


PREFIXES = "+~"


def key_of(override: str) -> str:
    return override.partition("=")[0].lstrip(PREFIXES)


def in_full(name: str, encoding: dict[str, Any], override: str) -> str:
    """The override with the whole key of the encoding's or a modifier's option; empty if neither has it."""
    key = key_of(override)
    if "." in key:
        return override if override[0] in PREFIXES or _has(encoding, key) else ""
    modifiers = [f"encoding.modifiers.{modifier}" for modifier in encoding.get("modifiers") or {}]
    # What the name stands for comes first: `window=20` is the window's.
    places = sorted(["encoding", *modifiers], key=lambda place: place != f"encoding.modifiers.{name}")
    found = [place for place in places if _has(encoding, f"{place}.{key}")]
    return in_section(found[0], override) if found else ""


def in_section(place: str, override: str) -> str:
    """`+base=500` in `encoding` as `+encoding.base=500`."""
    bare = override.lstrip(PREFIXES)
    return f"{override[: len(override) - len(bare)]}{place}.{bare}"


def _has(encoding: dict[str, Any], key: str) -> bool:
    value: Any = {"encoding": encoding}
    for step in key.split("."):
        if not isinstance(value, dict) or step not in value:
            return False
        value = value[step]
    return True
