"""The facts of `list encodings`. Every encoding is built, because its facts follow from its options."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pe_bench.encodings
from pe_bench.config.compose import compose, resolve_encodings
from pe_bench.config.groups import aliases, description, names_in, paper
from pe_bench.config.parse import parse_config
from pe_bench.encodings.base import FAMILIES, Declared
from pe_bench.inspection.resolve import ResolvedEncoding, parameter_count

PACKAGE = Path(pe_bench.encodings.__file__).parent


def shipped(overrides: Sequence[str] = (), names: Sequence[str] | None = None) -> list[ResolvedEncoding]:
    """Return encodings of pe-bench, in the tiny model unless overrides choose another model.

    names: by default those of all encodings.
    """
    if names is None:
        names = names_in("encoding")
    config = parse_config(compose(overrides))
    encodings = resolve_encodings(names, config)
    subjects = [
        ResolvedEncoding(name, replace(config, encoding=values)) for name, values in encodings.items()
    ]
    return [subject.with_examples() for subject in subjects]


def families() -> list[str]:
    """Return the families of all encodings of pe-bench, without building an encoding."""
    folders = [path for path in PACKAGE.iterdir() if any(path.glob("*.py"))]
    names = [FAMILIES.get(folder.name, folder.name) for folder in folders]
    return sorted({Declared.family, *names})


def catalogue(subjects: Sequence[ResolvedEncoding] = ()) -> list[dict[str, Any]]:
    """Return the facts and aliases of each encoding. subjects: the encodings; by default all of pe-bench."""
    modifiers = names_in("modifier")
    first_names = aliases()
    rows = []
    for subject in subjects or shipped():
        others = sorted(alias for alias, first in first_names.items() if first == subject.name)
        rows.append({**_facts(subject), "modifier": subject.name in modifiers, "aliases": others})
    return rows


def paper_of(subject: ResolvedEncoding) -> str:
    """Return the paper that an encoding's file names, or else its class."""
    return paper(subject.name) or _class_of_last_part(subject).paper


def _class_of_last_part(subject: ResolvedEncoding) -> type[Declared]:
    """Return the class that declares an encoding's family and paper: its last modifier's, or its own."""
    parts = [subject.spec.base, *subject.spec.modifiers.values()]
    return parts[-1].encoding_class


def _facts(subject: ResolvedEncoding) -> dict[str, Any]:
    """Return the facts of an encoding, by the names of their columns."""
    names = [subject.spec.values["name"], *subject.spec.modifiers]
    return {
        "encoding": subject.name,
        "family": _class_of_last_part(subject).family,
        "parameters": parameter_count(subject.encoding),
        "what_it_is": description("encoding", subject.name),
        "past_training": subject.encoding.past_training,
        "paper": paper_of(subject),
        "label": "+".join(names),
    }
