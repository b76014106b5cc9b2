"""The groups of the configuration, with their YAML files and names; the keys of a run."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from pe_bench.encodings.signatures import (
    MISSING,
    NOT_OPTIONS,
    SIZES,
    missing_class_error,
    options_of,
    read_part,
    with_all_options,
)
from pe_bench.errors import UserError, require
from pe_bench.values import unknown

GROUPS = ("encoding", "model", "data", "task", "tokenizer", "experiment", "modifier")
DEFAULT_ENCODING = "rope"  # the encoding in train.yaml
OPTIONAL_GROUPS = ("task", "experiment")
OPTIONS_OF_GROUP = {"encoding": "encoding.", "modifier": "encoding.modifiers.", "task": "task."}
ALIAS_LINE = re.compile(r"\A# also: (.+)$", re.MULTILINE)
CHOSEN_NAME = re.compile(r"[\w./:-]+")  # a name in a list
IN_PROPORTION = re.compile(r"\$\{in_proportion:(\d+),")
PAPER_LINE = re.compile(r"^# paper: (.+)$", re.MULTILINE)
DIRECTIVES = ("# also: ", "# paper: ", "# @package ")  # comments for programs


def aliases() -> dict[str, str]:
    """Return the aliases of encodings, each with the name of the encoding's file."""
    names = {}
    for path in sorted((config_dir() / "encoding").glob("*.yaml")):
        also = ALIAS_LINE.search(path.read_text(encoding="utf-8"))
        if also:
            names |= dict.fromkeys(also[1].split(", "), path.stem)
    return names


def find_name(group: str, typed: str, search: Sequence[Path] = ()) -> str:
    """Return the name of a file in `group` for a typed name, also for an alias or another spelling (`RoPE`).

    `FILE.py:CLASS` names an encoding too. A file in a user's folder comes before an alias. Raises `UserError`
    for an unknown name.
    """
    if group == "encoding" and typed.endswith(".py"):
        raise missing_class_error(typed, search)
    if group == "model" and typed.endswith(".yaml"):
        require(
            is_model_file(typed), f"model={typed}: there is no such file; `pe-bench list models` has names"
        )
        return typed
    names = names_in(group, search)
    is_class = group == "encoding" and ":" in typed
    if is_class or typed in names:
        return typed
    by_name = {name: name for name in names}
    if group == "encoding":
        by_name |= aliases()
    folded = {_folded_name(name): first for name, first in by_name.items()}
    if typed not in by_name and _folded_name(typed) not in folded:
        raise UserError(unknown(typed, group, by_name))
    return by_name.get(typed) or folded[_folded_name(typed)]


