"""The keys of a run with their defaults and meanings, as the comments of train.yaml give them."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from pe_bench.config.groups import config_dir

LINE = re.compile(r"( *)(\w+): *([^#]*?)(?: +# (.*))?")
GROUP = re.compile(r" *- (\w+): (\S+)")
GROUP_MEANINGS = {
    "encoding": "the positional encoding: `pe-bench list encodings`",
    "modifier": "added on top of the encoding: `pe-bench list modifiers`",
    "model": "the size of the model: `pe-bench list models`",
    "data": "the text: `pe-bench list data`",
    "task": "examples with known answers in place of text: `pe-bench list tasks`",
    "tokenizer": "how text becomes tokens: `pe-bench list tokenizers`",
    "experiment": "several keys at once: `pe-bench list experiments`",
}


class Key(NamedTuple):
    """A key of the configuration."""

    name: str
    default: str
    meaning: str


def keys() -> list[Key]:
    """Read every key that a command can change, without those inside an encoding, a model or other groups."""
    return list(_keys((config_dir() / "train.yaml").read_text(encoding="utf-8")))


def _keys(text: str) -> Iterator[Key]:
    groups, _, settings = text.partition("\n\n")
    for match in map(GROUP.fullmatch, groups.splitlines()):
        if match and match[1] in GROUP_MEANINGS:
            yield Key(match[1], match[2], GROUP_MEANINGS[match[1]])
    section = ""
    for match in map(LINE.fullmatch, settings.splitlines()):
        if not match:
            continue
        indent, name, default, meaning = match.groups(default="")
        if not indent:
            section = "" if default else f"{name}."
        if default and section != "hydra.":
            yield Key(f"{section if indent else ''}{name}", default, meaning)
