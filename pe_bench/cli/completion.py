"""Shell completion of names, keys and options. It only reads files, because it must answer at once."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

GROUP_LISTS = ("encodings", "modifiers", "models", "data", "tasks", "tokenizers", "experiments")
LISTS = (*GROUP_LISTS, "keys", "runs", "studies")
PLAIN_NAME = re.compile(r"[\w.+-]+")


def _names_starting_with(group: str, start: str) -> list[str]:
    from pe_bench.config.groups import names_in

    return [name for name in names_in(group) if name.startswith(start)]


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the runs in the folder of results, without names that a shell would interpret."""
    folder = Path(ctx.params["results_dir"]) / "runs"
    runs = [path.parent.name for path in sorted(folder.glob(f"{incomplete}*/config.yaml"))]
    return [name for name in runs if PLAIN_NAME.fullmatch(name)]


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete KEY=VALUE. Bash breaks `encoding=ro` into three words, and replaces only the last word."""
    typed = ctx.params.get("overrides") or ctx.params.get("arguments") or []
    words = re.sub(" ?= ?", "=", " ".join(typed)).split(" ")
    last = words[-1]
    kept = ""
    if last.endswith("=") or (last and not incomplete and "=" not in last):
        kept = f"{last.rstrip('=')}="
    return [word.removeprefix(kept) for word in complete_word(kept + incomplete, words)]


def complete_inspected(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete an argument of `check`: an encoding or KEY=VALUE."""
    names = _names_starting_with("encoding", incomplete)
    if "=" in incomplete or "." in incomplete:
        names += complete_override(ctx, incomplete)
    return names


def complete_shown(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete an argument of `show`: an encoding, KEY=VALUE or a run."""
    offered = complete_inspected(ctx, incomplete)
    if incomplete:
        offered += complete_run(ctx, incomplete)
    return offered


# By the metavar of an option or argument.
COMPLETIONS: dict[str, Callable[..., list[str]]] = {
    "RUN": complete_run,
    "KEY=VALUE": complete_override,
    "NAME|FILE.py:CLASS|KEY=VALUE": complete_inspected,
    "NAME|FILE.py:CLASS|RUN|KEY=VALUE": complete_shown,
    "NAME|KEY=VALUE": lambda incomplete: _names_starting_with("study", incomplete),
    "NAME,NAME": lambda incomplete: _names_starting_with("encoding", incomplete),
    "LIST": lambda incomplete: [name for name in LISTS if name.startswith(incomplete)],
}


def complete_word(incomplete: str, chosen: Sequence[str] = ()) -> list[str]:
    """Complete `enc` to `encoding=`, `encoding=ro` to `encoding=rope`, `train.le` to `train.length=`.

    `encoding.` becomes the options of the encodings and modifiers that the overrides `chosen` name.
    """
    from pe_bench.config.groups import GROUPS, option_keys, plain_keys

    key, equals, value = incomplete.partition("=")
    if equals and key in GROUPS:
        begun = re.split(r"[,\[]", value)[-1]
        return [f"{incomplete.removesuffix(begun)}{name}" for name in _names_starting_with(key, begun)]
    is_option = incomplete.startswith(("encoding.", "task."))
    keys = option_keys(chosen) if is_option else plain_keys()
    return sorted({f"{key}=" for key in keys if key.startswith(incomplete)})
