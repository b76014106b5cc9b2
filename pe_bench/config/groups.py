"""The groups of the configuration: where their YAML files are and the names they offer; a run's keys."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from pe_bench.encodings.signatures import (
    MISSING,
    NOT_OPTIONS,
    SIZES,
    complete,
    options_of,
    read_part,
    without_class,
)
from pe_bench.errors import UserError, require
from pe_bench.values import unknown

GROUPS = ("encoding", "model", "data", "task", "tokenizer", "experiment", "modifier")
DEFAULT_ENCODING = "rope"  # of train.yaml
MAY_BE_NONE = ("task", "experiment")
OPTIONS_OF_GROUP = {"encoding": "encoding.", "modifier": "encoding.modifiers.", "task": "task."}
ALSO = re.compile(r"\A# also: (.+)$", re.MULTILINE)
CHOICE = re.compile(r"[\w./:-]+")  # a name in a list
IN_PROPORTION = re.compile(r"\$\{in_proportion:(\d+),")
PAPER = re.compile(r"^# paper: (.+)$", re.MULTILINE)
DIRECTIVES = ("# also: ", "# paper: ", "# @package ")  # comments that are read by programs


def aliases() -> dict[str, str]:
    """Return the name of the file of each other name of an encoding."""
    names = {}
    for path in sorted((config_dir() / "encoding").glob("*.yaml")):
        also = ALSO.search(path.read_text(encoding="utf-8"))
        names |= dict.fromkeys(also[1].split(", ") if also else [], path.stem)
    return names


def find_name(group: str, typed: str, search: Sequence[Path] = ()) -> str:
    """Return the name of the file in `group` that was meant, also by an alias or in other letters (`RoPE`).

    `FILE.py:CLASS` names an encoding too. A file in a folder of the user's comes before an alias.
    Raises `UserError` for an unknown name.
    """
    if group == "encoding" and typed.endswith(".py"):
        raise without_class(typed, search)
    if group == "model" and typed.endswith(".yaml"):
        require(
            is_model_file(typed), f"model={typed}: there is no such file; `pe-bench list models` has names"
        )
        return typed
    names = names_in(group, search)
    if typed in names or (group == "encoding" and ":" in typed):
        return typed
    by_name = {name: name for name in names} | (aliases() if group == "encoding" else {})
    folded = {_fold(name): first for name, first in by_name.items()}
    if typed not in by_name and _fold(typed) not in folded:
        raise UserError(unknown(typed, group, by_name))
    return by_name.get(typed) or folded[_fold(typed)]


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


def yaml_of(file: Path) -> Any:
    import yaml  # which `--help` should not wait for

    return yaml.safe_load(file.read_text(encoding="utf-8"))


def head_comment(file: Path) -> list[str]:
    """Return the lines of the comment at the head of a YAML file, without those that programs read."""
    head = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    return [line.lstrip("# ") for line in head if not line.startswith(DIRECTIVES)]


def paper(name: str, group: str = "encoding") -> str:
    """Return the paper that a shipped file names; empty where it names none, or its class does."""
    named = PAPER.search((config_dir() / group / f"{name}.yaml").read_text(encoding="utf-8"))
    return named[1] if named else ""


@cache
def shipped_model(name: str) -> dict[str, Any]:
    """Return the sizes of a shipped model but those that follow from others; none for an unknown name."""
    if name not in names_in("model"):
        return {}
    values = yaml_of(config_dir() / "model" / f"{name}.yaml")
    sizes = {key: _size(value) for key, value in values.items() if key != "name"}
    return {key: value for key, value in sizes.items() if value is not None}


def _size(value: Any) -> Any:
    """Return a size of a model's file, at the file's own width; None for one that follows from others."""
    if not isinstance(value, str):
        return value
    in_proportion = IN_PROPORTION.match(value)
    return int(in_proportion[1]) if in_proportion else None


def is_model_file(name: str) -> bool:
    """Return whether `model=NAME` names a file of the user's, such as my.yaml."""
    return name.endswith(".yaml") and os.path.isfile(name)


def read_model(file: Path) -> dict[str, Any]:
    """Return the sizes that a user's file of a model gives; the others are those of tiny, or follow from it.

    Raises `UserError` for a file that is no mapping.
    """
    values = yaml_of(file)
    usual = yaml_of(config_dir() / "model" / "tiny.yaml")
    if not isinstance(values, dict):
        raise UserError(f"model={file} must hold keys such as d_model: 96, one a line")
    for key in values:
        if key not in usual:
            raise UserError(unknown(f"model.{key}", "key", [f"model.{name}" for name in usual]))
    return {**usual, "name": file.stem, **values}


def names_in(group: str, search: Sequence[Path] = ()) -> list[str]:
    """Return the names that a group offers, in the shipped folder and in the user's own."""
    files = [(folder / group).glob("*.yaml") for folder in (config_dir(), *search)]
    return sorted({file.stem for file in chain.from_iterable(files)})


