"""KEY=VALUE where a command takes --key VALUE, and the other way round: the same in the command's own way."""

import shlex
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from pe_bench.cli.completion import complete_with, complete_word
from pe_bench.config.groups import names_in
from pe_bench.config.overrides import FLAGS

CLOSE = 0.8  # to an option of the command, which is what was meant then
# Typed, what a message calls it, and meant.
Respelled = tuple[str, str, str]


def respelled(command: Any, arguments: Sequence[str], message: str) -> str | None:
    """What to say in place of `message` where what it complains of is known in another spelling.

    command: the program's, as Typer makes it.
    """
    name, *arguments = arguments or [""]
    chosen = command.commands.get(name)
    found = list(_found(chosen, arguments)) if chosen is not None else []
    if not any(typed in message or f"'{key}'" in message for typed, key, _ in found):
        return None
    typed, _, meant = map(" ".join, zip(*found, strict=True))
    return f"{name} does not know {typed}: say {meant}"


def _found(command: Any, arguments: Sequence[str]) -> Iterator[Respelled]:
    options = {option: one.is_flag for one in command.params for option in one.opts if option[0] == "-"}
    if command.context_settings.get("ignore_unknown_options"):  # Hydra reads them
        options |= dict.fromkeys(FLAGS, False)
    metavars = [one.metavar or "" for one in command.params if one.param_type_name == "argument"]
    keys = _keys() if any("KEY=VALUE" in one for one in metavars) else []
    for argument, following in pairwise([*arguments, ""]):
        found = (
            _as_key(argument, following, options, keys)
            if argument[:2] == "--"
            else _as_option(argument, options, keys)
        )
        if found is not None:
            yield found


def _as_key(argument: str, following: str, options: dict[str, bool], keys: Sequence[str]) -> Respelled | None:
    """`--threads 2` as `threads=2`, `--lr 0.01` as `train.lr=0.01`."""
    flag, equals, value = argument.partition("=")
    key = flag[2:].replace("-", "_")
    meant = [known for known in keys if known == key] or [
        known for known in keys if known.endswith(f".{key}")
    ]
    if get_close_matches(flag, options, cutoff=CLOSE) or len(meant) != 1:
        return None
    if not equals:
        value = following if following and following[0] != "-" and "=" not in following else "VALUE"
    return flag, key, shlex.quote(f"{meant[0]}={value}")


def _as_option(argument: str, options: dict[str, bool], keys: Sequence[str]) -> Respelled | None:
    """`threads=2` as `--threads 2`, `eval.lengths=512` as `--lengths 512`."""
    key, equals, value = argument.partition("=")
    spellings = (f"--{name.replace('.', '-').replace('_', '-')}" for name in (key, key.rpartition(".")[2]))
    option = next((one for one in spellings if one in options), None)
    if not equals or key in keys or option is None:
        return None
    return argument, key, option if options[option] else f"{option} {shlex.quote(value)}"


def _keys() -> list[str]:
    """Of the configuration and of all encodings."""
    of_encodings = {
        f"encoding.{argument.split(' ')[1]}"
        for name in names_in("encoding", ())
        for argument in complete_with(f"{name} ")
    }
    return sorted(key.removesuffix("=") for key in {*complete_word(""), *of_encodings})
