"""The values of `eval --with`: names with commas between, or one encoding with its options."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pe_bench.config.groups import find_name, names_in
from pe_bench.errors import UserError, require

# A list may hold spaces, and so may a mapping, with mappings in it.
MAPPING = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
PART = re.compile(rf"(?:\[[^\]]*\]|{MAPPING}|\S)+")


@dataclass(frozen=True)
class RequestedEncoding:
    """An encoding as it was typed; without a base it is the run's own with modifiers on top."""

    text: str
    base: str | None
    modifiers: tuple[str, ...]
    options: tuple[str, ...]


def read_requested(texts: Sequence[str], search: Sequence[Path] = ()) -> list[RequestedEncoding]:
    """Read `yarn,rope_ntk`, `yarn factor=4`, `logn` or `yarn+logn`. Raises `UserError`."""
    modifiers = names_in("modifier", search)
    return [
        _read(name, options, modifiers, search)
        for text in texts
        for name, options in _names_and_options(text)
    ]


def _names_and_options(text: str) -> Iterator[tuple[str, list[str]]]:
    parts = PART.findall(text)
    if not any("=" in part for part in parts):
        for name in text.split(","):
            require(
                len(name.split()) == 1,
                f"--with '{text}': name encodings with commas between, or one with its options, "
                "such as --with 'yarn factor=4'",
            )
            yield name.strip(), []
        return
    name, *options = parts
    require("=" not in name, f"--with '{text}': the name of an encoding comes first, and then {name}")
    require(
        "," not in name,
        f"--with '{text}': commas are for names without options; repeat --with for each encoding",
    )
    for part in options:
        require("=" in part, f"--with '{text}': '{part}' is no option; say KEY=VALUE, such as factor=4")
    yield name, options


def _read(
    typed: str, options: Sequence[str], modifiers: Sequence[str], search: Sequence[Path]
) -> RequestedEncoding:
    text = " ".join([typed, *options])
    names = [_find_name(name, modifiers, search) for name in typed.removeprefix("+").split("+")]
    base = names.pop(0) if names[0] not in modifiers and not typed.startswith("+") else None
    for name in names:
        if name not in modifiers:
            raise UserError(
                f"--with {text}: {name} is no modifier, and only one encoding can be the base: "
                f"{', '.join(modifiers)} go on top of another"
            )
    return RequestedEncoding(text, base, tuple(names), tuple(options))


def _find_name(name: str, modifiers: Sequence[str], search: Sequence[Path]) -> str:
    """Return the name of an encoding's or a modifier's file."""
    if name in modifiers:
        return name
    try:
        return find_name("encoding", name, search)
    except UserError as error:
        raise UserError(f"--with: {error}") from error