def _folded_name(name: str) -> str:
    """Return the letters and digits of a name in lower case, the same for all its spellings."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def config_dir() -> Path:
    """Return the folder of shipped YAML files, in the installed package or in a checkout."""
    installed = Path(__file__).parent / "yaml"
    checkout = Path(__file__).parents[2] / "configs"
    return installed if installed.is_dir() else checkout


def check_search(search: Sequence[Path]) -> None:
    """Raise `UserError` if one of `search`, a user's folders with YAML files, cannot be used.

    The user's folder may be no folder, or have a file with the name of a shipped file. Then the shipped file
    would be read in place of the user's file.
    """
    for folder in search:
        require(folder.is_dir(), f"--config-dir {folder} is not a folder: name the one with encoding/")
        for group in GROUPS:
            for file in sorted((folder / group).glob("*.yaml")):
                message = f"{file} would be ignored, because pe-bench has {group}/{file.name}: rename yours"
                require(not (config_dir() / group / file.name).is_file(), message)


def description(group: str, name: str) -> str:
    """Return the first sentence of the comment at the head of a shipped YAML file."""
    file = config_dir() / group / f"{name}.yaml"
    comment = " ".join(head_comment(file))
    return re.split(r"(?<=\w)\. |\.$", comment, maxsplit=1)[0]


def read_yaml(file: Path) -> Any:
    import yaml  # which `--help` should not wait for

    return yaml.safe_load(file.read_text(encoding="utf-8"))


def head_comment(file: Path) -> list[str]:
    """Return the lines of the comment at the head of a YAML file, without its `DIRECTIVES`."""
    lines = file.read_text(encoding="utf-8").splitlines()
    head = takewhile(lambda line: line.startswith("#"), lines)
    return [line.lstrip("# ") for line in head if not line.startswith(DIRECTIVES)]


def paper(name: str, group: str = "encoding") -> str:
    """Return the paper that a shipped file names.

    Empty if the file names none, for example because its class does.
    """
    file = config_dir() / group / f"{name}.yaml"
    named = PAPER_LINE.search(file.read_text(encoding="utf-8"))
    return named[1] if named else ""


@cache
def shipped_model(name: str) -> dict[str, Any]:
    """Return the sizes of a shipped model, without derived sizes; empty for an unknown name."""
    if name not in names_in("model"):
        return {}
    values = read_yaml(config_dir() / "model" / f"{name}.yaml")
    values.pop("name", None)
    sizes = {key: _size_at_own_width(value) for key, value in values.items()}
    return {key: value for key, value in sizes.items() if value is not None}


@cache
def shipped_task(name: str) -> dict[str, Any]:
    """Return the options of a shipped task, with the values in its file; empty for an unknown name."""
    if name not in names_in("task"):
        return {}
    options = read_yaml(config_dir() / "task" / f"{name}.yaml")["task"]
    return {option: value for option, value in options.items() if option != "name"}


def _size_at_own_width(value: Any) -> Any:
    """Return a size from a model's file; a size proportional to the width is taken at the file's own width.

    None for a size that is derived in another way.
    """
    if not isinstance(value, str):
        return value
    in_proportion = IN_PROPORTION.match(value)
    return int(in_proportion[1]) if in_proportion else None


def is_model_file(name: str) -> bool:
    """Return true if `model=NAME` names a user's file, such as my.yaml."""
    return name.endswith(".yaml") and os.path.isfile(name)


def read_model(file: Path) -> dict[str, Any]:
    """Return the sizes in a user's file for `model=FILE`; missing sizes are as in tiny.yaml.

    Raises `UserError` for a file that is no mapping, or for an unknown key.
    """
    values = read_yaml(file)
    usual = read_yaml(config_dir() / "model" / "tiny.yaml")
    if not isinstance(values, dict):
        raise UserError(f"model={file} must hold keys such as d_model: 96, one a line")
    for key in values:
        if key not in usual:
            keys = [f"model.{name}" for name in usual]
            raise UserError(unknown(f"model.{key}", "key", keys))
    return {**usual, "name": file.stem, **values}


def names_in(group: str, search: Sequence[Path] = ()) -> list[str]:
    """Return the names of a group's files, in the shipped folder and in the user's folders."""
    names: set[str] = set()
    for folder in (config_dir(), *search):
        names.update(file.stem for file in (folder / group).glob("*.yaml"))
    return sorted(names)


def read_choice(group: str, name: str, search: Sequence[Path] = ()) -> dict[str, Any]:
    """Return an encoding or a modifier with all options of its class, its file and the file's defaults.

    Raises `UserError` for a missing file.
    """
    if ":" in name:
        return with_all_options({"name": name.rpartition(":")[2], "class": name}, search)
    folders = (config_dir(), *search)
    files = [folder / group / f"{name}.yaml" for folder in folders]
    file = next(filter(Path.is_file, files), None)
    if file is None:
        raise UserError(unknown(name, group, names_in(group, search)))
    part = read_part(file)
    complete_choice: dict[str, Any] = {}
    for entry in part.pop("defaults", ()):
        # Such as `rope`, `_self_`, `/encoding@local: rope` or `/modifier@modifiers.logn: logn`.
        target, base = next(iter(entry.items())) if isinstance(entry, dict) else (group, entry)
        group_of_base, _, option = target.strip("/").partition("@")
        if base == "_self_":
            continue
        values = read_choice(group_of_base, base, search)
        if option.startswith("modifiers."):
            complete_choice.setdefault("modifiers", {})[option.removeprefix("modifiers.")] = values
        else:
            complete_choice |= {option: values} if option else values
    for key, value in part.items():
        if value != MISSING or key not in complete_choice:
            complete_choice[key] = value
    return complete_choice