def read_choice(group: str, name: str, search: Sequence[Path] = ()) -> dict[str, Any]:
    """Return an encoding or a modifier with all options: of its class, its file and what the file builds on.

    Raises `UserError` for a file that is not there.
    """
    if ":" in name:
        return complete({"name": name.rpartition(":")[2], "class": name}, search)
    files = [folder / group / f"{name}.yaml" for folder in (config_dir(), *search)]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise UserError(unknown(name, group, names_in(group, search)))
    part = read_part(file)
    result: dict[str, Any] = {}
    for entry in part.pop("defaults", ()):
        # Such as `rope`, `_self_`, `/encoding@local: rope` or `/modifier@modifiers.logn: logn`.
        target, base = next(iter(entry.items())) if isinstance(entry, dict) else (group, entry)
        group_of_base, _, option = target.strip("/").partition("@")
        if base == "_self_":
            continue
        values = read_choice(group_of_base, base, search)
        if option.startswith("modifiers."):
            result.setdefault("modifiers", {})[option.removeprefix("modifiers.")] = values
        else:
            result |= {option: values} if option else values
    return {**result, **{key: value for key, value in part.items() if value != MISSING or key not in result}}


def keys_in(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield every key in plain values; of an encoding the options, but for those that the model decides."""
    is_encoding = prefix.startswith("encoding.")
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from keys_in(value, f"{prefix}{key}.")
        if is_encoding and (key in NOT_OPTIONS or key in SIZES):
            continue
        if not isinstance(value, Mapping) or (is_encoding and "class" in value):
            yield f"{prefix}{key}"


def plain_keys() -> list[str]:
    """Return every key that a command can change but options of encodings and tasks."""
    from pe_bench.config.schema import KEYS, SECTIONS, keys_of_sections

    return [*GROUPS, *(key for key in KEYS if key not in SECTIONS), *keys_of_sections()]


def option_keys(overrides: Sequence[str], search: Sequence[Path] = ()) -> Iterator[str]:
    """Yield the keys of the options of the encodings, modifiers and tasks that overrides choose."""
    chosen: dict[str, str] = {}
    for text in overrides:
        key, _, value = text.partition("=")
        chosen[key] = value
    names = {group: CHOICE.findall(chosen.get(group, "")) for group in ("encoding", "modifier", "task")}
    for name in names["encoding"] or [DEFAULT_ENCODING]:
        with suppress(UserError):  # of a name that is half typed
            if ":" in name:  # code that only training runs
                options = options_of(name, search, may_run=False)
                yield from (f"encoding.{option.name}" for option in options if option.name not in SIZES)
            else:
                yield from keys_in(read_choice("encoding", name, search), "encoding.")
    for name in names["modifier"]:
        with suppress(UserError):
            yield from keys_in(read_choice("modifier", name, search), f"encoding.modifiers.{name}.")
    for name in {*names["task"]} & {*names_in("task")}:
        task = read_part(config_dir() / "task" / f"{name}.yaml")["task"]
        yield from (f"task.{option}" for option in task if option != "name")


LINE = re.compile(r"( *)(\w+): *([^#]*?)(?: +# (.*))?")
# Groups whose keys are listed, and the file of each that explains them.
KEYS_OF_GROUPS = {"model": "tiny", "data": "files"}
GROUP = re.compile(r" *- (\w+): (\S+) +# (.*)")


class Key(NamedTuple):
    """A key of the configuration."""

    name: str
    default: str
    meaning: str


def keys() -> list[Key]:
    """Read every key that a command can change, without those inside an encoding, a task or a tokenizer."""
    found = list(_keys((config_dir() / "train.yaml").read_text(encoding="utf-8")))
    for group, name in KEYS_OF_GROUPS.items():
        text = (config_dir() / group / f"{name}.yaml").read_text(encoding="utf-8")
        for key in _keys(f"\n\n{text}"):
            if key.meaning:
                found.append(Key(f"{group}.{key.name}", _readable(key.default), key.meaning))
    return found


def _readable(default: str) -> str:
    """Return a default as a person reads it: `${quotient:a,b}` as `a / b`, without interpolation."""
    match = IN_PROPORTION.match(default)
    if match:
        return match[1]
    return re.sub(r"\$\{(?:quotient:)?|\}", "", default).replace(",", " / ")


def _keys(text: str) -> Iterator[Key]:
    groups, _, settings = text.partition("\n\n")
    for match in map(GROUP.fullmatch, groups.splitlines()):
        if match:
            yield Key(*match.groups())
    section = ""
    for match in map(LINE.fullmatch, settings.splitlines()):
        if not match:
            continue
        indent, name, default, meaning = match.groups(default="")
        if not indent:
            section = "" if default else f"{name}."
        if default and section != "hydra.":
            yield Key(f"{section if indent else ''}{name}", default, meaning)
