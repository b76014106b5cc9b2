"""An encoding in words: its docstring, its options and where they come from, what it claims."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from pe_bench.config import config_dir
from pe_bench.encodings.load import NOT_OPTIONS, find_class, source_file
from pe_bench.show.subject import Subject, parameter_count, past_training

COMMENT = re.compile(r"^(\w+): .*? # (.*)$", re.MULTILINE)
INTERPOLATION = re.compile(r"\$\{(?:(\w+):([^{},]+),)?([^{}]+)\}")
SIGNS = {"divide": "/", "quotient": "//", "times": "*"}

Line = tuple[str, str, str, str]  # key, value, where it is from, what it means


def page(subject: Subject) -> str:
    """All that there is to say of an encoding, as text."""
    encoding, config = subject.encoding, subject.config
    where = f"(model={config.model.name}, train.length={config.train.length})"
    facts = [
        f"parameters     {parameter_count(encoding):,}  {where}",
        f"past training  {past_training(encoding)}",
        f"claims         {', '.join(sorted(encoding.claims)) or 'none'}",
    ]
    parts = [_part(subject, key, part) for key, part in _parts(subject)]
    return "\n\n".join([f"{subject.label}\n{'=' * len(subject.label)}", *parts, "\n".join(facts)]) + "\n"


def _parts(subject: Subject) -> list[tuple[str, dict[str, Any]]]:
    """The encoding and its modifiers by the keys of their options, what the name stands for first."""
    modifiers = {f"encoding.modifiers.{name}": part for name, part in subject.built_from["modifiers"].items()}
    parts = {"encoding": subject.built_from, **modifiers}
    return sorted(parts.items(), key=lambda item: item[0] != f"encoding.modifiers.{subject.name}")


def _part(subject: Subject, key: str, part: dict[str, Any]) -> str:
    encoding_class = find_class(part["class"], subject.search)
    docstring = sys.modules[encoding_class.__module__].__doc__ or encoding_class.__doc__ or "(no docstring)"
    lines = [("family", encoding_class.family), ("file", _file(part["class"], subject.search))]
    facts = "\n".join(f"{title:<13}  {text}" for title, text in lines)
    options = list(_options(subject, key, part))
    return "\n\n".join([docstring.strip(), *([_columns(options)] if options else []), facts])


def _file(specification: str, search: tuple[Path, ...]) -> str:
    path = source_file(specification, search)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _options(subject: Subject, key: str, part: dict[str, Any]) -> Iterator[Line]:
    text = _yaml(subject, key)
    usual, comments = yaml.safe_load(text) or {}, dict(COMMENT.findall(text))
    said = (
        subject.config.encoding
        if key == "encoding"
        else subject.config.encoding["modifiers"][key.rpartition(".")[2]]
    )
    for option, value in part.items():
        if option in NOT_OPTIONS:
            continue
        full = f"{key}.{option}"
        if full in subject.given:
            origin = "given"
        elif said.get(option) != value:
            origin = "an example: to be given"
        elif option in (part.get("derived") or []):
            origin = f"from {_formula(str(usual.get(option, 'the rest')))}"
        elif option in usual and usual[option] != value:
            origin = f"of {subject.name}"
        else:
            origin = "default"
        yield full, _shown(value), origin, comments.get(option, "").strip()


def _yaml(subject: Subject, key: str) -> str:
    """The file that lists a part's options; empty for a class that has none."""
    group, _, name = key.removeprefix("encoding.").partition(".")
    inner = (
        f"modifier/{name}.yaml"
        if group == "modifiers"
        else f"encoding/{subject.config.encoding['name']}.yaml"
    )
    paths = [folder / inner for folder in (*subject.search, config_dir())]
    return next((path.read_text(encoding="utf-8") for path in paths if path.is_file()), "")


def _formula(text: str) -> str:
    """`${times:16,${train.length}}` as `16 * train.length`."""

    def plain(match: re.Match[str]) -> str:
        name, first, last = match.groups()
        return f"{first} {SIGNS.get(name, name)} {last}" if name else last

    while INTERPOLATION.search(text):
        text = INTERPOLATION.sub(plain, text)
    return text


def _shown(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=sys.maxsize).removesuffix("...\n").strip()


def _columns(lines: list[Line]) -> str:
    widths = [max(len(line[place]) for line in lines) for place in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]]).rstrip()
        for line in lines
    )
