"""Completion on the command line, from file names alone: it must answer at once."""

import dataclasses
import os
import re
from collections.abc import Sequence

from pe_bench.config.groups import config_dir
from pe_bench.config.overrides import GROUPS, parse_overrides
from pe_bench.config.schema import KEY_OF_FIELD, KEYS, NAME, SECTIONS
from pe_bench.encodings.signatures import typed_options

DEFAULT_ENCODING = "rope"  # of train.yaml
CLASS = re.compile(r"^class: (\S+)$", re.MULTILINE)
BASES = re.compile(r"^ +- (\w+)$", re.MULTILINE)  # under `defaults:`


def complete_typed(incomplete: str, before: Sequence[str] = ()) -> list[str]:
    """Return what may replace what the shell calls the current word, after the arguments `before`."""
    chosen = " ".join(before).replace(" = ", "=").split()  # bash breaks `encoding=rope` into three words
    if os.environ.get("_PE_BENCH_COMPLETE") == "complete_bash":
        typed = os.environ.get("COMP_WORDS", "")
        words = typed.split("\n" if "\n" in typed else None)  # as typer's script joins them
        return complete_in_bash(words, int(os.environ.get("COMP_CWORD", 0)), chosen)
    return complete_word(incomplete, chosen)


def complete_in_bash(words: list[str], current: int, chosen: Sequence[str] = ()) -> list[str]:
    """Complete for bash, which breaks `encoding=ro` into three words and replaces the last one alone."""
    value = words[current] if current < len(words) else ""
    key = ""
    if value == "=":
        key, value = f"{words[current - 1]}=", ""
    elif value and words[current - 1] == "=":
        key = f"{words[current - 2]}="
    return [word.removeprefix(key) for word in complete_word(key + value, chosen)]


def complete_word(incomplete: str, chosen: Sequence[str] = ()) -> list[str]:
    """Complete `enc` to `encoding=`, `encoding=ro` to `encoding=rope`, `train.le` to `train.length=`.

    `encoding.` becomes the options of the encodings and modifiers that the overrides `chosen` name.
    """
    key, equals, value = incomplete.partition("=")
    if equals and key in GROUPS:
        begun = re.split(r"[,\[]", value)[-1]
        start = incomplete.removesuffix(begun)
        names = sorted(path.stem for path in (config_dir() / key).glob("*.yaml"))
        return [f"{start}{name}" for name in names if name.startswith(begun)]
    options = _options_of_chosen(chosen) if incomplete.startswith(("encoding.", "task.")) else []
    return [f"{word}=" for word in (*_keys(), *options) if word.startswith(incomplete)]


def _options_of_chosen(chosen: Sequence[str]) -> list[str]:
    """Return the keys of the options that the encodings and modifiers of these overrides have."""
    named = {override.key: override.value or "" for override in parse_overrides(chosen)}
    encodings = [name for name in named.get("encoding", "").split(",") if name] or [DEFAULT_ENCODING]
    found = [f"encoding.{option}" for name in encodings for option in options_of("encoding", name)]
    for name in NAME.findall(named.get("modifier", "")):
        found += [f"encoding.modifiers.{name}.{option}" for option in options_of("modifier", name)]
    for name in NAME.findall(named.get("task", "")):
        found += [f"task.{option}" for option in _options_of_task(name)]
    return sorted(set(found))


def options_of(group: str, name: str) -> list[str]:
    """Return the options of a file of `group` and of those that it builds on, but for those of the model."""
    path = config_dir() / group / f"{name}.yaml"
    text = path.read_text(encoding="utf-8") if path.is_file() else f"class: {name}"
    found = [option for base in BASES.findall(text) for option in options_of(group, base)]
    found += [option for named in CLASS.findall(text) for option in typed_options(named)]
    return list(dict.fromkeys(found))


def _options_of_task(name: str) -> list[str]:
    """Return the options in the section `task` of a task's file."""
    path = config_dir() / "task" / f"{name}.yaml"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    section = text.partition("\ntask:\n")[2].partition("\ntrain:")[0]
    return [option for option in re.findall(r"^  (\w+):", section, re.MULTILINE) if option != "name"]


def _keys() -> list[str]:
    plain = [key for key in KEYS if key not in SECTIONS]
    inside = [
        KEY_OF_FIELD.get(field.name, f"{section}.{field.name}")
        for section, schema in SECTIONS.items()
        for field in dataclasses.fields(schema)
    ]
    return sorted({*GROUPS, *plain, *inside})
