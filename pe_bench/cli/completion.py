"""What may be typed: completion, and arguments in the spelling of another command or program.

Completion reads files alone: it must answer at once.
"""

import dataclasses
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, NamedTuple

from pe_bench.config.groups import config_dir, names_in
from pe_bench.config.overrides import GROUPS, parse_overrides
from pe_bench.config.schema import KEY_OF_FIELD, KEYS, NAME, SECTIONS
from pe_bench.encodings.signatures import typed_options
from pe_bench.values import close_to, unknown

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
    options = [f"encoding.{option}" for name in encodings for option in options_of("encoding", name)]
    for name in NAME.findall(named.get("modifier", "")):
        options += [f"encoding.modifiers.{name}.{option}" for option in options_of("modifier", name)]
    for name in NAME.findall(named.get("task", "")):
        options += [f"task.{option}" for option in _options_of_task(name)]
    return sorted(set(options))


def options_of(group: str, name: str) -> list[str]:
    """Return the options of a file of `group` and of those that it builds on, but for those of the model."""
    path = config_dir() / group / f"{name}.yaml"
    text = path.read_text(encoding="utf-8") if path.is_file() else f"class: {name}"
    options = [option for base in BASES.findall(text) for option in options_of(group, base)]
    options += [option for named in CLASS.findall(text) for option in typed_options(named)]
    return list(dict.fromkeys(options))


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


CLOSE = 0.8  # to an option of the command, which is what was meant then
CLOSE_KEY = 0.75  # to a key
CHECKPOINT = "hf:"  # beside which `eval` takes both options and keys
# Options of other programs, by the command that lacks them, and the answer.
ELSEWHERE = {
    ("train", "--resume"): "not needed: the same command continues from the last checkpoint",
    ("train", "--dry-run"): "--cfg job prints every key and trains nothing",
    ("train", "--sweep"): "-m makes a run for each of several values",
}


class Respelled(NamedTuple):
    """An argument as it was typed, the key or option in it, and how the command spells it."""

    typed: str
    name: str
    meant: str


def respell(command: Any, arguments: Sequence[str], refused: str) -> str | None:
    """Return the answer to a refused argument, option or key that this command knows in another spelling.

    command: the program's, as Typer makes it.
    """
    name, *rest = arguments or [""]
    chosen = command.commands.get(name)
    if chosen is None or any(argument.startswith(CHECKPOINT) for argument in rest):
        return None
    if answer := ELSEWHERE.get((name, refused)):
        return f"{refused} is no option of {name}: {answer}"
    words = list(_respell_each(chosen, rest))
    if not any(refused in (respelled.typed, respelled.name) for respelled in words):
        return None
    typed = " ".join(respelled.typed for respelled in words)
    meant = " ".join(respelled.meant for respelled in words)
    return f"{name} does not know {typed}: say {meant}"


def describe_unknown_option(command: Any, arguments: Sequence[str], option: str) -> str:
    """Say `unknown option '--x': did you mean '--y'?`, or name the command's options where none is close.

    What is close may also be a key, as `seed=3` is to `--sede 3`.
    """
    chosen = command.commands.get(arguments[0], command)
    options = _options_of(chosen)
    close = [] if close_to(option, options, CLOSE) else close_to(_key_in(option), _keys_of(chosen), CLOSE_KEY)
    for argument, following in pairwise([*arguments, ""]):
        if len(close) == 1 and argument.partition("=")[0] == option:
            return f"unknown option '{option}': did you mean {_assign(close[0], argument, following)}?"
    return unknown(option, "option", options, CLOSE)


def _respell_each(command: Any, arguments: Sequence[str]) -> Iterator[Respelled]:
    options, keys = _options_of(command), _keys_of(command)
    for argument, following in pairwise([*arguments, ""]):
        is_option = argument.startswith("--")
        respelled = (
            _as_key(argument, following, options, keys) if is_option else _as_option(argument, options, keys)
        )
        if respelled is not None:
            yield respelled


def _options_of(command: Any) -> dict[str, bool]:
    """Return the options of a command, and whether each is a flag."""
    return {name: param.is_flag for param in command.params for name in param.opts if name[0] == "-"}


def _keys_of(command: Any) -> list[str]:
    """Return the keys of the configuration and the options of all encodings, where a command takes them."""
    metavars = [param.metavar or "" for param in command.params if param.param_type_name == "argument"]
    if not any("KEY=VALUE" in metavar for metavar in metavars):
        return []
    options = {
        f"encoding.{option}" for name in names_in("encoding") for option in options_of("encoding", name)
    }
    return sorted({*(key.removesuffix("=") for key in complete_word("")), *options})


def _as_key(
    argument: str, following: str, options: Mapping[str, bool], keys: Sequence[str]
) -> Respelled | None:
    """Spell `--threads 2` as `threads=2`, `--lr 0.01` as `train.lr=0.01`."""
    option = argument.partition("=")[0]
    key = _key_in(option)
    meant = [name for name in keys if name == key] or [name for name in keys if name.endswith(f".{key}")]
    if get_close_matches(option, options, cutoff=CLOSE) or len(meant) != 1:
        return None
    return Respelled(option, key, _assign(meant[0], argument, following))


def _key_in(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _assign(key: str, argument: str, following: str) -> str:
    """Return KEY=VALUE with the value in `argument`, an option, or with the argument that follows it."""
    _, equals, value = argument.partition("=")
    if not equals:
        value = following if following and following[0] != "-" and "=" not in following else "VALUE"
    return shlex.quote(f"{key}={value}")


def _as_option(argument: str, is_flag: Mapping[str, bool], keys: Sequence[str]) -> Respelled | None:
    """Spell `threads=2` as `--threads 2`, `eval.lengths=512` as `--lengths 512`."""
    key, equals, value = argument.partition("=")
    names = (key, key.rpartition(".")[2])
    option = next((f"--{name}" for name in map(_dashed, names) if f"--{name}" in is_flag), None)
    if not equals or key in keys or option is None:
        return None
    return Respelled(argument, key, option if is_flag[option] else f"{option} {shlex.quote(value)}")


def _dashed(name: str) -> str:
    return name.replace(".", "-").replace("_", "-")
