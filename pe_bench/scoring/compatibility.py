"""Which encodings trained weights may be scored with, as the classes declare it.

An encoding works on weights of the encodings that its class names in `compatible_with`. Where the class stays
the same, only the options that it names in `changeable_after_training` may differ. Modifiers that the run was
trained with stay. If they are compatible with the base themselves, the weights mean what they mean without
them; any other modifier makes them weights of another model, about which nothing is known.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pe_bench.config.groups import config_dir
from pe_bench.encodings.identity import first_name
from pe_bench.encodings.load import find_class, options_of
from pe_bench.values import shown


def incompatibility(
    trained: dict[str, Any], encoding: dict[str, Any], search: Sequence[Path] = ()
) -> str | None:
    """Return why weights trained with one encoding may not be scored with the other; None if they may."""
    return next(_incompatibilities(trained, encoding, search), None)


def _incompatibilities(
    trained: dict[str, Any], encoding: dict[str, Any], search: Sequence[Path]
) -> Iterator[str]:
    base, kept = first_name(trained), trained.get("modifiers") or {}
    modifiers = encoding.get("modifiers") or {}
    added = {name: part for name, part in modifiers.items() if name not in kept}
    replaced = encoding["class"] != trained["class"]
    for name, before, part in [
        (base, trained, encoding),
        *((name, part, modifiers[name]) for name, part in kept.items()),
    ]:
        if part["class"] == before["class"]:
            yield from _changed_options(name, before, part, search)
    for part in ([encoding] if replaced else []) + list(added.values()):
        compatible = find_class(part["class"], search).compatible_with
        if base not in compatible:
            yield f"{_works_on(first_name(part), compatible)}; this run used {base} {_alternatives(base)}"
        for name, modifier in kept.items():
            if base not in find_class(modifier["class"], search).compatible_with:
                yield (
                    f"this run was trained with {base} and {name}, and on such weights only {name}'s options "
                    f"may change {_changeable(modifier, search)}"
                )


def _changed_options(
    name: str, before: dict[str, Any], part: dict[str, Any], search: Sequence[Path]
) -> Iterator[str]:
    trained, given = options_of(before, search), options_of(part, search)
    changeable = find_class(part["class"], search).changeable_after_training
    for option, value in given.items():
        if value != trained.get(option) and option not in changeable:
            yield (
                f"this run was trained with {name} {option}={shown(trained.get(option))}, and {option} "
                f"cannot change to {shown(value)} after training {_changeable(part, search)}"
            )


def _changeable(part: dict[str, Any], search: Sequence[Path]) -> str:
    names = sorted(find_class(part["class"], search).changeable_after_training)
    return f"(changeable: {', '.join(names) or 'none'})"


def _works_on(name: str, compatible: frozenset[str]) -> str:
    if not compatible:
        return f"{name} works on no other encoding's weights"
    *others, last = sorted(compatible)
    return f"{name} works on weights trained with {', '.join(others)}{' or ' if others else ''}{last}"


def _alternatives(base: str) -> str:
    return f"(compatible: {', '.join(compatible_encodings(base)) or 'none'})"


@cache
def compatible_encodings(base: str) -> list[str]:
    """Return the names of pe-bench's own encodings and modifiers that work on weights of a base."""
    found = set()
    for path in (
        path for group in ("encoding", "modifier") for path in (config_dir() / group).glob("*.yaml")
    ):
        specification = yaml.safe_load(path.read_text(encoding="utf-8")).get("class")
        if specification and base in find_class(specification).compatible_with:
            found.add(path.stem)
    return sorted(found)
