"""Completion on the command line, from file names alone: it must answer at once."""

import dataclasses
import os
import re
from pathlib import Path

from pe_bench.config.checks import NAME
from pe_bench.config.groups import config_dir
from pe_bench.config.overrides import GROUPS
from pe_bench.config.schema import KEY_OF_FIELD, KEYS, SECTIONS


def complete_typed(incomplete: str) -> list[str]:
    """Return what may replace what the shell calls the current word."""
    if os.environ.get("_PE_BENCH_COMPLETE") == "complete_bash":
        typed = os.environ.get("COMP_WORDS", "")
        words = typed.split("\n" if "\n" in typed else None)  # as typer's script joins them
        return complete_in_bash(words, int(os.environ.get("COMP_CWORD", 0)))
    return complete_word(incomplete)


def complete_in_bash(words: list[str], current: int) -> list[str]:
    """Complete for bash, which breaks `encoding=ro` into three words and replaces the last one alone."""
    value = words[current] if current < len(words) else ""
    key = ""
    if value == "=":
        key, value = f"{words[current - 1]}=", ""
    elif value and words[current - 1] == "=":
        key = f"{words[current - 2]}="
    return [word.removeprefix(key) for word in complete_word(key + value)]


def complete_word(incomplete: str) -> list[str]:
    """Complete `enc` to `encoding=`, `encoding=ro` to `encoding=rope`, `train.le` to `train.length=`."""
    key, equals, value = incomplete.partition("=")
    if equals and key in GROUPS:
        begun = re.split(r"[,\[]", value)[-1]
        start = incomplete.removesuffix(begun)
        names = sorted(path.stem for path in (config_dir() / key).glob("*.yaml"))
        return [f"{start}{name}" for name in names if name.startswith(begun)]
    return [f"{word}=" for word in _keys() if word.startswith(incomplete)]


def complete_with(incomplete: str) -> list[str]:
    """Complete `yarn,rope_n` to `yarn,rope_ntk`, `'yarn bet` to `yarn beta_fast=`."""
    words, space, begun = incomplete.rpartition(" ")
    if space:
        name = words.split(" ")[0]
        return [f"{words} {option}=" for option in _options_of(name) if option.startswith(begun)]
    begun = re.split(r"[,+]", incomplete)[-1]
    start = incomplete.removesuffix(begun)
    names = sorted(path.stem for path in (config_dir() / "encoding").glob("*.yaml"))
    return [f"{start}{name}" for name in names if name.startswith(begun)]


def _options_of(name: str) -> list[str]:
    """Return the options of an encoding or a modifier, without those that the model decides."""
    found = []
    for group in ("modifier", "encoding"):
        path = config_dir() / group / f"{name}.yaml"
        if path.is_file() and not found:
            text = path.read_text(encoding="utf-8")
            found = re.findall(r"^(\w+): (?!\$\{model\.)", text, re.MULTILINE)
    return [option for option in found if option not in ("name", "class", "defaults")]


def complete_run(incomplete: str) -> list[str]:
    folder = Path("results") / "runs"
    names = sorted(path.parent.name for path in folder.glob(f"{incomplete}*/config.yaml"))
    return [name for name in names if NAME.fullmatch(name)]  # a shell would read more into others


def _keys() -> list[str]:
    plain = [key for key in KEYS if key not in SECTIONS]
    inside = [
        KEY_OF_FIELD.get(field.name, f"{section}.{field.name}")
        for section, schema in SECTIONS.items()
        for field in dataclasses.fields(schema)
    ]
    return sorted({*GROUPS, *plain, *inside})
