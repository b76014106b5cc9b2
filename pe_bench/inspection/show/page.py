"""An encoding in words: its docstring, its options and where they come from, what it claims."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from pe_bench.config.groups import config_dir
from pe_bench.encodings.load import NOT_OPTIONS, find_class, source_file
from pe_bench.errors import UserError
from pe_bench.inspection.resolve import Subject, parameter_count

COMMENT = re.compile(r"^(\w+): .*? # (.*)$", re.MULTILINE)
INTERPOLATION = re.compile(r"\$\{(?:(\w+):([^{},]+),)?([^{}]+)\}")
SIGNS = {"divide": "/", "quotient": "//", "times": "*"}


def page(subject: Subject, must_be_built: bool = False) -> str:
    """All that there is to say of an encoding, as text.

    Raises `UserError` for one that cannot be built where it `must_be_built`.
    """
    parts = [_part(subject, key, part) for key, part in _parts(subject)]
    title = f"{subject.label}\n{'=' * len(subject.label)}"
    return "\n\n".join([title, *parts, _facts(subject, must_be_built)]) + "\n"


def _facts(subject: Subject, must_be_built: bool) -> str:
    """What it takes to build it to know."""
    try:
        encoding = subject.encoding
    except UserError as error:  # some have options that no default could stand for
        if must_be_built:
            raise
        return f"cannot be built as it is: {error}"
    config = subject.config
    sizes = (
        f" {key}={getattr(config.model, key.removeprefix('model.'))}"
        for key in sorted(subject.given)
        if key.startswith("model.")
    )
    where = f"(model={config.model.name}{''.join(sizes)}, train.length={config.train.length})"
    return _columns(
        [
            ("parameters", f"{parameter_count(encoding):,}", where),
            ("past training", encoding.past_training),
            ("claims", ", ".join(sorted(encoding.claims)) or "none"),
        ]
    )


def _parts(subject: Subject) -> list[tuple[str, dict[str, Any]]]:
    """The encoding and its modifiers by the keys of their options, what the name stands for first."""
    config = subject.config.encoding
    modifiers = {f"encoding.modifiers.{name}": part for name, part in config.get("modifiers", {}).items()}
    parts = {"encoding": config, **modifiers}
    return sorted(parts.items(), key=lambda item: item[0] != f"encoding.modifiers.{subject.name}")


def _part(subject: Subject, key: str, part: dict[str, Any]) -> str:
    encoding_class = find_class(part["class"], subject.search)
    docstring = sys.modules[encoding_class.__module__].__doc__ or encoding_class.__doc__ or "(no docstring)"
    options = list(_options(subject, key, part))
    facts = [("family", encoding_class.family), ("file", _file(part["class"], subject.search))]
    if encoding_class.compatible_with:
        facts.append(("compatible with", ", ".join(sorted(encoding_class.compatible_with))))
    if encoding_class.changeable_after_training:
        facts.append(("changeable", ", ".join(sorted(encoding_class.changeable_after_training))))
    return "\n\n".join([docstring.strip(), *([_columns(options)] if options else []), _columns(facts)])


def _file(specification: str, search: tuple[Path, ...]) -> str:
    path = source_file(specification, search)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _options(subject: Subject, key: str, part: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Each option's key, its value, where that is from, and what it means."""
    text = _yaml(subject, key)
    usual, comments = yaml.safe_load(text) or {}, dict(COMMENT.findall(text))
    for option, value in part.items():
        if option in NOT_OPTIONS:
            continue
        if f"{key}.{option}" in subject.given:
            origin = "given"
        elif option in part.get("derived", []):
            origin = f"from {_formula(str(usual.get(option, 'the rest')))}"
        else:
            origin = "default" if usual.get(option, value) == value else f"of {subject.name}"
        yield f"{key}.{option}", _shown(value), origin, comments.get(option, "").strip()


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
    text = yaml.safe_dump(value, default_flow_style=True, width=sys.maxsize).removesuffix("...\n").strip()
    return json.dumps(value) if "\n" in text else text  # YAML breaks lines where a value has them


def _columns(lines: Sequence[tuple[str, ...]]) -> str:
    """Cells below each other, but for the last of each line, which may be long."""
    inner = [line[:-1] for line in lines]
    widths = [max(map(len, column)) for column in zip_longest(*inner, fillvalue="")]
    return "\n".join(
        "  ".join([*map(str.ljust, line, widths), last]).rstrip()
        for line, last in zip(inner, (line[-1] for line in lines), strict=True)
    )
