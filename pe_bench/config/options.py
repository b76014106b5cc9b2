"""Options of an encoding in their short form: `base=500` for `encoding.base=500`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass


PREFIXES = "+~"


def key_of(word: str) -> str:
    return word.partition("=")[0].lstrip(PREFIXES)


def in_full(name: str, encoding: dict[str, Any], word: str) -> str:
    """The word with the whole key of the option, of the encoding or of a modifier; empty if it has none."""
    key = key_of(word)
    if "." in key:
        return word if word[0] in PREFIXES or _has(encoding, key) else ""
    modifiers = [f"encoding.modifiers.{modifier}" for modifier in encoding.get("modifiers") or {}]
    # What the name stands for comes first: `window=20` is the window's.
    places = sorted(["encoding", *modifiers], key=lambda place: place != f"encoding.modifiers.{name}")
    found = [place for place in places if _has(encoding, f"{place}.{key}")]
    return in_section(found[0], word) if found else ""


def in_section(place: str, word: str) -> str:
    """`+base=500` in `encoding` as `+encoding.base=500`."""
    bare = word.lstrip(PREFIXES)
    return f"{word[: len(word) - len(bare)]}{place}.{bare}"


def _has(encoding: dict[str, Any], key: str) -> bool:
    value: Any = {"encoding": encoding}
    for step in key.split("."):
        if not isinstance(value, dict) or step not in value:
            return False
        value = value[step]
    return True
