"""The words of `eval --with`: names with commas between, or one encoding with its options."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pe_bench.config.groups import aliases, names_in, without_aliases
from pe_bench.errors import UserError, require
from pe_bench.values import unknown

WORD = re.compile(r"(?:\[[^\]]*\]|\S)+")  # a list may hold spaces


@dataclass(frozen=True)
class Spec:
    """One encoding as it was typed; without a base it is the run's own with modifiers on top."""

    text: str
    base: str | None
    modifiers: tuple[str, ...]
    options: tuple[str, ...]


def read_specs(texts: Sequence[str], directories: Sequence[str] = ()) -> list[Spec]:
    """`yarn,rope_ntk`, `yarn factor=4`, `logn`, `yarn+logn`. Raises `UserError`."""
    modifiers = names_in("modifier", directories)
    known = {*names_in("encoding", directories), *modifiers}
    return [
        _read(name, options, modifiers, known, directories)
        for text in texts
        for name, options in _names_and_options(text)
    ]


def _names_and_options(text: str) -> Iterator[tuple[str, list[str]]]:
    words = WORD.findall(text)
    if not any("=" in word for word in words):
        for name in text.split(","):
            require(
                len(name.split()) == 1,
                f"--with '{text}': name encodings with commas between, or one with its options, "
                "such as --with 'yarn factor=4'",
            )
            yield name.strip(), []
        return
    name, *options = words
    require("=" not in name, f"--with '{text}': the name of an encoding comes first, and then {name}")
    require(
        "," not in name,
        f"--with '{text}': commas are for names without options; repeat --with for each encoding",
    )
    for word in options:
        require("=" in word, f"--with '{text}': '{word}' is no option; say KEY=VALUE, such as factor=4")
    yield name, options


def _read(
    typed: str, options: Sequence[str], modifiers: Sequence[str], known: set[str], directories: Sequence[str]
) -> Spec:
    text = " ".join([typed, *options])
    names = [_first_name(name, known, directories) for name in typed.removeprefix("+").split("+")]
    base = names.pop(0) if names[0] not in modifiers and not typed.startswith("+") else None
    for name in names:
        if name not in modifiers:
            raise UserError(
                f"--with {text}: {name} is no modifier, and only one encoding can be the base: "
                f"{', '.join(modifiers)} go on top of another"
            )
    return Spec(text, base, tuple(names), tuple(options))


def _first_name(name: str, known: set[str], directories: Sequence[str]) -> str:
    first = without_aliases([f"encoding={name}"], directories)[0].removeprefix("encoding=")
    if first not in known:
        raise UserError(f"--with: {unknown(name, 'encoding', known | aliases().keys())}")
    return first