def keys_in(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield every key of nested plain values, such as `train.lr`.

    Of an encoding only the options are yielded; sizes that it takes from the model are no options.
    prefix: the key of the section that has the values, with a point at the end.
    """
    is_encoding = prefix.startswith("encoding.")
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from keys_in(value, f"{prefix}{key}.")
        if is_encoding and (key in NOT_OPTIONS or key in SIZES):
            continue
        is_group = isinstance(value, Mapping)
        is_nested_encoding = is_encoding and is_group and "class" in value
        if is_nested_encoding or not is_group:
            yield f"{prefix}{key}"


def plain_keys() -> list[str]:
    """Return every key that a command can change, without options of encodings and tasks."""
    from pe_bench.config.schema import KEYS, SECTIONS, keys_of_sections

    keys_outside = [key for key in KEYS if key not in SECTIONS]
    return [*GROUPS, *keys_outside, *keys_of_sections()]


def option_keys(overrides: Sequence[str], search: Sequence[Path] = ()) -> Iterator[str]:
    """Yield the keys of all options of the encodings, modifiers and tasks in overrides."""
    values_by_key: dict[str, str] = {}
    for text in overrides:
        key, _, value = text.partition("=")
        values_by_key[key] = value
    groups = ("encoding", "modifier", "task")
    names = {group: CHOSEN_NAME.findall(values_by_key.get(group, "")) for group in groups}
    for name in names["encoding"] or [DEFAULT_ENCODING]:
        with suppress(UserError):  # the name may be half typed
            if ":" in name:  # outside code, which only training may run
                options = options_of(name, search, may_run=False)
                option_names = [option.name for option in options]
                yield from (f"encoding.{option}" for option in option_names if option not in SIZES)
            else:
                yield from keys_in(read_choice("encoding", name, search), "encoding.")
    for name in names["modifier"]:
        with suppress(UserError):
            yield from keys_in(read_choice("modifier", name, search), f"encoding.modifiers.{name}.")
    for name in {*names["task"]} & {*names_in("task")}:
        file = config_dir() / "task" / f"{name}.yaml"
        task = read_part(file)["task"]
        yield from (f"task.{option}" for option in task if option != "name")


KEY_LINE = re.compile(r"( *)(\w+): *([^#]*?)(?: +# (.*))?")
# Groups with listed keys, each with the name of the file that explains the keys.
KEYS_OF_GROUPS = {"model": "tiny", "data": "files"}
GROUP_LINE = re.compile(r" *- (\w+): (\S+) +# (.*)")


class Key(NamedTuple):
    """A key of the configuration."""

    name: str
    default: str
    meaning: str


def keys() -> list[Key]:
    """Return every key that a command can change, without keys of an encoding, a task or a tokenizer."""
    found = list(_keys_in_text((config_dir() / "train.yaml").read_text(encoding="utf-8")))
    for group, name in KEYS_OF_GROUPS.items():
        file = config_dir() / group / f"{name}.yaml"
        text = file.read_text(encoding="utf-8")
        for key in _keys_in_text(f"\n\n{text}"):
            if key.meaning:
                default = _without_interpolation(key.default)
                found.append(Key(f"{group}.{key.name}", default, key.meaning))
    return found


def _without_interpolation(default: str) -> str:
    """Return a default of a YAML file without OmegaConf's syntax: `a / b` for `${quotient:a,b}`."""
    match = IN_PROPORTION.match(default)
    if match:
        return match[1]
    return re.sub(r"\$\{(?:quotient:)?|\}", "", default).replace(",", " / ")


def _keys_in_text(text: str) -> Iterator[Key]:
    """Yield the keys in the text of a YAML file, with their defaults and comments.

    Groups come up to the first empty line, then settings.
    """
    groups, _, settings = text.partition("\n\n")
    for match in map(GROUP_LINE.fullmatch, groups.splitlines()):
        if match:
            yield Key(*match.groups())
    section = ""
    for match in map(KEY_LINE.fullmatch, settings.splitlines()):
        if not match:
            continue
        indent, name, default, meaning = match.groups(default="")
        if not indent:
            section = "" if default else f"{name}."
        if default and section != "hydra.":
            yield Key(f"{section if indent else ''}{name}", default, meaning)
