"""Which encodings trained weights may be scored with, as the classes declare it.

An encoding works on weights of the encodings that its class names in `compatible_with`. Where the class stays
the same, only the options that it names in `changeable_after_training` may differ; of an option that holds
another encoding the same is true of that one. Modifiers that the run was
trained with stay. If they are compatible with the base themselves, the weights mean what they mean without
them; any other modifier makes them weights of another model, about which nothing is known.
"""

from collections.abc import Iterator
from functools import cache

import yaml

from pe_bench.config.groups import config_dir
from pe_bench.encodings.load import find_class
from pe_bench.encodings.spec import EncodingSpec, PartSpec
from pe_bench.values import shown


def incompatibility(trained: EncodingSpec, encoding: EncodingSpec) -> str | None:
    """Return why weights trained with one encoding may not be scored with the other; None if they may."""
    return next(_incompatibilities(trained, encoding), None)


def _incompatibilities(trained: EncodingSpec, encoding: EncodingSpec) -> Iterator[str]:
    base, kept = trained.base.name, trained.modifiers
    added = [part for name, part in encoding.modifiers.items() if name not in kept]
    replaced = [encoding.base] if _has_other_class(trained.base, encoding.base) else []
    for name, before, part in [
        (base, trained.base, encoding.base),
        *((name, modifier, encoding.modifiers[name]) for name, modifier in kept.items()),
    ]:
        if not _has_other_class(before, part):
            yield from _changed_options(name, before, part)
    for part in replaced + added:
        compatible = part.encoding_class.compatible_with
        if base not in compatible:
            yield f"{_works_on(part.name, compatible)}; this run used {base} {_alternatives(base)}"
        for name, modifier in kept.items():
            if base not in modifier.encoding_class.compatible_with:
                yield (
                    f"this run was trained with {base} and {name}, and on such weights only {name}'s options "
                    f"may change {_changeable(modifier)}"
                )


def _has_other_class(before: PartSpec, part: PartSpec) -> bool:
    return part.values["class"] != before.values["class"]


def _changed_options(name: str, before: PartSpec, part: PartSpec) -> Iterator[str]:
    held, holds = before.nested, part.nested
    for option, value in part.options.items():
        old = before.options.get(option)
        if value == old or option in part.encoding_class.changeable_after_training:
            continue
        if option in held and option in holds:
            for reason in _incompatibilities(held[option], holds[option]):
                yield f"{option}: {reason}"
        else:
            yield (
                f"this run was trained with {name} {option}={shown(old)}, and {option} "
                f"cannot change to {shown(value)} after training {_changeable(part)}"
            )


def _changeable(part: PartSpec) -> str:
    names = sorted(part.encoding_class.changeable_after_training)
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
