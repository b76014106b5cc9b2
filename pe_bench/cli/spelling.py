"""Arguments in the spelling of another command, or of another program, and how this command spells them."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, NamedTuple

from pe_bench.cli.completion import complete_with, complete_word
from pe_bench.config.groups import names_in
from pe_bench.values import unknown

CLOSE = 0.8  # to an option of the command, which is what was meant then
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
    if chosen is None:
        return None
    if answer := ELSEWHERE.get((name, refused)):
        return f"{refused} is no option of {name}: {answer}"
    found = list(_respell_each(chosen, rest))
    if not any(refused in (respelled.typed, respelled.name) for respelled in found):
        return None
    typed = " ".join(respelled.typed for respelled in found)
    meant = " ".join(respelled.meant for respelled in found)
    return f"{name} does not know {typed}: say {meant}"


def describe_unknown_option(command: Any, arguments: Sequence[str], option: str) -> str:
    """Say `unknown option '--x': did you mean '--y'?`, or name the command's options where none is close."""
    chosen = command.commands.get(arguments[0], command)
    return unknown(
        option, "option", [name for one in chosen.params for name in one.opts if name[0] == "-"], CLOSE
    )


def _respell_each(command: Any, arguments: Sequence[str]) -> Iterator[Respelled]:
    is_flag = {option: one.is_flag for one in command.params for option in one.opts if option[0] == "-"}
    metavars = [one.metavar or "" for one in command.params if one.param_type_name == "argument"]
    keys = _keys() if any("KEY=VALUE" in metavar for metavar in metavars) else []
    for argument, following in pairwise([*arguments, ""]):
        is_option = argument.startswith("--")
        found = (
            _as_key(argument, following, is_flag, keys) if is_option else _as_option(argument, is_flag, keys)
        )
        if found is not None:
            yield found


def _as_key(
    argument: str, following: str, options: Mapping[str, bool], keys: Sequence[str]
) -> Respelled | None:
    """Spell `--threads 2` as `threads=2`, `--lr 0.01` as `train.lr=0.01`."""
    option, equals, value = argument.partition("=")
    key = option[2:].replace("-", "_")
    meant = [known for known in keys if known == key] or [
        known for known in keys if known.endswith(f".{key}")
    ]
    if get_close_matches(option, options, cutoff=CLOSE) or len(meant) != 1:
        return None
    if not equals:
        value = following if following and following[0] != "-" and "=" not in following else "VALUE"
    return Respelled(option, key, shlex.quote(f"{meant[0]}={value}"))


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


def _keys() -> list[str]:
    """Return the keys of the configuration and the options of all encodings."""
    options = {option.split(" ")[1] for name in names_in("encoding") for option in complete_with(f"{name} ")}
    return sorted(key.removesuffix("=") for key in {*complete_word(""), *(f"encoding.{o}" for o in options)})
