"""The groups of the configuration: where their YAML files are and the names they offer; a run's keys."""

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from pe_bench.encodings.signatures import require_class
from pe_bench.errors import UserError
from pe_bench.values import close_to, unknown

ONE_OF_EACH = ("encoding", "model", "data", "task", "tokenizer", "experiment")
GROUPS = (*ONE_OF_EACH, "modifier")
MAY_BE_NONE = ("task", "experiment")
OPTIONS_OF_GROUP = {"encoding": "encoding.", "modifier": "encoding.modifiers.", "task": "task."}
SEARCH_PATH = "hydra.searchpath"
ALSO = re.compile(r"\A# also: (.+)$", re.MULTILINE)
PAPER = re.compile(r"^# paper: (.+)$", re.MULTILINE)
DIRECTIVES = ("# also: ", "# paper: ", "# @package ")  # comments that are read by programs
HOW_TO_HAVE_NONE = {
    "modifier": " (modifier=[] for none)",
    **dict.fromkeys(MAY_BE_NONE, " (leave the key out for none)"),
}


def aliases() -> dict[str, str]:
    """Return the name of the file of each other name of an encoding."""
    names = {}
    for path in sorted((config_dir() / "encoding").glob("*.yaml")):
        also = ALSO.search(path.read_text(encoding="utf-8"))
        names |= dict.fromkeys(also[1].split(", ") if also else [], path.stem)
    return names


def find_name(group: str, typed: str, search: Sequence[Path] = ()) -> str:
    """Return the name of the file in `group` that was meant, also by an alias or in other letters (`RoPE`).

    `FILE.py:CLASS` and `module:CLASS` are names of encodings too. A file in a person's own folder comes
    before an alias. Raises `UserError` for an unknown name.
    """
    if group == "encoding":
        require_class(typed, search)
    names = names_in(group, search)
    if typed in names or (group == "encoding" and ":" in typed):
        return typed
    by_name = dict(zip(names, names, strict=True)) | (aliases() if group == "encoding" else {})
    folded = {_fold(name): first for name, first in by_name.items()}
    if typed in by_name or _fold(typed) in folded:
        return by_name.get(typed) or folded[_fold(typed)]
    if group == "encoding" and typed in names_in("task"):
        raise UserError(f"unknown encoding '{typed}': it is a task, so say task={typed}", key=group)
    offered = by_name if close_to(typed, by_name, 0.8) else names
    message = unknown(typed, group, offered) + HOW_TO_HAVE_NONE.get(group, "")
    if not search and not close_to(typed, offered):
        message += f"; FOLDER/{group}/{typed}.yaml of your own is found with --config-dir FOLDER"
    raise UserError(message, key=group)


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def config_dir() -> Path:
    """Return the folder of shipped YAML: inside the installed package, or beside it in a checkout."""
    installed = Path(__file__).parent / "yaml"
    checkout = Path(__file__).parents[2] / "configs"
    return installed if installed.is_dir() else checkout


def description(group: str, name: str) -> str:
    """Return the first sentence of the comment at the head of a shipped YAML file."""
    comment = " ".join(head_comment(config_dir() / group / f"{name}.yaml"))
    return re.split(r"(?<=\w)\. |\.$", comment, maxsplit=1)[0]


def head_comment(file: Path) -> list[str]:
    """Return the lines of the comment at the head of a YAML file, without those that programs read."""
    head = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    return [line.lstrip("# ") for line in head if not line.startswith(DIRECTIVES)]


def paper(name: str, group: str = "encoding") -> str:
    """Return the paper that a shipped file names; empty where it names none, or its class does."""
    named = PAPER.search((config_dir() / group / f"{name}.yaml").read_text(encoding="utf-8"))
    return named[1] if named else ""


def names_in(group: str, search: Sequence[Path] = ()) -> list[str]:
    """Return the names that a group offers, in the shipped folder and in the user's own."""
    folders = [config_dir(), *search]
    return sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})


def encoding_names(search: Sequence[Path] = ()) -> list[str]:
    """Return the name of every encoding: the shipped ones first, then those in a person's own folders."""
    shipped = names_in("encoding")
    return [*shipped, *(name for name in names_in("encoding", search) if name not in shipped)]


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
