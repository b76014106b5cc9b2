"""One override of Hydra's grammar, `KEY=VALUE`: read in one place, and written in one way."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    text = re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", value)
    # A backslash stands for itself, but before a quote.
    escaped = re.sub(r'(\\*)("|\Z)', lambda found: found[1] * 2 + ('\\"' if found[2] else ""), text)
    return f'"{escaped}"'
