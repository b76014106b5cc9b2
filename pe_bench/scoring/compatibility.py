"""Which encoding trained weights may be scored with, as the classes declare it.

An encoding whose name is another may follow what its class names in `may_follow`; the same one with other
options may where its class names them in `may_change`. Modifiers that the run was trained with stay. Where
they may follow the base themselves, they leave what the weights mean as it is; with any other modifier the
weights are those of another model, of which nothing is known.
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


def refusal(trained: dict[str, Any], encoding: dict[str, Any], search: Sequence[Path] = ()) -> str | None:
    """Why weights trained with one encoding may not be scored with the other; None where they may."""
    return next(_refusals(trained, encoding, search), None)


def _refusals(trained: dict[str, Any], encoding: dict[str, Any], search: Sequence[Path]) -> Iterator[str]:
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
        allowed = find_class(part["class"], search).may_follow
        name = first_name(part)
        if base not in allowed:
            yield f"{_after(name, allowed)}, and this run was trained with {base}{_instead(base)}"
        for modifier, one in kept.items():
            if base not in find_class(one["class"], search).may_follow:
                yield (
                    f"this run was trained with {base} and {modifier}, and nothing but {modifier}'s own "
                    f"options may change after that{_changeable(one, search)}"
                )


def _changed_options(
    name: str, before: dict[str, Any], part: dict[str, Any], search: Sequence[Path]
) -> Iterator[str]:
    trained, given = options_of(before, search), options_of(part, search)
    for option, value in given.items():
        if value != trained.get(option) and option not in find_class(part["class"], search).may_change:
            yield (
                f"this run was trained with {name} at {option}={shown(trained.get(option))}, not "
                f"{shown(value)}, and that may not change after training{_changeable(part, search)}"
            )


def _changeable(part: dict[str, Any], search: Sequence[Path]) -> str:
    names = sorted(find_class(part["class"], search).may_change)
    return f" (only {', '.join(names)} may)" if names else " (none of its options may)"


def _after(name: str, allowed: frozenset[str]) -> str:
    if not allowed:
        return f"{name} may be scored after no other encoding"
    return f"{name} may be scored after {', '.join(sorted(allowed))}"


def _instead(base: str) -> str:
    names = followers(base)
    return f", after which may come {', '.join(names)}" if names else ", after which none may come"


@cache
def followers(base: str) -> list[str]:
    """Of pe-bench's own encodings and modifiers those that may follow a base."""
    found = set()
    for path in (
        path for group in ("encoding", "modifier") for path in (config_dir() / group).glob("*.yaml")
    ):
        specification = yaml.safe_load(path.read_text(encoding="utf-8")).get("class")
        if specification and base in find_class(specification).may_follow:
            found.add(path.stem)
    return sorted(found)
