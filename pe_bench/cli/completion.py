"""What may be typed: completion in shells, and an option or a key in the spelling of another command.

Completion reads files alone: it must answer at once.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer

DEFAULT_ENCODING = "rope"  # of train.yaml
LISTS = (
    *("encodings", "modifiers", "models", "data", "tasks", "tokenizers", "experiments", "keys", "runs"),
    "studies",
)
CLASS = re.compile(r"^class: (\S+)$", re.MULTILINE)
BASES = re.compile(r"^ +- (\w+)$", re.MULTILINE)  # under `defaults:`
NAME = re.compile(r"[\w.+-]+")
CLOSE = 0.8  # to an option of the command, which is what was meant then


def complete_encoding(incomplete: str) -> list[str]:
    from pe_bench.config.groups import names_in

    return [name for name in names_in("encoding") if name.startswith(incomplete)]


def complete_study(incomplete: str) -> list[str]:
    from pe_bench.config.groups import names_in

    return [name for name in names_in("study") if name.startswith(incomplete)]


def complete_list(incomplete: str) -> list[str]:
    return [name for name in LISTS if name.startswith(incomplete)]


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the runs in the folder of results, but for names in which a shell would read more."""
    runs = sorted((Path(ctx.params["results_dir"]) / "runs").glob(f"{incomplete}*/config.yaml"))
    return [path.parent.name for path in runs if NAME.fullmatch(path.parent.name)]


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete KEY=VALUE. Bash breaks `encoding=ro` into three words and replaces the last one alone."""
    typed = [text for text in ctx.params.values() if isinstance(text, list)]
    chosen = " ".join(typed[0] if typed else []).replace(" = ", "=").split()
    if os.environ.get("_PE_BENCH_COMPLETE") != "complete_bash":
        return complete_word(incomplete, chosen)
    line = os.environ.get("COMP_WORDS", "")
    words = line.split("\n" if "\n" in line else None)  # as typer's script joins them
    current = int(os.environ.get("COMP_CWORD", 0))
    value, key = words[current] if current < len(words) else "", ""
    if value == "=":
        key, value = f"{words[current - 1]}=", ""
    elif value and words[current - 1] == "=":
        key = f"{words[current - 2]}="
    return [word.removeprefix(key) for word in complete_word(key + value, chosen)]


def complete_inspected(ctx: typer.Context, incomplete: str) -> list[str]:
    overrides = complete_override(ctx, incomplete) if "=" in incomplete or "." in incomplete else []
    return [*complete_encoding(incomplete), *overrides]


# By the metavar of an option or argument.
COMPLETIONS: dict[str, Callable[..., list[str]]] = {
    "RUN": complete_run,
    "KEY=VALUE": complete_override,
    "NAME|FILE.py:CLASS|KEY=VALUE": complete_inspected,
    "NAME|KEY=VALUE": complete_study,
    "NAME,NAME": complete_encoding,
    "LIST": complete_list,
}


def complete_word(incomplete: str, chosen: Sequence[str] = ()) -> list[str]:
    """Complete `enc` to `encoding=`, `encoding=ro` to `encoding=rope`, `train.le` to `train.length=`.

    `encoding.` becomes the options of the encodings and modifiers that the overrides `chosen` name.
    """
    from pe_bench.config.groups import GROUPS, names_in

    key, equals, value = incomplete.partition("=")
    if equals and key in GROUPS:
        begun = re.split(r"[,\[]", value)[-1]
        start = incomplete.removesuffix(begun)
        return [f"{start}{name}" for name in names_in(key) if name.startswith(begun)]
    options = _options_of_chosen(chosen) if incomplete.startswith(("encoding.", "task.")) else []
    return [f"{word}=" for word in (*_keys(), *options) if word.startswith(incomplete)]


def _options_of_chosen(chosen: Sequence[str]) -> list[str]:
    """Return the keys of the options that the encodings, modifiers and tasks of these overrides have."""
    values: dict[str, str] = {text.partition("=")[0]: text.partition("=")[2] for text in chosen}
    encodings = [name for name in values.get("encoding", "").split(",") if name] or [DEFAULT_ENCODING]
    options = {f"encoding.{option}" for name in encodings for option in _options("encoding", name)}
    for name in NAME.findall(values.get("modifier", "")):
        options |= {f"encoding.modifiers.{name}.{option}" for option in _options("modifier", name)}
    for name in NAME.findall(values.get("task", "")):
        section = _text("task", name).partition("\ntask:\n")[2].partition("\ntrain:")[0]
        options |= {f"task.{option}" for option in re.findall(r"^  (\w+):", section, re.MULTILINE)}
    return sorted(options - {"task.name"})


def _options(group: str, name: str) -> Iterator[str]:
    """Yield the options of a file of `group` and of those that it builds on, but for those of the model."""
    from pe_bench.encodings.signatures import typed_options

    text = _text(group, name) or f"class: {name}"
    for base in BASES.findall(text):
        yield from _options(group, base)
    for named in CLASS.findall(text):
        yield from typed_options(named)


def _text(group: str, name: str) -> str:
    from pe_bench.config.groups import config_dir

    path = config_dir() / group / f"{name}.yaml"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _keys() -> list[str]:
    from pe_bench.config.groups import GROUPS
    from pe_bench.config.schema import KEYS, SECTIONS, keys_of_sections

    return sorted({*GROUPS, *(key for key in KEYS if key not in SECTIONS), *keys_of_sections()})


def respell(program: Any, arguments: Sequence[str], message: str) -> str:
    """Return how the command spells the argument that a message refuses; empty where it has none like it.

    `threads=2` is `--threads 2` of some commands, and `--lr` is `train.lr=VALUE` of others.
    """
    command = program.commands.get(arguments[0]) if arguments else None
    for argument in arguments[1:] if command else ():
        word, equals, value = argument.partition("=")
        spelled = _spelled(command, word, equals, value) if word in message else ""
        if spelled:
            return f"{arguments[0]} does not know {word}: say {spelled}"
    return ""


def _spelled(command: Any, word: str, equals: str, value: str) -> str:
    options = {name: param.is_flag for param in command.params for name in param.opts if name[0] == "-"}
    takes_keys = any("KEY=VALUE" in (param.metavar or "") for param in command.params)
    keys, name = _keys() if takes_keys else [], word.removeprefix("--").replace("-", "_")
    if word.startswith("--"):
        meant = [name] if name in keys else [key for key in keys if key.endswith(f".{name}")]
        is_option = get_close_matches(word, options, cutoff=CLOSE)
        return f"{meant[0]}={value or 'VALUE'}" if len(meant) == 1 and not is_option else ""
    spellings = [f"--{re.sub('[._]', '-', part)}" for part in (name, name.rpartition(".")[2])]
    option = next((spelling for spelling in spellings if spelling in options), "")
    if not (equals and option) or word in keys:
        return ""
    return option if options[option] else f"{option} {shlex.quote(value)}"
